//! The local store in one process: the same answers as `claim.rs`, and what is special about a directory.

#![allow(clippy::print_stdout, reason = "what was left out")]

mod history;
mod record;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Limit, Renew, Renewal};
use rlock::clock::{Boot, wall_ms};
use rlock::store::{self, Cancel, Key, Store, Trouble, Url};

/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(30);
const HOUR_US: u64 = 3_600_000_000;

/// A directory, and stores in it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    /// The store's directory.
    fn root(&self) -> PathBuf {
        self.dir.path().join("locks")
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        self.open_with(&Cancel::new().expect("an event descriptor"))
    }

    fn open_with(&self, cancel: &Cancel) -> Box<dyn Store> {
        let url = format!("local:{}", self.root().display());
        store::open(&Url::parse(&url).expect("a URL"), None, cancel)
    }

    /// The directory of a key with a plain name.
    pub(crate) fn folder(&self, key: &str) -> PathBuf {
        self.root().join("keys").join(key)
    }

    fn fifo(&self, claim: ClaimId) -> PathBuf {
        self.root().join("claims").join(claim.to_string())
    }
}

fn key(text: &str) -> Key {
    Key::parse(text).expect("a key")
}

fn id(number: u128) -> ClaimId {
    ClaimId::from_bits(number)
}

fn soon() -> Boot {
    Boot::now() + PATIENCE
}

pub(crate) fn ask(number: u128, wait: bool) -> Ask {
    let record = format!("\"host\":\"h\",\"pid\":{number}");
    Ask { id: id(number), limit: Limit::EXCLUSIVE, ttl_ms: 60_000, process: true, wait, record }
}

fn renew(number: u128, token: Option<u64>) -> Renew {
    let Ask { id, limit, ttl_ms, process, record, .. } = ask(number, false);
    Renew { id, limit, ttl_ms, process, number: token, record }
}

