//! Checkpoints as chains: a whole checkpoint or base with the state of all segments, and increments
//! with the changes since.
//!
//! ```text
//! slot  | header, body              | increment | increment | ... | not used
//!       ^ whole checkpoint or base  ^ ChainReader::start
//! ```
//!
//! An **increment** is a header block and a body: the volume table, the entries of changed segments
//! (numbers first), the changed slots, window and intents. It is written behind the previous one,
//! and takes effect when the superblock names its generation and the length of the chain. Nothing
//! that is in effect is overwritten.
//!
//! Slots are listed in the order of their changes, each with its new state. So an increment may be
//! applied to a state that already has some of the changes. A **base** relies on that: it has the
//! same contents as a whole checkpoint, but its parts are of different instants, since it is
//! written while the cache is in use. It has the state of every segment at *some* instant after the
//! checkpoint `follows_generation` took effect. Together with the increments after that checkpoint
//! it gives exactly the state of the last of them. A base has no volumes, window or intents, and is
//! not valid without an increment.

use core::ops::Range;

use super::{
    Checkpoint, Part, SegmentEntry, SlotState, SlotStates, WINDOW_ITEM_BYTES, check_segment, decode_number,
    decode_segment, encode_segment, header, segment, slot_table_bytes,
};
use crate::error::FormatError;
use crate::layout::structure;
use crate::units::BLOCK_BYTES;

/// First bytes of an increment.
pub const INCREMENT_MAGIC: [u8; 8] = *b"FBAYINCR";
/// First bytes of a base.
pub const BASE_MAGIC: [u8; 8] = *b"FBAYBASE";
/// Most slots in one change.
pub const CHANGE_SLOTS_MAX: u16 = (1 << 14) - 1;

/// Name of the structure with this magic, in errors.
pub(super) fn name_of(magic: &[u8; 8]) -> &'static str {
    match *magic {
        INCREMENT_MAGIC => "checkpoint increment",
        BASE_MAGIC => "checkpoint base",
        _ => header::STRUCTURE.name,
    }
}

structure! { "slot change", 6;
    F_SLOT = "slot", 0, 4;
    F_RUN = "run", 4, 2;
}

/// A new state of consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotChange {
    /// First slot: segment times blocks of a segment, plus block in the segment.
    pub slot: u32,
    /// Number of slots, from 1 to [`CHANGE_SLOTS_MAX`].
    pub count: u16,
    /// Their state.
    pub state: SlotState,
}

impl SlotChange {
    fn end(&self) -> u64 {
        u64::from(self.slot) + u64::from(self.count)
    }

    /// The segments with changed slots, and those slots of each.
    fn by_segment(&self, segment_blocks: u32) -> impl Iterator<Item = (usize, Range<u32>)> + use<> {
        let (blocks, start, end) = (u64::from(segment_blocks), u64::from(self.slot), self.end());
        (start / blocks..end.div_ceil(blocks)).map(move |number| {
            let first = number * blocks;
            let slots = start.max(first) - first..end.min(first + blocks) - first;
            (number as usize, slots.start as u32..slots.end as u32)
        })
    }
}

/// Blocks of a base if all segments are in use: increments begin after them.
#[must_use]
pub fn base_blocks(segments: u32, segment_blocks: u32) -> u64 {
    let body = u64::from(segments) * (segment::STRUCTURE.len + slot_table_bytes(segment_blocks)) as u64;
    1 + body.div_ceil(BLOCK_BYTES as u64)
}

/// Blocks of the header and the body.
fn blocks_of(bytes: &[u8]) -> u64 {
    1 + header::F_BODY_BYTES.get(bytes).div_ceil(BLOCK_BYTES as u64)
}

/// The changes since another checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Increment {
    /// Generation of the previous checkpoint in effect.
    pub follows: u64,
    /// The parts that do not belong to segments, as in a whole checkpoint; no segments.
    pub rest: Checkpoint,
    /// Segments with a new entry, without slots.
    pub segments: Vec<(u32, SegmentEntry)>,
    /// Slots with a new state, in the order of their changes. Those of segments that are not in use
    /// are ignored.
    pub changes: Vec<SlotChange>,
}

impl Increment {
    /// Most blocks of an increment with this many changes and entries.
    #[must_use]
    pub fn blocks_for(rest: &Checkpoint, segments: usize, changes: usize) -> u64 {
        let body = rest.volumes.len() * super::volume::STRUCTURE.len
            + segments * (WINDOW_ITEM_BYTES + segment::STRUCTURE.len)
            + changes * STRUCTURE.len
            + rest.window.len() * WINDOW_ITEM_BYTES
            + rest.intents.len() * super::intent::STRUCTURE.len;
        1 + body.div_ceil(BLOCK_BYTES) as u64
    }

