//! Amounts of writes to flash, as users write them: a size, device writes per day (DWPD), years.
//!
//! | written | as `endurance_rating`, of each device | as `endurance_budget`, of the pool |
//! | --- | --- | --- |
//! | `600TB` | bytes over its life | bytes per day |
//! | `0.3DWPD` | | multiple of the pool's size per day |
//! | `0.3DWPD/5y` | multiple of its size per day, for that many years | |
//! | `7y` | | the rated bytes, spread over that many years |

use forebay_admin::size::ByteSize;
use forebay_core::EnduranceBudget;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Thousandths of device writes per day: at most a million writes.
const WRITES_MAX: u64 = 1_000_000_000;
/// Tenths of years.
const YEARS_MAX: u64 = 1000;
/// Days of a year.
const YEAR_DAYS: f64 = 365.25;

/// An amount of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endurance {
    /// Bytes: over a life, or per day.
    Bytes(u64),
    /// Device writes per day.
    Writes {
        /// In thousandths.
        thousandths: u32,
    },
    /// Device writes per day, for some years.
    WritesForYears {
        /// In thousandths.
        thousandths: u32,
        /// Years, in tenths.
        tenth_years: u32,
    },
    /// The rated amount, over these tenths of years.
    Years(u32),
}

/// Why a text is not an amount of writes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("\"{text}\" is {what}")]
pub struct EnduranceError {
    text: String,
    what: String,
}

/// Parses a number with up to `decimals` decimals and returns it in units of `10^-decimals`.
fn scaled(text: &str, decimals: usize, max: u64) -> Option<u32> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > decimals {
        return None;
    }
    let number: u64 = format!("{whole}{fraction:0<decimals$}").parse().ok()?;
    u32::try_from(number).ok().filter(|number| (1..=max).contains(&u64::from(*number)))
}

/// Formats a number in units of `10^-decimals`.
fn written(number: u32, decimals: usize) -> String {
    let unit = 10_u32.pow(decimals as u32);
    let text = format!("{}.{:0decimals$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl FromStr for Endurance {
    type Err = EnduranceError;

    fn from_str(text: &str) -> Result<Self, EnduranceError> {
        let wrong = |what: &str| EnduranceError { text: text.to_owned(), what: what.to_owned() };
        let lower = text.trim().to_ascii_lowercase();
        let years = |part: &str| {
            let number = ["years", "year", "y"].iter().find_map(|unit| part.strip_suffix(unit));
            number.map(|number| {
                scaled(number, 1, YEARS_MAX).ok_or_else(|| wrong("not a number of years from 0.1 to 100"))
            })
        };
        let writes = |number: &str| {
            scaled(number, 3, WRITES_MAX).ok_or_else(|| wrong("not a number of device writes from 0.001 on"))
        };
        if let Some(tenths) = years(&lower).filter(|_| !lower.contains("dwpd")) {
            return Ok(Self::Years(tenths?));
        }
        if let Some((number, rest)) = lower.split_once("dwpd") {
            let thousandths = writes(number)?;
            return match rest.trim().strip_prefix('/').map(|rest| years(rest.trim())) {
                None if rest.trim().is_empty() => Ok(Self::Writes { thousandths }),
                Some(Some(tenths)) => Ok(Self::WritesForYears { thousandths, tenth_years: tenths? }),
                _ => Err(wrong("not device writes per day and years, like 0.3DWPD/5y")),
            };
        }
        match lower.parse::<ByteSize>() {
            Ok(ByteSize(0)) => Err(wrong("nothing: write off, or a size above 0")),
            Ok(ByteSize(bytes)) => Ok(Self::Bytes(bytes)),
            Err(error) => Err(EnduranceError {
                text: text.to_owned(),
                what: format!("not an amount of writing: {error}"),
            }),
        }
    }
}

impl fmt::Display for Endurance {
    /// Formats it so that it reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DECIMAL: [(&str, u64); 4] = [
            ("PB", 1_000_000_000_000_000),
            ("TB", 1_000_000_000_000),
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
        ];
        match *self {
            Self::Bytes(bytes) => match DECIMAL.iter().find(|(_, unit)| bytes.is_multiple_of(*unit)) {
                Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
                None => write!(f, "{}", ByteSize(bytes)),
            },
            Self::Writes { thousandths } => write!(f, "{}DWPD", written(thousandths, 3)),
            Self::WritesForYears { thousandths, tenth_years } => {
                write!(f, "{}DWPD/{}y", written(thousandths, 3), written(tenth_years, 1))
            }
            Self::Years(tenths) => write!(f, "{}y", written(tenths, 1)),
        }
    }
}

