//! Frames: the head that each has, and the messages that some carry.
//!
//! Invariant: a frame with a message has a number, and one without has no number, on both ways.
// contract: C-3

use std::time::Duration;

use lifecycle::Time;
use lifecycle::message::{Down, Up};
use lifecycle::session::{Echo, Frame};
use prost::Message;

use crate::hello::{Opened, Opening};
use crate::{Error, field, worker_v1 as wire};

/// What comes down a session.
#[derive(Clone, Debug)]
pub enum FromGateway {
    /// The first message.
    Hello(Opening),
    /// Any other.
    Frame(Frame<Down>),
}

/// What comes up a session.
#[derive(Clone, Debug)]
pub enum FromWorker {
    /// The first message.
    Welcome(Opened),
    /// Any other.
    Frame(Frame<Up>),
}

/// A frame on its way down.
///
/// # Errors
/// A message that is no session's, or a list beyond its limit.
pub fn down(frame: &Frame<Down>) -> Result<wire::Down, Error> {
    let head = head(frame, "DownFrame")?;
    let message = frame.message.as_ref().map(TryFrom::try_from).transpose()?;
    Ok(wire::Down { kind: Some(wire::down::Kind::Frame(wire::DownFrame { head: Some(head), message })) })
}

/// A frame on its way up.
///
/// # Errors
/// A message that is no session's, or a list beyond its limit.
pub fn up(frame: &Frame<Up>) -> Result<wire::Up, Error> {
    let head = head(frame, "UpFrame")?;
    let message = frame.message.as_ref().map(TryFrom::try_from).transpose()?;
    Ok(wire::Up { kind: Some(wire::up::Kind::Frame(wire::UpFrame { head: Some(head), message })) })
}

/// Whether a frame is within the worker's `frame_bytes_max`. To be asked before its message goes into a lane: a frame that is too large ends
/// the stream, and the lane would send it again on the next one, and the next.
///
/// # Errors
/// It is too large.
pub fn fits(frame: &impl Message, frame_bytes_max: u64) -> Result<(), Error> {
    let bytes = frame.encoded_len() as u64;
    if bytes > frame_bytes_max { Err(Error::TooLarge { bytes, frame_bytes_max }) } else { Ok(()) }
}

impl From<&Opening> for wire::Down {
    fn from(hello: &Opening) -> wire::Down {
        wire::Down { kind: Some(wire::down::Kind::Hello(hello.into())) }
    }
}

impl From<&Opened> for wire::Up {
    fn from(welcome: &Opened) -> wire::Up {
        wire::Up { kind: Some(wire::up::Kind::Welcome(welcome.into())) }
    }
}

impl TryFrom<wire::Down> for FromGateway {
    type Error = Error;

    fn try_from(down: wire::Down) -> Result<FromGateway, Error> {
        match field::need(down.kind, "Down.kind")? {
            wire::down::Kind::Hello(hello) => Ok(FromGateway::Hello(hello.try_into()?)),
            wire::down::Kind::Frame(frame) => {
                let message = frame.message.map(Down::try_from).transpose()?;
                Ok(FromGateway::Frame(read(field::need(frame.head, "DownFrame.head")?, message, "DownFrame")?))
            }
        }
    }
}

impl TryFrom<wire::Up> for FromWorker {
    type Error = Error;

    fn try_from(up: wire::Up) -> Result<FromWorker, Error> {
        match field::need(up.kind, "Up.kind")? {
            wire::up::Kind::Welcome(welcome) => Ok(FromWorker::Welcome(welcome.try_into()?)),
            wire::up::Kind::Frame(frame) => {
                let message = frame.message.map(Up::try_from).transpose()?;
                Ok(FromWorker::Frame(read(field::need(frame.head, "UpFrame.head")?, message, "UpFrame")?))
            }
        }
    }
}

fn head<M>(frame: &Frame<M>, name: &'static str) -> Result<wire::Head, Error> {
    numbered(frame, name)?;
    Ok(wire::Head {
        from: field::bytes(frame.from),
        to: field::bytes(frame.to),
        tenure: frame.tenure,
        number: frame.number,
        received: frame.received,
        missing: frame.missing,
        stamp_us: frame.stamp.0,
        echo: frame.echo.map(|echo| wire::Echo { stamp_us: echo.stamp.0, held_us: field::micros(echo.held) }),
    })
}

fn read<M>(head: wire::Head, message: Option<M>, name: &'static str) -> Result<Frame<M>, Error> {
    let frame = Frame {
        from: field::incarnation(&head.from, "Head.from")?,
        to: field::incarnation(&head.to, "Head.to")?,
        tenure: field::number(head.tenure, "Head.tenure")?,
        number: head.number,
        received: head.received,
        missing: head.missing,
        stamp: Time(head.stamp_us),
        echo: head.echo.map(|echo| Echo { stamp: Time(echo.stamp_us), held: Duration::from_micros(echo.held_us) }),
        message,
    };
    numbered(&frame, name)?;
    Ok(frame)
}

fn numbered<M>(frame: &Frame<M>, name: &'static str) -> Result<(), Error> {
    match frame.message {
        Some(_) if frame.number == 0 => Err(Error::Unnumbered { frame: name }),
        None if frame.number != 0 => Err(Error::UnknownMessage { frame: name, number: frame.number }),
        _ => Ok(()),
    }
}
