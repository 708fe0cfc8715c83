//! Changes and flushes: what is sent when, what is kept, and what is sent again (L1 to L3).

use std::ops::Range;
use std::sync::Arc;

use forebay_export::nbd::codec::{Errno, cmd, cmd_flag, transmission_flag};

use super::connections::Tag;
use super::{Lane, LaneError};
use crate::fault::{PlantedBug, planted};
use crate::session::Request;

/// Longest piece of a write: the index expects it, and a server answers it soon.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// Longest piece of a zeroing: a server may have to write the zeroes.
const ZERO_BYTES_MAX: u64 = 32 << 20;

/// What a change writes.
#[derive(Debug, Clone)]
enum Body {
    Data(Arc<Vec<u8>>, Range<usize>),
    Zero {
        may_unmap: bool,
    },
    /// Unknown: a lock of a range for the quarantine, which is not sent.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    InFlight,
    /// It was in flight when this session ended, and may take effect later.
    Limbo(u64),
    /// The session of slot 0 has answered it.
    Answered,
    /// The FLUSH in flight covers it.
    Covered,
}

/// A part of a write or zeroing.
#[derive(Debug)]
pub(super) struct Change {
    /// Its operation; `None` once that has been answered.
    op: Option<u64>,
    offset: u64,
    len: u64,
    body: Body,
    state: State,
    /// It was in limbo: it completes after a FLUSH.
    is_repeated: bool,
}

impl Change {
    /// Younger changes of its bytes may be sent.
    fn is_settled(&self) -> bool {
        let answered = matches!(self.state, State::Answered | State::Covered);
        answered && !(self.is_repeated && self.op.is_some())
    }

    fn is_lock(&self) -> bool {
        matches!(self.body, Body::Unknown)
    }

    pub(super) fn is_in_limbo(&self) -> bool {
        matches!(self.state, State::Limbo(_))
    }

    /// Its bytes at the server may be older than what has been acknowledged.
    fn is_to_be_repeated(&self) -> bool {
        let completed = self.op.is_none() && !matches!(self.state, State::Answered | State::Covered);
        !self.is_lock() && (completed || self.is_in_limbo() || (self.is_repeated && self.op.is_some()))
    }
}

/// A flush of the lane's owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flush {
    pub(super) id: u64,
    /// See [`RemoteOp::Flush`](forebay_io::RemoteOp::Flush).
    reports: bool,
}

/// A FLUSH in flight: the operations that it answers.
#[derive(Debug)]
pub(super) struct Round {
    /// Sequence and id of each.
    flushes: Vec<(u64, Flush)>,
}

impl Lane {
    pub(super) fn submit_write(&mut self, id: u64, offset: u64, data: &Arc<Vec<u8>>) {
        let piece = self.piece_bytes(WRITE_BYTES_MAX);
        for part in pieces(data.len() as u64, piece) {
            let range = part.start as usize..part.end as usize;
            let body = Body::Data(Arc::clone(data), range);
            self.add_change(id, offset + part.start, part.end - part.start, body);
        }
    }

    pub(super) fn submit_zero(&mut self, id: u64, offset: u64, len: u64, may_unmap: bool) {
        let knows = |facts: &crate::session::ServerInfo| facts.has(transmission_flag::SEND_WRITE_ZEROES);
        if self.facts.as_ref().is_some_and(knows) {
            for part in pieces(len, ZERO_BYTES_MAX) {
                let body = Body::Zero { may_unmap };
                self.add_change(id, offset + part.start, part.end - part.start, body);
            }
            return;
        }
        let piece = self.piece_bytes(WRITE_BYTES_MAX).min(len);
        let zeroes = Arc::new(vec![0; piece as usize]);
        for part in pieces(len, piece) {
            let body = Body::Data(Arc::clone(&zeroes), 0..(part.end - part.start) as usize);
            self.add_change(id, offset + part.start, part.end - part.start, body);
        }
    }

    pub(super) fn submit_flush(&mut self, id: u64, reports: bool) {
        let seq = self.next_seq();
        if let Some(op) = self.ops.get_mut(&id) {
            op.parts = 1;
        }
        self.flushes.insert(seq, Flush { id, reports });
    }

