//! Checkpoints that no superblock names: whole ones and bases, with the intact increments behind
//! them.

use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{ChainReader, INCREMENT_MAGIC, Increment};
use forebay_format::superblock::Chain;
use forebay_format::{BLOCK_BYTES, FormatError};

/// Reads blocks from this block number on.
pub(crate) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), ()>;

/// A whole checkpoint or a base, with the increments read behind it.
#[derive(Debug)]
pub(crate) struct Found {
    /// Block of its header.
    pub(crate) block: u64,
    /// Its generation, without increments.
    pub(crate) image: u64,
    /// Blocks of the increments.
    blocks: u64,
    reader: ChainReader,
}

impl Found {
    /// Reads the whole checkpoint or base whose header is at a block, before block `end`.
    pub(crate) fn at(block: u64, end: u64, read: Read<'_>) -> Option<Self> {
        let reader = part(block, end, read, ChainReader::begin)?;
        Some(Self { block, image: reader.generation(), blocks: 0, reader })
    }

    /// Reads the increments behind it, in a slot of this length.
    pub(crate) fn follow(&mut self, slot_blocks: u64, read: Read<'_>) {
        let end = self.block + slot_blocks;
        while let Some(blocks) = part(self.end(), end, read, |bytes| self.reader.next(bytes)) {
            self.blocks += blocks;
        }
    }

    /// Returns the block behind it and all increments.
    fn end(&self) -> u64 {
        self.block + self.reader.start() + self.blocks
    }

    /// Returns the state read so far. For a base without increments it is not the state of any
    /// instant.
    pub(crate) fn state(&self) -> &Checkpoint {
        self.reader.state()
    }

    /// Returns the checkpoint; `None` for a base without increments.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        self.reader.clone().finish().ok()
    }

    /// Returns the chain as a superblock names it.
    pub(crate) fn chain(&self) -> Option<Chain> {
        let blocks = u32::try_from(self.blocks).ok().filter(|blocks| *blocks > 0)?;
        Some(Chain { base: self.image, blocks })
    }

    /// Returns the number of the next whole checkpoint: the smallest one for the slots other than
    /// this one's.
    pub(crate) fn next_generation(&self) -> Option<u64> {
        let next = self.reader.generation().checked_add(1)?;
        next.checked_add(u64::from(next % 2 == self.image % 2))
    }

    /// Returns true if no increment was lost at the end of this chain, in the copy of it whose slot
    /// begins at this block.
    pub(crate) fn ends_in(&self, slot: u64, slot_blocks: u64, read: Read<'_>) -> bool {
        let (at, end) = (slot + self.end() - self.block, slot + slot_blocks);
        let mut header = vec![0; BLOCK_BYTES];
        if at >= end {
            return true; // There is no room for an increment.
        }
        if read(at, &mut header).is_err() {
            return false;
        }
        // Other bytes are older, or were never written.
        let is_other = |(other, _): (Increment, u64)| other.follows != self.reader.generation();
        !header.starts_with(&INCREMENT_MAGIC) || part(at, end, read, Increment::decode).is_some_and(is_other)
    }
}

/// Decodes a structure that begins at a block and ends before block `end`.
fn part<T>(
    block: u64,
    end: u64,
    read: Read<'_>,
    mut decode: impl FnMut(&[u8]) -> Result<T, FormatError>,
) -> Option<T> {
    let room = end.checked_sub(block).filter(|room| *room > 0)? * BLOCK_BYTES as u64;
    let mut bytes = vec![0; BLOCK_BYTES];
    read(block, &mut bytes).ok()?;
    // Given only the header, the decoder reports the necessary length.
    let needed = match decode(&bytes) {
        Err(FormatError::TooShort { needed, .. }) => needed,
        decoded => return decoded.ok(),
    };
    if needed as u64 > room {
        return None;
    }
    // Whole blocks, as encryption requires.
    bytes.resize(needed.next_multiple_of(BLOCK_BYTES), 0);
    read(block, &mut bytes).ok()?;
    decode(&bytes).ok()
}
