//! What a server could answer: any bytes, good answers with something wrong in them, lengths without bound, values in
//! values, through the real connection from a real socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proptest::collection::vec;
use proptest::prelude::*;
use rlock::clock::Boot;
use rlock::store::{Foreign, Store, Trouble};

use crate::kit::{TTL, after, ask, id, key, open, renew};
use crate::strange::{SECRET, config, entry, is_fit_to_be_said, is_one_short_line, number, spoilt};

/// What a busy machine may add to a request's limit.
const TOLERANCE: Duration = Duration::from_secs(2);

/// A peer that gives the same answer to whatever it is sent.
pub(crate) struct Liar {
    pub(crate) port: u16,
    says: Arc<Mutex<Says>>,
}

/// Its answer, in how many bytes at once, and whether it hangs up then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Says {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at_once: usize,
    pub(crate) hangs_up: bool,
}

impl Liar {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, says) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Says>>::default());
        let heard = Arc::clone(&says);
        thread::spawn(move || {
            for client in listener.incoming() {
                let says = Arc::clone(&heard);
                thread::spawn(move || converse(client.unwrap(), &says));
            }
        });
        Self { port, says }
    }

    pub(crate) fn says(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }
}

fn converse(mut client: TcpStream, says: &Mutex<Says>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(1..) = client.read(&mut buffer) {
        let says = says.lock().unwrap().clone();
        for part in says.bytes.chunks(says.at_once.max(1)) {
            if client.write_all(part).is_err() {
                return;
            }
        }
        if says.hangs_up {
            return;
        }
    }
}

/// A value of the protocol, as it is written.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let bulk = |bytes: Vec<u8>| [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
    let words = "granted|waiting|busy|gone|renewed|condemned|held|waited|unknown|marked|dropped|none|string|hash|list";
    let words = prop::sample::select(words.split('|').map(str::to_owned).collect::<Vec<_>>());
    let codes = "ERR|NOPERM|NOSCRIPT|WRONGPASS|LOADING|READONLY|MOVED|BUSY|OOM|NOAUTH|EXECABORT||x";
    let codes = prop::sample::select(codes.split('|').map(str::to_owned).collect::<Vec<_>>());
    let error = (codes, "[^\r\n]{0,60}", any::<bool>()).prop_map(|(code, text, told)| {
        let secret = if told { SECRET } else { "" };
        format!("-{code} {text}, with args beginning with: '{secret}'\r\n").into_bytes()
    });
    let leaf = prop_oneof![
        4 => words.prop_map(move |word| bulk(word.into_bytes())),
        4 => number().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        4 => number().prop_map(move |number| bulk(number.to_string().into_bytes())),
        4 => entry().prop_map(bulk),
        2 => vec(any::<u8>(), 0..40).prop_map(bulk),
        2 => error,
        1 => "[+(,#_=!][^\r\n]{0,20}\r\n".prop_map(String::into_bytes),
        1 => (prop::sample::select(b"$=!".to_vec()), number(), vec(any::<u8>(), 0..20))
            .prop_map(|(kind, length, rest)| [format!("{}{length}\r\n", char::from(kind)).as_bytes(), &rest].concat()),
        1 => Just(b"+QUEUED\r\n".to_vec()),
        1 => Just(b"$-1\r\n".to_vec()),
    ];
    leaf.prop_recursive(4, 40, 12, |inner| {
        let kind = prop::sample::select(b"*****%~|>".to_vec());
        (kind, vec(inner, 0..12), prop::option::weighted(0.1, number())).prop_map(|(kind, all, length)| {
            let count = if matches!(kind, b'%' | b'|') { all.len() / 2 } else { all.len() };
            let length = length.unwrap_or(i128::try_from(count).unwrap());
            [format!("{}{length}\r\n", char::from(kind)).as_bytes(), &all.concat()].concat()
        })
    })
}

