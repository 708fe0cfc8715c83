//! Bytes written to a cache device, by cause.
//!
//! Every write of the engine to its cache is counted where it is issued, and what its owner writes
//! to a device that one of the cache's is copied onto (`Engine::note_copied`). What the causes have
//! adds up to what was written (I78).

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
            /// What each cause is called, and what it has, in the order in which they are shown.
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
    /// Copies of what clients wrote through to the backing store.
    copies = "write-through copies",
    /// Blocks that were read from the backing store.
    fills = "fills",
    /// Clean blocks that reclaim moved because they are worth it.
    kept = "kept blocks",
    /// Blocks that had to be moved: dirty ones, and those that a change of a size moved.
    moved = "moved blocks",
    /// Headers of batches and summaries of segments.
    headers = "headers",
    /// Checkpoints, superblocks and extensions of the append window.
    checkpoints = "checkpoints",
    /// What a new member of a mirrored cache, or one that lacks something, was given.
    rebuilds = "rebuild",
    /// What a start wrote again because it may not have been durable.
    restarts = "restart",
    /// What a copy of a cache device gave the new one until that took its place.
    copied = "device copy",
}

impl WrittenBytes {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_cause().iter().map(|(_, bytes)| bytes).sum()
    }

    /// What the engine could have left undone without an error or a delay of a client: what an
    /// endurance budget limits. Without its headers.
    #[must_use]
    pub fn optional(&self) -> u64 {
        self.copies + self.fills + self.kept
    }
}

/// Blocks of a batch by cause; a batch has less than 2^16.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Payload {
    pub(crate) clients: u16,
    pub(crate) copies: u16,
    pub(crate) fills: u16,
    pub(crate) kept: u16,
    pub(crate) moved: u16,
}
