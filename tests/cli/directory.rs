use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, mkfifo};
use rlock::clock::Boot;

use super::Stage;
use crate::rlock::{Cmd, children, is_alive, until};

/// A holder that ends when something is written to `go`.
const UNTIL_GO: [&str; 4] = ["--", "sh", "-c", "read x < go"];

fn stage_with_go() -> Stage {
    let stage = Stage::new();
    mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    stage
}

#[test]
fn a_waiter_that_was_killed_at_the_head_costs_the_next_next_to_nothing() {
    // How long a hand-over takes, with this many killed right before it.
    let took = |dead: usize| {
        let stage = stage_with_go();
        let holder = stage.run("job", &UNTIL_GO).start();
        stage.held("job");
        let killed: Vec<_> = (1..=dead)
            .map(|at| {
                let waiter = stage.run("job", &["--", "touch", "wrong"]).start();
                stage.waiting("job", at);
                waiter
            })
            .collect();
        let next = stage.run("job", &["--", "sh", "-c", "echo next > next"]).start();
        stage.waiting("job", dead + 1);
        for waiter in &killed {
            waiter.signal(Signal::SIGKILL);
        }
        let freed = Boot::now();
        fs::write(stage.path("go"), "x\n").unwrap();
        stage.written("next");
        let took = Boot::now().since(freed);
        holder.done().code(0);
        next.done().code(0);
        assert!(!stage.path("wrong").exists());
        took
    };
    let (without, with, ten) = (took(0), took(1), took(10));
    println!("handed over in {without:?}, past a dead waiter in {with:?}, past ten in {ten:?}");
    assert!(with < Duration::from_millis(700) && ten < Duration::from_millis(900), "{with:?} {ten:?}");
}

#[test]
fn when_the_holding_rlock_is_killed_its_tree_is_dead_first_and_the_next_runs_at_once() {
    let stage = Stage::new();
    let line = "echo $$ > first; trap '' TERM; sh -c 'echo $$ > child; while :; do sleep 0.01; done' & \
                setsid sh -c 'echo $$ > session; while :; do sleep 0.01; done' & while :; do sleep 0.01; done";
    let holder = stage.run("job", &["--ttl", "1h", "--", "sh", "-c", line]).start();
    let pids = ["first", "child", "session"].map(|name| stage.written(name)).join(" ");
    let next = format!(
        "for pid in {pids}; do grep -qs '^State:.[^ZX]' /proc/$pid/status && echo overlap $pid; done; echo in > in"
    );
    let next = stage.run("job", &["--", "sh", "-c", &next]).start();
    stage.waiting("job", 1);
    let killed = Boot::now();
    holder.signal(Signal::SIGKILL);
    stage.written("in");
    let took = Boot::now().since(killed);
    println!("the next ran {took:?} after the kill");
    assert!(took < Duration::from_secs(1), "{took:?}");
    next.done().is(0, "");
}

#[test]
fn a_condemned_holder_hears_of_it_within_a_second() {
    let stage = Stage::new();
    let line = "trap 'echo TERM > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let holder = stage.run("job", &["--ttl", "1h", "--", "sh", "-c", line]).start();
    stage.written("pid");
    let told = Boot::now();
    let release = stage.rlock(["force-release", "job", "--yes"]).start();
    stage.written("got");
    let took = Boot::now().since(told);
    assert!(took < Duration::from_secs(1), "{took:?}");
    release.done().code(0);
    holder.done().tells(79, &["force-release"]);
}

/// The command of a victim: it notes whether it is alone, as the kernel tells it, and is inside for a moment.
const INSIDE: &str = "exec 9>>judge; if flock -n 9; then s=alone; else s=OTHER; fi; echo $RLOCK_TOKEN $s >> log; \
                      read -t 0.00$((RANDOM % 10)) x <> never; exit 0";

fn kill_all<'a>(pids: impl IntoIterator<Item = &'a String>, signal: Signal) {
    for pid in pids {
        // It fails only for those that have ended by themselves.
        let _ = kill(Pid::from_raw(pid.parse().unwrap()), signal);
    }
}

