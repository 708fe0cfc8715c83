//! A served ring, with its event counters.

use super::memory::Mapped;
use super::{Done, Start};
use forebay_export::virtio::GuestMemory;
use forebay_export::virtio::block::{BlockRequest, Device};
use forebay_export::virtio::ring::{Ring, RingError};
use forebay_io::{EventId, Op, Reactor};
use std::collections::VecDeque;
use std::sync::Arc;

/// A ring of the pool's thread.
#[derive(Debug)]
pub(super) struct ServedRing {
    ring: Ring,
    /// Distinguishes it from earlier rings at its position.
    pub(super) number: u32,
    features: u64,
    pub(super) is_enabled: bool,
    kick: EventId,
    call: Option<EventId>,
    error: Option<EventId>,
    /// Its kicks are watched.
    pub(super) is_watched: bool,
    /// The ring possibly has requests that were not looked at.
    pub(super) is_new: bool,
    /// A signal is in flight.
    pub(super) is_signalling: bool,
    /// A request was completed since the last check whether to signal.
    has_completed: bool,
    /// The next signal is unconditional: some completions are possibly unsignalled.
    owes_signal: bool,
    /// Requests that an earlier process has taken and not completed.
    again: VecDeque<u16>,
    /// Requests taken and not completed.
    pub(super) under_way: usize,
    /// Answered when the ring has ended.
    pub(super) stopping: Option<Done<u16>>,
    is_broken: bool,
    /// Where the ring records the taken requests. (Behind the ring, which uses it.)
    inflight: Option<Arc<Mapped>>,
}

/// The next item of a ring.
#[derive(Debug)]
pub(super) enum Next {
    Request(u16, BlockRequest),
    Nothing,
    /// The ring is unusable.
    Broken(String),
}

impl ServedRing {
    /// Starts serving the ring.
    pub(super) fn start(
        reactor: &mut Reactor,
        memory: &GuestMemory,
        start: Start,
        number: u32,
    ) -> Result<Self, RingError> {
        let Start { layout, agreed, features, base, inflight, is_enabled, kick, call, error, .. } = start;
        let (inflight, area) = inflight.unzip();
        let (ring, again) = Ring::start(memory, layout, agreed, base, inflight)?;
        let mut add = |counter| reactor.add_event(counter);
        let (kick, call, error) = (add(kick), call.map(&mut add), error.map(&mut add));
        Ok(Self {
            ring,
            number,
            features,
            is_enabled,
            kick,
            call,
            error,
            is_watched: false,
            // The kicks for existing requests were lost, as there was no listener.
            is_new: true,
            is_signalling: false,
            has_completed: true,
            owes_signal: true,
            again: again.into(),
            under_way: 0,
            stopping: None,
            is_broken: false,
            inflight: area,
        })
    }

    /// True if a request may be taken now.
    pub(super) fn is_served(&self) -> bool {
        self.is_enabled && !self.is_broken && (self.is_new || !self.again.is_empty())
    }

    /// True if every taken request is completed, so that the ring can be freed.
    pub(super) fn is_done(&self) -> bool {
        self.under_way == 0 && (self.again.is_empty() || self.is_broken || !self.is_enabled)
    }

    /// Position at which the next process continues.
    pub(super) fn base(&self) -> u16 {
        self.ring.next_available()
    }

    /// Takes the next request.
    pub(super) fn next(&mut self, memory: &GuestMemory, device: &Device) -> Next {
        match self.take(memory, device) {
            Ok(Some((head, request))) => Next::Request(head, request),
            Ok(None) => Next::Nothing,
            Err(why) => {
                self.is_broken = true;
                Next::Broken(why)
            }
        }
    }

    fn take(&mut self, memory: &GuestMemory, device: &Device) -> Result<Option<(u16, BlockRequest)>, String> {
        let head = match self.again.pop_front() {
            Some(head) => head,
            None => match self.take_new(memory).map_err(|error| error.to_string())? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        let chain = self.ring.chain(memory, head).map_err(|error| error.to_string())?;
        let request = device.parse(memory, chain, self.features).map_err(|error| error.to_string())?;
        self.under_way += 1;
        Ok(Some((head, request)))
    }

    fn take_new(&mut self, memory: &GuestMemory) -> Result<Option<u16>, RingError> {
        if self.stopping.is_some() || !self.is_new {
            return Ok(None);
        }
        if let Some(head) = self.ring.take(memory)? {
            return Ok(Some(head));
        }
        self.is_new = self.ring.want_kick(memory)?;
        if self.is_new { self.ring.take(memory) } else { Ok(None) }
    }

    /// Returns a request to the driver.
    pub(super) fn complete(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        written: u32,
    ) -> Result<(), RingError> {
        self.has_completed = true;
        self.ring.complete(memory, head, written)
    }

    /// Watches for kicks, under this token.
    pub(super) fn watch(&mut self, reactor: &mut Reactor, token: u64) {
        self.is_watched = true;
        reactor.submit(token, Op::TakeEvent { event: self.kick });
    }

    /// Signals completed requests to the driver, if it wants that; true if a signal is in flight.
    pub(super) fn signal(
        &mut self,
        reactor: &mut Reactor,
        memory: &GuestMemory,
        token: u64,
    ) -> Result<bool, RingError> {
        if !self.has_completed || self.is_signalling {
            return Ok(false);
        }
        self.has_completed = false;
        let is_wanted = self.ring.must_signal(memory)? || self.owes_signal;
        let (true, Some(event)) = (is_wanted, self.call) else { return Ok(false) };
        self.owes_signal = false;
        self.is_signalling = true;
        reactor.submit(token, Op::Signal { event });
        Ok(true)
    }

    /// True if the memory that records the taken requests was taken away.
    pub(super) fn is_lost(&self) -> bool {
        self.inflight.as_ref().is_some_and(|area| area.is_lost())
    }

    /// True if completions have not been signalled to the driver yet.
    pub(super) fn must_tell(&self) -> bool {
        self.has_completed && !self.is_signalling
    }

    /// Signals to the frontend that the ring is broken; true if a signal is in flight.
    pub(super) fn break_off(&mut self, reactor: &mut Reactor, token: u64) -> bool {
        self.is_broken = true;
        if let Some(event) = self.error {
            reactor.submit(token, Op::Signal { event });
        }
        self.error.is_some()
    }

    /// Sends signals there from now on.
    pub(super) fn set_call(&mut self, reactor: &mut Reactor, call: Option<forebay_io::EventCounter>) {
        if let Some(old) = std::mem::replace(&mut self.call, call.map(|call| reactor.add_event(call))) {
            reactor.close_event(old);
        }
        (self.has_completed, self.owes_signal) = (true, true);
    }

    /// Ends the ring; operations on its counters end as cancelled.
    pub(super) fn close(self, reactor: &mut Reactor) {
        let counters = [Some(self.kick), self.call, self.error];
        counters.into_iter().flatten().for_each(|event| reactor.close_event(event));
    }
}
