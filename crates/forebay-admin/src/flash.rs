//! Answers about the flash of a pool: what was written to it, and how its budget stands.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What was written to a cache device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlashInfo {
    /// Bytes that the engine has written since the pool was opened.
    pub written_bytes: u64,
    /// Seconds since then.
    pub written_for_s: u64,
    /// The same bytes by cause: `client writes`, `fills`, `kept blocks` and so on.
    pub written_by_cause: BTreeMap<String, u64>,
    /// Bytes a day at the rate of the last hour, day and week, as far as there are so many.
    #[serde(default)]
    pub bytes_a_day: BTreeMap<String, u64>,
    /// What the disks below it report.
    #[serde(default)]
    pub wear: Vec<WearInfo>,
    /// Why they report nothing, or not all of them.
    #[serde(default)]
    pub wear_unknown: Option<String>,
    /// How long it lasts at this rate, in words.
    #[serde(default)]
    pub life: Option<String>,
    /// The same in days.
    #[serde(default)]
    pub life_days: Option<u64>,
}

/// What a disk reports of its wear.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct WearInfo {
    /// The disk: a path below `/dev`.
    pub disk: String,
    /// Its model.
    pub model: String,
    /// Its size.
    pub capacity_bytes: Option<u64>,
    /// How much of its rated life is used, percent; more than 100 is possible.
    pub used_pct: Option<u64>,
    /// Spare blocks that are left, percent.
    pub spare_pct: Option<u64>,
    /// What its maker calls too few.
    pub spare_least_pct: Option<u64>,
    /// Bytes that it was given to write in its life, by everybody.
    pub written_bytes: Option<u64>,
    /// Errors that it could not correct.
    pub media_errors: Option<u64>,
    /// It says that it fails, or is about to.
    pub failing: bool,
    /// What else it warns of.
    pub warnings: Vec<String>,
    /// Seconds since 1970 when it was asked.
    pub read_unix_s: u64,
}

/// From so much on a disk is nearly used up, percent.
const USED_CONCERN_PCT: u64 = 90;

impl WearInfo {
    /// What somebody should do something about, in words; nothing if all is well.
    #[must_use]
    pub fn concerns(&self) -> Vec<String> {
        let mut concerns = Vec::new();
        if self.failing {
            concerns.push("it calls itself failing".into());
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

/// How `endurance_budget` of a pool stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EnduranceInfo {
    /// Bytes a day.
    pub budget_bytes: u64,
    /// Bytes that were saved and may be written later; negative: what clients have written beyond
    /// the budget. A day's at most, either way.
    pub saved_bytes: i64,
    /// Bytes a day that fills and kept blocks may take at this moment.
    pub optional_bytes: u64,
    /// What it holds back, in words.
    pub restraint: String,
    /// Blocks that reads missed since the start and that the budget had left out: what it cost, at
    /// most.
    pub missed_blocks: u64,
    /// All blocks that reads looked for since the start.
    pub read_blocks: u64,
}
