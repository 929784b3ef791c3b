//! Who dies when something is killed or stopped.

use std::time::Duration;

use nix::unistd::Pid;
use rlock::child::Ending;
use rlock::clock::Boot;
use rlock::keeper::Event;

use crate::rig::{Parent, Rig, alive, all_alive, all_die, signal, state, stop, wait_for};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("the_parent_is_killed", the_parent_is_killed),
    ("the_keeper_is_killed", the_keeper_is_killed),
    ("both_are_killed", both_are_killed),
    ("the_parent_is_stopped", the_parent_is_stopped),
    ("parent_and_keeper_are_stopped", parent_and_keeper_are_stopped),
    ("everything_is_stopped", everything_is_stopped),
    ("the_parent_is_killed_while_the_keeper_is_stopped", the_parent_is_killed_while_the_keeper_is_stopped),
    ("a_stopped_keeper_kills_nobody_whose_lease_moved_on", a_stopped_keeper_kills_nobody_whose_lease_moved_on),
    ("without_a_first_signal_there_is_only_kill", without_a_first_signal_there_is_only_kill),
    ("instants_can_be_taken_back", instants_can_be_taken_back),
    ("nothing_was_spawned", nothing_was_spawned),
    ("a_command_that_stops_its_keeper_at_once_dies_in_time", a_command_that_stops_its_keeper_at_once_dies_in_time),
    (
        "an_order_that_the_parent_did_not_survive_starts_nothing",
        an_order_that_the_parent_did_not_survive_starts_nothing,
    ),
    ("an_order_that_outlived_the_lease_starts_nothing", an_order_that_outlived_the_lease_starts_nothing),
    ("a_keeper_that_was_not_ready_to_start_is_killed_too", a_keeper_that_was_not_ready_to_start_is_killed_too),
    ("a_keeper_that_has_killed_ends_with_its_parent", a_keeper_that_has_killed_ends_with_its_parent),
    ("a_kill_is_told_before_the_end_it_brings", a_kill_is_told_before_the_end_it_brings),
];

/// The contract's slack at a short ttl: from KILL's instant to the end of everything.
const SLACK: Duration = Duration::from_millis(100);

/// Itself, one in the background, one in a session of its own, one whose parents are gone; TERM is noted, not obeyed.
const FAMILY: &str = r#"
    trap 'echo TERM >>signals' TERM
    sh -c 'trap "" TERM; echo $$ >>pids; while :; do sleep 1000; done' &
    setsid sh -c 'trap "" TERM; echo $$ >>pids; while :; do sleep 1000; done' &
    ( ( sh -c 'trap "" TERM; echo $$ >>pids; while :; do sleep 1000; done' & ) & )
    echo $$ >>pids
    while :; do wait; done"#;

fn family() -> (Parent, Pid, Vec<Pid>) {
    family_until(None)
}

/// The family, with these instants from the start.
fn family_until(instants: Option<(Option<Boot>, Boot)>) -> (Parent, Pid, Vec<Pid>) {
    let mut parent = Rig::new().start(&["sh", "-c", FAMILY]);
    if let Some((signal_at, kill_at)) = instants {
        parent.instants(signal_at, kill_at);
    }
    let first = parent.spawn();
    let pids = parent.pids_of("pids", 4);
    // The four, the sleeps of three, the parent and the keeper.
    wait_for("the family is complete", || parent.processes().len() == 4 + 3 + 2);
    parent.wait_until_the_keeper_rests();
    (parent, first, pids)
}

/// Every process of the command's tree.
fn tree(parent: &Parent) -> Vec<Pid> {
    parent.processes().into_iter().filter(|pid| *pid != parent.pid() && *pid != parent.keeper).collect()
}

fn the_parent_is_killed() {
    let (parent, _, pids) = family();
    let all = tree(&parent);
    all_alive(&pids);
    signal(parent.pid(), libc::SIGKILL);
    assert!(all_die(&all, SLACK), "{all:?}");
    wait_for("the keeper ends last", || !alive(parent.keeper));
    assert_eq!(parent.processes(), []);
}

fn the_keeper_is_killed() {
    let script = r#"sleep 1000 & echo $! >kin; exec "$0" "$@""#;
    let (mut parent, first) = Rig::new().through(&["sh", "-c", script]).run(&["sh", "-c", FAMILY]);
    let pids = parent.pids_of("pids", 4);
    let kin = parent.pids_of("kin", 1)[0];
    signal(parent.keeper, libc::SIGKILL);
    assert!(all_die(&[first], SLACK), "the first process dies with it");
    assert_eq!(parent.event(), Event::Gone);
    assert_eq!(parent.kill_tree(5000), []);
    assert!(all_die(&pids, Duration::ZERO), "{pids:?}");
    wait_for("only those are left that were there before", || tree(&parent) == [kin]);
}