/// Returns the bytes that a device of this size may write over its life, by its rating.
#[must_use]
pub fn rated_bytes(rating: Endurance, device_bytes: u64) -> Option<u64> {
    match rating {
        Endurance::Bytes(bytes) => Some(bytes),
        Endurance::WritesForYears { thousandths, tenth_years } => {
            let days = f64::from(tenth_years) / 10.0 * YEAR_DAYS;
            Some((device_bytes as f64 * f64::from(thousandths) / 1000.0 * days) as u64)
        }
        Endurance::Writes { .. } | Endurance::Years(_) => None,
    }
}

/// Converts the budget for the engine; `None`: years need a rating.
#[must_use]
pub fn budget(budget: Option<Endurance>, rating: Option<Endurance>) -> Option<EnduranceBudget> {
    let Some(budget) = budget else { return Some(EnduranceBudget::Unlimited) };
    match (budget, rating) {
        (Endurance::Bytes(bytes), _) => Some(EnduranceBudget::Bytes(bytes)),
        (Endurance::Writes { thousandths }, _) => Some(EnduranceBudget::DeviceWrites(thousandths)),
        (Endurance::Years(tenths), Some(Endurance::Bytes(bytes))) => {
            let days = f64::from(tenths) / 10.0 * YEAR_DAYS;
            Some(EnduranceBudget::BytesOfEachDevice((bytes as f64 / days) as u64))
        }
        (Endurance::Years(tenths), Some(Endurance::WritesForYears { thousandths, tenth_years })) => {
            let writes = u64::from(thousandths) * u64::from(tenth_years) / u64::from(tenths);
            Some(EnduranceBudget::DeviceWrites(u32::try_from(writes).unwrap_or(u32::MAX)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Endurance {
        text.parse().unwrap()
    }

    #[test]
    fn endurance_texts_are_parsed_and_read_back() {
        for (text, value, again) in [
            ("600TB", Endurance::Bytes(600_000_000_000_000), "600TB"),
            ("1TiB", Endurance::Bytes(1 << 40), "1TiB"),
            ("0.3 dwpd", Endurance::Writes { thousandths: 300 }, "0.3DWPD"),
            ("1DWPD / 5 years", Endurance::WritesForYears { thousandths: 1000, tenth_years: 50 }, "1DWPD/5y"),
            ("7.5y", Endurance::Years(75), "7.5y"),
            ("1year", Endurance::Years(10), "1y"),
        ] {
            assert_eq!((read(text), read(text).to_string().as_str()), (value, again), "{text}");
            assert_eq!(read(again), value);
        }
    }

    #[test]
    fn invalid_endurance_is_refused() {
        for (text, says) in [
            ("0", "write off"),
            ("0y", "from 0.1 to 100"),
            ("101y", "from 0.1 to 100"),
            ("0.0001DWPD", "from 0.001"),
            ("-1DWPD", "from 0.001"),
            ("1DWPD/x", "like 0.3DWPD/5y"),
            ("1DWPD5y", "like 0.3DWPD/5y"),
            ("lots", "must start with a number"),
            ("", "must start with a number"),
        ] {
            let error = text.parse::<Endurance>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn years_of_a_rating_are_bytes_a_day() {
        let of = |limit, rating| budget(Some(read(limit)), Some(read(rating)));
        assert_eq!(of("10y", "600TB"), Some(EnduranceBudget::BytesOfEachDevice(164_271_047_227)));
        assert_eq!(of("10y", "1DWPD/5y"), Some(EnduranceBudget::DeviceWrites(500)));
        assert_eq!(of("100GB", "600TB"), Some(EnduranceBudget::Bytes(100_000_000_000)));
        assert_eq!(budget(Some(read("10y")), None), None, "of what?");
        assert_eq!(budget(None, None), Some(EnduranceBudget::Unlimited));
        assert_eq!(rated_bytes(read("0.5DWPD/4y"), 1000), Some(730_500));
    }
}
