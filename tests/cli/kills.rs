use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use rlock::claim::ClaimId;
use rlock::clock::Boot;

use super::Stage;
use crate::rlock::{Running, children, is_alive, send, state, until, within};

/// Writes the pids of itself, of a child in the background and of one in a session of its own, and beats until it dies.
const TREE: &str = "echo $$ > first; \
    sh -c 'echo $$ > child; while :; do sleep 0.01; done' & \
    setsid sh -c 'echo $$ > session; while :; do sleep 0.01; done' & \
    while :; do sleep 0.01; done";

/// The same tree that ignores what can be ignored.
fn stubborn() -> String {
    format!("trap '' TERM INT HUP; {TREE}")
}

struct Tree {
    run: Running,
    pids: Vec<String>,
}

impl Tree {
    fn start(stage: &Stage, args: &[&str], line: &str) -> Self {
        let run = stage.run("job", &[args, &["--", "sh", "-c", line]].concat()).start();
        let pids = ["first", "child", "session"].map(|name| stage.written(name)).to_vec();
        Self { run, pids }
    }

    fn keeper(&self) -> String {
        let children = children(&self.run.pid().to_string());
        assert_eq!(children.len(), 1, "rlock has one child, its keeper");
        children[0].clone()
    }

    fn is_dead(&self) -> bool {
        !self.pids.iter().any(|pid| is_alive(pid))
    }

    #[track_caller]
    fn is_dead_within(&self, limit: Duration) {
        let dead = within(limit, || self.is_dead().then_some(()));
        let alive: Vec<_> = self.pids.iter().filter(|pid| is_alive(pid)).collect();
        assert!(dead.is_some(), "alive after {limit:?}: {alive:?} of {:?}", self.pids);
    }
}

/// Watches until the tree is dead, and fails if the key could have passed before: it was seen free or another's while
/// one of the tree was alive before and after that look.
#[track_caller]
fn dies_before_the_key_passes(stage: &Stage, tree: &Tree, id: ClaimId) {
    until("the tree dies", || {
        let before: Vec<_> = tree.pids.iter().filter(|pid| is_alive(pid)).collect();
        let holders = stage.look("job").holders;
        let after = before.iter().filter(|pid| is_alive(pid)).count();
        let passed = !holders.iter().any(|held| held.id == id);
        assert!(!(passed && after > 0), "the key has passed while {before:?} run");
        before.is_empty().then_some(())
    });
}

#[test]
fn when_rlock_is_killed_its_tree_is_dead_within_100_ms_and_then_the_next_runs() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &["--ttl", "3s"], &stubborn());
    let pids = tree.pids.join(" ");
    let next = format!(
        "for pid in {pids}; do grep -qs '^State:.[^ZX]' /proc/$pid/status && echo overlap; done; echo next > next"
    );
    let next = stage.run("job", &["--", "sh", "-c", &next]).start();
    stage.waiting("job", 1);
    let left = stage.left("job");
    let killed = Boot::now();
    tree.run.signal(Signal::SIGKILL);
    tree.is_dead_within(Duration::from_millis(100));
    stage.written("next");
    let took = Boot::now().since(killed);
    if Stage::hears_of_death() {
        assert!(took < Duration::from_secs(1), "it ran only after {took:?}");
    } else {
        assert!(took + Duration::from_millis(50) >= left, "it ran before the lease ended");
    }
    next.done().code(0);
}

#[test]
fn when_the_keeper_is_killed_the_tree_is_dead_within_100_ms_and_rlock_ends_with_70() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &[], &stubborn());
    send(&tree.keeper(), Signal::SIGKILL);
    tree.is_dead_within(Duration::from_millis(100));
    tree.run.done().says(70, &["keeper"]);
    assert!(!stage.is_held("job"));
}

#[test]
fn a_stopped_rlock_whose_keeper_is_killed_goes_on_and_ends_the_tree() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &["--ttl", "60s"], &stubborn());
    tree.run.signal(Signal::SIGSTOP);
    send(&tree.keeper(), Signal::SIGKILL);
    until("the tree is dead", || tree.is_dead().then_some(()));
    tree.run.done().says(70, &["keeper"]);
    assert!(!stage.is_held("job"));
}

#[test]
fn when_both_are_killed_the_first_process_is_dead() {
    let stage = Stage::new();
    let run = stage.run("job", &["--", "sh", "-c", "echo $$ > first; exec sleep 100"]).start();
    let first = stage.written("first");
    let keeper = children(&run.pid().to_string()).remove(0);
    send(&keeper, Signal::SIGSTOP);
    until("the keeper is stopped", || (state(&keeper) == Some('T')).then_some(()));
    run.signal(Signal::SIGKILL);
    send(&keeper, Signal::SIGKILL);
    until("the first process is dead", || (!is_alive(&first)).then_some(()));
}

