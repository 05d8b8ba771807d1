//! A tap with a test at both of its ends: connections of which the test holds the caller's socket and the engine's.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use verify::judge::tap::{Exchange, Options, Tap, TapClient, Which};

/// Longest wait for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Looks at what must become so, and the pause between two.
const LOOKS: u32 = 6000;
const PAUSE: Duration = Duration::from_millis(10);

/// How a socket ended for who reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Fin,
    Rst,
}

/// A tap, or none, and the listener behind it.
pub struct Stand {
    pub tap: Option<Tap>,
    engine: TcpListener,
    /// Who connects takes the connection at the other end, too.
    turn: Mutex<()>,
}

impl Stand {
    pub fn new(options: Options) -> Stand {
        let engine = TcpListener::bind("127.0.0.1:0").expect("a port");
        let upstream = engine.local_addr().expect("an address").to_string();
        let tap = Tap::start("127.0.0.1:0", &upstream, options).expect("a tap");
        Stand { tap: Some(tap), engine, turn: Mutex::new(()) }
    }

    /// A tap behind which nobody listens.
    pub fn dead_end(tap: Tap) -> Stand {
        Stand { tap: Some(tap), ..Stand::untapped() }
    }

    /// Nothing between the ends.
    pub fn untapped() -> Stand {
        Stand { tap: None, engine: TcpListener::bind("127.0.0.1:0").expect("a port"), turn: Mutex::new(()) }
    }

    fn address(&self) -> std::net::SocketAddr {
        self.tap.as_ref().map_or_else(|| self.engine.local_addr().expect("an address"), Tap::listening)
    }

    /// A caller alone: what it wants may never be taken.
    pub fn caller(&self) -> TcpStream {
        ready(TcpStream::connect(self.address()).expect("it is taken"))
    }

    /// The next that comes to the engine.
    pub fn engine(&self) -> TcpStream {
        ready(self.engine.accept().expect("it comes").0)
    }

    /// Both ends of a new connection.
    pub fn pair(&self) -> (TcpStream, TcpStream) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = self.caller();
        (caller, self.engine())
    }

    fn running(&self) -> &Tap {
        self.tap.as_ref().expect("it is tapped")
    }

    /// The exchanges so far.
    pub fn seen(&self) -> Vec<Exchange> {
        self.running().page(&Which::After(0)).exchanges
    }

    /// The exchanges, once there are any of which this holds: a tap looks at what passed when it has passed.
    pub fn seen_when(&self, holds: impl Fn(&[Exchange]) -> bool) -> Vec<Exchange> {
        for _ in 0..LOOKS {
            let seen = self.seen();
            if !seen.is_empty() && holds(&seen) {
                return seen;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("it never became so: {:?}", self.seen());
    }

    pub fn client(&self) -> TapClient {
        TapClient::new(&self.running().reporting().to_string()).expect("an address")
    }
}

fn ready(socket: TcpStream) -> TcpStream {
    socket.set_nodelay(true).expect("an option");
    socket.set_read_timeout(Some(PATIENCE)).expect("an option");
    socket.set_write_timeout(Some(PATIENCE)).expect("an option");
    socket
}

pub fn say(mut socket: &TcpStream, text: impl AsRef<[u8]>) {
    socket.write_all(text.as_ref()).expect("it is taken");
}

/// Reads so many bytes.
pub fn hear(mut socket: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    socket.read_exact(&mut bytes).expect("it comes");
    bytes
}

/// Reads to the end: what came, and how it ended.
pub fn hear_all(mut socket: &TcpStream) -> (Vec<u8>, Seen) {
    let mut all = Vec::new();
    let seen = match socket.read_to_end(&mut all) {
        Ok(_) => Seen::Fin,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Seen::Rst,
        Err(error) => panic!("neither FIN nor RST: {error}"),
    };
    (all, seen)
}

pub fn fin(socket: &TcpStream) {
    socket.shutdown(Shutdown::Write).expect("it was open");
}

pub fn rst(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("an option");
    drop(socket);
}

/// Waits for a reset that a FIN went before: reading does not show it any more.
pub fn reset_comes(socket: &TcpStream) {
    for _ in 0..LOOKS {
        if let Some(error) = socket.take_error().expect("an option") {
            assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
            return;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("no reset came");
}

/// Writes until nobody takes any more: how many bytes were taken. `MOST` if everything was.
pub fn fill(mut socket: &TcpStream, most: usize) -> usize {
    /// A writer that may not write for so long has been stopped.
    const STOPPED: Duration = Duration::from_millis(500);
    socket.set_write_timeout(Some(STOPPED)).expect("an option");
    let piece = [b'x'; 64 << 10];
    let mut taken = 0;
    while taken < most {
        match socket.write(&piece) {
            Ok(count) => taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    socket.set_write_timeout(Some(PATIENCE)).expect("an option");
    taken
}
