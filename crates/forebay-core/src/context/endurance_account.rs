//! The endurance budget: how much the cache may write.
//!
//! **The account.** The account earns bytes at the rate of the budget, and every byte written to
//! the cache device is charged to it, regardless of the cause. Its balance stays between plus and
//! minus a day's budget. Clients are never refused: their writes beyond the budget become a debt.
//!
//! **The purse.** Optional writes (fills, copies of write-through, clean blocks that are kept) are
//! paid from a purse of ten minutes, which spreads them over the day. While the balance is
//! positive, the purse is filled at `budget + account / 8 hours`: savings of a night are spent over
//! the working day. While it is negative, the purse is filled at `budget + account / hour`: an
//! hour's debt leaves nothing for optional writes. So clients' bytes come first.
//!
//! **Bounds** for an unchanged budget, in any time `T` of one engine: optional writes take at most
//! `4 * budget * T` and the purse, and at most `budget * T * (1 + 3 * T / day)` from an empty
//! account (as at the start). All writes take at most `budget * T`, an hour's budget, the purse and
//! the savings, unless client writes and their overhead alone take more.

use crate::api::Nanos;
use crate::api::endurance::DAY_NS;
use crate::api::written::WrittenBytes;
use crate::map::recent::Recent;
#[cfg(test)]
use forebay_format::BLOCK_BYTES;

/// Parts of a byte in which the account counts, so that a daily budget earns a whole number of them
/// each nanosecond.
pub(crate) const DAY: i128 = DAY_NS as i128;
/// Time of which the purse holds the budget.
const PURSE_NS: i128 = 600_000_000_000;
/// Least size of the purse: a few batches.
const PURSE_BYTES_MIN: i128 = 64 << 10;
/// Savings are spent in about this time.
const SAVED_NS: i128 = 8 * 3_600_000_000_000;
/// A debt of the budget of this time leaves nothing for optional writes.
const DEBT_NS: i128 = 3_600_000_000_000;

/// The account of a budget. It is lost with the process: a start begins without savings.
#[derive(Debug, Default)]
pub(crate) struct Endurance {
    /// Bytes a day; `None`: unlimited.
    pub(crate) budget: Option<u64>,
    /// Time of the balances below.
    at: Nanos,
    /// In parts of a byte, see [`DAY`].
    account: i128,
    purse: i128,
    /// Blocks recently left out because of the budget.
    pub(crate) left_out: Option<Recent>,
}

