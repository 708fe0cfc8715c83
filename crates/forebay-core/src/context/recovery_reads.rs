//! Metadata reads during recovery.

/// A superblock copy: the member of a mirrored cache (else 0), and the number of the copy.
pub(crate) type CopyOf = (usize, usize);

/// A metadata read in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecoveryRead {
    pub(crate) target: RecoveryTarget,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) tries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryTarget {
    Superblock(CopyOf),
    /// Index of a copy in `Recovery::checkpoints`.
    Checkpoint(usize),
    /// A slot and a copy of the window extension.
    Extension(usize, usize),
    /// The first block of a segment that might have been added to the window.
    Searched(u32),
    /// The summary of a segment.
    Summary(u32),
    /// All batches of a segment.
    Whole(u32),
    /// The first block of a segment of the window.
    Head(u32),
    /// One block of a segment that cannot be read as a whole.
    Block(u32, u32),
    /// A part of a segment that is rewritten.
    Rewritten(u32),
}