#[test]
fn a_stopped_rlock_loses_its_tree_before_its_lease() {
    for line in [TREE.to_owned(), stubborn()] {
        let stage = Stage::new();
        let tree = Tree::start(&stage, &["--ttl", "2s"], &line);
        let id = stage.held("job").id;
        tree.run.signal(Signal::SIGSTOP);
        dies_before_the_key_passes(&stage, &tree, id);
        until("the key has lapsed", || (!stage.is_held("job")).then_some(()));
        tree.run.signal(Signal::SIGCONT);
        tree.run.done().says(79, &["`job`", "lease"]);
        // The store's thread also went on, and may have renewed what had lapsed.
        assert!(!stage.is_held("job"));
    }
}

#[test]
fn with_on_lost_kill_a_stopped_rlock_ends_with_79_and_not_with_the_keepers_kill() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &["--ttl", "2s", "--on-lost", "kill"], TREE);
    let id = stage.held("job").id;
    tree.run.signal(Signal::SIGSTOP);
    dies_before_the_key_passes(&stage, &tree, id);
    tree.run.signal(Signal::SIGCONT);
    tree.run.done().says(79, &["`job`", "lease"]);
}

#[test]
fn an_end_in_time_is_no_loss_although_rlock_was_stopped() {
    let stage = Stage::new();
    let line = "echo $$ > first; while ! [ -e go ]; do sleep 0.01; done; exit 6";
    // Long enough for the command to end in time on a busy machine.
    let run = stage.run("job", &["--ttl", "6s", "--", "sh", "-c", line]).start();
    let first = stage.written("first");
    run.signal(Signal::SIGSTOP);
    std::fs::write(stage.path("go"), "").unwrap();
    until("it ends", || (!is_alive(&first)).then_some(()));
    until("the key has lapsed", || (!stage.is_held("job")).then_some(()));
    run.signal(Signal::SIGCONT);
    run.done().code(6);
    assert!(!stage.is_held("job"));
}

#[test]
fn a_stopped_rlock_and_keeper_lose_their_tree_before_the_lease() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &["--ttl", "2s"], &stubborn());
    let id = stage.held("job").id;
    let keeper = tree.keeper();
    tree.run.signal(Signal::SIGSTOP);
    send(&keeper, Signal::SIGSTOP);
    dies_before_the_key_passes(&stage, &tree, id);
    tree.run.signal(Signal::SIGCONT);
    tree.run.done().code(79);
}

#[test]
fn a_wholly_stopped_tree_is_dead_before_the_lease() {
    let stage = Stage::new();
    let tree = Tree::start(&stage, &["--ttl", "2s"], &stubborn());
    let id = stage.held("job").id;
    let keeper = tree.keeper();
    tree.run.signal(Signal::SIGSTOP);
    for pid in tree.pids.iter().chain([&keeper]) {
        send(pid, Signal::SIGSTOP);
    }
    dies_before_the_key_passes(&stage, &tree, id);
    tree.run.signal(Signal::SIGCONT);
    tree.run.done().code(79);
}

/// Processes that do nothing at all, not even on a signal, while time goes on: as in a suspended machine.
struct Suspended(Child);

