//! A proxy between rlock and its server, to cut, hold, slow down and lose what passes, each way by itself.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// What becomes of what is sent one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It passes.
    Open,
    /// It passes so much later.
    Slow(Duration),
    /// It passes a byte at a time, so long after the one before.
    Drip(Duration),
    /// It is kept, and passes when the way is open again, whether or not its sender still waits.
    Held,
    /// It is lost, and so is everything that the same connection sends this way later.
    Lost,
}

#[derive(Debug)]
struct Ways {
    to_server: Way,
    to_client: Way,
    /// Connections that were made before this number of them are cut, at both ends.
    cut_before: usize,
    made: usize,
    refuses: bool,
    /// The ends of connections that were lost: to both they are open and say nothing more.
    lost: Vec<(TcpStream, TcpStream)>,
    is_over: bool,
}

/// A proxy before a server.
pub(crate) struct Proxy {
    port: u16,
    ways: Arc<(Mutex<Ways>, Condvar)>,
}

impl Proxy {
    /// Before the server at this port of 127.0.0.1; everything passes.
    pub(crate) fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ways = Ways {
            to_server: Way::Open,
            to_client: Way::Open,
            cut_before: 0,
            made: 0,
            refuses: false,
            lost: Vec::new(),
            is_over: false,
        };
        let ways = Arc::new((Mutex::new(ways), Condvar::new()));
        let shared = Arc::clone(&ways);
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.0.lock().unwrap().is_over {
                    return;
                }
                let client = client.unwrap();
                let (number, refuses) = {
                    let mut ways = shared.0.lock().unwrap();
                    ways.made += 1;
                    (ways.made, ways.refuses)
                };
                if refuses {
                    continue;
                }
                // A server that is down refuses, and so does its proxy.
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
                for to_server in [true, false] {
                    let (client, upstream) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                    let (from, to) = if to_server { (client, upstream) } else { (upstream, client) };
                    let pipe = Pipe { ways: Arc::clone(&shared), to_server, number, to };
                    thread::spawn(move || pipe.pass(from));
                }
            }
        });
        Self { port, ways }
    }

    /// Its port on 127.0.0.1.
    #[allow(dead_code, reason = "for what is not reached by a URL")]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets both ways.
    pub(crate) fn set(&self, to_server: Way, to_client: Way) {
        let mut ways = self.ways.0.lock().unwrap();
        (ways.to_server, ways.to_client) = (to_server, to_client);
        self.ways.1.notify_all();
    }

    /// Ends every connection that there is.
    pub(crate) fn cut(&self) {
        let mut ways = self.ways.0.lock().unwrap();
        ways.cut_before = ways.made + 1;
        ways.lost.clear();
        self.ways.1.notify_all();
    }

    /// Ends those that were lost, as the ends themselves would after a while.
    #[allow(dead_code, reason = "for tests that lose many")]
    pub(crate) fn forget_the_lost(&self) {
        self.ways.0.lock().unwrap().lost.clear();
    }

    /// Closes every connection that is made from now on at once; those that there are stay.
    pub(crate) fn refuse(&self) {
        self.ways.0.lock().unwrap().refuses = true;
    }

    /// How many connections were made.
    pub(crate) fn made(&self) -> usize {
        self.ways.0.lock().unwrap().made
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.ways.0.lock().unwrap().is_over = true;
        // So that it looks.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// One way of one connection.
struct Pipe {
    ways: Arc<(Mutex<Ways>, Condvar)>,
    to_server: bool,
    number: usize,
    to: TcpStream,
}

impl Pipe {
    fn pass(mut self, mut from: TcpStream) {
        // So that a cut is noticed while nothing comes.
        from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buffer = [0; 16 << 10];
        let mut is_lost = false;
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    match self.now() {
                        None => break,
                        Some(Way::Lost) => is_lost = true,
                        Some(_) => {}
                    }
                    if is_lost {
                        break;
                    }
                    continue;
                }
                Err(_) => break,
            };
            match self.hold() {
                None => break,
                Some(Way::Lost) => is_lost = true,
                Some(_) => {}
            }
            if is_lost || self.send(&buffer[..count]).is_none() {
                break;
            }
        }
        let mut ways = self.ways.0.lock().unwrap();
        if is_lost && self.way(&ways).is_some() {
            // To the other end a connection that was lost is one that says nothing more.
            let pair = (from, self.to.try_clone().unwrap());
            ways.lost.push(pair);
            return;
        }
        drop(ways);
        let _ = (self.to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
    }

    /// Sends it as the way wants it just now; none where the connection is over.
    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        match self.now()? {
            Way::Slow(by) => thread::sleep(by),
            Way::Drip(pause) => {
                for byte in bytes {
                    thread::sleep(pause);
                    self.now()?;
                    self.to.write_all(&[*byte]).ok()?;
                }
                return Some(());
            }
            Way::Open | Way::Held | Way::Lost => {}
        }
        self.to.write_all(bytes).ok()
    }

    /// Waits until the way is not held; none where the connection was cut.
    fn hold(&self) -> Option<Way> {
        let mut ways = self.ways.0.lock().unwrap();
        loop {
            match self.way(&ways)? {
                Way::Held => ways = self.ways.1.wait(ways).unwrap(),
                way => return Some(way),
            }
        }
    }

    fn now(&self) -> Option<Way> {
        self.way(&self.ways.0.lock().unwrap())
    }

    fn way(&self, ways: &Ways) -> Option<Way> {
        let way = if self.to_server { ways.to_server } else { ways.to_client };
        (self.number >= ways.cut_before).then_some(way)
    }
}
