//! Reads the batches of a segment back: which of them are valid, and their entries.

use crate::map::segment::Key;
use alloc::vec::Vec;
use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::{BLOCK_BYTES, CacheUuid, StreamKind};

/// A batch found in a segment.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) header: BatchHeader,
    pub(crate) start: u32,
    pub(crate) entries: Vec<Entry>,
}

impl Found {
    /// First block after the batch.
    pub(crate) fn end(&self) -> u32 {
        self.start + 1 + u32::from(self.header.payload_blocks)
    }

    /// Data entries with the block of the segment that holds their payload.
    pub(crate) fn data(&self) -> impl Iterator<Item = (u32, Entry)> {
        let data = self.entries.iter().filter(|entry| entry.has_payload()).copied();
        data.enumerate().map(|(index, entry)| (self.start + 1 + index as u32, entry))
    }
}

/// Known facts about a segment before it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) uuid: CacheUuid,
    pub(crate) segment: u32,
    /// Sequence of the log when the segment was taken into use, 0 if it is not. If the device lost
    /// a write, a batch of an earlier use of the segment is in its place: intact, correctly placed,
    /// and with a lower sequence (I70).
    pub(crate) since: u64,
}

/// The batches after a checkpoint in one segment.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: u32,
    pub(crate) stream: StreamKind,
    /// Consecutive batches of the stream; never empty.
    pub(crate) batches: Vec<Found>,
    /// Block of the summary after them, if there is one.
    pub(crate) summary: Option<u32>,
    /// Highest `flushed_stream_sequence` of all batches found, those after a hole included.
    pub(crate) flushed: u64,
}

impl Tail {
    pub(crate) fn first(&self) -> (u64, u64) {
        let header = &self.batches[0].header;
        (header.stream_sequence, header.sequence)
    }
}

/// A segment as it was read: blocks that were unreadable are `true` in `bad` (empty: all were
/// read).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    pub(crate) all: &'a [u8],
    pub(crate) bad: &'a [bool],
}

impl<'a> Bytes<'a> {
    fn blocks(self) -> u32 {
        (self.all.len() / BLOCK_BYTES) as u32
    }

    fn is_bad(self, index: u32) -> bool {
        self.bad.get(index as usize).copied().unwrap_or(false)
    }

    pub(crate) fn block(self, index: u32) -> Option<&'a [u8]> {
        let start = index as usize * BLOCK_BYTES;
        self.all.get(start..start + BLOCK_BYTES).filter(|_| !self.is_bad(index))
    }
}

/// The batch whose header is at `start`, if it is intact, of this cache, and written for this
/// place. Does not check its payload.
pub(crate) fn batch_at(bytes: Bytes<'_>, place: Place, start: u32) -> Option<Found> {
    let mut entries = Vec::new();
    let header = BatchHeader::decode(bytes.block(start)?, &mut entries).ok()?;
    header.check_place(place.uuid, place.segment, start).ok()?;
    let found = Found { header, start, entries };
    let counts = found.header.sequence >= place.since && found.end() <= bytes.blocks();
    counts.then_some(found)
}

/// True if every payload block of a batch matches its checksum: the batch was written whole. An
/// unreadable block is no evidence against it: a torn write leaves old bytes, not unreadable ones.
/// Its loss is detected when it is used.
pub(crate) fn is_whole(bytes: Bytes<'_>, found: &Found) -> bool {
    let matches = |index, crc| {
        bytes.is_bad(index) || bytes.block(index).is_some_and(|bytes| forebay_format::checksum(bytes) == crc)
    };
    if let [Entry::Summary { crc32c, .. }] = found.entries[..] {
        let start = (found.start as usize + 1) * BLOCK_BYTES;
        let payload = bytes.all.get(start..found.end() as usize * BLOCK_BYTES);
        return payload.is_some_and(|payload| forebay_format::checksum(payload) == crc32c);
    }
    found.data().all(|(index, entry)| match entry {
        Entry::Data { crc32c, .. } => matches(index, crc32c),
        _ => false,
    })
}

