//! Bytes written to each device of the pool.

use crate::api::written::WrittenBytes;
use alloc::vec::Vec;

/// A device of the pool.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The owner's name for it.
    key: u64,
    /// Its offset in the pool's space; unused in a mirrored cache.
    start: u64,
    written: WrittenBytes,
}

/// Bytes written to each device since the start.
#[derive(Debug)]
pub(crate) struct DevicesWritten {
    parts: Vec<Part>,
    /// Key of the last device that was the target of a copy.
    new: Option<(u64, WrittenBytes)>,
}

impl DevicesWritten {
    /// Creates the counts of a pool of one device, until the owner sets others.
    pub(crate) fn new() -> Self {
        Self { parts: alloc::vec![Part { key: 0, start: 0, written: WrittenBytes::default() }], new: None }
    }

    /// Sets the devices of the pool: their keys, and where each begins. Counts follow the key of a
    /// device; at the first call, its position.
    pub(crate) fn set(&mut self, devices: &[(u64, u64)]) {
        let first = self.parts.len() == 1 && self.parts[0].key == 0;
        let was = core::mem::take(&mut self.parts);
        for (at, (key, start)) in devices.iter().enumerate() {
            let known = was.iter().find(|part| part.key == *key).or(was.get(at).filter(|_| first));
            let new = self.new.take_if(|(of, _)| of == key).map(|(_, written)| written);
            let written = known.map(|part| part.written).or(new).unwrap_or_default();
            self.parts.push(Part { key: *key, start: *start, written });
        }
    }

    /// Returns the bytes written to a device.
    pub(crate) fn of(&self, key: u64) -> Option<WrittenBytes> {
        let new = self.new.filter(|(of, _)| *of == key).map(|(_, written)| written);
        self.parts.iter().find(|part| part.key == key).map(|part| part.written).or(new)
    }

    /// Returns the header bytes in the log for each thousand bytes from clients and backing stores.
    pub(crate) fn headers_permille(&self) -> u32 {
        let of = |written: &WrittenBytes| (written.headers, written.clients + written.copies + written.fills);
        let all = self.parts.iter().map(|part| of(&part.written));
        let (headers, payload) = all.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        u32::try_from(headers.saturating_mul(1000) / payload.max(1)).unwrap_or(u32::MAX)
    }

    /// Counts bytes written to a device that is the target of a copy.
    pub(crate) fn add_to_new(&mut self, key: u64, written: WrittenBytes) {
        let part = self.parts.iter_mut().find(|part| part.key == key).map(|part| &mut part.written);
        match (part, &mut self.new) {
            (Some(before), _) => *before += written,
            (None, Some((of, before))) if *of == key => *before += written,
            (None, new) => *new = Some((key, written)),
        }
    }

    /// Counts bytes written at an offset in the pool's space, in a mirrored cache to this member.
    pub(crate) fn add(&mut self, member: Option<usize>, offset: u64, written: WrittenBytes) {
        let after = || self.parts.partition_point(|part| part.start <= offset);
        let at = member.unwrap_or_else(|| after().saturating_sub(1));
        if let Some(part) = self.parts.get_mut(at) {
            part.written += written;
        }
    }
}
