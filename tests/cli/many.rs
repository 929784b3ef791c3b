use std::os::unix::process::CommandExt as _;

use rlock::claim::{Ask, ClaimId, Limit};
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Url};

use super::Stage;
use crate::rlock::PATIENCE;
use crate::tmux::{Terminal, raw};

/// A server with a million keys of another program's.
fn many() -> Stage {
    let stage = Stage::new();
    for part in 0..4 {
        let fill = "for n = 1, 250000 do redis.call('SET', ARGV[1] .. ':' .. n, '') end";
        stage.redis::<()>(&["EVAL", fill, "0", &part.to_string()]);
    }
    stage
}

#[test]
fn a_long_search_shows_how_far_it_is_on_a_terminal_and_nothing_elsewhere() {
    let stage = many();
    let holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    let text = raw(&stage, "exec $R list", 0);
    let (progress, table) = text.rsplit_once("\x1b[J\r").expect("a line that is wiped");
    assert!(progress.contains(" of 100000"), "{progress:?}");
    assert!(table.starts_with("KEY  ") && table.contains("\njob  ") && !table.contains('\x1b'), "{table:?}");
    assert!(!raw(&stage, "TERM=dumb exec $R list", 0).contains("searched"));
    let done = stage.rlock(["list", "job*"]).done().code(0);
    assert!(done.stderr.is_empty() && done.stdout.contains("\njob  "), "{done:?}");
    drop(holder);
}

#[test]
fn ctrl_c_ends_a_long_search_at_once_and_leaves_nothing_of_it() {
    let stage = many();
    let terminal = Terminal::open(&stage);
    // A shell ends its loop only when it sees the signal, not a code.
    terminal.line("for i in 1 2; do $R list; echo again; done");
    terminal.shows("rlock: searched ");
    terminal.key("C-c");
    terminal.line("echo rc=$?");
    terminal.shows("rc=130");
    let all = terminal.scrollback();
    assert!(!all.contains("searched") && !all.lines().any(|line| line == "again"), "{all}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_list_quietly() {
    let stage = Stage::new();
    let url = Url::parse(&stage.url()).unwrap();
    let mut store = store::open(&url, None, &Cancel::new().unwrap());
    // More than a pipe holds.
    for number in 0..300 {
        let ask = Ask {
            id: ClaimId::from_bits(number),
            limit: Limit::EXCLUSIVE,
            ttl_ms: 600_000,
            process: true,
            wait: false,
            record: String::new(),
        };
        let key = Key::parse(&format!("{number:0500}")).unwrap();
        store.ask(&key, &ask, Boot::now() + PATIENCE).unwrap();
    }
    for line in ["$R list | head -1", "$R list --json | head -1 | cut -c 1-6"] {
        let done = stage.through("bash", &["-c", &format!("{line}; echo ${{PIPESTATUS[0]}}")]).done().code(0);
        let lines: Vec<_> = done.stdout.lines().collect();
        assert!(lines.len() == 2 && matches!(lines[1], "0" | "141") && done.stderr.is_empty(), "{done:?}");
    }
}

#[test]
fn a_search_that_is_not_watched_dies_of_its_signals() {
    let stage = many();
    let mut list = stage.rlock(["list"]);
    list.0.process_group(0);
    let list = list.start();
    list.signal(nix::sys::signal::Signal::SIGINT);
    let done = list.done().died(nix::sys::signal::Signal::SIGINT);
    assert!(done.stdout.is_empty() && done.stderr.is_empty(), "{done:?}");
}
