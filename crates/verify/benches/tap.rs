//! What a tap adds: the same round trips and the same bytes with and without one, in turns, in one run.
//!
//! `cargo bench -p verify --bench tap`. Both ways have the same caller and the same kind of engine, a thread that answers at once; each
//! turn goes the one way and then the other, and every second turn begins with the other. Processor time is that of the tap's own thread,
//! as the kernel accounts it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use verify::judge::tap::{Options, Tap};

/// Round trips before anything is measured, and those that are.
const WARM: usize = 2_000;
const TURNS: usize = 20_000;
/// Bytes that pass in one turn of the transfer, and turns.
const BLOCK: usize = 64 << 20;
const BLOCKS: usize = 16;
/// Events of a stream that are written one by one, and in turns.
const EVENTS: usize = 50_000;
const STREAMS: usize = 6;

const ASK: &str = concat!(
    "POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nUser-Agent: bench\r\nContent-Type: application/json\r\nX-Request-Id: bench-1\r\n",
    "Content-Length: 100\r\n\r\n0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
);
const ANSWER: &str = concat!(
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
);
const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
/// As vLLM writes a token: one event of 200 bytes, in a chunk of its own.
const EVENT: &str = concat!(
    "c8\r\ndata: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,",
    "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"finish_reason\":null}]}  \n\n\r\n"
);

/// The two ways to an engine.
struct Ways {
    _tap: Tap,
    /// Without a tap, and with one.
    callers: [TcpStream; 2],
    engines: [TcpStream; 2],
}

impl Ways {
    fn new() -> Ways {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let engine = listener.local_addr().expect("an address");
        let tap = Tap::start("127.0.0.1:0", &engine.to_string(), Options::default()).expect("a tap");
        let (mut callers, mut engines) = (Vec::new(), Vec::new());
        for address in [engine, tap.listening()] {
            callers.push(TcpStream::connect(address).expect("it is taken"));
            engines.push(listener.accept().expect("it comes").0);
        }
        callers.iter().chain(&engines).for_each(|socket| socket.set_nodelay(true).expect("an option"));
        let two = |sockets: Vec<TcpStream>| <[TcpStream; 2]>::try_from(sockets).expect("two");
        Ways { _tap: tap, callers: two(callers), engines: two(engines) }
    }
}

fn say(mut socket: &TcpStream, text: &[u8]) {
    socket.write_all(text).expect("it is taken");
}

fn hear(mut socket: &TcpStream, mut count: usize) {
    let mut buffer = vec![0; count.min(256 << 10)];
    while count > 0 {
        let most = buffer.len().min(count);
        match socket.read(&mut buffer[..most]) {
            Ok(0) => panic!("it ended"),
            Ok(read) => count -= read,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Processor time of the thread that passes bytes.
fn tap_cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let is_it = |folder: &std::path::Path| std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == "tap-pass");
    let task = tasks.flatten().map(|task| task.path()).find(|task| is_it(task)).expect("a tap runs");
    let stat = std::fs::read_to_string(task.join("schedstat")).expect("the kernel counts");
    Duration::from_nanos(stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("a number"))
}

/// The value below which this part of all lies.
fn part(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// Each way once a turn; every second turn begins with the other.
fn turns(count: usize, mut go: impl FnMut(usize) -> f64) -> [Vec<f64>; 2] {
    let mut took = [Vec::new(), Vec::new()];
    for turn in 0..count {
        for way in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let seconds = go(way);
            took[way].push(seconds);
        }
    }
    took
}

fn round_trips(ways: &Ways) {
    std::thread::scope(|scope| {
        for engine in &ways.engines {
            scope.spawn(move || {
                for _ in 0..WARM + TURNS {
                    hear(engine, ASK.len());
                    say(engine, ANSWER.as_bytes());
                }
            });
        }
        let go = |way: usize| {
            let began = Instant::now();
            say(&ways.callers[way], ASK.as_bytes());
            hear(&ways.callers[way], ANSWER.len());
            began.elapsed().as_secs_f64() * 1e6
        };
        turns(WARM, go);
        let cpu = tap_cpu();
        let mut took = turns(TURNS, go);
        let cpu = (tap_cpu() - cpu).as_secs_f64() * 1e6 / TURNS as f64;
        let mut added: Vec<f64> = took[0].iter().zip(&took[1]).map(|(without, with)| with - without).collect();
        println!("round trips of {} and {} bytes, {TURNS} each way, in microseconds", ASK.len(), ANSWER.len());
        println!("  {:<12} {:>8} {:>8} {:>8}", "", "median", "p90", "p99");
        for (name, values) in ["without", "with a tap"].iter().zip(&mut took) {
            let [median, p90, p99] = [0.5, 0.9, 0.99].map(|at| part(values, at));
            println!("  {name:<12} {median:>8.1} {p90:>8.1} {p99:>8.1}");
        }
        println!("  {:<12} {:>8.1}   the median of the differences of a turn", "added", part(&mut added, 0.5));
        println!("  {:<12} {cpu:>8.1}   processor time of the tap a round trip", "");
    });
}

/// An answer with this head: so many pieces in each of so many turns.
fn transfer(head: &str, name: &str, turns_max: usize, pieces: usize, piece: &'static [u8]) {
    let ways = &Ways::new();
    ask_for(ways, head);
    let bytes = pieces * piece.len();
    let megabytes = (bytes as f64) / 1e6;
    std::thread::scope(|scope| {
        let go = |way: usize| {
            let began = Instant::now();
            let engine = &ways.engines[way];
            let writing = scope.spawn(move || (0..pieces).for_each(|_| say(engine, piece)));
            hear(&ways.callers[way], bytes);
            writing.join().expect("it wrote");
            megabytes / began.elapsed().as_secs_f64()
        };
        turns(1, go);
        let cpu = tap_cpu();
        let mut rate = turns(turns_max, go);
        let cpu = (tap_cpu() - cpu).as_secs_f64() / turns_max as f64;
        println!("{name}, {megabytes:.0} MB a turn, {turns_max} turns each way");
        for (name, values) in ["without", "with a tap"].iter().zip(&mut rate) {
            println!("  {name:<12} {:>8.0} MB/s", part(values, 0.5));
        }
        let each = cpu / pieces as f64 * 1e6;
        println!("  {:<12} {:>8.3} ms of the tap's processor time a MB, {each:.2} microseconds a piece", "", cpu * 1e3 / megabytes);
    });
}

fn main() {
    // Test runners start benches too, to ask for their tests; there are none.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, load {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    round_trips(&Ways::new());
    let block: &'static [u8] = vec![b'x'; 64 << 10].leak();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BLOCK * (BLOCKS + 1));
    transfer(&head, "one long answer", BLOCKS, BLOCK / block.len(), block);
    transfer(STREAM, "a stream as fast as it goes, event by event", STREAMS, EVENTS, EVENT.as_bytes());
}

/// A request, and the head of its answer, on both ways.
fn ask_for(ways: &Ways, head: &str) {
    for way in [0, 1] {
        say(&ways.callers[way], ASK.as_bytes());
        hear(&ways.engines[way], ASK.len());
        say(&ways.engines[way], head.as_bytes());
        hear(&ways.callers[way], head.len());
    }
}
