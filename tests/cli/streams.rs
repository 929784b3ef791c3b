use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::process::Stdio;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::Stage;
use crate::rlock::{PATIENCE, within};

#[test]
fn streams_may_be_closed() {
    let stage = Stage::new();
    let holder = stage.run("held", &["--", "sleep", "100"]).start();
    stage.held("held");
    let runs = |line: &str| stage.through("sh", &["-c", line]).done();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let run = |words: &str| runs(&format!("exec \"$R\" run {words} {closed}"));
        run("-k job --report report -- sh -c 'exit 3'").code(3);
        run("-k job -- /no/such").code(127);
        run("-k held -n -- true").code(75);
        run("-k held -w 1200ms -- true").code(75);
        // Nothing of ours has taken their place.
        run("-k job -- sh -c 'for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done > fds'").code(0);
        for target in stage.lines("fds") {
            let is_given = ["/dev/null", "pipe:", "/"].iter().any(|given| target.starts_with(given));
            assert!(is_given && !target.contains("report"), "{closed}: {target}");
        }
    }
    assert_eq!(stage.lines("report").len(), 7, "each run wrote its report, and where it should");
    runs("exec \"$R\" run -k job -- echo printed <&-").is(0, "printed\n");
    drop(holder);
}

/// Runs what says something with this stderr, and sees that it ends as it should, which it might not if it minded.
#[track_caller]
fn not_minded(stderr: &dyn Fn() -> Stdio) {
    let stage = Stage::new();
    let holder = stage.run("held", &["--", "sleep", "100"]).start();
    stage.held("held");
    for (key, args, code) in [
        ("held", &["-n", "--", "true"][..], 75),
        ("held", &["-w", "1200ms", "--", "true"], 75),
        ("job", &["-v", "--", "sh", "-c", "exit 3"], 3),
        ("job", &["--", "/no/such"], 127),
    ] {
        let mut run = stage.run(key, args);
        let mut child = run.0.stdout(Stdio::null()).stderr(stderr()).spawn().unwrap();
        let status = within(PATIENCE, || child.try_wait().unwrap());
        assert_eq!(status.and_then(|status| status.code()), Some(code), "{key} {args:?}");
    }
    drop(holder);
}

#[test]
fn a_full_stderr_changes_nothing() {
    not_minded(&|| OpenOptions::new().write(true).open("/dev/full").unwrap().into());
}

#[test]
fn a_stderr_whose_reader_is_gone_changes_nothing() {
    not_minded(&|| std::io::pipe().unwrap().1.into());
}

#[test]
fn a_stderr_that_nobody_reads_changes_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut writer = File::from(std::os::fd::OwnedFd::from(writer));
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    not_minded(&|| writer.try_clone().unwrap().into());
    drop(reader);
}
