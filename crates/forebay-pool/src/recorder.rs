//! Recording the requests of volumes for a trace.
//!
//! The recording client takes the collected records from time to time. Until then they wait here,
//! up to [`WAITING_MAX`]; further ones are lost, and counted. So the pool's thread never waits for
//! the client, and memory is bounded.
//!
//! Invariant: without a recording, a request costs one check of an empty list.

use forebay_core::{Engine, Nanos, Request, RequestId, RequestKind, RequestOutcome};
use forebay_format::VolumeId;
use forebay_trace::{Operation, Outcome, Record};
use std::collections::HashMap;

use crate::client_request::ClientEngine;

/// Records that wait for the client, for each recording: about 3 MiB.
pub(crate) const WAITING_MAX: usize = 65_536;
/// Recordings of a pool at once.
pub(crate) const RECORDINGS_MAX: usize = 4;

/// The collected records.
#[derive(Debug, Default)]
pub struct Recorded {
    /// In the order of their replies.
    pub records: Vec<Record>,
    /// Records lost for want of room.
    pub lost: u64,
}

#[derive(Debug)]
struct Recording {
    number: u64,
    volume: VolumeId,
    began: Nanos,
    waiting: Recorded,
}

/// An unanswered request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Nanos,
    volume: VolumeId,
    operation: Operation,
    fua: bool,
    offset: u64,
    len: u64,
    /// A part of it was a hit.
    had_hits: bool,
}

/// All recordings of a pool.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    recordings: Vec<Recording>,
    asked: HashMap<u64, Asked>,
    begun: u64,
}

impl Recorder {
    /// Begins to record a volume; returns the number of the recording, or `None` if there are too
    /// many.
    pub(crate) fn begin(&mut self, volume: VolumeId, now: Nanos) -> Option<u64> {
        if self.recordings.len() >= RECORDINGS_MAX {
            return None;
        }
        self.begun += 1;
        let waiting = Recorded::default();
        self.recordings.push(Recording { number: self.begun, volume, began: now, waiting });
        Some(self.begun)
    }

    /// Takes the records since the last call, in exchange for empty room; `None` if the recording
    /// has ended, because the volume was detached.
    pub(crate) fn take(&mut self, number: u64, room: Vec<Record>) -> Option<Recorded> {
        let recording = self.recordings.iter_mut().find(|recording| recording.number == number)?;
        Some(std::mem::replace(&mut recording.waiting, Recorded { records: room, lost: 0 }))
    }

    /// Ends a recording.
    pub(crate) fn end(&mut self, number: u64) {
        self.recordings.retain(|recording| recording.number != number);
        self.forget();
    }

    /// Ends the recordings of a volume that is being detached.
    pub(crate) fn volume_gone(&mut self, volume: VolumeId) {
        self.recordings.retain(|recording| recording.volume != volume);
        self.forget();
    }

    fn forget(&mut self) {
        let recordings = &self.recordings;
        self.asked.retain(|_, asked| recordings.iter().any(|recording| recording.volume == asked.volume));
        if self.asked.is_empty() {
            self.asked = HashMap::new();
        }
    }

    fn records(&self, volume: VolumeId) -> bool {
        self.recordings.iter().any(|recording| recording.volume == volume)
    }

    /// Records the reply to a request.
    #[inline]
    pub(crate) fn replied(&mut self, id: RequestId, ok: bool, path: RequestOutcome, took: Nanos) {
        if !self.asked.is_empty() {
            self.note(id, ok, path, took);
        }
    }

    #[cold]
    fn note(&mut self, id: RequestId, ok: bool, path: RequestOutcome, took: Nanos) {
        let Some(asked) = self.asked.remove(&id.0) else { return };
        let outcome = if ok { outcome(path, asked.had_hits) } else { Outcome::Error };
        for recording in self.recordings.iter_mut().filter(|recording| recording.volume == asked.volume) {
            // Requests that were in flight at its begin are not recorded.
            let Some(at_ns) = asked.at.checked_sub(recording.began) else { continue };
            if recording.waiting.records.len() >= WAITING_MAX {
                recording.waiting.lost += 1;
                continue;
            }
            let Asked { operation, fua, offset, len, .. } = asked;
            let latency_ns = Some(took);
            recording.waiting.records.push(Record {
                at_ns,
                operation,
                fua,
                offset,
                len,
                outcome,
                latency_ns,
            });
        }
    }
}