fn both_are_killed() {
    let (parent, first, _) = family();
    // Neither can see the other die.
    stop(parent.keeper);
    signal(parent.pid(), libc::SIGKILL);
    signal(parent.keeper, libc::SIGKILL);
    assert!(all_die(&[first], SLACK));
}

/// What must hold when `stopped` are stopped with the instants one and one and a half seconds ahead.
fn dies_on_time(stopped: impl Fn(&Parent) -> Vec<Pid>) {
    let signal_at = Boot::now() + Duration::from_secs(1);
    let kill_at = signal_at + Duration::from_millis(500);
    let (mut parent, _, pids) = family_until(Some((Some(signal_at), kill_at)));
    let all = tree(&parent);
    let stopped = stopped(&parent);
    for pid in &stopped {
        stop(*pid);
    }
    assert!(Boot::now() < signal_at, "the machine is too slow for this test");

    // The first signal comes not before its instant, and wakes those that were stopped. How soon a shell notes it is
    // the shell's affair.
    wait_for("the first signal", || !parent.lines_of("signals", 0).is_empty());
    let noted = Boot::now();
    assert!(noted >= signal_at && noted < kill_at, "{:?} late", noted.since(signal_at));
    all_alive(&pids);

    wait_for("the end", || !all.iter().any(|pid| alive(*pid)));
    let dead = Boot::now();
    assert!(dead >= kill_at && dead < kill_at + SLACK, "{:?} late", dead.since(kill_at));
    assert_eq!(tree(&parent), [], "nor is anybody left that came later");
    assert_eq!(parent.lines_of("signals", 1), ["TERM"], "once");

    // The parent goes on, and hears what was done.
    for pid in stopped.into_iter().filter(|pid| alive(*pid)) {
        signal(pid, libc::SIGCONT);
    }
    let mut events = Vec::new();
    while events.len() < 3 {
        let event = parent.event();
        if !matches!(event, Event::Stopped { .. } | Event::Continued) {
            events.push(event);
        }
    }
    assert_eq!(events[0], Event::Signalled { left: vec![] });
    assert!(events[1..].contains(&Event::Ended(Ending::Signal(libc::SIGKILL))), "{events:?}");
    assert!(events[1..].contains(&Event::Killed { left: vec![] }), "{events:?}");
    parent.order("done");
    assert_eq!(parent.end(), 0);
    wait_for("the keeper ends", || !alive(parent.keeper));
}

fn the_parent_is_stopped() {
    dies_on_time(|parent| vec![parent.pid()]);
}

fn parent_and_keeper_are_stopped() {
    dies_on_time(|parent| vec![parent.pid(), parent.keeper]);
}

fn everything_is_stopped() {
    dies_on_time(|parent| [tree(parent), vec![parent.pid(), parent.keeper]].concat());
}

fn the_parent_is_killed_while_the_keeper_is_stopped() {
    let kill_at = Boot::now() + Duration::from_secs(1);
    let (parent, _, _) = family_until(Some((None, kill_at)));
    let all = tree(&parent);
    stop(parent.keeper);
    signal(parent.pid(), libc::SIGKILL);
    wait_for("the end", || !all.iter().any(|pid| alive(*pid)));
    assert!(Boot::now() < kill_at + SLACK);
}

fn a_stopped_keeper_kills_nobody_whose_lease_moved_on() {
    let first_kill = Boot::now() + Duration::from_secs(1);
    let first_signal = first_kill.before(Duration::from_millis(100));
    let (mut parent, _, pids) = family_until(Some((Some(first_signal), first_kill)));
    stop(parent.keeper);
    // Far more renewals than any queue of messages would hold.
    for step in 1..=3000 {
        parent.instants(Some(first_kill + Duration::from_millis(step)), first_kill + Duration::from_millis(step + 100));
    }
    let last = Boot::now() + Duration::from_secs(3600);
    parent.instants(Some(last), last + Duration::from_secs(1));
    assert!(Boot::now() < first_signal, "the machine is too slow for this test");
    wait_for("its timer wakes the keeper", || state(parent.keeper) != Some('T'));
    wait_for("all old instants are past", || Boot::now() > first_kill + Duration::from_millis(3200));
    all_alive(&pids);
    assert_eq!(parent.lines_of("signals", 0), [""; 0]);
    // It still works.
    let now = Boot::now();
    parent.instants(None, now);
    assert!(all_die(&pids, SLACK));
}

