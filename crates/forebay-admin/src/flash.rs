//! Flash of a pool: bytes written to it, and the state of its endurance budget.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Writes to a cache device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlashInfo {
    /// Bytes that the engine has written since the pool was opened.
    pub written_bytes: u64,
    /// Seconds since the pool was opened.
    pub written_for_s: u64,
    /// The same bytes by cause: `client writes`, `fills`, `kept blocks` and so on.
    pub written_by_cause: BTreeMap<String, u64>,
    /// Bytes a day at the rate of the last hour, day and week, for the periods that have passed.
    #[serde(default)]
    pub bytes_a_day: BTreeMap<String, u64>,
    /// Wear reports of the disks below it.
    #[serde(default)]
    pub wear: Vec<WearInfo>,
    /// Why wear reports are missing, all or some.
    #[serde(default)]
    pub wear_unknown: Option<String>,
    /// Remaining life at this rate, in words.
    #[serde(default)]
    pub life: Option<String>,
    /// Remaining life in days.
    #[serde(default)]
    pub life_days: Option<u64>,
}

/// Wear report of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct WearInfo {
    /// The disk: a path below `/dev`.
    pub disk: String,
    /// Its model.
    pub model: String,
    /// Its size, in bytes.
    pub capacity_bytes: Option<u64>,
    /// Share of its rated life that is used, in percent; may exceed 100.
    pub used_pct: Option<u64>,
    /// Spare blocks left, in percent.
    pub spare_pct: Option<u64>,
    /// Threshold of spare blocks set by its manufacturer, in percent.
    pub spare_least_pct: Option<u64>,
    /// Bytes written to it over its life, by all hosts and programs.
    pub written_bytes: Option<u64>,
    /// Errors that it could not correct.
    pub media_errors: Option<u64>,
    /// It reports that it fails or is about to.
    pub failing: bool,
    /// Its other warnings.
    pub warnings: Vec<String>,
    /// When it was queried, in seconds since 1970.
    pub read_unix_s: u64,
}

/// Used life from which a disk is nearly worn out, in percent.
const USED_CONCERN_PCT: u64 = 90;

impl WearInfo {
    /// Returns conditions that need an operator's action, in words; empty if there are none.
    #[must_use]
    pub fn concerns(&self) -> Vec<String> {
        let mut concerns = Vec::new();
        if self.failing {
            concerns.push("it reports that it is failing".into());
        }
        if let Some(used) = self.used_pct.filter(|used| *used >= USED_CONCERN_PCT) {
            concerns.push(format!("{used} % of its rated life is used"));
        }
        if let (Some(spare), Some(least)) = (self.spare_pct, self.spare_least_pct)
            && spare <= least
        {
            concerns.push(format!("it has {spare} % of its spare blocks left"));
        }
        concerns.extend(self.warnings.iter().cloned());
        concerns
    }
}

/// State of a pool's `endurance_budget`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EnduranceInfo {
    /// Bytes a day.
    pub budget_bytes: u64,
    /// Bytes that were saved and may be written later; negative: bytes that clients have written
    /// beyond the budget. At most a day's budget either way.
    pub saved_bytes: i64,
    /// Bytes a day that fills and kept blocks may use now.
    pub optional_bytes: u64,
    /// Current restraint of the budget, in words.
    pub restraint: String,
    /// Read misses since the start, in blocks, that the budget had kept out of the cache: an upper
    /// bound of its cost.
    pub missed_blocks: u64,
    /// All blocks that reads looked up since the start.
    pub read_blocks: u64,
}
