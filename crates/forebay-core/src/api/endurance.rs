//! The endurance budget: how much of the life of the flash a day may take, and how it is kept.

/// A day, in nanoseconds.
pub const DAY_NS: u64 = 86_400_000_000_000;

/// Bytes that may be written to the cache devices in a day. What clients write is never refused:
/// the budget limits what the cache may do without (`crate::api::written`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EnduranceBudget {
    /// Nothing is limited.
    #[default]
    Unlimited,
    /// So many bytes a day, to all devices of the pool together.
    Bytes(u64),
    /// So many bytes a day to each device.
    BytesOfEachDevice(u64),
    /// The pool's devices are written so often in a day, in thousandths.
    DeviceWrites(u32),
}

/// What the budget holds back now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restraint {
    /// Nothing.
    None,
    /// Blocks that are missed for the first time are not filled, and fewer blocks are kept.
    Some,
    /// Nothing is filled, and no clean block is kept.
    All,
}

/// How a budget stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnduranceReport {
    /// Bytes a day.
    pub budget_bytes: u64,
    /// Bytes that were not written and may be written later (at most a day's); negative: bytes
    /// that clients have written beyond the budget, which are worked off (at most a day's).
    pub saved_bytes: i64,
    /// What fills and kept blocks may take at this moment, bytes a day.
    pub optional_bytes: u64,
    /// What it holds back.
    pub restraint: Restraint,
}

impl Restraint {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "holds nothing back",
            Self::Some => "fills only what was missed before, and keeps less",
            Self::All => "fills nothing, and keeps nothing that is clean",
        }
    }
}
