//! The hub: receives events from all threads, delivers them to all readers, and keeps a history and
//! the alarms.
//!
//! # One lock, and why
//! The I/O thread publishes events, so publishing must never wait for a reader. Events, history,
//! queues and alarms are behind one mutex, and every critical section is short and bounded: no
//! system call, no formatting of events, no foreign code. A publication inserts one shared pointer
//! into the history and into at most [`HubLimits::readers_max`] queues. A reader takes one event,
//! or scans a bounded part of the history. Wakers run after the lock is released. A channel to a
//! hub thread would cost a wake-up of that thread for each event, and ids would be known only
//! later; a lock-free ring cannot replace an older event by a newer one. One cost remains: the
//! kernel may preempt a thread that holds the lock. Events are rare (tens per second, not
//! thousands), so that is accepted.
//!
//! # Invariants
//! - Ids of a run are 1, 2, 3 ... in the order of publication, times in the same order as long as
//!   the wall clock does not go back.
//! - Memory is bounded by [`HubLimits`]: history and queues in events and in bytes, readers and
//!   alarms in number.
//! - After [`Hub::close`] every reader receives its queued events, and then the end.

use super::alarms::{Alarm, AlarmError, AlarmKey, Alarms};
use super::event::{Event, EventId, NewEvent, memory_bytes};
use super::filter::Filter;
use super::kind::Severity;
use super::ledger::Ledger;
use super::reader::{Reader, ReaderStep, View};
use super::subscription::Subscription;
use crate::clock::{Clock, saturating_ns};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use thiserror::Error;

/// Most events that age removes from the history in one critical section.
const AGED_MAX: usize = 32;

/// Limits of a hub.
#[derive(Clone, Debug)]
pub struct HubLimits {
    /// Age at which the history drops events.
    pub history_age: Duration,
    /// Most events in the history.
    pub history_events_max: usize,
    /// Most memory of the history, in bytes.
    pub history_bytes_max: usize,
    /// Most events queued for one reader.
    pub queue_events_max: usize,
    /// Most memory of one reader's queue, in bytes.
    pub queue_bytes_max: usize,
    /// Most concurrent readers.
    pub readers_max: usize,
    /// Most active alarms.
    pub alarms_max: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            history_age: Duration::from_secs(24 * 3600),
            history_events_max: 10_000,
            history_bytes_max: 8 << 20,
            queue_events_max: 256,
            queue_bytes_max: 512 << 10,
            readers_max: 64,
            alarms_max: 1024,
        }
    }
}

/// Start position of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Events published from now on.
    Now,
    /// The oldest event of the history.
    Oldest,
    /// The event after this one.
    After(EventId),
}

/// Why a reader cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SubscribeError {
    /// The limit on readers is reached.
    #[error("{0} readers follow the events, which is the limit; end one of them first")]
    TooManyReaders(usize),
    /// The daemon is being stopped.
    #[error("the daemon is being stopped")]
    Closed,
}

/// Counters and gauges of a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HubStats {
    /// Events published in this run.
    pub published: u64,
    /// Events dropped because a reader was too slow, over all readers.
    pub dropped: u64,
    /// Current readers.
    pub readers: usize,
    /// Events currently queued for readers.
    pub queued: usize,
    /// Events currently in the history.
    pub history_events: usize,
    /// Current memory of the history, in bytes.
    pub history_bytes: usize,
}

/// The event hub. Cheap to clone; all clones share one hub.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("run", &self.shared.run).finish_non_exhaustive()
    }
}

struct Shared {
    clock: Arc<dyn Clock>,
    limits: HubLimits,
    run: u64,
    state: Mutex<State>,
}

struct State {
    last_seq: u64,
    dropped: u64,
    history: Ledger,
    evicted_through: u64,
    readers: BTreeMap<u64, Reader>,
    next_reader: u64,
    alarms: Alarms,
    closed: bool,
}