    /// Locks the whole store for changes until the end of the quarantine.
    pub(super) fn lock_everything(&mut self) {
        let seq = self.next_seq();
        let state = State::Limbo(0);
        let (offset, len) = (0, u64::MAX);
        let lock = Change { op: None, offset, len, body: Body::Unknown, state, is_repeated: false };
        self.insert_change(seq, lock);
    }

    /// Longest payload of one request.
    pub(super) fn piece_bytes(&self, limit: u64) -> u64 {
        let max = self.facts.as_ref().map_or(32 << 20, |facts| u64::from(facts.payload_bytes_max()));
        (limit.min(max) / 4096 * 4096).max(512)
    }

    fn add_change(&mut self, id: u64, offset: u64, len: u64, body: Body) {
        let seq = self.next_seq();
        if let Some(op) = self.ops.get_mut(&id) {
            op.parts += 1;
        }
        let (op, state) = (Some(id), State::Waiting);
        self.insert_change(seq, Change { op, offset, len, body, state, is_repeated: false });
    }

    fn insert_change(&mut self, seq: u64, change: Change) {
        self.index.insert(seq, change.offset, change.len);
        self.unsettled.insert(seq);
        self.changes.insert(seq, change);
    }

    fn remove_change(&mut self, seq: u64) {
        let Some(change) = self.changes.remove(&seq) else { return };
        self.index.remove(seq, change.offset);
        self.unsettled.remove(&seq);
        if matches!(change.state, State::Answered | State::Covered) {
            self.kept_bytes -= memory_of(&change);
        }
    }

