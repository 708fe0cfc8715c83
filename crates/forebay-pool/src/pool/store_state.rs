//! State of a backing store, without an operation on it: the results of the last operations,
//! whether it has its length, and whether its path leads to it.
//!
//! A failed operation counts until one of its kind succeeds. An idle store keeps the state of its
//! last operations.

use super::Pool;
use crate::engine_io::Timed;
use forebay_core::Device;
use forebay_format::VolumeId;
use forebay_io::{DeviceId, IoFailure, IoFailureKind};

/// Kinds of operations: a store may answer reads and refuse writes, or accept writes and fail to
/// flush them.
const KINDS: usize = 3;

/// The last operation of a kind that has failed, if none has succeeded since.
#[derive(Clone, Copy, Debug)]
struct Failed {
    operation: &'static str,
    offset_bytes: u64,
    failure: IoFailure,
}

/// Results of the last operations on a backing store.
#[derive(Debug, Default)]
pub(super) struct Outcomes([Option<Failed>; KINDS]);

fn kind_of(operation: &str) -> usize {
    match operation {
        "read" => 0,
        "flush" => 1,
        _ => 2,
    }
}

/// Returns true if the failure concerns the store, not this process or an unsupported operation.
fn is_of_store(failure: IoFailure) -> bool {
    !failure.is_unsupported() && !matches!(failure.kind, IoFailureKind::Cancelled | IoFailureKind::Exhausted)
}

impl Pool {
    /// An operation of the engine has ended.
    pub(super) fn note_outcome(&mut self, timed: &Timed, failure: Option<IoFailure>) {
        let Device::Backing(volume) = timed.device else { return };
        let Some(served) = self.served_mut(volume) else { return };
        let last = &mut served.outcomes.0[kind_of(timed.operation)];
        match failure {
            None => *last = None,
            Some(failure) if is_of_store(failure) => {
                let offset_bytes = timed.at.map_or(0, |(_, offset)| offset);
                *last = Some(Failed { operation: timed.operation, offset_bytes, failure });
            }
            Some(_) => {}
        }
    }

    /// Describes the fault of a volume's backing store: in a word, and in sentences.
    pub(super) fn store_trouble(&self, id: VolumeId) -> Option<(&'static str, String)> {
        let served = self.served(id)?;
        let place = self.place_of(served.device);
        match place {
            Some(("deleted", _)) => place,
            other => self
                .away_text(served.device)
                .or_else(|| self.length_trouble(served.device))
                .or_else(|| self.failing(id))
                .or(other),
        }
    }

    fn failing(&self, id: VolumeId) -> Option<(&'static str, String)> {
        let served = self.served(id)?;
        let path = self.reactor.device(served.device)?.path().display();
        let failed = served.outcomes.0.iter().flatten().map(|Failed { operation, offset_bytes, failure }| {
            let at = if *operation == "flush" { String::new() } else { format!(" at byte {offset_bytes}") };
            format!("{operation} of {path}{at} failed: {failure}; no {operation} has succeeded since")
        });
        let why = failed.collect::<Vec<_>>().join(". ");
        (!why.is_empty()).then_some(("failing", why))
    }

    /// Names the fault of a cache device, in a word.
    pub(super) fn cache_trouble(&self, id: DeviceId) -> Option<&'static str> {
        if self.engine.runs_without_cache() {
            return None; // it is no longer used
        }
        let place = self.displaced(id).map(|place| place.name());
        place.or_else(|| self.length_trouble(id).map(|(state, _)| state))
    }
}