impl Suspended {
    fn all<'a>(pids: impl IntoIterator<Item = &'a String>) -> Self {
        let threads = |pid: &String| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let threads = pids.into_iter().flat_map(threads).map(|thread| thread.path()).collect::<Vec<_>>();
        let ids = threads.iter().map(|thread| thread.file_name().unwrap());
        // They go on when their tracer ends. Seize, then interrupt.
        let line = "my $call = shift; for my $id (@ARGV) { for my $what (0x4206, 0x4207) { \
                    syscall($call, $what, $id + 0, 0, 0) == 0 or die \"$id: $!\" } } <STDIN>";
        let mut perl = Command::new("perl");
        perl.args(["-e", line, &libc::SYS_ptrace.to_string()]).args(ids).stdin(Stdio::piped());
        let suspended = Self(perl.spawn().unwrap());
        let is_suspended = |thread: &PathBuf| {
            let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('t')
        };
        until("all are suspended", || threads.iter().all(is_suspended).then_some(()));
        suspended
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn after_a_suspend_beyond_the_lease_the_tree_ends_at_once() {
    for args in [&["--ttl", "2s"][..], &["--ttl", "2s", "--on-lost", "kill"]] {
        let stage = Stage::new();
        let tree = Tree::start(&stage, args, &stubborn());
        let (rlock, keeper) = (tree.run.pid().to_string(), tree.keeper());
        let suspended = Suspended::all(tree.pids.iter().chain([&rlock, &keeper]));
        until("the key has lapsed", || (!stage.is_held("job")).then_some(()));
        assert!(tree.pids.iter().all(|pid| is_alive(pid)), "they were not suspended");
        drop(suspended);
        tree.is_dead_within(Duration::from_millis(500));
        tree.run.done().says(79, &["`job`", "lease"]);
        assert!(!stage.is_held("job") && !is_alive(&keeper));
    }
}

#[test]
fn a_short_suspend_costs_nothing() {
    let stage = Stage::new();
    let mut tree = Tree::start(&stage, &["--ttl", "20s"], TREE);
    let (rlock, keeper, before) = (tree.run.pid().to_string(), tree.keeper(), stage.held("job"));
    let suspended = Suspended::all(tree.pids.iter().chain([&rlock, &keeper]));
    // The renewal is overdue then.
    until("a third of the lease is over", || (stage.left("job") < Duration::from_secs(13)).then_some(()));
    drop(suspended);
    until("it is renewed", || (stage.held("job").until_ms > before.until_ms).then_some(()));
    assert!(!tree.run.is_over() && tree.pids.iter().all(|pid| is_alive(pid)));
    tree.run.signal(Signal::SIGTERM);
    tree.run.done().died(Signal::SIGTERM);
}

#[test]
fn a_stop_signal_ends_a_start_that_a_stopped_keeper_does_not_get_to() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.held("job");
    let report = stage.path("report");
    let args = ["--ttl", "5s", "--kill-after", "100ms", "--report", report.to_str().unwrap(), "--", "touch", "wrong"];
    let run = stage.run("job", &args).start();
    stage.waiting("job", 1);
    let keeper = children(&run.pid().to_string()).remove(0);
    // It makes ready while rlock asks: its timer comes last, and then it rests.
    until("the keeper is ready", || {
        let timers = std::fs::read_to_string(format!("/proc/{keeper}/timers")).unwrap();
        (timers.contains("ID:") && state(&keeper) == Some('S')).then_some(())
    });
    send(&keeper, Signal::SIGSTOP);
    std::fs::write(stage.path("go"), "").unwrap();
    holder.done().code(0);
    let pid = format!("\"pid\":{}", run.pid());
    let granted = until("it holds", || Some(stage.held("job")).filter(|held| held.record.contains(&pid)));
    // A signal that crosses the grant would be the end of a wait; a renewal comes long after the order to start. To confirm
    // a window of 3 s alone makes the lease 2 s longer.
    until("it is renewed", || (stage.held("job").until_ms > granted.until_ms + 3_000).then_some(()));
    run.signal(Signal::SIGTERM);
    run.done().died(Signal::SIGTERM);
    assert!(!is_alive(&keeper) && !stage.path("wrong").exists());
    assert!(!stage.is_held("job"));
    // From the order on it may have run: it is not told as a wait that ended.
    let report: serde_json::Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!((&report["outcome"], &report["signal"]), (&"failed".into(), &15.into()), "{report}");
}

#[test]
fn with_only_the_keeper_stopped_rlock_goes_on_renewing() {
    let stage = Stage::new();
    let mut tree = Tree::start(&stage, &["--ttl", "2s"], &stubborn());
    let id = stage.held("job").id;
    let keeper = tree.keeper();
    send(&keeper, Signal::SIGSTOP);
    let end = Boot::now() + Duration::from_secs(5);
    until("two and a half leases have passed", || {
        assert!(stage.held("job").id == id && !tree.run.is_over());
        assert!(tree.pids.iter().all(|pid| is_alive(pid)), "one of the tree died");
        (Boot::now() >= end).then_some(())
    });
    send(&keeper, Signal::SIGCONT);
    tree.run.signal(Signal::SIGTERM);
    // The tree ignores TERM; only a kill ends it.
    for pid in &tree.pids {
        send(pid, Signal::SIGKILL);
    }
    tree.run.done().died(Signal::SIGKILL);
}

#[test]
fn a_waiter_that_was_killed_at_the_head_costs_the_next_at_most_4_s() {
    dead_waiters(1, Duration::from_secs(4));
}

#[test]
fn ten_dead_waiters_cost_the_next_at_most_15_s() {
    dead_waiters(10, Duration::from_secs(15));
}

fn dead_waiters(count: usize, bound: Duration) {
    let stage = Stage::new();
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = stage.run("job", &["--", "sh", "-c", "read x < go"]).start();
    stage.held("job");
    let dead: Vec<_> = (1..=count)
        .map(|at| {
            let waiter = stage.run("job", &["--", "touch", "wrong"]).start();
            stage.waiting("job", at);
            waiter
        })
        .collect();
    let next = stage.run("job", &["--", "sh", "-c", "echo next > next"]).start();
    stage.waiting("job", count + 1);
    for waiter in &dead {
        waiter.signal(Signal::SIGKILL);
    }
    let freed = Boot::now();
    std::fs::write(stage.path("go"), "x\n").unwrap();
    holder.done().code(0);
    stage.written("next");
    let took = Boot::now().since(freed);
    assert!(took <= bound, "{count} dead waiters cost {took:?}");
    next.done().code(0);
    assert!(!stage.path("wrong").exists());
}