    fn set_state(&mut self, seq: u64, state: State) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        let kept = |state| matches!(state, State::Answered | State::Covered);
        match (kept(change.state), kept(state)) {
            (false, true) => self.kept_bytes += memory_of(change),
            (true, false) => self.kept_bytes -= memory_of(change),
            _ => {}
        }
        change.state = state;
        if change.is_settled() {
            self.unsettled.remove(&seq);
        } else {
            self.unsettled.insert(seq);
        }
    }

    /// L1: an older change of these bytes holds this one back.
    fn is_held_back(&self, seq: u64, change: &Change) -> bool {
        let mut others = self.index.overlapping(change.offset, change.len);
        others.any(|other| other < seq && self.changes.get(&other).is_some_and(|other| !other.is_settled()))
    }

    pub(super) fn send_changes(&mut self) {
        if !self.is_up(0) {
            return;
        }
        for seq in self.unsettled.iter().copied().collect::<Vec<_>>() {
            let Some(change) = self.changes.get(&seq) else { continue };
            if change.state != State::Waiting || change.is_lock() {
                continue;
            }
            if !self.has_room(0, change.len.min(WRITE_BYTES_MAX)) {
                return;
            }
            let is_new = change.op.is_some() && !change.is_repeated;
            if is_new && self.kept_bytes >= self.config.kept_bytes_max {
                continue;
            }
            if self.is_held_back(seq, change) && !planted(PlantedBug::OvertakeChange) {
                continue;
            }
            self.send_change(seq);
        }
    }

    fn send_change(&mut self, seq: u64) {
        let Some(change) = self.changes.get(&seq) else { return };
        let (offset, length) = (change.offset, u32::try_from(change.len).unwrap_or(u32::MAX));
        let (body, tag) = (change.body.clone(), Tag::Change(seq));
        self.set_state(seq, State::InFlight);
        match body {
            Body::Data(bytes, range) => {
                let request = Request { kind: cmd::WRITE, flags: 0, offset, length };
                self.send_on(0, tag, request, &bytes[range]);
            }
            Body::Zero { may_unmap } => {
                let flags = if may_unmap { 0 } else { cmd_flag::NO_HOLE };
                let request = Request { kind: cmd::WRITE_ZEROES, flags, offset, length };
                self.send_on(0, tag, request, &[]);
            }
            Body::Unknown => {}
        }
    }

    /// The session of slot 0 has answered a change.
    pub(super) fn change_answered(&mut self, seq: u64, result: Result<(), Errno>) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        if change.is_lock() {
            return self.remove_change(seq); // its operation has failed meanwhile
        }
        let (op, is_repeated) = (change.op, change.is_repeated);
        match (result, op) {
            (Err(Errno::Shutdown), _) => self.set_state(seq, State::Waiting),
            (Err(errno), Some(op)) => {
                self.remove_change(seq);
                self.part_ended(op, Err(LaneError::Server(errno)));
            }
            // It was acknowledged, and now it is lost: the next flush reports that.
            (Err(errno), None) => {
                self.remove_change(seq);
                self.unreported.get_or_insert(LaneError::Server(errno));
            }
            (Ok(()), Some(op)) if !is_repeated || planted(PlantedBug::CompleteBeforeFlush) => {
                change.op = None;
                self.set_state(seq, State::Answered);
                if planted(PlantedBug::ForgetUnflushed) {
                    self.remove_change(seq);
                }
                self.part_ended(op, Ok(()));
            }
            (Ok(()), _) => self.set_state(seq, State::Answered),
        }
    }

    // --- flushes

    /// Sends a FLUSH if an operation waits for one whose changes have been answered (L3), if
    /// repeated changes wait for one, or if much is kept.
    pub(super) fn send_flush(&mut self) {
        if self.round.is_some() || !self.is_up(0) {
            return;
        }
        let mut unanswered = None;
        let (mut repeated, mut repeating) = (false, false);
        for (seq, change) in self.unsettled.iter().filter_map(|seq| Some((*seq, self.changes.get(seq)?))) {
            let answered = change.state == State::Answered;
            if change.op.is_none() && !change.is_lock() && !answered {
                unanswered.get_or_insert(seq);
            }
            if change.is_repeated && change.op.is_some() {
                repeated |= answered;
                repeating |= !answered && !change.is_in_limbo();
            }
        }
        let is_ready =
            |seq: u64| unanswered.is_none_or(|first| first > seq) || planted(PlantedBug::FlushBeforeReplies);
        let waiting = self.flushes.iter().map(|(seq, flush)| (*seq, *flush));
        let ready: Vec<(u64, Flush)> = waiting.filter(|(seq, _)| is_ready(*seq)).collect();
        let is_full = self.kept_bytes >= self.config.kept_bytes_max / 2;
        let all_repeated = repeated && !repeating;
        if ready.is_empty() && !is_full && !all_repeated {
            return;
        }
        self.flushes.retain(|seq, _| !is_ready(*seq));
        for change in self.changes.values_mut().filter(|change| change.state == State::Answered) {
            change.state = State::Covered;
        }
        self.round = Some(Round { flushes: ready });
        self.send_on(0, Tag::Flush, Request { kind: cmd::FLUSH, flags: 0, offset: 0, length: 0 }, &[]);
    }

    /// The session of slot 0 has answered the FLUSH in flight.
    pub(super) fn flush_answered(&mut self, result: Result<(), Errno>) {
        if result == Err(Errno::Shutdown) {
            return self.round_lost();
        }
        let Some(round) = self.round.take() else { return };
        let covered = self.changes.iter().filter(|(_, change)| change.state == State::Covered);
        let covered: Vec<u64> = covered.map(|(seq, _)| *seq).collect();
        // A failed flush is reported once, and concerns everything that it covered: the owner
        // writes that again, or reports it.
        let mut result = result.map_err(LaneError::Server);
        let mut acknowledged = false;
        for seq in covered {
            let op = self.changes.get(&seq).and_then(|change| change.op);
            acknowledged |= op.is_none();
            self.remove_change(seq);
            if let Some(op) = op {
                self.part_ended(op, result);
            }
        }
        if let (Err(error), true) = (result, acknowledged) {
            self.unreported.get_or_insert(error);
        }
        if let Some(error) = self.unreported {
            result = Err(error);
        }
        if round.flushes.iter().any(|(_, flush)| flush.reports) {
            self.unreported = None; // L6
        }
        for (_, flush) in round.flushes {
            self.part_ended(flush.id, result);
        }
    }

    /// The FLUSH in flight got no answer: it is sent again.
    fn round_lost(&mut self) {
        let Some(round) = self.round.take() else { return };
        self.flushes.extend(round.flushes);
        for change in self.changes.values_mut().filter(|change| change.state == State::Covered) {
            change.state = State::Answered;
        }
    }

    // --- the end of a session

    /// The session of slot 0 has ended (L1, L2).
    pub(super) fn changes_lost(&mut self, session: u64) {
        self.round_lost();
        for seq in self.changes.keys().copied().collect::<Vec<_>>() {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            match change.state {
                State::InFlight => self.set_state(seq, State::Limbo(session)),
                State::Answered if planted(PlantedBug::TrustOldSession) => {}
                State::Answered | State::Covered => self.set_state(seq, State::Waiting),
                State::Waiting | State::Limbo(_) => {}
            }
        }
    }

    /// The changes of these sessions can no longer take effect: they are sent again.
    pub(super) fn end_limbo(&mut self, of: impl Fn(u64) -> bool) {
        for seq in self.unsettled.iter().copied().collect::<Vec<_>>() {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            let State::Limbo(session) = change.state else { continue };
            if !of(session) {
                continue;
            }
            if change.is_lock() {
                self.remove_change(seq);
            } else {
                change.is_repeated = true;
                self.set_state(seq, State::Waiting);
            }
        }
    }

    /// Fails all changes. The range of one that may still take effect stays locked.
    pub(super) fn fail_changes(&mut self, error: LaneError) {
        for seq in self.changes.keys().copied().collect::<Vec<_>>() {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            let Some(op) = change.op.take() else { continue };
            if change.is_in_limbo() || change.state == State::InFlight {
                change.body = Body::Unknown;
            } else {
                self.remove_change(seq);
            }
            self.part_ended(op, Err(error));
        }
    }

    /// L2: a read of these bytes waits.
    pub(super) fn must_be_repeated(&self, offset: u64, len: u64) -> bool {
        let mut changes = self.index.overlapping(offset, len);
        let waits = |seq: u64| self.changes.get(&seq).is_some_and(Change::is_to_be_repeated);
        changes.any(waits) && !planted(PlantedBug::ReadBeforeReplay)
    }

    /// L5: a kept change concerns these bytes.
    pub(super) fn is_kept(&self, offset: u64, len: u64) -> bool {
        let mut changes = self.index.overlapping(offset, len);
        changes.any(|seq| self.changes.get(&seq).is_some_and(|change| !change.is_lock()))
    }
}

