//! Remaining life of a flash device at its present write rate.
//!
//! By its rating: the rest of it, at this rate. By the device's report: it has taken so many bytes
//! for so many percent of its life, and the rest lasts in proportion. The latter includes the
//! device's own relocations and the writes of other programs. Both come with the period of the
//! measured rate. A rate over less than an hour is not extrapolated to years.

use forebay_admin::WearInfo;
use std::time::Duration;

const DAY_S: f64 = 86_400.0;
/// Shortest period of a rate.
const LEAST: Duration = Duration::from_secs(3600);
/// Longest life expressed in years.
const YEARS_MAX: f64 = 100.0;

/// A rate, and the period over which it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Bytes written.
    pub(crate) bytes: u64,
    /// The period.
    pub(crate) over: Duration,
    /// Name of the period.
    pub(crate) called: &'static str,
}

impl Rate {
    /// Returns the bytes per day.
    pub(crate) fn a_day(self) -> u64 {
        (self.bytes as f64 / self.over.as_secs_f64().max(1.0) * DAY_S) as u64
    }
}

/// Returns the remaining life: as text, and in days if known.
pub(crate) fn left(rate: Option<Rate>, wear: &[WearInfo], rated_bytes: Option<u64>) -> (String, Option<u64>) {
    let Some(rate) = rate.filter(|rate| rate.over >= LEAST) else {
        return ("not known before an hour has passed".into(), None);
    };
    let by_device = match wear {
        [disk] => disk.used_pct.zip(disk.written_bytes),
        _ => None,
    };
    let (left_bytes, why) = match (rated_bytes, by_device) {
        (_, Some((100.., _))) => return ("the device reports its rated life as used up".into(), Some(0)),
        (Some(rated), _) => match wear.iter().filter_map(|disk| disk.written_bytes).max() {
            Some(written) => (rated.saturating_sub(written), "by endurance_rating".to_owned()),
            None => (
                rated,
                "by endurance_rating, assuming no earlier writes: the device does not report them".into(),
            ),
        },
        (None, Some((used @ 1.., written))) => (
            (u128::from(written) * u128::from(100 - used) / u128::from(used)) as u64,
            format!("by the {used} % of its life that the device reports as used"),
        ),
        (None, Some((0, _))) => {
            return (
                "not known: the device reports less than 1 % of its life as used; endurance_rating helps"
                    .into(),
                None,
            );
        }
        (None, None) => return ("not known: set endurance_rating as in its data sheet".into(), None),
    };
    let a_day = rate.a_day();
    if a_day == 0 {
        return (format!("nothing was written in the {}", rate.called), None);
    }
    let days = left_bytes / a_day;
    let years = days as f64 / 365.25;
    let time = match years {
        _ if years > YEARS_MAX => "more than 100 years".into(),
        _ if years >= 1.0 => format!("{years:.1} years"),
        _ => format!("{days} days"),
    };
    (format!("{time} at the rate of the {}, {why}", rate.called), Some(days))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TB: u64 = 1_000_000_000_000;

    fn rate(gb_a_day: u64) -> Option<Rate> {
        Some(Rate { bytes: gb_a_day * 1_000_000_000, over: Duration::from_secs(86_400), called: "last day" })
    }

    fn disk(used_pct: u64, written_bytes: Option<u64>) -> [WearInfo; 1] {
        [WearInfo { used_pct: Some(used_pct), written_bytes, ..WearInfo::default() }]
    }

    #[test]
    fn rating_and_written_bytes_give_years() {
        let (words, days) = left(rate(100), &disk(3, Some(50 * TB)), Some(600 * TB));
        assert_eq!(days, Some(5500));
        assert_eq!(words, "15.1 years at the rate of the last day, by endurance_rating");
        let (words, days) = left(rate(100), &[], Some(10 * TB));
        assert!(
            days == Some(100) && words.starts_with("100 days") && words.contains("does not report"),
            "{words}"
        );
        assert_eq!(left(rate(100), &disk(90, Some(700 * TB)), Some(600 * TB)).1, Some(0));
    }

    #[test]
    fn device_wear_replaces_a_missing_rating() {
        let (words, days) = left(rate(100), &disk(10, Some(50 * TB)), None);
        assert_eq!(days, Some(4500));
        assert!(words.contains("12.3 years") && words.contains("the 10 % of its life"), "{words}");
        assert_eq!(left(rate(100), &disk(104, Some(50 * TB)), Some(600 * TB)).1, Some(0));
        assert!(left(rate(1), &disk(1, Some(50 * TB)), None).0.starts_with("more than 100 years"));
    }

    #[test]
    fn unknown_wear_gives_a_reason() {
        for (rate, wear, rated, says) in [
            (rate(100), &disk(0, Some(TB))[..], None, "less than 1 %"),
            (rate(100), &[], None, "set endurance_rating"),
            (rate(100), &disk(5, None), None, "set endurance_rating"),
            (rate(0), &[], Some(TB), "nothing was written"),
            (None, &[], Some(TB), "before an hour"),
            (
                Some(Rate { bytes: TB, over: Duration::from_secs(60), called: "x" }),
                &[],
                Some(TB),
                "before an hour",
            ),
        ] {
            let (words, days) = left(rate, wear, rated);
            assert!(days.is_none() && words.contains(says), "{words}");
        }
    }
}
