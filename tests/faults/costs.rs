use std::time::Duration;

use crate::Stage;
use crate::calls;

/// Every request of rlock's is one of these.
fn requests(stage: &Stage) -> u64 {
    ["eval", "evalsha", "blpop"].iter().map(|command| calls(stage, command)).sum()
}

/// Hands a key through so many waiters, and returns the requests for each hand-over, without the refreshes.
fn for_each(waiters: usize) -> f64 {
    let stage = Stage::new();
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = stage.run("job", &["--ttl", "60s", "--", "sh", "-c", "read x < go"]).start();
    stage.value("job");
    let running: Vec<_> = (1..=waiters)
        .map(|at| {
            let line = "read up rest < /proc/uptime; echo $up >> started";
            let waiter = stage.run("job", &["-q", "--ttl", "60s", "--", "sh", "-c", line]).start();
            stage.waiting("job", at);
            waiter
        })
        .collect();
    let before = requests(&stage);
    let freed = rlock::clock::Boot::now().since_boot();
    std::fs::write(stage.path("go"), "x\n").unwrap();
    for run in running.into_iter().chain([holder]) {
        run.done().is(0, "");
    }
    let all = requests(&stage) - before;
    // Who waits asks and listens at least so often.
    let waited: f64 = stage
        .lines("started")
        .iter()
        .map(|up| Duration::from_secs_f64(up.parse().unwrap()).saturating_sub(freed).as_secs_f64())
        .sum();
    let refreshes = 2.0 * waited / rlock::timing::LONGEST_REFRESH.as_secs_f64();
    (f64::from(u32::try_from(all).unwrap()) - refreshes) / f64::from(u32::try_from(waiters).unwrap())
}

#[test]
fn a_hand_over_costs_two_requests_or_three_however_many_wait() {
    for waiters in [10, 100] {
        let cost = for_each(waiters);
        println!("{waiters} waiters: {cost:.2} requests a hand-over");
        assert!(cost < 3.0, "{waiters} waiters: {cost:.2} requests a hand-over");
    }
}
