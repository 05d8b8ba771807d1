//! Bytes on their way into a socket that may have no room for them now.
//!
//! Invariant: bytes go out in the order in which they were given, each once.

use std::io::{self, Write};
use std::net::TcpStream;

/// What waits.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    waiting: Vec<u8>,
    sent: usize,
}

impl Sender {
    /// Where further bytes are put.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Writes what the socket takes. Whether something is left.
    pub(crate) fn send(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        while self.sent < self.waiting.len() {
            match socket.write(&self.waiting[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.waiting.clear();
        self.sent = 0;
        Ok(false)
    }
}
