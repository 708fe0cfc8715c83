//! Checkpoints without a superblock that names them: whole ones and bases, with the increments
//! behind them as far as these are intact.

use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{ChainReader, INCREMENT_MAGIC, Increment};
use forebay_format::superblock::Chain;
use forebay_format::{BLOCK_BYTES, FormatError};

/// Reads blocks, from the block with this number on.
pub(crate) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), ()>;

/// A whole checkpoint or a base, and the increments behind it that were read.
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
    /// The whole checkpoint or base whose header stands at a block, in front of block `end`.
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

    /// The block behind it and all increments.
    fn end(&self) -> u64 {
        self.block + self.reader.start() + self.blocks
    }

    /// What was read. Of a base without increments it is the state of no instant.
    pub(crate) fn state(&self) -> &Checkpoint {
        self.reader.state()
    }

    /// What it means; nothing if it is a base without increments.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        self.reader.clone().finish().ok()
    }

    /// As a superblock names it.
    pub(crate) fn chain(&self) -> Option<Chain> {
        let blocks = u32::try_from(self.blocks).ok().filter(|blocks| *blocks > 0)?;
        Some(Chain { base: self.image, blocks })
    }

    /// The number of the whole checkpoint that is taken next: the smallest one of the slots that
    /// this is not in.
    pub(crate) fn next_generation(&self) -> Option<u64> {
        let next = self.reader.generation().checked_add(1)?;
        next.checked_add(u64::from(next % 2 == self.image % 2))
    }

    /// No increment of this chain was lost where it ends, in the copy of it whose slot begins at
    /// this block.
    pub(crate) fn ends_in(&self, slot: u64, slot_blocks: u64, read: Read<'_>) -> bool {
        let (at, end) = (slot + self.end() - self.block, slot + slot_blocks);
        let mut header = vec![0; BLOCK_BYTES];
        if at >= end {
            return true; // There is no room for one.
        }
        if read(at, &mut header).is_err() {
            return false;
        }
        // Anything else was there before, or was never written.
        let is_other = |(other, _): (Increment, u64)| other.follows != self.reader.generation();
        !header.starts_with(&INCREMENT_MAGIC) || part(at, end, read, Increment::decode).is_some_and(is_other)
    }
}

/// Decodes what begins at a block and ends in front of block `end`.
fn part<T>(
    block: u64,
    end: u64,
    read: Read<'_>,
    mut decode: impl FnMut(&[u8]) -> Result<T, FormatError>,
) -> Option<T> {
    let room = end.checked_sub(block).filter(|room| *room > 0)? * BLOCK_BYTES as u64;
    let mut bytes = vec![0; BLOCK_BYTES];
    read(block, &mut bytes).ok()?;
    // Given the header alone the decoder says how much there is to read.
    let needed = match decode(&bytes) {
        Err(FormatError::TooShort { needed, .. }) => needed,
        decoded => return decoded.ok(),
    };
    if needed as u64 > room {
        return None;
    }
    // Whole blocks: what is encrypted is read so.
    bytes.resize(needed.next_multiple_of(BLOCK_BYTES), 0);
    read(block, &mut bytes).ok()?;
    decode(&bytes).ok()
}
