//! What the tests of the connection share.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rlock::claim::{Ask, ClaimId, Limit, Renew};
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Store, Url};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A store at `url`, and its cancel.
pub(crate) fn open(url: &str) -> (Box<dyn Store>, Cancel) {
    let cancel = Cancel::new().unwrap();
    (store::open(&Url::parse(url).unwrap(), None, &cancel), cancel)
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn id(bits: u128) -> ClaimId {
    ClaimId::from_bits(bits)
}

pub(crate) fn ask(bits: u128, wait: bool) -> Ask {
    let record = r#""host":"db1","pid":7"#.to_owned();
    Ask { id: id(bits), limit: Limit::EXCLUSIVE, ttl_ms: 30_000, process: true, wait, record }
}

pub(crate) fn renew(bits: u128) -> Renew {
    Renew { id: id(bits), limit: Limit::EXCLUSIVE, ttl_ms: 30_000, process: true, number: None, record: String::new() }
}

/// A limit for what is expected to be answered.
pub(crate) fn ample() -> Boot {
    Boot::now() + Duration::from_secs(10)
}

pub(crate) fn after(ms: u64) -> Boot {
    Boot::now() + Duration::from_millis(ms)
}

/// Waits for a fact.
pub(crate) fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let by = ample();
    while !fact() {
        assert!(!by.left().is_zero(), "never came about: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A proxy before a server, which drips its answers a byte at a time.
pub(crate) struct Proxy {
    pub(crate) url: String,
    open: Arc<AtomicBool>,
    port: u16,
}

impl Proxy {
    /// Before the server at `port`; a byte every `pause`, or as they come.
    pub(crate) fn before(port: u16, pause: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let open = Arc::new(AtomicBool::new(true));
        let is_open = open.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                // The listener goes, and with it whoever would connect.
                if !is_open.load(Ordering::SeqCst) {
                    return;
                }
                let client = client.unwrap();
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, to, None));
                thread::spawn(move || pass(server, client, pause));
            }
        });
        Self { url: format!("redis://127.0.0.1:{own}"), open, port: own }
    }

    /// Takes no more connections. Those that are there stay.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        until("the proxy is closed", || TcpStream::connect(("127.0.0.1", self.port)).is_err());
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, pause: Option<Duration>) {
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        for part in buffer[..count].chunks(if pause.is_some() { 1 } else { count }) {
            thread::sleep(pause.unwrap_or_default());
            if to.write_all(part).is_err() {
                break;
            }
        }
    }
    // The other side may have gone first.
    let _ = to.shutdown(Shutdown::Both);
}
