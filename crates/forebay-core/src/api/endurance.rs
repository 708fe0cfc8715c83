//! The endurance budget: the bytes written to flash per day, and how the engine keeps to them.

/// A day, in nanoseconds.
pub const DAY_NS: u64 = 86_400_000_000_000;

/// Bytes that the engine may write to the cache devices per day. It never refuses client writes:
/// the budget limits only optional writes (`crate::api::written`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EnduranceBudget {
    /// No limit.
    #[default]
    Unlimited,
    /// Bytes per day, to all devices of the pool together.
    Bytes(u64),
    /// Bytes per day, to each device.
    BytesOfEachDevice(u64),
    /// Device writes per day of the pool's devices, in thousandths.
    DeviceWrites(u32),
}

/// Present restrictions by the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restraint {
    /// Nothing.
    None,
    /// The engine does not fill blocks on their first miss, and keeps fewer blocks.
    Some,
    /// The engine fills no blocks, and keeps no clean ones.
    All,
}

/// State of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnduranceReport {
    /// Bytes per day.
    pub budget_bytes: u64,
    /// Unwritten bytes of the budget, saved for later (at most a day's); negative: bytes that
    /// clients have written beyond the budget, to be worked off (at most a day's).
    pub saved_bytes: i64,
    /// Present rate for fills and kept blocks, in bytes per day.
    pub optional_bytes: u64,
    /// Present restrictions.
    pub restraint: Restraint,
}

impl Restraint {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "holds nothing back",
            Self::Some => "fills only blocks that were missed before, and keeps fewer",
            Self::All => "fills nothing, and keeps no clean blocks",
        }
    }
}