/// The batches that a checkpoint accounts for: headers from the start of the segment up to block
/// `used`. After an unreadable one the search continues: headers identify their place themselves.
pub(crate) fn accounted(bytes: Bytes<'_>, place: Place, used: u32) -> Vec<Found> {
    let found = accounted_from(bytes, place, used, 0);
    // One start of the daemon writes a segment. Leftovers of an earlier start behind the end of its
    // log have sequences that were assigned again.
    let latest = found.iter().map(|found| found.header.epoch).max().unwrap_or(0);
    if found.iter().all(|found| found.header.epoch == latest) {
        return found;
    }
    accounted_from(bytes, place, used, latest)
}

fn accounted_from(bytes: Bytes<'_>, place: Place, used: u32, epoch: u64) -> Vec<Found> {
    let mut batches = Vec::new();
    let mut at = 0;
    while at < used {
        match batch_at(bytes, place, at).filter(|found| found.header.epoch >= epoch) {
            Some(found) => {
                at = found.end();
                batches.push(found);
            }
            None => at += 1,
        }
    }
    batches
}

/// The batches after a checkpoint in a segment.
#[derive(Debug)]
pub(crate) struct TailScan {
    /// The batches, if there are any.
    pub(crate) tail: Option<Tail>,
    /// The device is unreadable at the place of the next batch: there may have been more.
    pub(crate) unreadable: bool,
    /// At that place is a header whose payload is not whole, or whose batch does not follow.
    pub(crate) torn: bool,
}

/// Defines which batches come after a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct After {
    /// Epoch of the daemon start that took the checkpoint.
    pub(crate) epoch: u64,
    /// First sequence that the checkpoint does not account for. A segment of the window may still
    /// hold batches of its last use, which the same daemon wrote before the checkpoint.
    pub(crate) sequence: u64,
}

impl After {
    pub(crate) fn holds(self, found: &Found) -> bool {
        found.header.epoch == self.epoch && found.header.sequence >= self.sequence
    }
}

/// The batches from block `from` on that were written after a checkpoint. With `trust` payloads are
/// not compared with their checksums (a planted bug).
pub(crate) fn tail(bytes: Bytes<'_>, place: Place, from: u32, after: After, trust: bool) -> TailScan {
    let mut batches: Vec<Found> = Vec::new();
    let mut summary = None;
    let mut flushed = 0;
    let (mut at, mut torn) = (from, false);
    while let Some(found) = batch_at(bytes, place, at).filter(|found| after.holds(found)) {
        let follows = batches.last().is_none_or(|last| {
            last.header.stream == found.header.stream
                && last.header.stream_sequence + 1 == found.header.stream_sequence
        });
        if !follows || !(trust || is_whole(bytes, &found)) {
            torn = true;
            break;
        }
        flushed = flushed.max(found.header.flushed_stream_sequence);
        if found.header.kind == BatchKind::Summary {
            summary = Some(at);
            break;
        }
        at = found.end();
        batches.push(found);
    }
    let unreadable = summary.is_none() && bytes.is_bad(at);
    let Some(stream) = batches.first().map(|first| first.header.stream) else {
        return TailScan { tail: None, unreadable, torn };
    };
    // Intact batches behind a hole still state which batches were flushed before them.
    for at in at..bytes.blocks() {
        if let Some(found) = batch_at(bytes, place, at)
            && after.holds(&found)
            && found.header.stream == stream
        {
            flushed = flushed.max(found.header.flushed_stream_sequence);
        }
    }
    let tail = Tail { segment: place.segment, stream, batches, summary, flushed };
    TailScan { tail: Some(tail), unreadable, torn }
}

/// Key of a data entry.
pub(crate) fn key_of(entry: Entry) -> Option<Key> {
    match entry {
        Entry::Data { volume, block, .. } => Some(Key::new(volume, block)),
        _ => None,
    }
}
