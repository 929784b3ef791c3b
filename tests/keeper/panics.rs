//! A whole run on a store whose requests panic: all the rest of it is as always, on a real directory.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::fd::BorrowedFd;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Renew, Renewal};
use rlock::clock::Boot;
use rlock::settings::{Settings, Task};
use rlock::store::{self, Can, Find, Foreign, Key, Look, Reply, Store};

/// Tells this program to be rlock.
pub(crate) const ROLE: &str = "rlock-that-panics";

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_panic_of_a_renewal_is_a_lost_lease", a_panic_of_a_renewal_is_a_lost_lease),
    ("a_panic_of_an_ask_is_a_fault_of_rlocks_own", a_panic_of_an_ask_is_a_fault_of_rlocks_own),
];

/// A store that panics when a claim is renewed, or when it is asked for.
struct Panics {
    store: Box<dyn Store>,
    at_once: bool,
}

impl Store for Panics {
    fn can(&self) -> Can {
        self.store.can()
    }

    fn enrol(&mut self, id: ClaimId) -> Option<BorrowedFd<'_>> {
        self.store.enrol(id)
    }

    fn name(&self) -> String {
        self.store.name()
    }

    fn ask(&mut self, key: &Key, ask: &Ask, by: Boot) -> Reply<Answer> {
        assert!(!self.at_once, "an ask\nthat failed");
        self.store.ask(key, ask, by)
    }

    fn renew(&mut self, _: &Key, _: &Renew, _: Boot) -> Reply<Renewal> {
        panic!("a renewal\nthat failed");
    }

    fn drop_claim(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Dropped> {
        self.store.drop_claim(key, id, ttl, by)
    }

    fn finish(&mut self, key: &Key, id: ClaimId, left: Duration, ttl: Duration, by: Boot) -> Reply<Renewal> {
        self.store.finish(key, id, left, ttl, by)
    }

    fn condemn(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Condemnation> {
        self.store.condemn(key, id, ttl, by)
    }

    fn look(&mut self, key: &Key, by: Boot) -> Reply<Look> {
        self.store.look(key, by)
    }

    fn search(&mut self, pattern: Option<&str>, step: Duration, each: &mut dyn FnMut(Find) -> bool) -> Reply<()> {
        self.store.search(pattern, step, each)
    }

    fn remove_foreign(&mut self, key: &Key, shown: &Foreign, by: Boot) -> Reply<bool> {
        self.store.remove_foreign(key, shown, by)
    }

    fn wait(&mut self, key: &Key, id: ClaimId, until: Boot) -> Reply<bool> {
        self.store.wait(key, id, until)
    }

    fn clock_ms(&self) -> u64 {
        self.store.clock_ms()
    }

    fn round_trip(&self) -> Option<Duration> {
        self.store.round_trip()
    }

    fn is_connected(&self) -> bool {
        self.store.is_connected()
    }

    fn disconnect(&mut self) {
        self.store.disconnect();
    }
}

/// This process is rlock from here on, in the directory that the first word names; the second says when it panics.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    rlock::tell_panics();
    env::set_current_dir(&words[0]).unwrap();
    let at_once = words[1] == "at once";
    let url = format!("--url=local:{}/locks", words[0].to_str().unwrap());
    let line = "trap '' TERM; echo $$ > first; sleep 100 & echo $! > child; while :; do sleep 0.01; done";
    let words = ["rlock", "run", &url, "--report=report", "-kjob", "--ttl=2s", "--config=/dev/null", "-c", line];
    let cli = rlock::cli::parse(words.map(OsString::from)).map_err(|_| "usage").unwrap();
    let (settings, Task::Run(run)) = Settings::read(&cli).unwrap() else { panic!("not a run") };
    let exit = rlock::run::run_on(&settings, &run, |cancel| {
        Box::new(Panics { store: store::open(&settings.store.url, None, cancel), at_once })
    });
    ExitCode::from(exit.unwrap().shown())
}

/// What was said, and the report, of a run that panics; nothing of its command is left.
fn played(when: &str, code: i32) -> (Vec<String>, String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let rlock = Command::new(env::current_exe().unwrap()).arg(ROLE).arg(dir.path()).arg(when).output().unwrap();
    assert_eq!(rlock.status.code(), Some(code), "{rlock:?}");
    let said: Vec<_> = String::from_utf8(rlock.stderr).unwrap().lines().map(str::to_owned).collect();
    assert!(said.iter().all(|line| line.starts_with("rlock: ")), "{said:?}");
    assert!(said[0].contains("internal error at ") && said[0].contains("\\nthat failed; please report"), "{said:?}");
    let report = fs::read_to_string(dir.path().join("report")).unwrap();
    assert!(report.contains(&format!("\"code\":{code},")), "{report}");
    (said, report, dir)
}

fn a_panic_of_a_renewal_is_a_lost_lease() {
    let (said, report, dir) = played("later", 79);
    assert!(said.last().unwrap().contains("lease"), "{said:?}");
    assert!(report.contains("\"outcome\":\"lost\""), "{report}");
    for file in ["first", "child"] {
        let pid = fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap(), "{file} runs on: {said:?}");
    }
}

fn a_panic_of_an_ask_is_a_fault_of_rlocks_own() {
    let (said, report, dir) = played("at once", 70);
    assert!(said.len() == 2 && said[1].ends_with("not run"), "{said:?}");
    assert!(report.contains("\"outcome\":\"failed\""), "{report}");
    assert!(!dir.path().join("first").exists(), "it has started its command: {said:?}");
}