impl Endurance {
    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.left_out.as_ref().map_or(0, Recent::bytes)
    }

    /// Returns the rate at which the purse is filled, bytes a day.
    pub(crate) fn optional_bytes(budget: u64, account: i128) -> i128 {
        let (budget, saved) = (i128::from(budget), account / DAY);
        let share = saved * (DAY / if saved < 0 { DEBT_NS } else { SAVED_NS });
        (budget + share).clamp(0, (1 + DAY / SAVED_NS) * budget)
    }

    /// Returns the size of the purse, in parts of a byte.
    pub(crate) fn purse_max(budget: u64) -> i128 {
        (i128::from(budget) * PURSE_NS).max(PURSE_BYTES_MIN * DAY)
    }

    /// Returns account and purse at an instant.
    pub(crate) fn at(&self, budget: u64, now: Nanos) -> (i128, i128) {
        // After two days both are full, or no debt is left.
        let passed = i128::from(now.saturating_sub(self.at).min(2 * DAY_NS));
        let most = i128::from(budget) * DAY;
        let account = (self.account + i128::from(budget) * passed).clamp(-most, most);
        // A step longer than the time of the purse fills it, if the rate allows.
        let gain = Self::optional_bytes(budget, account) * passed;
        (account, (self.purse + gain).min(Self::purse_max(budget)))
    }

    /// Credits the time until `now` under the previous budget, then sets `budget`. A change credits
    /// nothing.
    pub(crate) fn settle(&mut self, now: Nanos, budget: Option<u64>) {
        (self.account, self.purse) = match (self.budget, budget) {
            (Some(was), Some(_)) => self.at(was, now),
            _ => (0, 0),
        };
        (self.at, self.budget) = (now, budget);
        if let Some(budget) = budget {
            let most = i128::from(budget) * DAY;
            self.account = self.account.clamp(-most, most);
            self.purse = self.purse.min(Self::purse_max(budget));
        } else {
            self.left_out = None;
        }
    }

    /// Charges written bytes.
    pub(crate) fn charge(&mut self, written: &WrittenBytes) {
        let alone = written.optional() > 0 && written.clients == 0;
        let optional = written.optional() + if alone { written.headers } else { 0 };
        self.account = self.account.saturating_sub(i128::from(written.total()) * DAY);
        self.purse = self.purse.saturating_sub(i128::from(optional) * DAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Nanos = DAY_NS / 24;
    const BLOCK: u64 = BLOCK_BYTES as u64;

    /// An account of so many bytes a day, and the current time.
    struct Day(Endurance, Option<u64>, Nanos);

    impl Day {
        fn new(budget: u64) -> Self {
            let mut endurance = Endurance::default();
            endurance.settle(7, Some(budget));
            Self(endurance, Some(budget), 7)
        }

        fn write(&mut self, written: &WrittenBytes) {
            self.0.settle(self.2, self.1);
            self.0.charge(written);
        }

        /// Fills as much as the purse allows, in steps of a second; clients write `clients` bytes
        /// in each.
        fn fill(&mut self, time: Nanos, clients: u64) -> u64 {
            let mut filled = 0;
            for _ in 0..time / 1_000_000_000 {
                self.2 += 1_000_000_000;
                self.write(&WrittenBytes { clients, ..WrittenBytes::default() });
                while self.0.purse > 0 {
                    self.write(&WrittenBytes { fills: BLOCK, ..WrittenBytes::default() });
                    filled += BLOCK;
                }
            }
            filled
        }

        fn saved(&self) -> i128 {
            self.0.at(self.1.unwrap(), self.2).0 / DAY
        }
    }

    fn is_near(value: u64, expected: u64, pct: u64) -> bool {
        value.abs_diff(expected) * 100 <= expected * pct
    }

    #[test]
    fn the_budget_is_spent_evenly_over_the_day() {
        const BUDGET: u64 = 86_400 << 20;
        let mut day = Day::new(BUDGET);
        for hour in 0..48 {
            let filled = day.fill(HOUR, 0);
            assert!(is_near(filled, BUDGET / 24, 2), "hour {hour}: {filled}");
        }
    }

    #[test]
    fn client_writes_take_budget_before_fills() {
        const BUDGET: u64 = 86_400 << 20;
        let mut day = Day::new(BUDGET);
        day.fill(6 * HOUR, 3 << 18);
        let filled = day.fill(18 * HOUR, 3 << 18);
        assert!(is_near(filled, BUDGET * 18 / 24 / 4, 3), "a quarter is left: {filled}");
        // Clients alone write twice the budget.
        assert!(day.fill(3 * HOUR, 2 << 20) < BUDGET / 100);
        assert_eq!(day.fill(3 * HOUR, 2 << 20), 0);
        assert!(day.saved() < -i128::from(BUDGET / 8), "{}", day.saved());
        // The debt is paid off.
        assert_eq!(day.fill(4 * HOUR, 0), 0);
        assert!(day.fill(10 * HOUR, 0) > 0);
    }

    #[test]
    fn savings_are_limited_to_one_day() {
        const BUDGET: u64 = 86_400 << 20;
        let mut day = Day::new(BUDGET);
        day.2 += 10 * DAY_NS;
        day.write(&WrittenBytes::default());
        assert_eq!(day.saved(), i128::from(BUDGET));
        let first = day.fill(HOUR, 0);
        assert!(is_near(first, 4 * BUDGET / 24, 12), "{first}");
        let rest = day.fill(23 * HOUR, 0);
        assert!(is_near(first + rest, BUDGET * 195 / 100, 2), "{}", first + rest);
    }

    #[test]
    fn budget_changes_gain_nothing() {
        const BUDGET: u64 = 86_400 << 20;
        let mut day = Day::new(BUDGET);
        let mut filled = 0;
        for second in 0..3600 {
            day.1 = Some(if second % 2 == 0 { BUDGET } else { BUDGET / 2 });
            filled += day.fill(1_000_000_000, 0);
        }
        assert!(is_near(filled, BUDGET / 24 * 3 / 4, 2), "{filled}");
    }

    #[test]
    fn extreme_budgets_do_not_overflow() {
        let mut none = Day::new(0);
        assert_eq!(none.fill(HOUR, BLOCK), 0);
        assert_eq!(none.saved(), 0, "nothing is owed of nothing");
        let mut tiny = Day::new(1);
        assert_eq!(tiny.fill(HOUR, 1 << 30), BLOCK, "one is begun with the last of it");
        let mut huge = Day::new(u64::MAX);
        huge.2 = u64::MAX - 1;
        huge.write(&WrittenBytes { clients: u64::MAX / 2, ..WrittenBytes::default() });
        huge.write(&WrittenBytes { fills: u64::MAX / 2, ..WrittenBytes::default() });
        assert!(huge.0.purse < 0, "and that was more than a minute's");
        huge.0.settle(0, Some(u64::MAX));
    }
}
