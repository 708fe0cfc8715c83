//! A ring that is served, with its event counters.

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
    /// Tells it from those that were in its place before.
    pub(super) number: u32,
    features: u64,
    pub(super) is_enabled: bool,
    kick: EventId,
    call: Option<EventId>,
    error: Option<EventId>,
    /// Its kicks are watched.
    pub(super) is_watched: bool,
    /// There may be something that was not looked at.
    pub(super) is_new: bool,
    /// A signal is on its way.
    pub(super) is_signalling: bool,
    /// Something was completed since it was last asked whether to signal.
    has_completed: bool,
    /// It is signalled whatever the driver wants: what was completed before may not have been told.
    owes_signal: bool,
    /// What an earlier process has taken and not completed.
    again: VecDeque<u16>,
    /// Requests taken and not completed.
    pub(super) under_way: usize,
    /// Who waits for its end.
    pub(super) stopping: Option<Done<u16>>,
    is_broken: bool,
    /// Where the ring tells which requests were taken. (Behind the ring, which uses it.)
    inflight: Option<Arc<Mapped>>,
}

/// What is next in a ring.
#[derive(Debug)]
pub(super) enum Next {
    Request(u16, BlockRequest),
    Nothing,
    /// It is of no use any more.
    Broken(String),
}

impl ServedRing {
    /// Begins to serve it.
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
            // What is there already was kicked for when nobody listened.
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

    /// Whether something may be taken now.
    pub(super) fn is_served(&self) -> bool {
        self.is_enabled && !self.is_broken && (self.is_new || !self.again.is_empty())
    }

    /// Whether it can be let go: everything taken was completed.
    pub(super) fn is_done(&self) -> bool {
        self.under_way == 0 && (self.again.is_empty() || self.is_broken || !self.is_enabled)
    }

    /// Position from which the next process goes on.
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

    /// Gives a request back.
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

    /// Tells the driver of what was completed, if it wants that; true if a signal is on its way.
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

    /// The memory that tells which requests were taken was taken away.
    pub(super) fn is_lost(&self) -> bool {
        self.inflight.as_ref().is_some_and(|area| area.is_lost())
    }

    /// Whether the driver has still to be told of something.
    pub(super) fn must_tell(&self) -> bool {
        self.has_completed && !self.is_signalling
    }

    /// Tells the frontend that it is broken; true if a signal is on its way.
    pub(super) fn break_off(&mut self, reactor: &mut Reactor, token: u64) -> bool {
        self.is_broken = true;
        if let Some(event) = self.error {
            reactor.submit(token, Op::Signal { event });
        }
        self.error.is_some()
    }

    /// Signals go there from now on.
    pub(super) fn set_call(&mut self, reactor: &mut Reactor, call: Option<forebay_io::EventCounter>) {
        if let Some(old) = std::mem::replace(&mut self.call, call.map(|call| reactor.add_event(call))) {
            reactor.close_event(old);
        }
        (self.has_completed, self.owes_signal) = (true, true);
    }

    /// Ends it; operations on its counters come back as cancelled.
    pub(super) fn close(self, reactor: &mut Reactor) {
        let counters = [Some(self.kick), self.call, self.error];
        counters.into_iter().flatten().for_each(|event| reactor.close_event(event));
    }
}
