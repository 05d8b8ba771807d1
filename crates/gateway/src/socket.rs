//! What the kernel knows of a connection and no safe call tells: how much the peer has not acknowledged, and when it was last heard.
//!
//! Invariant: the two calls here read or set numbers of a socket that the caller holds open; nothing of them outlives the call.
// contract: C-10 C-28

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Linux's `TCP_RTO_MAX_MS` (6.15 and later), which libc does not name yet, and what it may be set to.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const RTO_MAX_MS: (u128, u128) = (1000, 120_000);

/// One look at a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Look {
    /// Bytes in the send queue: written by us and not acknowledged by the peer's kernel, sent or not.
    pub(crate) queued: u64,
    /// Whether some of them are under way. If not, and there are any, the peer's window is closed.
    pub(crate) in_flight: bool,
    /// Whether a probe (of a closed window, or of an idle peer) waits for its answer.
    pub(crate) probing: bool,
    /// How long nothing at all has come from the peer.
    pub(crate) silent: Duration,
}

/// Looks at a connection.
///
/// # Errors
/// The socket is none of TCP's.
#[allow(unsafe_code)]
pub(crate) fn look(socket: impl AsFd) -> io::Result<Look> {
    let fd = socket.as_fd().as_raw_fd();
    let mut queued: libc::c_int = 0;
    // SAFETY: `fd` is open for as long as `socket` is borrowed, and TIOCOUTQ writes one int, which `queued` is.
    if unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut queued) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `tcp_info` is numbers only, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: as above; the kernel writes at most `length` bytes to `info`, which has that many.
    let result = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Look {
        queued: u64::try_from(queued).unwrap_or(0),
        in_flight: info.tcpi_unacked > 0,
        probing: info.tcpi_probes > 0,
        silent: Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into()),
    })
}

/// Longest pause between two sendings of the same data or of a probe. Kernels before 6.15 know no such limit; there it changes nothing.
#[allow(unsafe_code)]
pub(crate) fn limit_pauses(socket: impl AsFd, pause: Duration) {
    let ms = pause.as_millis().clamp(RTO_MAX_MS.0, RTO_MAX_MS.1) as libc::c_int;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the kernel reads `length` bytes of `ms`, which has that many.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, (&raw const ms).cast(), length) };
    if result != 0 {
        tracing::trace!(error = %io::Error::last_os_error(), "the kernel takes no limit of retransmission pauses");
    }
}
