//! What was written to each device of the pool.

use crate::api::written::WrittenBytes;
use alloc::vec::Vec;

/// A device of the pool.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The owner's name for it.
    key: u64,
    /// Where it begins in the space of the pool; of no use in a mirrored cache.
    start: u64,
    written: WrittenBytes,
}

/// What was written to each device since the start.
#[derive(Debug)]
pub(crate) struct DevicesWritten(Vec<Part>);

impl DevicesWritten {
    /// A pool of one device, unless its owner says more.
    pub(crate) fn new() -> Self {
        Self(alloc::vec![Part { key: 0, start: 0, written: WrittenBytes::default() }])
    }

    /// The pool has these devices now: their keys, and where each begins. What was counted of a
    /// device goes with its key; at the first call, with its place.
    pub(crate) fn set(&mut self, devices: &[(u64, u64)]) {
        let first = self.0.len() == 1 && self.0[0].key == 0;
        let was = core::mem::take(&mut self.0);
        self.0.extend(devices.iter().enumerate().map(|(at, (key, start))| {
            let known = was.iter().find(|part| part.key == *key).or(was.get(at).filter(|_| first));
            Part {
                key: *key,
                start: *start,
                written: known.map_or_else(Default::default, |part| part.written),
            }
        }));
    }

    /// What was written to a device.
    pub(crate) fn of(&self, key: u64) -> Option<WrittenBytes> {
        self.0.iter().find(|part| part.key == key).map(|part| part.written)
    }

    /// Bytes were written at a place of the pool's space, in a mirrored cache to this member.
    pub(crate) fn add(&mut self, member: Option<usize>, offset: u64, written: WrittenBytes) {
        let after = || self.0.partition_point(|part| part.start <= offset);
        let at = member.unwrap_or_else(|| after().saturating_sub(1));
        if let Some(part) = self.0.get_mut(at) {
            part.written += written;
        }
    }
}