/// Several answers in a row, as a transaction has them.
fn answer() -> impl Strategy<Value = Vec<u8>> {
    let queued =
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    let looked = (number(), "none|string|hash|x", number(), entry(), number(), vec(entry(), 0..3)).prop_map(
        move |(time, kind, left, held, count, waiters)| {
            let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
            let all = waiters.iter().flat_map(|one| bulk(one)).collect::<Vec<_>>();
            let many = [format!("*{}\r\n", waiters.len()).as_bytes(), &all].concat();
            let time = [b"*2\r\n".to_vec(), bulk(time.to_string().as_bytes()), bulk(b"5")].concat();
            let rest = format!(":{left}\r\n:{count}\r\n").into_bytes();
            let parts = [time, format!("+{kind}\r\n").into_bytes(), rest, bulk(&held), bulk(b"7"), many.clone()];
            [queued.as_bytes(), b"*9\r\n", &parts.concat(), b"*1\r\n$1\r\n1\r\n", &many].concat()
        },
    );
    prop_oneof![
        2 => vec(any::<u8>(), 0..300),
        6 => value(),
        3 => vec(value(), 2..12).prop_map(|all| all.concat()),
        4 => looked,
        1 => (prop::sample::select(b"*%~|>".to_vec()), 1..4000_usize)
            .prop_map(|(kind, depth)| format!("{}1\r\n", char::from(kind)).repeat(depth).into_bytes()),
    ]
}

fn says() -> impl Strategy<Value = Says> {
    let at_once = prop_oneof![4 => Just(1 << 20), 1 => 1..9_usize];
    (spoilt(answer()), at_once, prop::bool::weighted(0.8)).prop_map(|(bytes, at_once, hangs_up)| Says {
        bytes,
        at_once,
        hangs_up,
    })
}

/// From here on a length that is believed ends the process.
fn bound_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
        setrlimit(Resource::RLIMIT_AS, hard.min(2 << 30), hard).unwrap();
    });
}

fn every_request(store: &mut dyn Store, by: &dyn Fn() -> Boot) -> Vec<Trouble> {
    let key = key("k");
    let mut all = Vec::new();
    let mut note = |what, by: Boot, trouble: Option<Trouble>| {
        assert!(Boot::now().since(by) < TOLERANCE, "{what} has taken {:?} more than it may", Boot::now().since(by));
        all.extend(trouble);
    };
    let shown =
        Foreign { kind: "string".into(), what: String::new(), value: vec![], left: None, seen: b"s x".to_vec() };
    let end = by();
    note("ask", end, store.ask(&key, &ask(1, true), end).err());
    let end = by();
    note("renew", end, store.renew(&key, &renew(1), end).err());
    let end = by();
    note("wait", end, store.wait(&key, id(1), end).err());
    let end = by();
    note("look", end, store.look(&key, end).err());
    let end = by();
    note("condemn", end, store.condemn(&key, id(1), TTL, end).err());
    let end = by();
    note("remove", end, store.remove_foreign(&key, &shown, end).err());
    let end = by();
    note("finish", end, store.finish(&key, id(1), TTL, TTL, end).err());
    let end = by();
    note("drop", end, store.drop_claim(&key, id(1), TTL, end).err());
    // A list is many requests; a server that always has one more key is left after some.
    let mut left = 50;
    let listed = store.list(None, end.left().max(Duration::from_millis(5)), &mut |_| {
        left -= 1;
        left > 0
    });
    note("list", Boot::now(), listed.err());
    all
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn no_answer_is_too_strange(says in says(), login: bool) {
        thread_local!(static LIAR: Liar = Liar::start());
        bound_memory();
        LIAR.with(|liar| {
            liar.says(says);
            let told = if login { format!(":{SECRET}@") } else { String::new() };
            let (mut store, _) = open(&format!("redis://{told}127.0.0.1:{}", liar.port));
            for trouble in every_request(&mut *store, &|| after(10)) {
                let is_fit = if login { is_fit_to_be_said } else { is_one_short_line };
                is_fit(&trouble.to_string());
            }
        });
    }
}
