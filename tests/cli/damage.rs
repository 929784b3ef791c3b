use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::geteuid;
use rlock::clock::Boot;

use super::Stage;
use super::directory::{UNTIL_GO, stage_with_go};
use crate::rlock::{Cmd, until};

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

    fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &how]).arg(self.path()).status().unwrap().success());
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

const RLOCK: &str = env!("CARGO_BIN_EXE_rlock");

#[test]
fn a_limit_of_file_sizes_is_one_line_and_breaks_no_record() {
    let stage = stage_with_go();
    let limited = |wait: &[&str]| {
        let run = [&["--fsize=512", RLOCK, "run", "-k", "job"], wait, &["--", "touch", "ran"]].concat();
        stage.through("prlimit", &run).done()
    };
    limited(&["-n"]).says(78, &[&stage.url(), "File too large", "ulimit -f"]);
    let holder = stage.run("job", &UNTIL_GO).start();
    let held = stage.held("job");
    // Its record would be larger than the limit: what is written of it is cut off in the middle.
    for _ in 0..3 {
        limited(&["-w", "20s"]).says(78, &["ulimit -f"]);
        assert_eq!(stage.held("job").id, held.id);
    }
    limited(&["-n"]).says(75, &["`job`"]);
    fs::write(stage.path("go"), "x\n").unwrap();
    holder.done().is(0, "");
    stage.run("job", &["-n", "--", "true"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
}

#[test]
fn too_few_descriptors_are_one_line_and_sixteen_are_enough() {
    let stage = Stage::new();
    let mut codes = Vec::new();
    for most in 9..=16 {
        // What the tests are run with must not count.
        let line = format!(
            "for fd in $(seq 3 15); do eval \"exec $fd>&-\"; done; ulimit -n {most}; exec {RLOCK} run -k job -n -- echo in"
        );
        let done = stage.through("bash", &["-c", &line]).done();
        let code = done.status.code().unwrap();
        codes.push(code);
        if code == 0 {
            done.is(0, "in\n");
        } else {
            done.says(code, &["Too many open files", "ulimit"]);
        }
        assert!(!stage.is_held("job"));
    }
    assert!(codes.iter().all(|code| [0, 71, 78].contains(code)) && codes.ends_with(&[0]), "{codes:?}");
}

#[test]
fn on_a_file_system_that_became_read_only_one_can_look_and_the_command_ends_with_its_lease() {
    let Some(disk) = Disk::mount() else { return };
    let stage = Stage::new();
    let url = format!("local:{}", disk.path().join("locks").display());
    let rlock = |args: &[&str]| stage.rlock(args).env("RLOCK_URL", &url);
    let holder = rlock(&["run", "-k", "job", "--ttl", "2s", "--", "sh", "-c", "echo in > in; exec sleep 100"]).start();
    stage.written("in");
    disk.remount("ro");
    rlock(&["run", "-k", "job", "-n", "--", "touch", "ran"]).done().says(78, &[&url, "Read-only", "its mount"]);
    let done = rlock(&["inspect", "job"]).done().code(0);
    assert!(done.stdout.contains("held by"), "{done:?}");
    holder.done().says(79, &["`job`", "lease", "Read-only"]);
    disk.remount("rw");
    rlock(&["run", "-k", "job", "-n", "--", "true"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
}

/// A directory that a program brings, as sshfs does; this one has nothing in it. None where that is not allowed.
struct Brought {
    dir: tempfile::TempDir,
    serving: Option<JoinHandle<()>>,
}

impl Brought {
    fn mount(kind: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok();
        let mount = device.as_ref().and_then(|device| {
            let mut mount = Command::new("mount");
            mount.args(["-i", "-t", kind, "-o", "fd=0,rootmode=40700,user_id=0,group_id=0", "none"]).arg(dir.path());
            let done = mount.stdin(device.try_clone().unwrap()).stderr(Stdio::null()).status().unwrap();
            done.success().then_some(())
        });
        if mount.is_none() {
            println!("left out: only root can mount, where mounts and /dev/fuse are allowed");
            return None;
        }
        let serving = std::thread::spawn(move || serve(device.unwrap()));
        Some(Self { dir, serving: Some(serving) })
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
        self.serving.take().unwrap().join().unwrap();
    }
}

/// Answers the kernel until it is unmounted: what the directory is, and that nothing is in it.
fn serve(mut device: File) {
    const GETATTR: u32 = 3;
    const STATFS: u32 = 17;
    const INIT: u32 = 26;
    const NO_ANSWER: [u32; 2] = [2, 42];
    let mut buffer = vec![0; 1 << 17];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(_) => continue,
        };
        let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
        assert!(length >= 40);
        let mut body = Vec::new();
        let mut error = 0;
        match word(4) {
            INIT => body.extend([7_u32, 31].into_iter().flat_map(u32::to_ne_bytes).chain([0; 56])),
            // Valid for no time; then inode, size, blocks, three times with their parts of a second, mode, links, owner.
            GETATTR => {
                body.extend([0; 16]);
                body.extend([1_u64, 0, 0, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes));
                body.extend([0_u32, 0, 0, 0o40700, 2, 0, 0, 0, 4096, 0].into_iter().flat_map(u32::to_ne_bytes));
            }
            STATFS => body.extend([0; 80]),
            code if NO_ANSWER.contains(&code) => continue,
            _ => error = -libc::ENOENT,
        }
        let total = u32::try_from(16 + body.len()).unwrap();
        let head = [total.to_ne_bytes(), error.to_ne_bytes()].concat();
        // It fails where the one who asked was killed.
        let _ = device.write(&[&head, &buffer[8..16], &body].concat());
    }
}

#[test]
fn a_directory_that_other_hosts_may_have_too_is_refused() {
    let Some(brought) = Brought::mount("fuse.sshfs") else { return };
    let stage = Stage::new();
    let url = format!("local:{}", brought.dir.path().display());
    for args in [&["run", "-k", "job", "--", "touch", "ran"][..], &["list"], &["inspect", "job"]] {
        stage.rlock(args).env("RLOCK_URL", &url).done().says(78, &[&url, "fuse.sshfs", "local disk, or a server"]);
    }
    assert!(!stage.path("ran").exists());
}

#[test]
fn what_else_a_directory_can_be_is_one_line_at_once() {
    let stage = Stage::new();
    let long = format!("/{}", "x".repeat(300));
    for (path, words) in [
        ("/dev/null/locks", "`null` is not a directory"),
        (&long, "name a shorter one"),
        ("/proc/1/root/tmp/locks", "`root` is a symbolic link"),
    ] {
        let url = format!("local:{path}");
        stage.run("job", &["--", "touch", "ran"]).env("RLOCK_URL", &url).done().says(78, &[words]);
    }
    stage.run("job", &["--", "true"]).done().is(0, "");
    let folder = stage.place.path().join("keys/job");
    fs::remove_dir_all(&folder).unwrap();
    for is_link in [false, true] {
        if is_link {
            symlink("/tmp", &folder).unwrap();
        } else {
            fs::write(&folder, "").unwrap();
        }
        stage.run("job", &["--", "touch", "ran"]).done().says(78, &["cannot open a key's directory", "remove that"]);
        fs::remove_file(&folder).unwrap();
    }
    stage.run("job", &["--", "true"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
}
