//! The ways in which a caller leaves.
//!
//! Invariant: what the other side sees of it is what that way is called, whatever has been read.

use std::time::{Duration, Instant};

use super::super::cell::Trigger;
use super::{Caller, Read, State};

impl Caller {
    /// Leaves in a way that ends the connection, or a part of it. What the other side sees of it is what that way is called.
    ///
    /// # Errors
    /// The kernel's.
    pub fn leave(mut self, how: Trigger) -> std::io::Result<Left> {
        match how {
            // Closed with unread bytes in it, a socket is reset: what has come is thrown away first, so that this one is a FIN.
            Trigger::Close => {
                self.state = State::Over;
                if let Some(socket) = &self.socket {
                    socket.shutdown(std::net::Shutdown::Write).or_else(gone)?;
                }
                Ok(Left { at: Instant::now(), read: std::mem::take(&mut self.read), kept: None })
            }
            // The stream alone: its connection stays, and goes when the try is over.
            Trigger::StreamReset | Trigger::GrpcCancel => {
                if let State::Asked(answer) = &self.state {
                    answer.abort();
                }
                self.state = State::Over;
                Ok(Left { at: Instant::now(), read: self.read.clone(), kept: Some(self) })
            }
            Trigger::Reset => {
                if let Some(socket) = &self.socket {
                    socket.set_linger(Some(Duration::ZERO))?;
                }
                let read = std::mem::take(&mut self.read);
                let at = Instant::now();
                drop(self);
                Ok(Left { at, read, kept: None })
            }
            Trigger::HalfClose => {
                if let Some(socket) = &self.socket {
                    socket.shutdown(std::net::Shutdown::Write).or_else(gone)?;
                }
                Ok(Left { at: Instant::now(), read: self.read.clone(), kept: Some(self) })
            }
            Trigger::Kill => {
                if let State::Process(child, ..) = &mut self.state {
                    child.start_kill()?;
                }
                Ok(Left { at: Instant::now(), read: std::mem::take(&mut self.read), kept: None })
            }
            // Nothing is done to the connection: whoever reads no more, or waits for a deadline, keeps it.
            _ => Ok(Left { at: Instant::now(), read: self.read.clone(), kept: Some(self) }),
        }
    }
}

/// A peer that is gone has closed already.
fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotConnected { Ok(()) } else { Err(error) }
}

/// A caller that has left.
pub struct Left {
    /// When.
    pub at: Instant,
    /// What it had read.
    pub read: Read,
    /// Its connection, where its way of leaving keeps it.
    pub kept: Option<Caller>,
}
