//! State of one reader in the hub: its position, its queue, and its missed events.
//!
//! A reader is in one of two states. *Catching up*: it reads the history at its own speed and has
//! no queue; it misses an event only if the history drops it first. *Live*: the hub queues events
//! for it as they are published; a full queue drops and counts the oldest. The reader becomes live
//! once it has seen the newest event, under the lock of the hub, so that no event is missed between
//! the states.
//!
//! Invariant: a reader receives increasing ids. A [`Gap`] before the next event reports the missing
//! ones, with three exceptions: events that its filter rejects, events that a collapse key
//! replaced, and expired events.

use super::event::{Event, EventId};
use super::filter::Filter;
use super::hub::HubLimits;
use super::ledger::Ledger;
use serde_json::{Value, json};
use std::sync::Arc;
use std::task::Waker;

/// Events of the history that one step scans at most: bounds the time under the lock of the hub.
const SCAN_MAX: usize = 128;

/// An item that a reader receives.
#[derive(Clone, PartialEq, Debug)]
pub enum Delivery {
    /// An event.
    Event(Arc<Event>),
    /// Events are missing here.
    Gap(Gap),
}

/// Why events are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapReason {
    /// The reader was too slow for its queue. `lost_max` is exact.
    TooSlow,
    /// The history does not reach back that far. `lost_max` includes events that the filter would
    /// have rejected.
    TooOld,
    /// The id is of another run of the daemon; the events in between are unknown.
    OtherRun,
    /// This run has published no event of that number.
    UnknownId,
}

impl GapReason {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TooSlow => "too-slow",
            Self::TooOld => "too-old",
            Self::OtherRun => "other-run",
            Self::UnknownId => "unknown-id",
        }
    }
}

/// Events are missing between `after` and the next delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Why.
    pub reason: GapReason,
    /// Nothing is missing up to here.
    pub after: EventId,
    /// The last missing event: the next delivery is newer.
    pub through: EventId,
    /// Most events that may be missing; `None` if unknown.
    pub lost_max: Option<u64>,
}

impl Gap {
    /// Returns the gap in the form of the admin API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let message = match self.reason {
            GapReason::TooSlow => {
                "events were dropped because they were not read in time; to get those still in the history, \
                connect again with the id of the last event"
            }
            GapReason::TooOld => "the history does not reach back that far",
            GapReason::OtherRun => "the daemon has restarted since; these events are from its history",
            GapReason::UnknownId => "this run of the daemon has published no such event",
        };
        json!({
            "reason": self.reason.name(),
            "after": self.after.to_string(),
            "through": self.through.to_string(),
            "lost_max": self.lost_max,
            "message": message,
        })
    }
}

/// State of the hub that readers need.
pub(super) struct View<'a> {
    pub(super) run: u64,
    pub(super) last_seq: u64,
    /// All events up to here have left the history, or newer ones have replaced them.
    pub(super) evicted_through: u64,
    pub(super) history: &'a Ledger,
    pub(super) now_ns: u64,
}

/// Outcome of one step of a reader.
pub(super) enum ReaderStep {
    Delivery(Delivery),
    /// The step reached its limit of events; there may be more.
    Again,
    /// There is no delivery yet.
    Nothing,
}

#[derive(Debug)]
enum State {
    CatchingUp,
    Live(Ledger),
}

/// State of one reader.
#[derive(Debug)]
pub(super) struct Reader {
    filter: Filter,
    state: State,
    /// Everything up to here was delivered, reported as missing, or filtered out.
    seen: u64,
    /// Events missing at the start.
    start_gap: Option<Gap>,
    /// Dropped from the queue and not reported yet: the number, and the last one.
    lost: (u64, u64),
    /// Woken by the next event.
    pub(super) waker: Option<Waker>,
}

impl Reader {
    fn new(filter: Filter, state: State, seen: u64) -> Self {
        Self { filter, state, seen, start_gap: None, lost: (0, 0), waker: None }
    }

    /// Creates a reader of the events published from now on.
    pub(super) fn from_now(filter: Filter, view: &View<'_>) -> Self {
        Self::new(filter, State::Live(Ledger::default()), view.last_seq)
    }