impl Hub {
    /// Creates a hub without events. The time on `clock` becomes the id of its run.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, limits: HubLimits) -> Self {
        let state = State {
            last_seq: 0,
            dropped: 0,
            history: Ledger::default(),
            evicted_through: 0,
            readers: BTreeMap::new(),
            next_reader: 0,
            alarms: Alarms::new(limits.alarms_max),
            closed: false,
        };
        let run = clock.unix_ns();
        Self { shared: Arc::new(Shared { clock, limits, run, state: Mutex::new(state) }) }
    }

    /// Publishes an event. Never waits for a reader; takes microseconds.
    pub fn publish(&self, event: NewEvent) -> EventId {
        let bytes = memory_bytes(&event);
        self.change(|state, shared, wakers| state.publish(shared, event, bytes, wakers))
    }

    /// Subscribes to the events that `filter` selects.
    ///
    /// # Errors
    /// There are too many readers, or the hub is closed.
    pub fn subscribe(&self, filter: Filter, start: Start) -> Result<Subscription, SubscribeError> {
        let mut state = self.lock();
        if state.closed {
            return Err(SubscribeError::Closed);
        }
        if state.readers.len() >= self.shared.limits.readers_max {
            return Err(SubscribeError::TooManyReaders(self.shared.limits.readers_max));
        }
        let view = state.view(&self.shared);
        let reader = match start {
            Start::Now => Reader::from_now(filter, &view),
            Start::Oldest => Reader::from_oldest(filter, &view),
            Start::After(id) => Reader::from_after(filter, id, &view),
        };
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(number, reader);
        drop(state);
        Ok(Subscription::new(self.clone(), number))
    }

    /// Records that a condition holds. Publishes an event the first time, and whenever the
    /// condition gets worse.
    pub fn raise(&self, key: AlarmKey, severity: Severity, message: &str) {
        self.change(|state, shared, wakers| {
            let event = state.alarms.raise(key, severity, message.into(), shared.clock.unix_ns());
            state.publish_if(shared, event, wakers);
        });
    }

    /// Records that a condition ended. Returns whether it had an alarm.
    pub fn clear(&self, key: &AlarmKey) -> bool {
        self.change(|state, shared, wakers| {
            let event = state.alarms.clear(key);
            state.publish_if(shared, event, wakers)
        })
    }

    /// Takes over the alarms of earlier runs from their events in JSON, oldest first. If the
    /// condition of such an alarm is seen in this run, the alarm continues; see
    /// [`Hub::end_earlier_alarms`].
    pub fn restore_alarms(&self, events: &[serde_json::Value]) {
        self.lock().alarms.restore(events);
    }

    /// Ends the alarms of earlier runs that do not continue: call it once every condition that
    /// holds has had the time to be seen.
    pub fn end_earlier_alarms(&self) {
        self.change(|state, shared, wakers| {
            for event in state.alarms.end_earlier() {
                state.publish_if(shared, Some(event), wakers);
            }
        });
    }

    /// Acknowledges an alarm for all users, with `by` as the author. A second acknowledgement
    /// changes nothing.
    ///
    /// # Errors
    /// There is no such active alarm.
    pub fn acknowledge(&self, alarm: &str, by: &str) -> Result<Alarm, AlarmError> {
        self.change(|state, shared, wakers| {
            let (alarm, event) = state.alarms.acknowledge(alarm, by, shared.clock.unix_ns())?;
            state.publish_if(shared, event, wakers);
            Ok(alarm)
        })
    }

    /// Returns all active alarms, oldest first.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        self.lock().alarms.list()
    }

    /// Ends all readers once they have received their queued events, and refuses new ones.
    pub fn close(&self) {
        self.change(|state, _, wakers| {
            state.closed = true;
            wakers.extend(state.readers.values_mut().filter_map(|reader| reader.waker.take()));
        });
    }

    /// Returns counters and gauges.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        let state = self.lock();
        HubStats {
            published: state.last_seq,
            dropped: state.dropped,
            readers: state.readers.len(),
            queued: state.readers.values().map(Reader::queued).sum(),
            history_events: state.history.len(),
            history_bytes: state.history.bytes(),
        }
    }

    /// Runs one step of a reader: returns its next delivery, or `None` at the end; or keeps `waker`
    /// until there may be one.
    pub(super) fn poll(&self, reader: u64, waker: &Waker) -> Poll<Option<super::Delivery>> {
        loop {
            match self.poll_once(reader, waker) {
                Some(outcome) => return outcome,
                None => std::thread::yield_now(), // lets other threads take the lock
            }
        }
    }

    fn poll_once(&self, number: u64, waker: &Waker) -> Option<Poll<Option<super::Delivery>>> {
        let mut state = self.lock();
        let state = &mut *state;
        state.drop_aged(&self.shared);
        let closed = state.closed;
        let Some(mut reader) = state.readers.remove(&number) else {
            return Some(Poll::Ready(None));
        };
        let outcome = match reader.step(&state.view(&self.shared)) {
            ReaderStep::Delivery(delivery) => Some(Poll::Ready(Some(delivery))),
            ReaderStep::Again => None,
            ReaderStep::Nothing if closed => Some(Poll::Ready(None)),
            ReaderStep::Nothing => {
                reader.waker = Some(waker.clone());
                Some(Poll::Pending)
            }
        };
        state.readers.insert(number, reader);
        outcome
    }

    /// Returns the id of the last event that a reader need not receive again.
    pub(super) fn position(&self, reader: u64) -> EventId {
        let state = self.lock();
        let run = self.shared.run;
        let end = EventId { run, seq: state.last_seq };
        state.readers.get(&reader).map_or(end, |reader| reader.position(run))
    }

    pub(super) fn unsubscribe(&self, reader: u64) {
        let gone = self.lock().readers.remove(&reader);
        drop(gone); // frees its queue outside of the lock
    }

    /// Runs `change` under the lock, then runs the wakers that it collects.
    fn change<T>(&self, change: impl FnOnce(&mut State, &Shared, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let result = change(&mut self.lock(), &self.shared, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another holder is that holder's failure; the state is consistent between any
        // two calls on it.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn publish(&mut self, shared: &Shared, new: NewEvent, bytes: usize, wakers: &mut Vec<Waker>) -> EventId {
        let limits = &shared.limits;
        self.last_seq += 1;
        let id = EventId { run: shared.run, seq: self.last_seq };
        let (unix_ns, now_ns) = (shared.clock.unix_ns(), shared.clock.monotonic_ns());
        let event = Arc::new(Event::publish(new, id, unix_ns, now_ns, bytes));
        for reader in self.readers.values_mut() {
            let (waker, lost) = reader.offer(&event, limits);
            self.dropped += lost;
            wakers.extend(waker);
        }
        self.history.push(event);
        while let Some(old) = self.history.pop_excess(limits.history_events_max, limits.history_bytes_max) {
            self.evicted_through = old.id.seq;
        }
        self.drop_aged(shared);
        id
    }

    /// Publishes the event, if there is one, and returns whether there was.
    fn publish_if(&mut self, shared: &Shared, event: Option<NewEvent>, wakers: &mut Vec<Waker>) -> bool {
        let Some(event) = event else {
            return false;
        };
        let bytes = memory_bytes(&event);
        self.publish(shared, event, bytes, wakers);
        true
    }

    /// Drops events above the age limit from the history: a bounded number; later calls drop the
    /// rest.
    fn drop_aged(&mut self, shared: &Shared) {
        let age_ns = saturating_ns(shared.limits.history_age);
        let now_ns = shared.clock.monotonic_ns();
        for _ in 0..AGED_MAX {
            match self.history.oldest() {
                Some(oldest) if now_ns.saturating_sub(oldest.published_ns) >= age_ns => {
                    self.evicted_through = oldest.id.seq;
                    self.history.pop_oldest();
                }
                _ => break,
            }
        }
    }

    fn view<'a>(&'a self, shared: &Shared) -> View<'a> {
        View {
            run: shared.run,
            last_seq: self.last_seq,
            evicted_through: self.evicted_through,
            history: &self.history,
            now_ns: shared.clock.monotonic_ns(),
        }
    }
}
