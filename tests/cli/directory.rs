use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkfifo};
use rlock::clock::Boot;

use super::Stage;
use crate::rlock::{Cmd, Running, children, is_alive, state, until};

/// A holder that ends when something is written to `go`.
pub(super) const UNTIL_GO: [&str; 4] = ["--", "sh", "-c", "read x < go"];

pub(super) fn stage_with_go() -> Stage {
    let stage = Stage::new();
    mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    stage
}

/// So often a time is taken, and the median counts: others use this machine too.
const TRIES: usize = 11;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    println!("{times:?}");
    times[times.len() / 2]
}

/// How long a hand-over takes, with this many waiters killed right before it.
fn hand_over(dead: usize) -> Duration {
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
}

#[test]
fn a_waiter_that_was_killed_at_the_head_costs_the_next_at_most_50_ms() {
    // In turn, so that whatever else the machine does is in all of them.
    let took: Vec<_> = (0..TRIES).map(|_| [0, 1, 10].map(hand_over)).collect();
    let [without, one, ten] = [0, 1, 2].map(|at| median(took.iter().map(|times| times[at]).collect()));
    println!("handed over in {without:?}, past a dead waiter in {one:?}, past ten in {ten:?}");
    assert!(one <= without + Duration::from_millis(50), "{one:?} instead of {without:?}");
    assert!(ten <= without + Duration::from_millis(500), "{ten:?} instead of {without:?}");
}

/// How long after the SIGKILL of the holding rlock the next command runs, which looks whether any of the tree is alive.
fn passed_on() -> Duration {
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
    next.done().is(0, "");
    took
}

#[test]
fn when_the_holding_rlock_is_killed_its_tree_is_dead_first_and_the_next_runs_within_200_ms() {
    let took = median((0..TRIES).map(|_| passed_on()).collect());
    assert!(took <= Duration::from_millis(200), "{took:?}");
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

/// Stops the process right after it has locked a key's directory for the time that `STOP_AT` says. It only chooses the
/// instant: the lock and the stop are the kernel's.
const STOPPER: &str = r#"
    #include <signal.h>
    #include <stdlib.h>
    #include <sys/file.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int taken;
    int flock(int fd, int how) {
        int failed = syscall(SYS_flock, fd, how);
        const char *at = getenv("STOP_AT");
        if (!failed && !(how & LOCK_UN) && at && ++taken == atoi(at)) raise(SIGSTOP);
        return failed;
    }
"#;

/// A run that is stopped when it has locked the directory for the time `at`.
fn stopped_at(stage: &Stage, at: u32, args: &[&str]) -> Running {
    let (source, library) = (stage.path("stopper.c"), stage.path("stopper.so"));
    fs::write(&source, STOPPER).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success(), "cc, which rustc links with");
    let run = stage.rlock(args).env("LD_PRELOAD", library).env("STOP_AT", at.to_string()).start();
    let pid = run.pid().to_string();
    until("it is stopped", || (state(&pid) == Some('T')).then_some(()));
    // A list that others change while it is read can lack a line.
    until("it has a lock", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.split_whitespace().nth(4) == Some(&pid)).then_some(())
    });
    run
}

#[test]
fn a_waiter_and_a_look_that_are_stopped_in_the_middle_hold_nobody_up() {
    let stage = stage_with_go();
    let holder = stage.run("job", &UNTIL_GO).start();
    stage.held("job");
    let waiter = stopped_at(&stage, 1, &["run", "-q", "-k", "job", "--", "sh", "-c", "echo in > in"]);
    let looker = stopped_at(&stage, 1, &["inspect", "job"]);
    stage.run("job", &["-q", "-n", "--store-timeout", "1s", "--", "touch", "wrong"]).done().is(75, "");
    let done = looker.done().code(0);
    assert!(done.stdout.contains("held by"), "{done:?}");
    stage.waiting("job", 1);
    fs::write(stage.path("go"), "x\n").unwrap();
    holder.done().is(0, "");
    waiter.done().is(0, "");
    assert!(stage.path("in").exists() && !stage.path("wrong").exists());
}

#[test]
fn a_holder_that_is_stopped_in_the_middle_of_a_renewal_keeps_the_key_no_longer_than_its_lease() {
    let stage = Stage::new();
    let line = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let holder = stopped_at(&stage, 2, &["run", "-k", "job", "--ttl", "2s", "--", "sh", "-c", line]);
    let pid = stage.written("pid");
    until("its keeper has killed the tree", || (!is_alive(&pid)).then_some(()));
    // Nobody has asked since: it is still stopped, and has the directory's lock.
    assert_eq!(state(&holder.pid().to_string()), Some('T'));
    let asked = Boot::now();
    stage.run("job", &["-q", "-w", "5s", "--", "true"]).done().is(0, "");
    let took = Boot::now().since(asked);
    assert!(took < Duration::from_secs(4), "{took:?}");
    holder.done().tells(79, &["`job`", "lease"]);
    assert!(!stage.is_held("job"));
}

#[test]
fn a_holder_that_is_stopped_in_the_middle_of_a_renewal_goes_on_when_somebody_asks() {
    let stage = stage_with_go();
    let holder = stopped_at(&stage, 2, &["run", "-k", "job", "--ttl", "6s", "--", "sh", "-c", "read x < go"]);
    stage.run("job", &["-q", "-n", "--", "touch", "wrong"]).done().is(75, "");
    until("it goes on", || (state(&holder.pid().to_string()) != Some('T')).then_some(()));
    fs::write(stage.path("go"), "x\n").unwrap();
    holder.done().is(0, "");
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
