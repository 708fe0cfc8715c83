//! Extensions of the append window: segments that became free after a checkpoint.
//!
//! A checkpoint opens a window of segments that may be taken. An extension adds segments to the
//! window of the checkpoint in effect, at the cost of one block instead of a whole checkpoint. It
//! lists all segments added since that checkpoint, so the newest one is complete.
//!
//! Extension `n` of a checkpoint lies in slot `n % 2`, in two copies, so the one in effect is never
//! overwritten. If both copies of a slot are damaged, the added segments are unknown: the write
//! might have been torn, or the extension in effect might be lost ([`Chosen::AtLeast`]).
//!
//! Invariants:
//! - for a listed segment the checkpoint's state no longer counts: everything that voided its
//!   contents was durable before the extension was written;
//! - a segment is listed at most once for each checkpoint, and only if that checkpoint included all
//!   its batches.

use crate::batch::BatchHeader;
use crate::checkpoint::{Checkpoint, SegmentEntry};
use crate::error::FormatError;
use crate::layout::{check_envelope, check_zero, crc_without, structure};
use crate::units::{BLOCK_BYTES, CacheUuid, VERSION};
use std::collections::BTreeSet;

/// Blocks of the copies, by slot.
pub const EXTENSION_BLOCKS: [[u64; 2]; 2] = [[4, 20], [8, 24]];
/// Most segments of an extension.
pub const EXTENSION_SEGMENTS_MAX: usize = 1000;
/// First bytes of an extension.
pub const MAGIC: [u8; 8] = *b"FBAYEXTN";

structure! { "window extension", 4096;
    F_MAGIC = "magic", 0, 8;
    F_VERSION = "version", 8, 4;
    F_COUNT = "segment_count", 12, 4;
    F_UUID = "uuid", 16, 16;
    F_GENERATION = "checkpoint_generation", 32, 8;
    F_EPOCH = "epoch", 40, 8;
    F_NUMBER = "number", 48, 8;
    F_RESERVED = "reserved", 56, 36;
    F_SEGMENTS = "segments", 92, 4000;
    F_CRC = "crc32c", 4092, 4;
}

/// An extension of the append window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WindowExtension {
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Generation of the checkpoint whose window this extends.
    pub checkpoint_generation: u64,
    /// Number of the start that wrote it.
    pub epoch: u64,
    /// Number among the extensions of this checkpoint, from 1.
    pub number: u64,
    /// Segments added since the checkpoint, in the order of use.
    pub segments: Vec<u32>,
}

/// Contents of the four blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// These segments were added to the window of the checkpoint; usually none.
    Added(Vec<u32>),
    /// Both copies of a slot are damaged: these segments were added, and perhaps others.
    AtLeast(Vec<u32>),
}