/// Bytes that keeping a change costs: a zeroing is counted as a little, so that their number is
/// bounded too.
fn memory_of(change: &Change) -> u64 {
    match &change.body {
        Body::Data(_, range) => (range.end - range.start) as u64,
        Body::Zero { .. } | Body::Unknown => 4096,
    }
}

/// Cuts a length into pieces.
pub(super) fn pieces(len: u64, piece: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len).step_by(piece.max(1) as usize).map(move |start| start..len.min(start + piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Action, LaneConfig};

    /// A round of flushes in flight, each with its id and whether it reports.
    fn round(lane: &mut Lane, flushes: &[(u64, bool)]) {
        let flushes = flushes.iter().map(|(id, reports)| {
            lane.ops.insert(*id, crate::lane::Op { parts: 1, offset: 0, data: vec![], error: None });
            (*id, Flush { id: *id, reports: *reports })
        });
        let flushes = flushes.collect();
        lane.round = Some(Round { flushes });
    }

    fn ended(lane: &mut Lane) -> Vec<(u64, bool)> {
        let actions = std::iter::from_fn(|| lane.action());
        let ends = actions.filter_map(|action| match action {
            Action::Complete { id, result } => Some((id, result.is_ok())),
            _ => None,
        });
        ends.collect()
    }

    #[test]
    fn failure_reaches_a_flush_that_reports() {
        let mut lane = Lane::new(LaneConfig::default(), false);
        let body = Body::Zero { may_unmap: false };
        let (op, state) = (None, State::Covered);
        let covered = Change { op, offset: 0, len: 4096, body, state, is_repeated: false };
        lane.kept_bytes = memory_of(&covered);
        lane.changes.insert(1, covered);
        round(&mut lane, &[(1, false)]);
        lane.flush_answered(Err(Errno::Io));
        assert_eq!(ended(&mut lane), [(1, false)], "an observer's flush fails");
        round(&mut lane, &[(2, false)]);
        lane.flush_answered(Ok(()));
        assert_eq!(ended(&mut lane), [(2, false)], "an observer does not take the failure");
        round(&mut lane, &[(3, false), (4, true)]);
        lane.flush_answered(Ok(()));
        assert_eq!(ended(&mut lane), [(3, false), (4, false)], "the pool gets it");
        round(&mut lane, &[(5, true)]);
        lane.flush_answered(Ok(()));
        assert_eq!(ended(&mut lane), [(5, true)], "once");
    }
}
