//! The endurance budget: whom it holds back, and what that costs. How much there is to spend is in
//! `context::account`.
//!
//! **Whom it holds back.** While more than half of the purse is there, nobody. Below, only blocks
//! that were missed or evicted not long ago are filled, and reclaim keeps the less the emptier it
//! is. So the level settles where what is worth more uses up the budget. From an empty purse
//! nothing is filled and nothing clean is kept. Dirty blocks then wait until destage has written
//! them, unless writers are about to wait for room.
//!
//! **What it costs.** Blocks that were left out are remembered as fingerprints, about as many as
//! the cache holds. A read that misses one of them would have been a hit, if nothing else had to
//! give way for it: at most, therefore.

use crate::api::endurance::{EnduranceBudget, EnduranceReport, Restraint};
use crate::api::written::WrittenBytes;
use crate::context::Context;
use crate::context::account::{DAY, Endurance};
use crate::fault::{self, PlantedBug};
use crate::map::recent::Recent;
use crate::map::segment::Key;
use forebay_format::{BLOCK_BYTES, StreamKind};

impl Context {
    /// The budget in effect, bytes a day.
    fn endurance_budget(&self) -> Option<u64> {
        let devices = self.superblock.members.count().max(if self.mirror.is_some() { 2 } else { 1 });
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

    /// Something is written to the cache device.
    #[inline]
    pub(crate) fn charge_endurance(&mut self, written: &WrittenBytes) {
        if self.config.pool.endurance_budget != EnduranceBudget::Unlimited {
            self.settle_endurance();
            self.endurance.charge(written);
        }
    }

    /// The budget may have changed: time until now counts under the old one.
    pub(crate) fn settle_endurance(&mut self) {
        let (now, budget) = (self.now, self.endurance_budget());
        self.endurance.settle(now, budget);
    }

    /// Part of the purse that is left, percent; `None`: there is no budget.
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

    /// What the budget holds back now.
    pub(crate) fn restraint(&self) -> Restraint {
        match self.purse_pct() {
            None | Some(50..) => Restraint::None,
            Some(0) => Restraint::All,
            Some(_) => Restraint::Some,
        }
    }

    /// Nothing optional may be written now.
    #[inline]
    pub(crate) fn spares_flash(&self) -> bool {
        self.endurance.budget.is_some() && self.restraint() == Restraint::All
    }

    /// Share of a segment that may be kept, percent: the setting, and less if the purse is less
    /// than half full.
    #[inline]
    pub(crate) fn survivors_max_pct(&self) -> u32 {
        let most = self.config.pool.survivors_max_pct;
        self.purse_pct().map_or(most, |left| most * (2 * left).min(100) / 100)
    }

    /// A block is left out because of the budget.
    pub(crate) fn leave_out(&mut self, key: Key) {
        let (space, key) = (self.space(), self.ghosts.remembered(key));
        Recent::sized(&mut self.endurance.left_out, space).note(key);
    }

    /// A read has missed this block: is it one that was left out?
    #[inline]
    pub(crate) fn note_miss(&mut self, key: Key) {
        if self.endurance.left_out.is_some() {
            let key = self.ghosts.remembered(key);
            let left_out = self.endurance.left_out.as_mut().is_some_and(|recent| recent.take(key));
            self.stats.endurance_missed_blocks += u64::from(left_out);
        }
    }

    /// How the budget stands.
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