    /// Creates a reader that starts with the whole history.
    pub(super) fn from_oldest(filter: Filter, view: &View<'_>) -> Self {
        Self::new(filter, State::CatchingUp, view.evicted_through)
    }

    /// Creates a reader that has seen everything up to `id`.
    pub(super) fn from_after(filter: Filter, id: EventId, view: &View<'_>) -> Self {
        let reason = if id.run != view.run {
            GapReason::OtherRun
        } else if id.seq > view.last_seq {
            GapReason::UnknownId
        } else {
            return Self::new(filter, State::CatchingUp, id.seq);
        };
        let mut reader = Self::from_oldest(filter, view);
        let through = EventId { run: view.run, seq: view.evicted_through };
        reader.start_gap = Some(Gap { reason, after: id, through, lost_max: None });
        reader
    }

    /// Queues a new event if the filter selects it; returns the waker to run and the number of
    /// dropped events.
    pub(super) fn offer(&mut self, event: &Arc<Event>, limits: &HubLimits) -> (Option<Waker>, u64) {
        if !self.filter.wants(event) {
            return (None, 0);
        }
        let State::Live(queue) = &mut self.state else {
            return (None, 0); // it reads the event from the history
        };
        queue.push(event.clone());
        let mut lost = 0;
        while let Some(dropped) = queue.pop_excess(limits.queue_events_max, limits.queue_bytes_max) {
            self.lost = (self.lost.0 + 1, dropped.id.seq);
            lost += 1;
        }
        (self.waker.take(), lost)
    }

    /// Returns the next outcome for the reader. Takes a bounded time.
    pub(super) fn step(&mut self, view: &View<'_>) -> ReaderStep {
        if let Some(gap) = self.start_gap.take() {
            return ReaderStep::Delivery(Delivery::Gap(gap));
        }
        match self.state {
            State::CatchingUp => self.catch_up(view),
            State::Live(_) => self.live(view),
        }
    }

    fn catch_up(&mut self, view: &View<'_>) -> ReaderStep {
        if self.seen < view.evicted_through {
            let lost = view.evicted_through - self.seen;
            return self.gap(GapReason::TooOld, view.evicted_through, lost, view);
        }
        for event in view.history.after(self.seen).take(SCAN_MAX) {
            self.seen = event.id.seq;
            if self.filter.wants(event) && event.expires_ns > view.now_ns {
                return ReaderStep::Delivery(Delivery::Event(event.clone()));
            }
        }
        if self.seen < view.last_seq && view.history.after(self.seen).next().is_some() {
            return ReaderStep::Again;
        }
        self.seen = view.last_seq;
        self.state = State::Live(Ledger::default());
        ReaderStep::Nothing
    }

    fn live(&mut self, view: &View<'_>) -> ReaderStep {
        let (lost, through) = std::mem::take(&mut self.lost);
        if lost > 0 {
            return self.gap(GapReason::TooSlow, through, lost, view);
        }
        let State::Live(queue) = &mut self.state else {
            return ReaderStep::Again;
        };
        while let Some(event) = queue.pop_oldest() {
            self.seen = event.id.seq;
            if event.expires_ns > view.now_ns {
                return ReaderStep::Delivery(Delivery::Event(event));
            }
        }
        self.seen = view.last_seq;
        ReaderStep::Nothing
    }

    fn gap(&mut self, reason: GapReason, through: u64, lost: u64, view: &View<'_>) -> ReaderStep {
        let id = |seq| EventId { run: view.run, seq };
        let gap = Gap { reason, after: id(self.seen), through: id(through), lost_max: Some(lost) };
        self.seen = through;
        ReaderStep::Delivery(Delivery::Gap(gap))
    }

    /// Returns the last event that the reader need not receive again: an event of another run until
    /// the gap is delivered.
    pub(super) fn position(&self, run: u64) -> EventId {
        self.start_gap.as_ref().map_or(EventId { run, seq: self.seen }, |gap| gap.after)
    }

    /// Returns the number of events in its queue.
    pub(super) fn queued(&self) -> usize {
        match &self.state {
            State::CatchingUp => 0,
            State::Live(queue) => queue.len(),
        }
    }
}
