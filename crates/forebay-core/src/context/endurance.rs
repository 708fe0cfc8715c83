//! The endurance budget: which writes it restrains, and the cost. `context::endurance_account`
//! decides how much there is to spend.
//!
//! **Restraint.** While at least half of the purse is left, all writes are allowed. Below, only
//! blocks that were recently missed or evicted are filled, and the emptier the purse the less
//! reclaim keeps. So the level settles where the more valuable blocks use up the budget. With an
//! empty purse nothing is filled and no clean block is kept. Dirty blocks are then not moved until
//! destage has written them, unless writers are about to wait for room.
//!
//! **Cost.** The cache remembers fingerprints of blocks that were left out, about as many as the
//! cache holds blocks. A read that misses one of them would have been a hit, had no other block
//! been evicted for it: the count is an upper bound.

use crate::api::endurance::{EnduranceBudget, EnduranceReport, Restraint};
use crate::api::written::WrittenBytes;
use crate::context::Context;
use crate::context::endurance_account::{DAY, Endurance};
use crate::fault::{self, PlantedBug};
use crate::map::recent::Recent;
use crate::map::segment::Key;
use forebay_format::{BLOCK_BYTES, StreamKind};

impl Context {
    /// Returns the budget in effect, bytes a day.
    fn endurance_budget(&self) -> Option<u64> {
        let devices = self.superblock.members.count().max(if self.members.is_mirrored() { 2 } else { 1 });
        match self.config.pool.endurance_budget {
            EnduranceBudget::Unlimited => None,
            EnduranceBudget::Bytes(bytes) => Some(bytes),
            EnduranceBudget::BytesOfEachDevice(bytes) => Some(bytes.saturating_mul(devices as u64)),
            EnduranceBudget::DeviceWrites(thousandths) => {
                let blocks = u128::from(self.map.geometry.device_blocks);
                let bytes = blocks * BLOCK_BYTES as u128 * u128::from(thousandths) / 1000;
                Some(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }

    /// Charges a write to the cache device.
    #[inline]
    pub(crate) fn charge_endurance(&mut self, written: &WrittenBytes) {
        if self.config.pool.endurance_budget != EnduranceBudget::Unlimited {
            self.settle_endurance();
            self.endurance.charge(written);
        }
    }

    /// Applies a possible change of the budget: time until now counts under the previous one.
    pub(crate) fn settle_endurance(&mut self) {
        let (now, budget) = (self.now, self.endurance_budget());
        self.endurance.settle(now, budget);
    }

    /// Returns the part of the purse that is left, percent; `None` without a budget.
    #[inline]
    fn purse_pct(&self) -> Option<u32> {
        self.endurance.budget.map(|budget| self.purse_left_pct(budget))
    }

    fn purse_left_pct(&self, budget: u64) -> u32 {
        let (_, purse) = self.endurance.at(budget, self.now);
        let copies = self.log.streams[StreamKind::Fill.index()].queue.others();
        let pending = (self.fills.len() + copies + self.log.moves) as i128;
        let left = purse - pending * BLOCK_BYTES as i128 * DAY;
        if fault::planted(PlantedBug::OverspendEndurance) {
            return 100;
        }
        if left <= 0 { 0 } else { (left * 100 / Endurance::purse_max(budget)).clamp(1, 100) as u32 }
    }

    /// Returns the current restraint.
    pub(crate) fn restraint(&self) -> Restraint {
        match self.purse_pct() {
            None | Some(50..) => Restraint::None,
            Some(0) => Restraint::All,
            Some(_) => Restraint::Some,
        }
    }

    /// Returns true if no optional write is allowed now.
    #[inline]
    pub(crate) fn spares_flash(&self) -> bool {
        self.endurance.budget.is_some() && self.restraint() == Restraint::All
    }

    /// Returns the share of a segment that reclaim may keep, percent: the setting, and less if the
    /// purse is less than half full.
    #[inline]
    pub(crate) fn survivors_max_pct(&self) -> u32 {
        let most = self.config.pool.survivors_max_pct;
        self.purse_pct().map_or(most, |left| most * (2 * left).min(100) / 100)
    }

    /// Remembers a block that was left out because of the budget.
    pub(crate) fn leave_out(&mut self, key: Key) {
        let (space, key) = (self.space(), self.ghosts.remembered(key));
        Recent::sized(&mut self.endurance.left_out, space).note(key);
    }

    /// Counts a read miss of a block that was left out.
    #[inline]
    pub(crate) fn note_miss(&mut self, key: Key) {
        if self.endurance.left_out.is_some() {
            let key = self.ghosts.remembered(key);
            let left_out = self.endurance.left_out.as_mut().is_some_and(|recent| recent.take(key));
            self.stats.endurance_missed_blocks += u64::from(left_out);
        }
    }

    /// Returns the state of the budget.
    pub(crate) fn endurance_report(&self) -> Option<EnduranceReport> {
        let budget_bytes = self.endurance.budget?;
        let (account, _) = self.endurance.at(budget_bytes, self.now);
        Some(EnduranceReport {
            budget_bytes,
            saved_bytes: i64::try_from(account / DAY).unwrap_or(if account < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
            optional_bytes: u64::try_from(Endurance::optional_bytes(budget_bytes, account))
                .unwrap_or(u64::MAX),
            restraint: self.restraint(),
        })
    }
}
