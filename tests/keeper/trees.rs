//! Whole trees: those that grow while they are killed, and what cannot be killed.

use nix::unistd::geteuid;
use rlock::child::{Left, Why};
use rlock::clock::Boot;
use rlock::keeper::Event;

use crate::rig::{Rig, alive, signal, wait_for};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_tree_that_forks_all_the_time_is_ended", a_tree_that_forks_all_the_time_is_ended),
    ("a_tree_that_forks_all_the_time_dies_with_the_parent", a_tree_that_forks_all_the_time_dies_with_the_parent),
    ("what_may_not_be_killed_is_named", what_may_not_be_killed_is_named),
];

/// One that never stays itself, one that never ends, and the sleeps of both.
const FORKING: &str = r"
    hop() { sleep 1000 & hop & }
    hop
    while :; do sleep 1000 & done";

fn a_tree_that_forks_all_the_time_is_ended() {
    let (mut parent, _) = Rig::new().run(&["sh", "-c", FORKING]);
    wait_for("it grows", || parent.processes().len() > 100);
    assert_eq!(parent.kill_tree(10_000), []);
    assert_eq!(parent.processes().len(), 2, "the parent and the keeper");
}

fn a_tree_that_forks_all_the_time_dies_with_the_parent() {
    let (parent, _) = Rig::new().run(&["sh", "-c", FORKING]);
    wait_for("it grows", || parent.processes().len() > 100);
    signal(parent.pid(), libc::SIGKILL);
    wait_for("the keeper ends last", || !alive(parent.keeper));
    assert_eq!(parent.processes(), []);
}

fn what_may_not_be_killed_is_named() {
    assert!(geteuid().is_root(), "this test must run as root: it makes a process of another user");
    // Root without the right to kill those of others.
    let rig = Rig::new().through(&["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]);
    let script = "setpriv --reuid=65534 --clear-groups sh -c 'echo $$ >&5; exec sleep 1000' 5>pid & sleep 1000";
    let (mut parent, first) = rig.run(&["sh", "-c", script]);
    let pid = parent.pids_of("pid", 1)[0];
    wait_for("it is called sleep", || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n");
    let left = vec![Left { pid: pid.as_raw(), comm: "sleep".into(), why: Why::NotPermitted }];
    assert_eq!(parent.kill_tree(5000), left);
    assert!(!alive(first) && alive(pid));

    // The keeper says the same.
    parent.ending();
    parent.instants(None, Boot::now());
    assert_eq!(parent.event(), Event::Killed { left });
    signal(pid, libc::SIGKILL);
}