impl WindowExtension {
    /// Encodes one copy.
    ///
    /// # Panics
    /// If there are more than [`EXTENSION_SEGMENTS_MAX`] segments: a bug of the caller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.segments.len() <= EXTENSION_SEGMENTS_MAX, "too many segments in an extension");
        let mut to = vec![0; BLOCK_BYTES];
        F_MAGIC.put_bytes(&mut to, &MAGIC);
        F_VERSION.put(&mut to, u64::from(VERSION));
        F_COUNT.put(&mut to, self.segments.len() as u64);
        F_UUID.put_bytes(&mut to, &self.uuid.0);
        F_GENERATION.put(&mut to, self.checkpoint_generation);
        F_EPOCH.put(&mut to, self.epoch);
        F_NUMBER.put(&mut to, self.number);
        let numbers: Vec<u8> = self.segments.iter().flat_map(|segment| segment.to_le_bytes()).collect();
        F_SEGMENTS.put_bytes(&mut to, &numbers);
        let crc = crc_without(&to, F_CRC);
        F_CRC.put(&mut to, u64::from(crc));
        to
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not an extension, torn, of a newer version, or with fields out of range.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        check_envelope(&STRUCTURE, block, (F_MAGIC, &MAGIC), (F_VERSION, VERSION), F_CRC)?;
        check_zero(&STRUCTURE, block, &[F_RESERVED])?;
        let count = F_COUNT.get_u32(block) as usize;
        if count > EXTENSION_SEGMENTS_MAX {
            return Err(STRUCTURE.wrong(F_COUNT, count as u64));
        }
        let (numbers, rest) = F_SEGMENTS.bytes(block).split_at(count * 4);
        if let Some(byte) = rest.iter().find(|byte| **byte != 0) {
            return Err(STRUCTURE.wrong(F_SEGMENTS, u64::from(*byte)));
        }
        let (numbers, _) = numbers.as_chunks::<4>();
        Ok(Self {
            uuid: CacheUuid(F_UUID.array(block)),
            checkpoint_generation: F_GENERATION.get(block),
            epoch: F_EPOCH.get(block),
            number: F_NUMBER.get(block),
            segments: numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        })
    }

    /// Determines the segments that were added to the window of `checkpoint` from the blocks as
    /// read, in the order of [`EXTENSION_BLOCKS`]; `None` for an unreadable block.
    #[must_use]
    pub fn choose(checkpoint: &Checkpoint, blocks: [[Option<&[u8]>; 2]; 2]) -> Chosen {
        let (mut newest, mut damaged) = (Self::default(), false);
        for copies in blocks {
            let found = copies.map(|block| block.map(Self::read));
            damaged |= found.iter().all(|copy| !matches!(copy, Some(Ok(_))));
            for extension in found.into_iter().flatten().flatten().flatten() {
                if extension.number > newest.number && extension.belongs_to(checkpoint) {
                    newest = extension;
                }
            }
        }
        if damaged { Chosen::AtLeast(newest.segments) } else { Chosen::Added(newest.segments) }
    }

    /// Reads a copy; `None` where there never was one.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(block: &[u8]) -> Result<Option<Self>, FormatError> {
        if block.iter().all(|byte| *byte == 0) { Ok(None) } else { Self::decode(block).map(Some) }
    }

    fn belongs_to(&self, checkpoint: &Checkpoint) -> bool {
        self.uuid == checkpoint.uuid
            && self.checkpoint_generation == checkpoint.generation
            && self.epoch == checkpoint.epoch
    }
}

impl Checkpoint {
    /// Segments that an extension might have added: all that are not in the window. A segment that
    /// the checkpoint lists as open might have been filled, emptied and added since.
    pub fn addable(&self) -> impl Iterator<Item = u32> {
        let listed: BTreeSet<u32> = self.window.iter().copied().collect();
        (0..self.segments.len() as u32).filter(move |number| !listed.contains(number))
    }

    /// Returns whether `head`, the first block of a segment, shows that the segment was taken into
    /// use after this checkpoint.
    #[must_use]
    pub fn precedes(&self, segment: u32, head: &[u8]) -> bool {
        BatchHeader::decode(head, &mut Vec::new()).is_ok_and(|header| {
            header.check_place(self.uuid, segment, 0).is_ok()
                && header.epoch == self.epoch
                && header.sequence >= self.next_sequence
        })
    }