    /// Encodes header and body, padded to whole blocks.
    ///
    /// # Panics
    /// As [`Checkpoint::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.check(), Ok(()), "increment out of bounds");
        let blocks = Self::blocks_for(&self.rest, self.segments.len(), self.changes.len());
        let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_BYTES);
        bytes.resize(BLOCK_BYTES, 0);
        self.rest.put_volumes(&mut bytes);
        for (number, _) in &self.segments {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for (_, entry) in &self.segments {
            encode_segment(entry, &mut bytes);
        }
        for change in &self.changes {
            bytes.extend_from_slice(&change.slot.to_le_bytes());
            bytes.extend_from_slice(&(change.count << 2 | change.state as u16).to_le_bytes());
        }
        self.rest.put_rest(&mut bytes);
        let part = Part { magic: INCREMENT_MAGIC, changes: self.changes.len() as u32, follows: self.follows };
        self.rest.finish(&part, self.segments.len(), bytes)
    }

    /// Decodes the increment at the beginning of `bytes`; also returns its number of blocks.
    ///
    /// # Errors
    /// As [`Checkpoint::decode`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), FormatError> {
        let (mut rest, part, mut body) = Checkpoint::decode_header(bytes, &INCREMENT_MAGIC)?;
        rest.take_volumes(bytes, &mut body)?;
        let count = header::F_SEGMENTS.get_u32(bytes);
        let numbers = body.items(count, WINDOW_ITEM_BYTES, decode_number)?;
        let entries = body.items(count, segment::STRUCTURE.len, decode_segment)?;
        let changes = body.items(part.changes, STRUCTURE.len, decode_change)?;
        rest.take_rest(bytes, &mut body)?;
        let segments = numbers.into_iter().zip(entries).collect();
        let increment = Self { follows: part.follows, rest, segments, changes };
        increment.check()?;
        Ok((increment, blocks_of(bytes)))
    }

    fn check(&self) -> Result<(), FormatError> {
        self.rest.check_but_segments()?;
        let blocks = self.rest.segment_blocks;
        self.segments.iter().try_for_each(|(_, entry)| check_segment(entry, blocks))?;
        match self.changes.iter().find(|change| !(1..=CHANGE_SLOTS_MAX).contains(&change.count)) {
            Some(change) => Err(STRUCTURE.wrong(F_RUN, u64::from(change.count))),
            None => Ok(()),
        }
    }
}

fn decode_change(item: &[u8]) -> Result<SlotChange, FormatError> {
    let run = F_RUN.get(item) as u16;
    Ok(SlotChange { slot: F_SLOT.get_u32(item), count: run >> 2, state: SlotState::from_bits(run as u8) })
}

/// Encodes a base piece by piece: first an entry for each segment, then a slot table for each
/// segment that is in use according to its entry.
#[derive(Debug)]
pub struct BaseEncoder {
    /// Contents of its header.
    rest: Checkpoint,
    follows: u64,
    segments: u32,
    body: (usize, u32),
}

impl BaseEncoder {
    /// Starts a base of this generation with this many segments; `rest` has identity, epoch and
    /// blocks of a segment. `follows`: the checkpoint in effect.
    #[must_use]
    pub fn new(rest: Checkpoint, follows: u64, segments: u32) -> Self {
        Self { rest, follows, segments, body: (0, 0) }
    }

    /// Generation of the base.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.rest.generation
    }

    /// Appends an entry.
    pub fn entry(&mut self, entry: &SegmentEntry, to: &mut Vec<u8>) {
        let start = to.len();
        encode_segment(entry, to);
        self.appended(&to[start..]);
    }

    /// Appends a slot table; `append` is as in [`Checkpoint::encode_with`].
    pub fn table(&mut self, append: impl FnOnce(&mut Vec<u8>), to: &mut Vec<u8>) {
        let (start, end) = (to.len(), to.len() + slot_table_bytes(self.rest.segment_blocks));
        append(to);
        to.resize(end, 0);
        self.appended(&to[start..]);
    }

    fn appended(&mut self, bytes: &[u8]) {
        self.body = (self.body.0 + bytes.len(), crc32c::crc32c_append(self.body.1, bytes));
    }

    /// Returns the header, once the body is complete.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let part = Part { magic: BASE_MAGIC, changes: 0, follows: self.follows };
        let mut bytes = vec![0; BLOCK_BYTES];
        self.rest.encode_header(&part, self.segments as usize, self.body, &mut bytes);
        bytes
    }
}

/// Reads a chain: holds the state so far, and the generation that the next increment must follow.
#[derive(Clone, Debug)]
pub struct ChainReader {
    checkpoint: Checkpoint,
    follows: u64,
    is_base: bool,
    start: u64,
}

impl ChainReader {
    /// Starts with a whole checkpoint or a base.
    ///
    /// # Errors
    /// As [`Checkpoint::decode`].
    pub fn begin(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.starts_with(&BASE_MAGIC) {
            return Self::begin_with_base(bytes);
        }
        let checkpoint = Checkpoint::decode(bytes)?;
        Ok(Self { follows: checkpoint.generation, checkpoint, is_base: false, start: blocks_of(bytes) })
    }