#[track_caller]
fn granted(store: &mut dyn Store, name: &str, number: u128) -> u64 {
    match store.ask(&key(name), &ask(number, false), soon()) {
        Ok(Answer::Granted { number, .. }) => number,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn position(store: &mut dyn Store, number: u128) -> usize {
    match store.ask(&key("job"), &ask(number, true), soon()) {
        Ok(Answer::Waiting { position, .. }) => position,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn config(place: &Place, words: &[&str]) {
    match place.open().ask(&key("job"), &ask(1, false), soon()) {
        Err(Trouble::Config(text)) => words.iter().for_each(|word| assert!(text.contains(word), "{word} in {text}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_look_makes_nothing_and_a_list_finds_what_is_held() {
    let place = Place::new();
    let mut store = place.open();
    assert!(store.look(&key("job"), soon()).expect("a look").is_free());
    store.list(None, PATIENCE, &mut |_| panic!("nothing is there")).expect("a list");
    assert!(!place.root().exists());
    let long = "ü".repeat(256);
    for (number, name) in (1..).zip(["job", "a b/c", ".", &long]) {
        granted(store.as_mut(), name, number);
    }
    let listed = |store: &mut dyn Store, pattern| {
        let mut names = Vec::new();
        let each = &mut |listed: store::Listed| {
            assert_eq!(listed.look.holders.len(), 1);
            names.push(listed.key.to_string());
            true
        };
        store.list(pattern, PATIENCE, each).expect("a list");
        names.sort();
        names
    };
    assert_eq!(listed(store.as_mut(), None), [".", "a b/c", "job", &long]);
    assert_eq!(listed(store.as_mut(), Some("*o*")), ["job"]);
    let look = store.look(&key(&long), soon()).expect("a look");
    assert_eq!((look.holders[0].id, look.number > 1_000_000_000_000_000), (id(4), true));
}

#[test]
fn a_waiter_is_woken_by_the_release_and_only_the_next_one() {
    let place = Place::new();
    let [mut holder, mut first, mut second] = [place.open(), place.open(), place.open()];
    for (number, store) in (1..).zip([&mut holder, &mut first, &mut second]) {
        assert!(store.enrol(id(number)).is_some());
    }
    granted(holder.as_mut(), "job", 1);
    assert_eq!((position(first.as_mut(), 2), position(second.as_mut(), 3)), (1, 2));
    let dropped = holder.drop_claim(&key("job"), id(1), Duration::ZERO, soon());
    assert!(matches!(dropped, Ok(Dropped::Held(_))), "{dropped:?}");
    let now = Boot::now();
    assert_eq!(first.wait(&key("job"), id(2), soon()), Ok(true));
    assert!(Boot::now().since(now) < Duration::from_millis(900), "that was a look, not a wake-up");
    assert_eq!(second.wait(&key("job"), id(3), Boot::now() + Duration::from_millis(50)), Ok(false));
    granted(first.as_mut(), "job", 2);
    assert!(!place.fifo(id(1)).exists() && place.fifo(id(2)).exists());
}

#[test]
fn a_condemned_holder_is_woken() {
    let place = Place::new();
    let [mut holder, mut other] = [place.open(), place.open()];
    holder.enrol(id(1));
    granted(holder.as_mut(), "job", 1);
    let told = other.condemn(&key("job"), id(1), Duration::from_secs(60), soon());
    assert!(matches!(told, Ok(Condemnation::Marked { .. })), "{told:?}");
    let now = Boot::now();
    assert_eq!(holder.wait(&key("job"), id(1), soon()), Ok(true));
    assert!(Boot::now().since(now) < Duration::from_millis(900));
    assert_eq!(holder.renew(&key("job"), &renew(1, None), soon()), Ok(Renewal::Condemned));
    assert_eq!(other.look(&key("job"), soon()).expect("a look").condemned, [id(1)]);
}

#[test]
fn a_claim_ends_with_the_last_that_keeps_its_descriptor() {
    let place = Place::new();
    let [mut holder, mut other] = [place.open(), place.open()];
    let kept = holder.enrol(id(1)).expect("a descriptor").try_clone_to_owned().expect("a copy");
    other.enrol(id(2));
    granted(holder.as_mut(), "job", 1);
    assert_eq!(position(other.as_mut(), 2), 1);
    drop(holder);
    // As the keeper does when its rlock was killed.
    assert_eq!(other.wait(&key("job"), id(2), Boot::now() + Duration::from_millis(50)), Ok(false));
    assert!(!other.look(&key("job"), soon()).expect("a look").is_free());
    let closing = std::thread::spawn(move || drop(kept));
    assert_eq!(other.wait(&key("job"), id(2), soon()), Ok(true));
    closing.join().expect("the end of the thread");
    assert!(other.look(&key("job"), soon()).expect("a look").is_free());
    granted(other.as_mut(), "job", 2);
    assert!(!place.fifo(id(1)).exists());
}

#[test]
fn dead_waiters_leave_the_queue_and_the_one_behind_them_hears_of_it() {
    let place = Place::new();
    let mut stores: Vec<_> = (1..=5).map(|_| place.open()).collect();
    for (number, store) in (1..).zip(&mut stores) {
        store.enrol(id(number));
    }
    granted(stores[0].as_mut(), "job", 1);
    for (number, store) in (2..).zip(&mut stores[1..]) {
        let expected = usize::try_from(number - 1).expect("small");
        assert_eq!(position(store.as_mut(), number), expected);
    }
    let mut last = stores.pop().expect("five");
    // 3 and 4, right before the last; then it stands behind 2.
    stores.truncate(2);
    assert_eq!(last.wait(&key("job"), id(5), soon()), Ok(true));
    assert_eq!(position(last.as_mut(), 5), 2);
    stores.truncate(1);
    assert_eq!(last.wait(&key("job"), id(5), soon()), Ok(true));
    assert_eq!(position(last.as_mut(), 5), 1);
    assert_eq!(last.look(&key("job"), soon()).expect("a look").queue.len(), 1);
}

#[test]
fn a_claim_without_a_process_has_only_its_lease() {
    let place = Place::new();
    let mut store = place.open();
    let acquire = Ask { process: false, ..ask(1, false) };
    let answer = store.ask(&key("job"), &acquire, soon());
    assert!(matches!(answer, Ok(Answer::Granted { .. })), "{answer:?}");
    drop(store);
    let mut other = place.open();
    let busy = other.ask(&key("job"), &ask(2, false), soon());
    assert!(matches!(busy, Ok(Answer::Busy { .. })), "{busy:?}");
    let later = |record: &mut serde_json::Value| {
        record["origin_us"] = (record["origin_us"].as_u64().expect("a number") + HOUR_US).into();
    };
    record::change(&place.folder("job"), later);
    granted(other.as_mut(), "job", 2);
}

#[test]
fn what_another_boot_left_has_lapsed_but_not_its_number() {
    let place = Place::new();
    let mut store = place.open();
    granted(store.as_mut(), "job", 1);
    record::change(&place.folder("job"), |record| {
        record["boot"] = "another".into();
        record["state"]["number"] = 9_000_000_000_000_000_u64.into();
    });
    assert!(store.look(&key("job"), soon()).expect("a look").is_free());
    assert_eq!(granted(place.open().as_mut(), "job", 2), 9_000_000_000_000_001);
}

#[test]
fn people_are_shown_the_wall_clock_also_when_it_was_set() {
    let place = Place::new();
    let mut store = place.open();
    granted(store.as_mut(), "job", 1);
    let state = record::state(&place.folder("job"));
    // As if the wall clock had been set an hour ahead since: the store's own times go on as before.
    record::change(&place.folder("job"), |record| {
        record["origin_us"] = (record["origin_us"].as_u64().expect("a number") - HOUR_US).into();
        let held = &mut record["state"]["holders"][0];
        for name in ["since_ms", "until_ms"] {
            held[name] = (held[name].as_u64().expect("a number") - HOUR_US / 1000).into();
        }
    });
    let look = store.look(&key("job"), soon()).expect("a look");
    let near = |a: u64, b: u64| a.abs_diff(b) < 10_000;
    assert!(near(look.now_ms, wall_ms()) && near(store.clock_ms(), wall_ms()));
    let (held, was) = (&look.holders[0], &state.holders[0]);
    assert!(near(held.since_ms, was.since_ms) && near(held.until_ms, was.until_ms), "{held:?} {was:?}");
    let Ok(Answer::Busy { holders }) = store.ask(&key("job"), &ask(2, false), soon()) else { panic!("not busy") };
    assert!(near(holders[0].since_ms, was.since_ms));
}

#[test]
fn a_directory_that_a_stopped_process_has_locked_is_waited_for_with_an_end() {
    let place = Place::new();
    let cancel = Cancel::new().expect("an event descriptor");
    let mut store = place.open_with(&cancel);
    granted(store.as_mut(), "job", 1);
    let lock = |kind| Flock::lock(File::open(place.folder("job")).expect("the directory"), kind).expect("a lock");
    let guard = lock(FlockArg::LockExclusive);
    let began = Boot::now();
    let late = store.renew(&key("job"), &renew(1, None), began + Duration::from_millis(200));
    assert!(matches!(&late, Err(Trouble::Later(text)) if text.contains("stopped")), "{late:?}");
    assert!(Boot::now().since(began) < Duration::from_secs(5));
    cancel.fire();
    assert_eq!(store.renew(&key("job"), &renew(1, None), soon()), Err(Trouble::Interrupted));
    drop(guard);
    assert_eq!(store.renew(&key("job"), &renew(1, None), soon()), Err(Trouble::Interrupted));
    cancel.clear();
    assert!(matches!(store.renew(&key("job"), &renew(1, None), soon()), Ok(Renewal::Renewed { .. })));
    let others_look = lock(FlockArg::LockShared);
    assert!(!store.look(&key("job"), soon()).expect("a look beside another").is_free());
    drop(others_look);
}

#[test]
fn who_was_stopped_in_the_middle_of_an_operation_is_let_go_on() {
    for kind in ["-x", "-s"] {
        let place = Place::new();
        let mut store = place.open();
        granted(store.as_mut(), "job", 1);
        let mut stopped = Command::new("flock");
        stopped.args([kind, "-F"]).arg(place.folder("job")).args(["sh", "-c", "kill -STOP $$; exit 7"]);
        let mut stopped = stopped.spawn().expect("flock");
        let stat = format!("/proc/{}/stat", stopped.id());
        until("it is stopped", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        let began = Boot::now();
        let renewed = store.renew(&key("job"), &renew(1, None), began + Duration::from_millis(500));
        assert!(matches!(renewed, Ok(Renewal::Renewed { .. })), "{kind}: {renewed:?}");
        assert_eq!(stopped.wait().expect("its end").code(), Some(7), "it went on");
    }
}

#[test]
fn a_directory_that_was_removed_while_it_was_waited_for_is_looked_for_anew() {
    let place = Place::new();
    granted(place.open().as_mut(), "job", 1);
    let guard = Flock::lock(File::open(place.folder("job")).expect("the directory"), FlockArg::LockExclusive);
    let guard = guard.expect("a lock");
    let mut store = place.open();
    let asking = std::thread::spawn(move || granted(store.as_mut(), "job", 2));
    // It waits for the lock as soon as it has opened the directory.
    let inode = std::os::unix::fs::MetadataExt::ino(&guard.metadata().expect("the directory"));
    until("it waits", || opened(inode) > 1);
    fs::remove_dir_all(place.folder("job")).expect("rm -rf");
    drop(guard);
    asking.join().expect("a grant");
    assert_eq!(record::state(&place.folder("job")).holders[0].id, id(2), "it holds what nobody finds");
}

/// How many descriptors of this process have this inode open.
fn opened(inode: u64) -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let inodes =
        fds.filter_map(|fd| fs::metadata(fd.path()).ok()).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
    inodes.filter(|found| *found == inode).count()
}

fn until(what: &str, fact: impl Fn() -> bool) {
    let end = soon();
    while !fact() {
        assert!(!end.left().is_zero(), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_wait_is_interrupted() {
    let place = Place::new();
    let cancel = Cancel::new().expect("an event descriptor");
    let mut store = place.open_with(&cancel);
    store.enrol(id(1));
    granted(store.as_mut(), "job", 1);
    let firing = std::thread::spawn(move || cancel.fire());
    assert_eq!(store.wait(&key("job"), id(1), soon()), Err(Trouble::Interrupted));
    firing.join().expect("the end of the thread");
}

#[test]
fn a_directory_that_is_not_ours_alone_is_refused() {
    let place = Place::new();
    fs::create_dir(place.root()).expect("a directory");
    let mode = |mode| fs::set_permissions(place.root(), fs::Permissions::from_mode(mode)).expect("chmod");
    mode(0o755);
    config(&place, &["mode 755", "chmod 700"]);
    mode(0o710);
    config(&place, &["mode 710"]);
    mode(0o700);
    granted(place.open().as_mut(), "job", 1);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(place.root(), Some(65534), None).expect("chown");
        config(&place, &["belongs to nobody, not to root"]);
    } else {
        println!("left out: only root can give a directory away");
    }

    let place = Place::new();
    let real = place.dir.path().join("real");
    fs::create_dir(&real).expect("a directory");
    symlink(&real, place.root()).expect("a link");
    config(&place, &["`locks` is a symbolic link"]);
    fs::remove_file(place.root()).expect("the link");
    symlink("/nonexistent", place.root()).expect("a link");
    config(&place, &["`locks` is a symbolic link"]);
    fs::remove_file(place.root()).expect("the link");
    fs::write(place.root(), "").expect("a file");
    config(&place, &["`locks` is not a directory"]);
    assert_eq!(fs::read_dir(real).expect("the directory").count(), 0);

    let link = place.dir.path().join("link");
    symlink(place.dir.path(), &link).expect("a link");
    let url = format!("local:{}/below", link.display());
    let mut store = store::open(&Url::parse(&url).expect("a URL"), None, &Cancel::new().expect("one"));
    let refused = store.look(&key("job"), soon());
    assert!(
        matches!(&refused, Err(Trouble::Config(text)) if text.contains("`link` is a symbolic link")),
        "{refused:?}"
    );
}

#[test]
fn a_newer_layout_and_the_key_of_another_are_left_alone() {
    let place = Place::new();
    granted(place.open().as_mut(), "job", 1);
    record::change(&place.folder("job"), |record| record["key"] = "other".into());
    config(&place, &["the key `other` stands where `job` would"]);
    for name in ["a", "b"] {
        fs::write(place.folder("job").join(name), format!("rlock2 {:4096}", "")).expect("a file");
    }
    config(&place, &["newer rlock"]);
}

#[test]
fn the_directory_is_made_again_and_the_holder_takes_its_lock_again_first() {
    let place = Place::new();
    let [mut holder, mut waiter] = [place.open(), place.open()];
    holder.enrol(id(1));
    waiter.enrol(id(2));
    let number = granted(holder.as_mut(), "job", 1);
    assert_eq!(position(waiter.as_mut(), 2), 1);
    fs::remove_dir_all(place.root()).expect("rm -rf");
    let spared = waiter.ask(&key("job"), &ask(2, true), soon());
    assert!(matches!(&spared, Err(Trouble::Later(text)) if text.contains("was removed")), "{spared:?}");
    let now = Boot::now();
    assert_eq!(holder.wait(&key("job"), id(1), soon()), Ok(true));
    assert!(Boot::now().since(now) < Duration::from_secs(2));
    let again = holder.renew(&key("job"), &renew(1, Some(number)), soon());
    assert!(matches!(again, Ok(Renewal::Renewed { restored: true, .. })), "{again:?}");
    assert_eq!(position(waiter.as_mut(), 2), 1);
    // Nobody finds its FIFO any more: it looks once a second.
    let now = Boot::now();
    assert_eq!(holder.wait(&key("job"), id(1), soon()), Ok(true));
    assert!(Boot::now().since(now) < Duration::from_secs(2));
    drop(holder);
    assert_eq!(position(waiter.as_mut(), 2), 1, "its keeper may live, and only the lease counts");
}

#[test]
fn a_waiter_whose_holder_does_not_come_back_has_the_key_soon() {
    let place = Place::new();
    let [mut holder, mut waiter] = [place.open(), place.open()];
    granted(holder.as_mut(), "job", 1);
    assert_eq!(position(waiter.as_mut(), 2), 1);
    fs::remove_dir_all(place.folder("job")).expect("rm -rf");
    let began = Boot::now();
    loop {
        match waiter.ask(&key("job"), &ask(2, true), soon()) {
            Ok(Answer::Granted { .. }) => break,
            Err(Trouble::Later(_)) if Boot::now().since(began) < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(holder.renew(&key("job"), &renew(1, Some(1)), soon()), Ok(Renewal::Gone)));
}

#[test]
fn what_nobody_needs_is_swept_and_numbers_grow_all_the_same() {
    let place = Place::new();
    let mut store = place.open();
    let number = granted(store.as_mut(), "old", 1);
    let dropped = store.drop_claim(&key("old"), id(1), Duration::ZERO, soon());
    assert!(matches!(dropped, Ok(Dropped::Held(_))), "{dropped:?}");
    granted(store.as_mut(), "held", 2);
    // Its tombstone still stands; then an hour passes.
    let sweep = |store: &mut dyn Store| {
        granted(store, "last", 0x100);
        let dropped = store.drop_claim(&key("last"), id(0x100), Duration::ZERO, soon());
        assert!(matches!(dropped, Ok(Dropped::Held(_))), "{dropped:?}");
    };
    sweep(store.as_mut());
    assert!(place.folder("old").exists());
    for name in ["old", "last"] {
        record::change(&place.folder(name), |record| {
            record["origin_us"] = (record["origin_us"].as_u64().expect("a number") + HOUR_US).into();
        });
    }
    sweep(store.as_mut());
    assert!(!place.folder("old").exists() && place.folder("held").exists() && place.folder("last").exists());
    assert!(granted(store.as_mut(), "old", 3) > number);
}

/// The names in a directory.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn nothing_of_a_claim_is_left_when_it_is_busy_or_has_ended() {
    let place = Place::new();
    let [mut holder, mut other] = [place.open(), place.open()];
    holder.enrol(id(1));
    other.enrol(id(2));
    granted(holder.as_mut(), "job", 1);
    let busy = other.ask(&key("job"), &ask(2, false), soon());
    assert!(matches!(busy, Ok(Answer::Busy { .. })), "{busy:?}");
    assert_eq!(names(&place.root().join("claims")), [id(1).to_string()]);
    let finished = holder.finish(&key("job"), id(1), Duration::from_secs(5), Duration::from_secs(60), soon());
    assert!(matches!(finished, Ok(Renewal::Renewed { .. })), "{finished:?}");
    assert!(names(&place.root().join("claims")).is_empty());
    drop(holder);
    assert!(!other.look(&key("job"), soon()).expect("a look").is_free(), "its last word is its end");
}

/// Its owner's last word is the last of a claim; another's may cross the owner's, and leaves a tombstone.
#[test]
fn a_key_that_is_taken_often_is_not_remembered_longer_and_longer() {
    let place = Place::new();
    let take = |claim, by_owner: bool| {
        let mut owner = place.open();
        owner.enrol(id(claim));
        granted(owner.as_mut(), "job", claim);
        let mut ends = if by_owner { owner } else { place.open() };
        let dropped = ends.drop_claim(&key("job"), id(claim), Duration::from_secs(30), soon());
        assert!(matches!(dropped, Ok(Dropped::Held(_))), "{dropped:?}");
        record::state(&place.folder("job")).traces
    };
    for claim in 1..20 {
        assert_eq!(take(claim, true), []);
    }
    assert_eq!(take(20, false).iter().map(|trace| trace.id).collect::<Vec<_>>(), [id(20)]);
    assert!(place.folder("job").exists());
}

/// The first in the queue leaves in the same step in which a dead holder has made it the holder; whoever is dead behind it
/// must not become one.
#[test]
fn who_leaves_as_it_is_served_leaves_the_key_to_nobody_dead() {
    let place = Place::new();
    let [mut holder, mut first, mut second] = [place.open(), place.open(), place.open()];
    for (store, claim) in [(&mut holder, 1), (&mut first, 2), (&mut second, 3)] {
        store.enrol(id(claim));
        store.ask(&key("job"), &ask(claim, true), soon()).expect("an answer");
    }
    drop((holder, second));
    for claim in [1, 3] {
        // A child that another test has just forked keeps it until it becomes its program.
        let fifo = place.fifo(id(claim));
        until("it is dead", || fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).is_err());
    }
    let dropped = first.drop_claim(&key("job"), id(2), Duration::ZERO, soon());
    assert!(matches!(dropped, Ok(Dropped::Held(_))), "{dropped:?}");
    let state = record::state(&place.folder("job"));
    assert!(state.holders.is_empty() && state.queue.is_empty(), "{state:?}");
}
