//! The log: the batches of a segment, and which of those behind the checkpoint count.
//!
//! A batch behind the checkpoint counts if all of these conditions hold:
//! - Its header and its payload are intact, and it belongs to this cache and this place.
//! - Its epoch is that of the superblock, and its sequence is not below that of the checkpoint.
//! - No batch of its stream is missing between the checkpoint and it.
//!
//! A later batch may record that a missing one had been flushed. Then the device lost a durable
//! write.

use std::collections::BTreeMap;

use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState};
use forebay_format::{BLOCK_BYTES, CacheUuid, StreamKind, summary};

use crate::batch::Bytes;
pub use crate::batch::{Batch, batch_at, is_whole};
use crate::image::Image;
use crate::{Findings, Severity};

/// A checkpoint's record of the batches in a segment. A write that the device lost leaves the bytes
/// of an earlier use of the segment in its place: intact, of this cache and of this place, but not
/// of this use.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    uuid: CacheUuid,
    segment: u32,
    stream: u8,
    /// Sequence of the first batch, and its place in the stream.
    first: (u64, u64),
    /// Sequence of the first batch that the checkpoint does not account for.
    next: u64,
    /// Latest start that may have written it.
    epoch: u64,
}

impl Use {
    /// Returns the use of a segment in the checkpoint.
    pub fn of(checkpoint: &Checkpoint, segment: u32, entry: &SegmentEntry) -> Self {
        Self {
            uuid: checkpoint.uuid,
            segment,
            stream: entry.stream,
            first: (entry.first_sequence, entry.first_stream_sequence),
            next: checkpoint.next_sequence,
            epoch: checkpoint.epoch,
        }
    }

    fn holds(&self, header: &BatchHeader) -> bool {
        // The last summary of a start that was killed: the next start reused its number, which no
        // batch had.
        let ends_log = header.kind == BatchKind::Summary && header.epoch < self.epoch;
        header.stream as u8 == self.stream
            && header.sequence >= self.first.0
            && (header.sequence < self.next || ends_log)
            && header.stream_sequence >= self.first.1
            && header.epoch <= self.epoch
    }

    fn batch_at(&self, bytes: &Bytes, start: u32) -> Result<Batch, String> {
        let batch = batch_at(bytes, self.uuid, self.segment, start)?;
        if self.holds(&batch.header) { Ok(batch) } else { Err(STALE.into()) }
    }
}

const STALE: &str = "it was written before the segment was last taken into use: the device lost a write";

/// The result of [`accounted`]: batches, and the place of the first header that does not count,
/// with the reason.
type Accounted = (Vec<Batch>, Option<(u32, String)>);

/// Returns the batches of this use of a segment, from its start up to block `used`. Behind a
/// damaged header it searches for the next one: headers contain their own place.
pub fn accounted(bytes: &Bytes, of: &Use, used: u32) -> Accounted {
    let found = accounted_from(bytes, of, used, 0);
    let latest = found.0.iter().map(|batch| batch.header.epoch).max().unwrap_or(0);
    if found.0.iter().all(|batch| batch.header.epoch == latest) {
        return found;
    }
    // A single start writes a segment. Batches that an earlier start left behind the end of its log
    // have numbers that were reused.
    accounted_from(bytes, of, used, latest)
}

fn accounted_from(bytes: &Bytes, of: &Use, used: u32, epoch: u64) -> Accounted {
    let mut batches: Vec<Batch> = Vec::new();
    let mut damaged = None;
    let mut at = 0;
    while at < used {
        let follows = |batch: &Batch| {
            batch.header.epoch >= epoch
                && batches.last().is_none_or(|last| last.header.sequence < batch.header.sequence)
        };
        let found = of.batch_at(bytes, at);
        match found.and_then(|batch| if follows(&batch) { Ok(batch) } else { Err(STALE.into()) }) {
            Ok(batch) => {
                at = batch.end();
                batches.push(batch);
            }
            Err(why) => {
                damaged.get_or_insert((at, why));
                at += 1;
            }
        }
    }
    (batches, damaged)
}

/// Returns the payload of the summary of this use of a segment, whose header is at block `at`, if
/// all of it is intact.
pub fn summary_payload<'a>(bytes: &'a Bytes, of: &Use, at: u32) -> Result<&'a [u8], String> {
    let batch = of.batch_at(bytes, at)?;
    match batch.entries[..] {
        [Entry::Summary { slots, .. }] if slots == at => {}
        _ => return Err("the batch there is not the summary of this segment".into()),
    }
    if !is_whole(bytes, &batch) {
        return Err("summary: its payload does not match its checksum: torn or damaged".into());
    }
    let payload = (at as usize + 1) * BLOCK_BYTES..batch.end() as usize * BLOCK_BYTES;
    bytes.bytes.get(payload).ok_or_else(|| "the summary goes beyond the end of its segment".into())
}

/// Batches of one segment that lie behind a checkpoint.
struct Tail {
    stream: StreamKind,
    /// Consecutive in the stream; never empty.
    batches: Vec<Batch>,
    /// Highest `flushed_stream_sequence` found, also behind a hole.
    flushed: u64,
}

/// The log after a checkpoint.
#[derive(Debug, Default)]
pub struct Replay {
    /// The batches that count, in the order of sequence.
    pub batches: Vec<Batch>,
    /// The reason why the engine would refuse the cache: the rest of the log is unknown.
    pub doubt: Option<String>,
}

impl Tail {
    fn first(&self) -> (u64, u64) {
        self.batches.first().map_or((0, 0), |batch| (batch.header.stream_sequence, batch.header.sequence))
    }
}