    /// Adds segments to the window; their state in the checkpoint then no longer counts.
    ///
    /// # Errors
    /// [`FormatError::Field`] if the checkpoint has no such segment.
    pub fn extend_window(&mut self, segments: &[u32]) -> Result<(), FormatError> {
        for number in segments {
            if *number as usize >= self.segments.len() {
                return Err(STRUCTURE.wrong(F_SEGMENTS, u64::from(*number)));
            }
            if self.window.contains(number) {
                continue; // Nothing of it counts anyway.
            }
            self.segments[*number as usize] = SegmentEntry::default();
            self.window.push(*number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchKind, Entry};
    use crate::checkpoint::SegmentState;
    use crate::units::{Slot, StreamKind};

    fn extension(number: u64, segments: &[u32]) -> WindowExtension {
        WindowExtension {
            uuid: CacheUuid([7; 16]),
            checkpoint_generation: 4,
            epoch: 2,
            number,
            segments: segments.to_vec(),
        }
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            uuid: CacheUuid([7; 16]),
            generation: 4,
            epoch: 2,
            segments: vec![SegmentEntry::default(); 9],
            window: vec![1],
            ..Checkpoint::default()
        }
    }

    fn chosen(copies: [[&[u8]; 2]; 2]) -> Chosen {
        WindowExtension::choose(&checkpoint(), copies.map(|copies| copies.map(Some)))
    }

    #[test]
    fn newest_extension_of_the_checkpoint_wins() {
        let blank = vec![0; BLOCK_BYTES];
        let (first, second) = (extension(1, &[5]).encode(), extension(2, &[5, 6]).encode());
        let other = WindowExtension { checkpoint_generation: 3, ..extension(8, &[2]) }.encode();
        let foreign = WindowExtension { uuid: CacheUuid([8; 16]), ..extension(8, &[2]) }.encode();
        let mut torn = second.clone();
        torn[95] ^= 1;
        assert_eq!(chosen([[&blank, &blank], [&blank, &blank]]), Chosen::Added(vec![]));
        assert_eq!(chosen([[&second, &second], [&first, &first]]), Chosen::Added(vec![5, 6]));
        assert_eq!(chosen([[&torn, &second], [&first, &first]]), Chosen::Added(vec![5, 6]));
        assert_eq!(chosen([[&other, &other], [&first, &first]]), Chosen::Added(vec![5]));
        assert_eq!(chosen([[&foreign, &blank], [&blank, &blank]]), Chosen::Added(vec![]));
        assert_eq!(chosen([[&torn, &torn], [&first, &first]]), Chosen::AtLeast(vec![5]));
        let unreadable = [[None, None], [Some(&first[..]), Some(&first[..])]];
        assert_eq!(WindowExtension::choose(&checkpoint(), unreadable), Chosen::AtLeast(vec![5]));
    }

    #[test]
    fn added_segment_is_newer_than_checkpoint() {
        let checkpoint = Checkpoint { next_sequence: 50, ..checkpoint() };
        let head = |epoch, sequence, segment| {
            let header = BatchHeader {
                kind: BatchKind::Records,
                stream: StreamKind::Write,
                uuid_tag: checkpoint.uuid.tag(),
                epoch,
                sequence,
                stream_sequence: 3,
                flushed_stream_sequence: 0,
                segment,
                block_in_segment: 0,
                payload_blocks: 0,
            };
            let mut block = vec![0; BLOCK_BYTES];
            header.encode(&[Entry::CleanMark { slot: Slot(1), count: 1 }], &mut block);
            block
        };
        assert!(checkpoint.precedes(5, &head(2, 50, 5)));
        assert!(!checkpoint.precedes(5, &head(2, 49, 5)), "it accounts for that");
        assert!(!checkpoint.precedes(5, &head(1, 90, 5)), "an earlier start");
        assert!(!checkpoint.precedes(5, &head(2, 50, 6)), "of another place");
        assert!(!checkpoint.precedes(5, &[0; BLOCK_BYTES]));
        let mut checkpoint = checkpoint;
        checkpoint.segments[4].state = SegmentState::Open;
        let addable: Vec<u32> = checkpoint.addable().collect();
        assert_eq!(addable, [0, 2, 3, 4, 5, 6, 7, 8], "an open one may have been emptied since");
    }

    #[test]
    fn window_extends_only_by_real_segments() {
        let mut checkpoint = checkpoint();
        checkpoint.segments[5].used_blocks = 3;
        assert_eq!(checkpoint.extend_window(&[5, 6]), Ok(()));
        assert_eq!(checkpoint.window, [1, 5, 6]);
        assert_eq!(checkpoint.segments[5], SegmentEntry::default());
        assert_eq!(checkpoint.extend_window(&[6, 1]), Ok(()), "what is there already does no harm");
        assert_eq!(checkpoint.window, [1, 5, 6]);
        assert!(checkpoint.extend_window(&[9]).is_err());
    }
}
