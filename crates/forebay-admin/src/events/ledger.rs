//! Events in the order of their ids, with collapse keys and a bound. The history is a ledger, and
//! so is each reader's queue.
//!
//! Invariant: an entry of `keys` names a present event with that key, so there is at most one event
//! per key.

use super::event::Event;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Events in the order of their ids. Every operation except iteration costs O(log n).
#[derive(Debug, Default)]
pub(super) struct Ledger {
    events: BTreeMap<u64, Arc<Event>>,
    keys: HashMap<Arc<str>, u64>,
    bytes: usize,
}

impl Ledger {
    /// Adds the newest event. It replaces an older one with the same collapse key, which does not
    /// count as lost.
    pub(super) fn push(&mut self, event: Arc<Event>) {
        debug_assert!(self.events.last_key_value().is_none_or(|(newest, _)| *newest < event.id.seq));
        if let Some(key) = &event.collapse_key
            && let Some(older) = self.keys.insert(key.clone(), event.id.seq)
            && let Some(older) = self.events.remove(&older)
        {
            self.bytes -= older.bytes;
        }
        self.bytes += event.bytes;
        self.events.insert(event.id.seq, event);
    }

    /// Removes and returns the oldest event.
    pub(super) fn pop_oldest(&mut self) -> Option<Arc<Event>> {
        let (seq, event) = self.events.pop_first()?;
        self.bytes -= event.bytes;
        if let Some(key) = &event.collapse_key
            && self.keys.get(key) == Some(&seq)
        {
            self.keys.remove(key);
        }
        Some(event)
    }

    /// Removes and returns the oldest event if the ledger exceeds this number of events or bytes.
    pub(super) fn pop_excess(&mut self, events_max: usize, bytes_max: usize) -> Option<Arc<Event>> {
        if self.events.len() > events_max || self.bytes > bytes_max { self.pop_oldest() } else { None }
    }

    /// Returns the oldest event.
    pub(super) fn oldest(&self) -> Option<&Arc<Event>> {
        self.events.first_key_value().map(|(_, event)| event)
    }

    /// Iterates over events with a greater number than `seq`, oldest first.
    pub(super) fn after(&self, seq: u64) -> impl Iterator<Item = &Arc<Event>> {
        let from = seq.saturating_add(1);
        self.events.range(from..).map(|(_, event)| event)
    }

    /// Returns the number of events.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the memory of the events, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{EventId, NewEvent};
    use super::super::kind::EventKind;
    use super::*;

    fn event(seq: u64, key: Option<&str>) -> Arc<Event> {
        let mut new = NewEvent::new(EventKind::JobProgress, "x");
        if let Some(key) = key {
            new = new.collapse_key(key);
        }
        Arc::new(Event::publish(new, EventId { run: 1, seq }, 0, 0, 100))
    }

    fn numbers(ledger: &Ledger) -> Vec<u64> {
        ledger.after(0).map(|event| event.id.seq).collect()
    }

    #[test]
    fn newer_event_replaces_one_with_its_key() {
        let mut ledger = Ledger::default();
        for (seq, key) in [(1, Some("a")), (2, None), (3, Some("b")), (5, Some("a")), (6, None)] {
            ledger.push(event(seq, key));
        }
        assert_eq!(numbers(&ledger), [2, 3, 5, 6]);
        assert_eq!((ledger.len(), ledger.bytes()), (4, 400));
        assert_eq!(ledger.after(3).count(), 2);
    }

    #[test]
    fn a_key_is_forgotten_with_its_event() {
        let mut ledger = Ledger::default();
        ledger.push(event(1, Some("a")));
        assert_eq!(ledger.pop_oldest().unwrap().id.seq, 1);
        assert!(ledger.keys.is_empty());
        ledger.push(event(2, None));
        ledger.push(event(3, Some("a")));
        assert_eq!(numbers(&ledger), [2, 3]);
        assert_eq!(ledger.after(u64::MAX).count(), 0);
    }

    #[test]
    fn excess_is_by_number_and_by_bytes() {
        let mut ledger = Ledger::default();
        (1..=3).for_each(|seq| ledger.push(event(seq, None)));
        assert!(ledger.pop_excess(3, 300).is_none());
        assert_eq!(ledger.pop_excess(2, 300).unwrap().id.seq, 1);
        assert_eq!(ledger.pop_excess(3, 199).unwrap().id.seq, 2);
        assert_eq!(ledger.pop_excess(0, 300).unwrap().id.seq, 3);
        assert!(ledger.pop_excess(0, 0).is_none());
        assert_eq!(ledger.bytes(), 0);
    }
}
