use std::time::Duration;

use nix::sys::signal::Signal;

use super::Stage;
use crate::rlock::{is_alive, within};

#[test]
fn a_command_four_times_as_long_as_its_ttl_keeps_the_lock() {
    let stage = Stage::new();
    let mut run = stage.run("job", &["--ttl", "2s", "--", "sh", "-c", "echo $$ > pid; exec sleep 8"]).start();
    let pid = stage.written("pid");
    let held = stage.held("job");
    let mut looks = 0;
    while !run.is_over() {
        let look = stage.look("job");
        if !is_alive(&pid) {
            break;
        }
        looks += 1;
        let [now] = &look.holders[..] else { panic!("{look:?}") };
        let left = now.until_ms.saturating_sub(look.now_ms);
        assert!((1..=2000).contains(&left), "its lease has {left} ms left");
        assert_eq!((now.id, now.number), (held.id, held.number));
        std::thread::sleep(Duration::from_millis(20));
    }
    run.done().is(0, "");
    assert!(looks > 100, "only {looks} looks");
}

#[test]
fn the_key_is_gone_within_100_ms_of_the_commands_end() {
    let stage = Stage::new();
    let run = stage.run("job", &["--", "sh", "-c", "echo $$ > pid; exec sleep 100"]).start();
    let pid = stage.written("pid");
    crate::rlock::send(&pid, Signal::SIGTERM);
    let gone = within(Duration::from_millis(100), || (!stage.is_held("job")).then_some(()));
    assert!(gone.is_some(), "the key is still there");
    run.done().died(Signal::SIGTERM);
}
