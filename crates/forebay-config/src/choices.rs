//! The words of tunables with a choice, as types. Parsers, help texts, schema and documents all use
//! these lists.

use super::value::{Choice, Value};

/// Generates an enum with a name and a line of help for each variant.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $variant:ident = $word:literal: $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $(#[doc = $help] $(#[$attribute])* $variant,)* }

        impl $name {
            /// Every word, with its meaning.
            pub const CHOICES: &'static [Choice] = &[$(Choice { name: $word, help: $help },)*];

            /// Returns the word.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl super::tunables::FromValue for $name {
            fn from_value(value: Value) -> Option<Self> {
                let Value::Choice(word) = value else { return None };
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

choices! {
    /// How a volume uses its cache.
    VolumeMode {
        Writeback = "writeback": "reads and writes are cached; a write is acknowledged when the cache has it",
        Writethrough = "writethrough": "reads and writes are cached; a write is acknowledged when the backing store has it",
        Writearound = "writearound": "reads are cached, writes bypass the cache",
        Writeonly = "writeonly": "writes are cached as in writeback, reads are not",
        Passthrough = "passthrough": "nothing new is cached",
    }
}

choices! {
    /// Order in which dirty blocks are destaged.
    DestageOrder {
        Elevator = "elevator": "in the order of addresses, neighbours merged",
        Fifo = "fifo": "the block that became dirty first",
        Lru = "lru": "the block that was not used for the longest time",
        Ordered = "ordered": "flush by flush, so that the backing store alone is always an older, consistent image",
    }
}

choices! {
    /// Which read misses are stored in the cache.
    Admission {
        Always = "always": "every miss for which there is room: `fill_no_room_blocks` of the statistics counts the others",
        SecondAccess = "second-access": "a block that was missed before, not long ago",
        Never = "never": "none: only writes are cached",
    }
}

choices! {
    /// A volume's share of the destage bandwidth when several volumes compete for it.
    Priority {
        Low = "low": "after the others",
        Normal = "normal": "as the others",
        High = "high": "before the others",
    }
}

choices! {
    /// Action for a request that no rule matches.
    DefaultAction {
        Cache = "cache": "it is cached according to the mode",
        Bypass = "bypass": "it bypasses the cache",
    }
}

choices! {
    /// Which blocks are evicted when the cache is full.
    ReclaimPolicy {
        Fifo = "fifo": "the oldest segment, regardless of hits",
        Lru = "lru": "the segment with the best ratio of room gained to blocks moved, weighed by age; blocks \
            that were hit stay",
        S3fifo = "s3fifo": "blocks that were read only once go quickly, blocks that were hit stay",
    }
}

choices! {
    /// How I/O operations reach the kernel.
    IoEngine {
        Auto = "auto": "io_uring where it works, else psync",
        Uring = "uring": "io_uring, or refuse to start",
        Psync = "psync": "plain reads and writes",
    }
}

choices! {
    /// How the space of a new cache file is allocated.
    CacheAllocation {
        Full = "full": "reserved at once, so that it cannot run out later",
        Sparse = "sparse": "as it is used; the file system must not run full",
    }
}

choices! {
    /// Whether a cache is on two devices so that either may fail.
    Mirror {
        Off = "off": "one copy of everything",
        On = "on": "dirty data is on both of two devices, clean data on one",
    }
}

choices! {
    /// Whether the cache discards empty segments on its devices.
    DiscardFreed {
        Off = "off": "empty segments are not discarded",
        On = "on": "empty segments are discarded (TRIM), or punched out of a cache file, which is no longer reserved then",
    }
}

choices! {
    /// Action if the backing store was changed while the cache was absent.
    OnBackingChange {
        Refuse = "refuse": "drop clean blocks; refuse to attach if any are dirty",
        KeepDirty = "keep-dirty": "drop clean blocks, write dirty blocks over the change",
        DiscardDirty = "discard-dirty": "drop all cached blocks of the volume",
    }
}

choices! {
    /// Whether clients must have a certificate of their own.
    ClientCertificates {
        Required = "required": "clients without one are refused",
        Optional = "optional": "clients without one are served too, but match no name in an allow list",
    }
}

choices! {
    /// Whether memory may be swapped out.
    LockMemory {
        No = "no": "as the system decides",
        Yes = "yes": "never: the index and requests stay in memory, also if a swap device is a volume of this daemon",
    }
}

choices! {
    /// Messages that the daemon logs.
    LogLevel {
        Error = "error": "failures",
        Warn = "warn": "and conditions that may lead to failures",
        Info = "info": "and changes",
        Debug = "debug": "as info: there are no such lines yet",
        Trace = "trace": "as info: there are no such lines yet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::checkpoint::Mode;

    #[test]
    fn modes_are_those_of_the_format() {
        let ours: Vec<&str> = VolumeMode::CHOICES.iter().map(|choice| choice.name).collect();
        let theirs: Vec<&str> = Mode::ALL.iter().map(|mode| mode.name()).collect();
        assert_eq!(ours, theirs);
    }
}
