//! Bytes written to a cache device, by cause.
//!
//! The engine counts each of its writes to the cache where it issues it, and its owner's writes to
//! the target of a device copy (`Engine::note_copied`). The bytes of all causes add up to the bytes
//! written (I78).

use core::ops::AddAssign;

/// Declares the causes with their names.
macro_rules! causes {
    ($($(#[$what:meta])* $name:ident = $word:literal,)*) => {
        /// Bytes written, by cause.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct WrittenBytes {
            $($(#[$what])* pub $name: u64,)*
        }

        impl WrittenBytes {
            /// Returns name and bytes of each cause, in display order.
            #[must_use]
            pub fn by_cause(&self) -> [(&'static str, u64); [$($word),*].len()] {
                [$(($word, self.$name)),*]
            }
        }

        impl AddAssign for WrittenBytes {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

causes! {
    /// Data of clients' writes. In a mirrored cache both copies count, here and below.
    clients = "client writes",
    /// Copies of data that clients wrote through to the backing store.
    copies = "write-through copies",
    /// Blocks that were read from the backing store.
    fills = "fills",
    /// Clean blocks that reclaim moved to keep them cached.
    kept = "kept blocks",
    /// Blocks that had to be moved: dirty ones, and those moved by a resize.
    moved = "moved blocks",
    /// Headers of batches and summaries of segments.
    headers = "headers",
    /// Checkpoints, superblocks and extensions of the append window.
    checkpoints = "checkpoints",
    /// Data written to a new member of a mirrored cache, or to one that lacked some.
    rebuilds = "rebuild",
    /// Data that a start rewrote because it may not have been durable.
    restarts = "restart",
    /// Data that a copy of a cache device wrote to the new one before the replacement.
    copied = "device copy",
}

impl WrittenBytes {
    /// Total bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_cause().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that the engine could have left unwritten without an error or a delay for a client: an
    /// endurance budget limits these. Excludes their headers.
    #[must_use]
    pub fn optional(&self) -> u64 {
        self.copies + self.fills + self.kept
    }
}

/// Blocks of a batch by cause; a batch has fewer than 2^16.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Payload {
    pub(crate) clients: u16,
    pub(crate) copies: u16,
    pub(crate) fills: u16,
    pub(crate) kept: u16,
    pub(crate) moved: u16,
}
