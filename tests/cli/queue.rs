use super::Stage;

#[test]
fn a_hundred_waiters_run_in_order_and_no_two_at_once() {
    let stage = Stage::new();
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = stage.run("job", &["--", "sh", "-c", "read x < go"]).start();
    stage.held("job");
    let waiters: Vec<_> = (1..=100)
        .map(|at| {
            // mkdir is the judge: it fails where somebody is inside.
            let line = format!("mkdir inside || echo OVERLAP >> order; echo {at} $RLOCK_TOKEN >> order; rmdir inside");
            let waiter = stage.run("job", &["-q", "--", "sh", "-c", &line]).start();
            stage.waiting("job", at);
            waiter
        })
        .collect();
    std::fs::write(stage.path("go"), "x\n").unwrap();
    for run in waiters.into_iter().chain([holder]) {
        run.done().code(0);
    }
    let lines = stage.lines("order");
    let (places, tokens): (Vec<String>, Vec<u64>) = lines
        .iter()
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{lines:?}")))
        .map(|(place, token)| (place.to_owned(), token.parse::<u64>().unwrap()))
        .unzip();
    assert_eq!(places, (1..=100).map(|at| at.to_string()).collect::<Vec<_>>());
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

#[test]
fn a_wait_says_who_is_in_the_way() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    let pid = holder.pid().to_string();
    stage.run("job", &["-w", "1500ms", "-q", "--", "true"]).done().is(75, "");
    let done = stage.run("job", &["-w", "1500ms", "--", "true"]).done().code(75);
    let lines: Vec<_> = done.stderr.lines().collect();
    let [waiting, busy] = lines[..] else { panic!("{done:?}") };
    for word in ["rlock: waiting", "`job`", &pid, "(sleep)"] {
        assert!(waiting.contains(word), "{word} in {waiting}");
    }
    assert!(busy.contains("1.5s") && busy.contains(&pid), "{busy}");
}

#[test]
fn a_store_that_answers_is_not_silent_however_short_its_time_for_that() {
    let stage = Stage::new();
    let _holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    for timeout in ["1s", "1300ms"] {
        stage.run("job", &["--store-timeout", timeout, "-w", "2500ms", "-q", "--", "touch", "ran"]).done().is(75, "");
    }
}