/// Kills rlock, its keeper and everything below. The first two are stopped where they are, so that nothing is started
/// meanwhile, and die last: what is below them could outlive both by a moment.
fn kill_whole_tree(rlock: &String, keepers: &[String]) {
    let both = || keepers.iter().chain([rlock]);
    kill_all(both(), Signal::SIGSTOP);
    until("what is below is dead", || {
        let mut below: Vec<String> = keepers.iter().flat_map(|keeper| children(keeper)).collect();
        for at in 0.. {
            let Some(pid) = below.get(at).cloned() else { break };
            below.extend(children(&pid));
        }
        below.retain(|pid| is_alive(pid));
        kill_all(&below, Signal::SIGKILL);
        below.is_empty().then_some(())
    });
    kill_all(both(), Signal::SIGKILL);
}

#[test]
fn a_thousand_killed_trees_leave_neither_two_holders_nor_a_wedged_key() {
    const KILLS: usize = 1_000;
    let stage = Stage::new();
    mkfifo(&stage.path("never"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let kills = AtomicUsize::new(0);
    let victim = |command: Cmd, seed: u64| {
        let run = command.start();
        let rlock = run.pid().to_string();
        let wait = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        std::thread::sleep(Duration::from_micros(wait % 200_000));
        let keepers = children(&rlock);
        match seed % 4 {
            0 => kill_all([&rlock], Signal::SIGKILL),
            1 => kill_all(&keepers, Signal::SIGKILL),
            _ => kill_whole_tree(&rlock, &keepers),
        }
        kills.fetch_add(1, Ordering::Relaxed);
        run.ended();
    };
    std::thread::scope(|scope| {
        for worker in 0..8_u64 {
            let (kills, victim, stage) = (&kills, &victim, stage.starter());
            scope.spawn(move || {
                let mut turn = 0;
                while kills.load(Ordering::Relaxed) < KILLS {
                    turn += 1;
                    // No number is used twice, and each worker kills in every way.
                    let seed = turn * 9 + worker;
                    victim(stage.run("job", &["-q", "--ttl", "1h", "--", "bash", "-c", INSIDE]), seed);
                }
            });
        }
    });
    let began = Boot::now();
    stage.run("job", &["-w", "20s", "--", "bash", "-c", INSIDE]).done().is(0, "");
    let lines = stage.lines("log");
    println!("{} killed, {} were inside, free after {:?}", kills.into_inner(), lines.len(), Boot::now().since(began));
    assert!(lines.len() > 100, "hardly any was inside");
    let mut last = 0;
    for line in &lines {
        let (token, saw) = line.split_once(' ').unwrap();
        let token: u64 = token.parse().unwrap();
        assert!(token > last, "numbers go back: {last}, {token}");
        assert_eq!(saw, "alone", "{token} came in after {last}, and another was inside");
        last = token;
    }
}

/// A small file system, mounted for one test; none where that is not allowed.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "rlock-test"]).arg(dir.path()).stderr(Stdio::null());
        if !geteuid().is_root() || !mount.status().unwrap().success() {
            println!("left out: only root can mount a small disk, where mounts are allowed");
            return None;
        }
        Some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no room on it.
    fn fill(&self) {
        let mut file = fs::File::create(self.path().join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[b'x'; 512]).is_ok() {}
    }

    fn clear(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_stops_no_running_command_and_wedges_no_key() {
    let Some(disk) = Disk::mount() else { return };
    let stage = stage_with_go();
    let url = format!("local:{}", disk.path().join("locks").display());
    let run = |key: &str, args: &[&str]| stage.run(key, args).env("RLOCK_URL", &url);
    let holder =
        run("job", &["--ttl", "2s", "--report", "report", "--", "sh", "-c", "echo in > in; read x < go"]).start();
    stage.written("in");
    disk.fill();
    let full = |command: Cmd| command.done().says(69, &["the disk is full", &url]);
    full(run("other", &["--store-timeout", "300ms", "-n", "--", "touch", "ran"]));
    let end = Boot::now() + Duration::from_secs(5);
    until("two leases are over", || (Boot::now() >= end).then_some(()));
    run("job", &["-n", "--", "touch", "ran"]).done().code(75);
    // A release needs no room.
    fs::write(stage.path("go"), "x\n").unwrap();
    holder.done().is(0, "");
    stage.rlock(["inspect", "job"]).env("RLOCK_URL", &url).done().code(1);
    run("job", &["-n", "--", "true"]).done().is(0, "");
    disk.clear();
    run("other", &["-n", "--", "true"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_directory_that_is_removed_while_it_is_held_and_waited_for_changes_nothing() {
    let stage = stage_with_go();
    let judge = |name: &str| {
        format!("mkdir inside || echo OVERLAP; echo {name} $RLOCK_TOKEN >> order; read x < go; rmdir inside")
    };
    let holder = stage.run("job", &["-v", "--ttl", "1h", "--", "sh", "-c", &judge("first")]).start();
    let held = stage.held("job");
    let waiter = stage.run("job", &["-q", "--", "sh", "-c", &judge("second")]).start();
    stage.waiting("job", 1);
    until("the first is inside", || (stage.lines("order").len() == 1).then_some(()));
    for _ in 0..3 {
        fs::remove_dir_all(stage.place.path()).unwrap();
        let removed = Boot::now();
        let again = stage.held("job");
        let took = Boot::now().since(removed);
        println!("taken again after {took:?}");
        assert_eq!((again.id, again.number), (held.id, held.number));
        stage.waiting("job", 1);
    }
    fs::write(stage.path("go"), "x\n").unwrap();
    until("the second is inside", || (stage.lines("order").len() == 2).then_some(()));
    fs::write(stage.path("go"), "x\n").unwrap();
    let done = holder.done().code(0);
    assert!(done.stderr.contains("taken again") && done.stdout.is_empty(), "{done:?}");
    waiter.done().is(0, "");
    let order = stage.lines("order");
    assert!(order[0].starts_with("first ") && order[1].starts_with("second "), "{order:?}");
}

#[test]
fn a_directory_that_rlock_may_not_use_is_78_and_one_line() {
    let stage = Stage::new();
    let root = stage.place.path();
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let name = stage.url();
    stage.run("job", &["--", "touch", "ran"]).done().says(78, &[&name, "chmod 700"]);
    stage.rlock(["list"]).done().says(78, &[&name, "chmod 700"]);
    fs::remove_dir(&root).unwrap();
    std::os::unix::fs::symlink(stage.dir.path(), &root).unwrap();
    stage.run("job", &["--", "touch", "ran"]).done().says(78, &[&name, "symbolic link"]);
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_claim_of_another_boot_is_over() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "2s", "--", "sleep", "100"]).start();
    let held = stage.held("job");
    let folder = stage.place.path().join("keys/job");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for name in ["a", "b"] {
        // The sum is not right then, which is what a power cut can leave: such a record does not count either.
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        fs::write(folder.join(name), text.replace(boot.trim(), "another")).unwrap();
    }
    let token: u64 = {
        let done = stage.run("job", &["-n", "--", "sh", "-c", "echo $RLOCK_TOKEN"]).done().code(0);
        done.stdout.trim().parse().unwrap()
    };
    assert!(token > held.number);
    drop(holder);
}

/// Runs a script as root in a mount namespace of its own, with a /run of its own and a user with a home, called tom.
/// None where that is not allowed.
fn in_a_world_of_its_own(script: &str) -> Option<(i32, String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_rlock"), dir.path().join("rlock")).unwrap();
    let mut users = fs::read_to_string("/etc/passwd").unwrap();
    let _ = writeln!(users, "tom:x:54321:54321::{at}/tom:/bin/sh");
    fs::write(dir.path().join("passwd"), users).unwrap();
    let set_up = format!(
        "set -e; mount -t tmpfs -o mode=755 none /run; mount --bind {at}/passwd /etc/passwd; mkdir {at}/tom; \
         chown 54321:54321 {at}/tom; cd {at}; echo ready > ready; set +e; \
         as_tom() {{ setpriv --reuid=54321 --regid=54321 --clear-groups -- \"$@\"; }}; "
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &(set_up + script)]);
    command.env_remove("RLOCK_URL").env("RLOCK_CONFIG", "/dev/null").stdin(Stdio::null());
    let output = command.output().unwrap();
    if !dir.path().join("ready").exists() {
        println!("left out: only root can mount another /run, where mounts are allowed");
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&at.to_string(), "");
    Some((output.status.code().unwrap(), text(&output.stdout), text(&output.stderr)))
}

const NOTICE: &str = "rlock: no store is configured: locking on this host alone, in local:";

#[test]
fn with_nothing_configured_it_locks_in_the_users_own_directory_and_says_so() {
    let script = "./rlock run -k job -- echo hi; HOME=/elsewhere as_tom ./rlock run -k job -- echo ho; \
                  stat -c '%a %U' /run/rlock tom/.local/state/rlock; find . -name elsewhere; \
                  RLOCK_URL=local: ./rlock run -k job -- echo silent";
    let Some((code, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!((code, out.as_str()), (0, "hi\nho\n700 root\n700 tom\nsilent\n"), "{err}");
    let lines: Vec<_> = err.lines().collect();
    let [root, tom] = lines[..] else { panic!("{err}") };
    for (line, directory) in [(root, "/run/rlock;"), (tom, "/tom/.local/state/rlock;")] {
        assert!(line.starts_with(&format!("{NOTICE}{directory}")) && line.contains("RLOCK_URL=local:"), "{line}");
    }
}

#[test]
fn two_users_do_not_meet_and_neither_gets_into_the_others_directory() {
    let script = "export RLOCK_URL=local:; \
        ./rlock run -k job -- setpriv --reuid=54321 --regid=54321 --clear-groups ./rlock run -k job -n -- echo both; \
        as_tom ./rlock run --url local:/run/rlock -k job -- echo WRONG; echo $?; \
        ./rlock run --url local:$PWD/tom/.local/state/rlock -k job -- echo WRONG; echo $?; \
        as_tom ./rlock list; as_tom ./rlock inspect job; echo $?";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "both\n78\n78\njob\n  free\n1\n", "{err}");
    let lines: Vec<_> = err.lines().collect();
    let [tom, root] = lines[..] else { panic!("{err}") };
    assert!(tom.starts_with("rlock: local:/run/rlock: "), "{tom}");
    assert!(root.contains("belongs to tom, not to root"), "{root}");
}

#[test]
fn a_user_without_a_home_is_told_what_to_write() {
    let script = "sed -i '/^tom/d' passwd; umount /etc/passwd; mount --bind passwd /etc/passwd; \
                  RLOCK_URL=local: as_tom ./rlock run -k job -- echo WRONG; echo $?; \
                  mkdir -m 700 own; chown 54321 own; RLOCK_URL=local:$PWD/own as_tom ./rlock run -k job -- echo hi";
    let Some((_, out, err)) = in_a_world_of_its_own(script) else { return };
    assert_eq!(out, "78\nhi\n", "{err}");
    assert!(
        err.starts_with("rlock: local: user 54321 is in no password database") && err.contains("local:/path"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_claim_is_not_passed_on_to_the_command() {
    let stage = Stage::new();
    let line = "echo $$ > pid; for fd in /proc/$$/fd/*; do readlink $fd; done > fds; echo end >> fds; read x < never";
    mkfifo(&stage.path("never"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = stage.run("job", &["--", "sh", "-c", line]).start();
    until("its descriptors are listed", || stage.lines("fds").contains(&"end".to_owned()).then_some(()));
    let held = stage.held("job").id.to_string();
    let links = |pid: &str| -> Vec<String> {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        fds.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.display().to_string())).collect()
    };
    let rlock = run.pid().to_string();
    let keeper = &children(&rlock)[0];
    for pid in [&rlock, keeper] {
        assert!(links(pid).iter().any(|link| link.ends_with(&held)), "{pid} does not keep it: {:?}", links(pid));
    }
    assert!(!stage.lines("fds").iter().any(|link| link.contains(&held)), "{:?}", stage.lines("fds"));
    assert!(is_alive(&stage.written("pid")));
}

#[test]
fn replicas_are_asked_for_in_vain() {
    let stage = Stage::new();
    stage.run("job", &["--wait-replicas", "1", "--", "true"]).done().says(78, &["local:", "--wait-replicas"]);
    stage.run("job", &["--wait-replicas", "0", "--", "true"]).done().is(0, "");
}