fn without_a_first_signal_there_is_only_kill() {
    let (mut parent, _, pids) = family();
    let kill_at = Boot::now() + Duration::from_millis(300);
    parent.instants(None, kill_at);
    wait_for("the end", || !pids.iter().any(|pid| alive(*pid)));
    assert!(Boot::now() >= kill_at);
    let events = [parent.event(), parent.event()];
    assert!(events.contains(&Event::Ended(Ending::Signal(libc::SIGKILL))), "{events:?}");
    assert!(events.contains(&Event::Killed { left: vec![] }), "{events:?}");
    assert_eq!(parent.lines_of("signals", 0), [""; 0]);
}

fn instants_can_be_taken_back() {
    let (mut parent, _, pids) = family();
    let kill_at = Boot::now() + Duration::from_millis(200);
    parent.instants(None, kill_at);
    parent.obeyed("instants - -");
    wait_for("the instant is past", || Boot::now() > kill_at + SLACK);
    all_alive(&pids);
}

fn nothing_was_spawned() {
    let parent = Rig::new().start(&["sleep", "1000"]);
    signal(parent.pid(), libc::SIGKILL);
    wait_for("the keeper ends", || !alive(parent.keeper));

    let mut parent = Rig::new().start(&["sleep", "1000"]);
    parent.instants(None, Boot::now());
    parent.order("done");
    assert_eq!(parent.end(), 0);
    wait_for("the keeper ends", || !alive(parent.keeper));
}

/// The keeper has no turn between the start of the command and its own stop: its timer must run before.
fn a_command_that_stops_its_keeper_at_once_dies_in_time() {
    let mut parent = Rig::new().start(&["sh", "-c", "kill -STOP $PPID; echo $$ >pids; sleep 1000"]);
    // Both orders reach it in one turn.
    stop(parent.keeper);
    let kill_at = Boot::now() + Duration::from_secs(1);
    parent.instants(None, kill_at);
    parent.obeyed("spawn {\"set\":[],\"unset\":[]}");
    signal(parent.keeper, libc::SIGCONT);
    let pids = parent.pids_of("pids", 1);
    wait_for("it is dead", || !alive(pids[0]));
    let late = Boot::now().since(kill_at);
    assert!(late < SLACK, "dead {late:?} after the instant");
}

/// A parent that has ordered its keeper to start a command, which has not got to it.
fn ordered(instants: Option<(Option<Boot>, Boot)>) -> Parent {
    let mut parent = Rig::new().start(&["sh", "-c", "echo ran >ran"]);
    stop(parent.keeper);
    if let Some((signal_at, kill_at)) = instants {
        parent.instants(signal_at, kill_at);
    }
    parent.obeyed(r#"spawn {"set":[],"unset":[]}"#);
    parent
}

fn an_order_that_the_parent_did_not_survive_starts_nothing() {
    let parent = ordered(None);
    signal(parent.pid(), libc::SIGKILL);
    // Nobody lets it go on but the kernel.
    wait_for("the keeper ends", || !alive(parent.keeper));
    assert!(!parent.path().join("ran").exists());
}

fn an_order_that_outlived_the_lease_starts_nothing() {
    let soon = Boot::now() + Duration::from_millis(200);
    for instants in [(Some(soon), soon + Duration::from_secs(100)), (None, soon)] {
        let mut parent = ordered(Some(instants));
        wait_for("the instant passes", || soon.left().is_zero());
        signal(parent.keeper, libc::SIGCONT);
        assert_eq!(parent.event(), Event::NotStarted { errno: libc::ETIME });
        assert!(!parent.path().join("ran").exists());
    }
}

fn a_keeper_that_was_not_ready_to_start_is_killed_too() {
    let mut parent = ordered(None);
    assert_eq!(parent.kill_tree(5000), []);
    assert!(!alive(parent.keeper));
    assert!(!parent.path().join("ran").exists());
}

fn a_keeper_that_has_killed_ends_with_its_parent() {
    let kill_at = Boot::now() + Duration::from_millis(500);
    let (parent, _, pids) = family_until(Some((None, kill_at)));
    stop(parent.pid());
    wait_for("the tree is dead", || !pids.iter().any(|pid| alive(*pid)));
    wait_for("the keeper rests", || state(parent.keeper) == Some('S'));
    signal(parent.pid(), libc::SIGKILL);
    wait_for("the keeper ends", || !alive(parent.keeper));
}

fn a_kill_is_told_before_the_end_it_brings() {
    let (mut parent, _) = Rig::new().run(&["sleep", "1000"]);
    parent.instants(None, Boot::now());
    assert_eq!(parent.event(), Event::Killed { left: vec![] });
    assert_eq!(parent.ending(), Ending::Signal(libc::SIGKILL));
}