fn outcome(path: RequestOutcome, had_hits: bool) -> Outcome {
    match path {
        RequestOutcome::ReadHit | RequestOutcome::Write | RequestOutcome::WriteThrough => Outcome::Hit,
        RequestOutcome::ReadMiss if had_hits => Outcome::Partly,
        RequestOutcome::ReadMiss => Outcome::Miss,
        RequestOutcome::ReadBypass | RequestOutcome::WritePast => Outcome::Bypass,
        RequestOutcome::Refused => Outcome::Error,
        RequestOutcome::Flush | RequestOutcome::Zero | RequestOutcome::Prefetch => Outcome::Unknown,
    }
}

fn operation(kind: RequestKind) -> Option<(Operation, bool)> {
    Some(match kind {
        RequestKind::Read => (Operation::Read, false),
        RequestKind::Write { fua } => (Operation::Write, fua),
        RequestKind::Flush => (Operation::Flush, false),
        RequestKind::Discard { fua } => (Operation::Discard, fua),
        RequestKind::WriteZeroes { fua, .. } => (Operation::WriteZeroes, fua),
        RequestKind::Prefetch => return None,
    })
}

/// Passes client requests to the engine, and notes them for recordings.
pub(crate) struct TracedEngine<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) recorder: &'a mut Recorder,
}

impl TracedEngine<'_> {
    #[cold]
    fn submit_recorded(&mut self, now: Nanos, request: Request<'_>) {
        let volume = request.volume;
        let wanted = operation(request.kind).filter(|_| self.recorder.records(volume));
        let Some((operation, fua)) = wanted else { return self.engine.submit(now, request) };
        let hits = |engine: &Engine| engine.volume_stats(volume).map_or(0, |stats| stats.read_hit_blocks);
        let (id, offset, len, before) = (request.id.0, request.offset, request.len, hits(self.engine));
        self.engine.submit(now, request);
        let had_hits = hits(self.engine) > before;
        let (offset, len) = if operation == Operation::Flush { (0, 0) } else { (offset, len) };
        self.recorder.asked.insert(id, Asked { at: now, volume, operation, fua, offset, len, had_hits });
    }
}

impl ClientEngine for TracedEngine<'_> {
    #[inline]
    fn submit(&mut self, now: Nanos, request: Request<'_>) {
        if self.recorder.recordings.is_empty() {
            self.engine.submit(now, request);
        } else {
            self.submit_recorded(now, request);
        }
    }

    fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        self.engine.block_status(volume, first_block, blocks, f);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn asked(recorder: &mut Recorder, id: u64, at: Nanos) {
        let (volume, operation) = (VolumeId(3), Operation::Read);
        let one = Asked { at, volume, operation, fua: false, offset: id * 4096, len: 4096, had_hits: true };
        recorder.asked.insert(id, one);
    }

    #[test]
    fn records_not_taken_are_lost_and_counted() {
        let mut recorder = Recorder::default();
        let number = recorder.begin(VolumeId(3), 100).unwrap();
        for id in 0..WAITING_MAX as u64 + 5 {
            asked(&mut recorder, id, 100 + id);
            recorder.replied(RequestId(id), true, RequestOutcome::ReadMiss, 7);
        }
        let recorded = recorder.take(number, Vec::new()).unwrap();
        assert_eq!((recorded.records.len(), recorded.lost), (WAITING_MAX, 5));
        let second = recorded.records[1];
        assert_eq!((second.at_ns, second.offset, second.outcome), (1, 4096, Outcome::Partly));
        assert_eq!(recorder.take(number, Vec::new()).unwrap().records.len(), 0);
    }

    #[test]
    fn recordings_end_with_their_volume() {
        let mut recorder = Recorder::default();
        let first = recorder.begin(VolumeId(3), 100).unwrap();
        asked(&mut recorder, 1, 150);
        let second = recorder.begin(VolumeId(3), 200).unwrap();
        let other = recorder.begin(VolumeId(4), 0).unwrap();
        recorder.replied(RequestId(1), false, RequestOutcome::ReadHit, 7);
        recorder.replied(RequestId(2), true, RequestOutcome::ReadHit, 7);
        let of_first = recorder.take(first, Vec::new()).unwrap().records;
        assert_eq!((of_first.len(), of_first[0].outcome), (1, Outcome::Error));
        assert!(recorder.take(second, Vec::new()).unwrap().records.is_empty(), "it came before");
        recorder.end(first);
        recorder.volume_gone(VolumeId(3));
        assert!(recorder.take(second, Vec::new()).is_none() && recorder.take(other, Vec::new()).is_some());
        for _ in 1..RECORDINGS_MAX {
            recorder.begin(VolumeId(4), 0).unwrap();
        }
        assert_eq!(recorder.begin(VolumeId(4), 0), None);
    }
}
