//! The words of tunables with a choice. Parsers, help texts, schema and documents all use these
//! lists. Types that only the configuration has are defined here too.

use super::value::{AsValue, Choice, Value};
use crate::rules::DefaultAction;
use forebay_core::{Admission, DestageOrder, OnBackingChange, Priority, ReclaimPolicy};
use forebay_format::checkpoint::Mode;
use forebay_io::EnginePreference;

/// A setting that is one of several words.
pub trait Words: Copy + 'static {
    /// Every word, with its meaning.
    const CHOICES: &'static [Choice];

    /// Returns the word.
    fn word(self) -> &'static str;
}

/// Gives each variant of an enum its word and a line of help.
macro_rules! words {
    ($name:ty { $($variant:ident = $word:literal: $help:literal,)* }) => {
        impl Words for $name {
            const CHOICES: &'static [Choice] = &[$(Choice { name: $word, help: $help },)*];

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl AsValue for $name {
            fn from_value(value: Value) -> Option<Self> {
                let Value::Choice(word) = value else { return None };
                match word { $($word => Some(Self::$variant),)* _ => None }
            }

            fn into_value(self) -> Value {
                Value::Choice(self.word())
            }
        }
    };
}

/// Generates an enum with a word and a line of help for each variant.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal: $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $(#[doc = $help] $variant,)* }

        words! { $name { $($variant = $word: $help,)* } }
    };
}

words! {
    Mode {
        Writeback = "writeback": "reads and writes are cached; a write is acknowledged when the cache has it",
        Writethrough = "writethrough": "reads and writes are cached; a write is acknowledged when the backing store has it",
        Writearound = "writearound": "reads are cached, writes bypass the cache",
        Writeonly = "writeonly": "writes are cached as in writeback, reads are not",
        Passthrough = "passthrough": "nothing new is cached",
    }
}

words! {
    DestageOrder {
        Elevator = "elevator": "in the order of addresses, neighbours merged",
        Fifo = "fifo": "the block that became dirty first",
        Lru = "lru": "the block that was not used for the longest time",
        Ordered = "ordered": "flush by flush, so that the backing store alone is always an older, consistent image",
    }
}

words! {
    Admission {
        Always = "always": "every miss for which there is room: `fill_no_room_blocks` of the statistics counts the others",
        SecondAccess = "second-access": "a block that was missed before, not long ago",
        Never = "never": "none: only writes are cached",
    }
}

words! {
    Priority {
        Low = "low": "after the others",
        Normal = "normal": "as the others",
        High = "high": "before the others",
    }
}

words! {
    DefaultAction {
        Cache = "cache": "it is cached according to the mode",
        Bypass = "bypass": "it bypasses the cache",
    }
}

words! {
    ReclaimPolicy {
        Fifo = "fifo": "the oldest segment, regardless of hits",
        Lru = "lru": "the segment with the best ratio of room gained to blocks moved, weighed by age; blocks \
            that were hit stay",
        S3Fifo = "s3fifo": "blocks that were read only once go quickly, blocks that were hit stay",
    }
}

words! {
    EnginePreference {
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

words! {
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
    }
}

/// Words of the switch `discard_freed`.
pub(crate) const DISCARD_FREED: &[Choice] = &[
    Choice { name: "off", help: "empty segments are not discarded" },
    Choice {
        name: "on",
        help: "empty segments are discarded (TRIM), or punched out of a cache file, which is no longer reserved then",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_the_format() {
        assert_eq!(Mode::CHOICES.len(), Mode::ALL.len());
        assert!(Mode::ALL.into_iter().all(|mode| mode.word() == mode.name()));
    }
}