/// Reads the log after the checkpoint.
pub fn after_checkpoint(image: &Image, checkpoint: &Checkpoint, findings: &mut Findings) -> Replay {
    let mut replay = Replay::default();
    if !image.is_unclean() {
        return replay;
    }
    let mut by_stream: BTreeMap<usize, Vec<Tail>> = BTreeMap::new();
    for (number, from) in candidates(image, checkpoint) {
        let (tail, unreadable) = tail(image, number, from, checkpoint.next_sequence);
        if unreadable && !image.holds_only_fills(number) {
            let what = "the device cannot read where the log may continue: the cache will be refused";
            findings.add(Severity::Lost, format!("segment {number}"), what);
            replay.doubt = Some(format!("segment {number} cannot be read where the log may continue"));
        }
        if let Some(tail) = tail {
            by_stream.entry(tail.stream.index()).or_default().push(tail);
        }
    }
    for stream in StreamKind::ALL {
        let tails = by_stream.remove(&stream.index()).unwrap_or_default();
        let expected = checkpoint.next_stream_sequence[stream.index()];
        let lost = follow(tails, expected, &mut replay.batches);
        if let Some(lost) = lost.filter(|_| !image.may_lack(stream)) {
            let place = format!("log, {} stream", stream_name(stream));
            let what = format!(
                "batch {lost} is gone although the device had acknowledged a flush of it: do not use this device"
            );
            replay.doubt = Some(format!("{place}: {what}"));
            findings.add(Severity::Lost, place, what);
        }
    }
    replay.batches.sort_by_key(|batch: &Batch| batch.header.sequence);
    replay
}

/// Returns the segments that may hold batches behind the checkpoint, with the block where those
/// would begin.
fn candidates(image: &Image, checkpoint: &Checkpoint) -> Vec<(u32, u32)> {
    let mut candidates = Vec::new();
    for (number, entry) in (0..).zip(&checkpoint.segments) {
        if entry.state == SegmentState::Open {
            candidates.push((number, entry.used_blocks));
        }
    }
    for number in &checkpoint.window {
        if image.mirror().is_some_and(|mirror| mirror.is_pair(*number)) {
            candidates.push((*number, 0)); // A write since made it a pair.
            continue;
        }
        let head = image.segment_head(*number);
        let mut entries = Vec::new();
        let written = head.block(0).map(|block| BatchHeader::decode(block, &mut entries));
        let written = matches!(written, Some(Ok(header)) if header.epoch == image.superblock.epoch);
        if written || !head.unreadable.is_empty() {
            candidates.push((*number, 0));
        }
    }
    candidates
}

/// Returns the batches of a segment from block `from` on that this start wrote after the
/// checkpoint: a segment of the window may still hold batches that the same start wrote in its
/// previous use. Also returns whether the block of the next batch is unreadable: then the rest of
/// the log is unknown.
fn tail(image: &Image, segment: u32, from: u32, first_sequence: u64) -> (Option<Tail>, bool) {
    let (uuid, epoch) = (image.superblock.uuid, image.superblock.epoch);
    let bytes = image.segment(segment);
    let after = |header: &BatchHeader| header.epoch == epoch && header.sequence >= first_sequence;
    let read = |at| batch_at(&bytes, uuid, segment, at).ok().filter(|batch| after(&batch.header));
    let mut batches: Vec<Batch> = Vec::new();
    let (mut flushed, mut summary) = (0, false);
    let mut at = from;
    while let Some(batch) = read(at) {
        let follows = batches.last().is_none_or(|last| {
            last.header.stream == batch.header.stream
                && last.header.stream_sequence + 1 == batch.header.stream_sequence
        });
        if !follows || !is_whole(&bytes, &batch) {
            break;
        }
        flushed = flushed.max(batch.header.flushed_stream_sequence);
        if batch.header.kind == BatchKind::Summary {
            summary = true;
            break;
        }
        at = batch.end();
        batches.push(batch);
    }
    let unreadable = !summary && bytes.unreadable.contains(&at);
    let Some(stream) = batches.first().map(|first| first.header.stream) else { return (None, unreadable) };
    for at in at..image.geometry().segment_blocks {
        if let Some(batch) = read(at).filter(|batch| batch.header.stream == stream) {
            flushed = flushed.max(batch.header.flushed_stream_sequence);
        }
    }
    (Some(Tail { stream, batches, flushed }), unreadable)
}

/// Follows a stream to its end. Returns the first missing batch that had been flushed.
fn follow(mut tails: Vec<Tail>, mut expected: u64, counting: &mut Vec<Batch>) -> Option<u64> {
    tails.sort_by_key(Tail::first);
    let flushed = tails.iter().map(|tail| tail.flushed).max().unwrap_or(0);
    // Batches that were rewritten after a failure: the later segment has them.
    let limits: Vec<u64> = tails.iter().skip(1).map(|tail| tail.first().0).chain([u64::MAX]).collect();
    for (tail, limit) in tails.into_iter().zip(limits) {
        if tail.first().0 != expected {
            break;
        }
        for batch in tail.batches.into_iter().take_while(|batch| batch.header.stream_sequence < limit) {
            expected = batch.header.stream_sequence.saturating_add(1);
            counting.push(batch);
        }
    }
    (flushed > expected).then_some(expected)
}

/// Returns the name of a stream in messages.
pub fn stream_name(stream: StreamKind) -> &'static str {
    match stream {
        StreamKind::Write => "write",
        StreamKind::Fill => "fill",
        StreamKind::Survivor => "survivor",
    }
}

/// Returns the items of a summary's payload, with their slots.
pub fn summary_items(payload: &[u8], slots: u32) -> impl Iterator<Item = (u32, summary::SummaryItem)> {
    (0..).zip(summary::decode(payload, slots)).filter_map(|(index, item)| Some((index, item?)))
}
