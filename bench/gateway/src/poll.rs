//! Readiness of sockets, and one exact timer.
//!
//! Invariant: a token names one socket for as long as it is registered.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};

/// Most events of one look.
const EVENTS: usize = 1024;
/// The timer's own token.
const TIMER: u64 = u64::MAX;

/// What one look found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// Whose.
    pub(crate) token: u64,
    /// There is something to read, or an end.
    pub(crate) read: bool,
    /// There is room to write.
    pub(crate) write: bool,
}

/// An epoll with a timer.
pub(crate) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to, in nanoseconds of the monotonic clock.
    set: Option<u64>,
    events: Vec<Event>,
}

impl Poll {
    pub(crate) fn new() -> std::io::Result<Poll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Poll { epoll, timer, set: None, events: Vec::with_capacity(EVENTS) })
    }

    /// Tells of what can be read from a socket, and of its end.
    pub(crate) fn add(&self, socket: impl AsFd, token: u64) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Whether room to write is told of, too.
    pub(crate) fn writes(&self, socket: impl AsFd, token: u64, wanted: bool) -> std::io::Result<()> {
        let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    /// Waits until something is ready, or the clock shows `until`.
    pub(crate) fn wait(&mut self, until: Option<u64>, ready: &mut Vec<Ready>) -> std::io::Result<()> {
        if let Some(until) = until.filter(|_| until != self.set) {
            let at = Timespec { tv_sec: (until / 1_000_000_000) as _, tv_nsec: (until % 1_000_000_000).max(1) as _ };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value: at })?;
            self.set = Some(until);
        }
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.clear();
        let found = self.events.iter().map(|event| (event.data.u64(), event.flags));
        ready.extend(found.filter(|(token, _)| *token != TIMER).map(|(token, flags)| Ready {
            token,
            read: flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP),
            write: flags.contains(EventFlags::OUT),
        }));
        Ok(())
    }
}
