//! Bytes that are no protocol, and streams that are closed in the middle, at both ports: whoever speaks properly notices nothing.
// contract: C-13, C-14, C-15

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{Probe, alone, finish, gateway, metric, slow_worker};
use crate::server::{Caller, chat_body, lasting_model, rest};

/// A stream of numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let n = self.next() % max;
        (0..n).map(|_| self.next() as u8).collect()
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// One visitor that makes no sense: noise alone, noise behind a good beginning, a frame's head that promises more than comes.
fn visit(port: u16, dice: &mut Dice) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
    let mut bytes: Vec<u8> = match dice.next() % 5 {
        0 => Vec::new(),
        1 => PREFACE[..(dice.next() as usize % PREFACE.len())].to_vec(),
        2 => PREFACE.to_vec(),
        3 => [PREFACE, b"\0\x40\0\x01\x04\0\0\0\x01"].concat(),
        _ => b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 4000\r\n\r\n{\"messages\": [".to_vec(),
    };
    bytes.extend(dice.bytes(2000));
    let _ = stream.write_all(&bytes); // it may have been shut already
    match dice.next() % 3 {
        0 => drop(stream.shutdown(Shutdown::Write)),
        1 => drop(socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))),
        _ => {}
    }
    let _ = stream.read(&mut [0; 512]);
}

#[test]
fn noise_at_both_ports_does_no_harm() {
    let texts = alone(&lasting_model(), &[("Hello", 100)]);
    let worker = slow_worker(&lasting_model(), &[]);
    let (probe, port) = (Probe::of(&worker), worker.address.rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port"));
    let gateway = gateway(&[&worker.address], &["--lease-ms", "600000"]);
    let before = rest(&gateway.kv());
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", 100, true));
    let mut text = caller.read_tokens(1);
    let mut dice = Dice(0x00dd_ba11);
    for _ in 0..100 {
        visit(port, &mut dice);
        visit(gateway.port, &mut dice);
    }
    let (rest_of_it, error) = finish(&mut caller);
    text.push_str(&rest_of_it);
    assert_eq!((text, error), (texts[0].clone(), None));
    gateway.settled("r");
    let cut = probe.until_at_rest();
    assert_eq!((cut.orphaned_attempts, cut.stale_messages, rest(&gateway.kv())), (0, 0, before));
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
}