    fn begin_with_base(bytes: &[u8]) -> Result<Self, FormatError> {
        use header as h;
        let (checkpoint, part) = Checkpoint::decode_all(bytes, &BASE_MAGIC)?;
        for field in [h::F_VOLUMES, h::F_WINDOW, h::F_INTENTS] {
            super::most(field, field.get_u32(bytes) as usize, 0)?;
        }
        if part.follows >= checkpoint.generation {
            return Err(h::STRUCTURE.wrong(h::F_FOLLOWS, part.follows));
        }
        let start = base_blocks(checkpoint.segments.len() as u32, checkpoint.segment_blocks);
        Ok(Self { checkpoint, follows: part.follows, is_base: true, start })
    }

    /// Generation of the first part of the chain, or of the last increment.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.checkpoint.generation
    }

    /// Block in the slot of the first increment: behind a whole checkpoint, or behind the longest
    /// possible base ([`base_blocks`]).
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The state read so far. For a base without increments it is not the state at any instant.
    #[must_use]
    pub fn state(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Applies the increment at the beginning of `bytes`, and returns its number of blocks.
    ///
    /// # Errors
    /// As [`Increment::decode`]; or it is not the next one of this chain. The state is then
    /// unchanged.
    pub fn next(&mut self, bytes: &[u8]) -> Result<u64, FormatError> {
        let (increment, blocks) = Increment::decode(bytes)?;
        self.check_next(&increment)?;
        let checkpoint = &mut self.checkpoint;
        checkpoint.apply(&increment)?;
        let segments = core::mem::take(&mut checkpoint.segments);
        self.follows = increment.rest.generation;
        self.is_base = false;
        self.checkpoint = Checkpoint { segments, ..increment.rest };
        Ok(blocks)
    }

    fn check_next(&self, increment: &Increment) -> Result<(), FormatError> {
        let (now, next) = (&self.checkpoint, &increment.rest);
        let check = |field, same: bool, expected: u64, found: u64| {
            if same {
                return Ok(());
            }
            Err(FormatError::Misplaced { structure: "checkpoint increment", field, expected, found })
        };
        let (expected, found) = (u64::from(now.segment_blocks), u64::from(next.segment_blocks));
        check("uuid", now.uuid == next.uuid, now.uuid.tag(), next.uuid.tag())?;
        check("follows_generation", self.follows == increment.follows, self.follows, increment.follows)?;
        check("segment_blocks", expected == found, expected, found)?;
        // A base has a higher generation than the checkpoint it follows.
        if next.generation <= now.generation {
            return Err(header::STRUCTURE.wrong(header::F_GENERATION, next.generation));
        }
        Ok(())
    }

    /// Returns the state of the whole chain.
    ///
    /// # Errors
    /// It is a base without increments, or the window names a segment that is in use.
    pub fn finish(self) -> Result<Checkpoint, FormatError> {
        if self.is_base {
            return Err(FormatError::Magic { structure: "checkpoint increment" });
        }
        self.checkpoint.check()?;
        Ok(self.checkpoint)
    }
}

impl Checkpoint {
    /// Applies an increment to the segments.
    fn apply(&mut self, increment: &Increment) -> Result<(), FormatError> {
        self.check_places(increment)?;
        let blocks = self.segment_blocks;
        for change in &increment.changes {
            for (number, slots) in change.by_segment(blocks) {
                self.segments[number].slots.fill(slots, change.state);
            }
        }
        for (number, entry) in &increment.segments {
            let old = &mut self.segments[*number as usize];
            *old = SegmentEntry { slots: core::mem::take(&mut old.slots), ..entry.clone() };
        }
        let changed = increment.changes.iter().flat_map(|change| change.by_segment(blocks));
        let entries = increment.segments.iter().map(|(number, _)| *number as usize);
        for number in changed.map(|(number, _)| number).chain(entries) {
            let SegmentEntry { state, slots, .. } = &mut self.segments[number];
            if state.has_slots() {
                slots.fill_up(slot_table_bytes(blocks));
            } else {
                *slots = SlotStates::default();
            }
        }
        Ok(())
    }

    /// Checks that all slots and segments of an increment exist.
    fn check_places(&self, increment: &Increment) -> Result<(), FormatError> {
        let count = self.segments.len() as u64;
        let slots = count * u64::from(self.segment_blocks);
        let bad = |field, value| Err(FormatError::Field { structure: "checkpoint increment", field, value });
        if let Some(change) = increment.changes.iter().find(|change| change.end() > slots) {
            return bad("slot", change.slot.into());
        }
        match increment.segments.iter().find(|(number, _)| u64::from(*number) >= count) {
            Some((number, _)) => bad("segment", (*number).into()),
            None => Ok(()),
        }
    }
}
