//! Sizes and durations in text form.
//!
//! | written | means |
//! | --- | --- |
//! | `4096`, `4096B` | bytes |
//! | `4K`, `4KiB`, `512M`, `512MiB`, `10G`, `1T`, `1P` (and `GiB`, `TiB`, `PiB`) | powers of 1024 |
//! | `4kB`, `4KB`, `512MB`, `10GB`, `1TB`, `1PB` | powers of 1000 |
//! | `1.5GiB` | fractions, if they come out as whole bytes |
//! | `30s`, `5min`, `250ms`, `1h 30m` | durations; a number without a unit is refused |
//!
//! Letter case does not matter; one space between number and unit is allowed.
//!
//! Why not a crate for sizes: `bytesize` reads a bare `M` as 10^6 bytes and computes in `f64`, so
//! that a size of several TiB is not exact. Durations are read by `humantime`.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use thiserror::Error;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// It does not start with a number.
    #[error("\"{text}\" is not a size: it must start with a number, like 10GiB or 512M")]
    NoNumber {
        /// The given text.
        text: String,
    },
    /// The text after the number is not a unit.
    #[error(
        "\"{text}\" is not a size: \"{unit}\" is not a unit; use K, M, G, T (1024) or kB, MB, GB, TB (1000)"
    )]
    UnknownUnit {
        /// The given text.
        text: String,
        /// The part that is not a unit.
        unit: String,
    },
    /// A fraction that does not come out as whole bytes.
    #[error("\"{text}\" is not a whole number of bytes")]
    NotWhole {
        /// The given text.
        text: String,
    },
    /// 2^64 bytes or more.
    #[error("\"{text}\" is too large: sizes are below 16EiB")]
    TooLarge {
        /// The given text.
        text: String,
    },
}

/// Units from small to large: name, bytes.
const BINARY: [(&str, u64); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("PiB", 1 << 50)];

impl ByteSize {
    /// Returns the size as a plain number.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    /// Formats it in the largest binary unit that is exact, so that it reads back as the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY.iter().rev().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let owned = || text.to_owned();
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let well_formed =
            !whole.is_empty() && !fraction.contains('.') && (number.contains('.') != fraction.is_empty());
        if !well_formed {
            return Err(SizeError::NoNumber { text: owned() });
        }
        let Some(multiplier) = multiplier(unit) else {
            return Err(SizeError::UnknownUnit { text: owned(), unit: unit.to_owned() });
        };
        let too_large = || SizeError::TooLarge { text: owned() };
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let part = fraction_of(fraction, multiplier).ok_or_else(|| SizeError::NotWhole { text: owned() })?;
        let bytes = whole.checked_mul(multiplier).and_then(|bytes| bytes.checked_add(part));
        bytes.map(ByteSize).ok_or_else(too_large)
    }
}

/// Returns the bytes of a unit.
fn multiplier(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let power = |letter: &str| "kmgtp".find(letter).and_then(|at| u32::try_from(at + 1).ok());
    match unit.as_str() {
        "" | "b" => Some(1),
        other => {
            let (letter, suffix) = other.split_at_checked(1)?;
            let base: u64 = match suffix {
                "" | "ib" => 1024,
                "b" => 1000,
                _ => return None,
            };
            base.checked_pow(power(letter)?)
        }
    }
}

/// Returns the decimal digits after the point, times the unit, if that is whole.
fn fraction_of(digits: &str, multiplier: u64) -> Option<u64> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // More than 18 digits cannot be whole in any unit: 2^50 has only 50 factors of two, 10^15 fewer
    // of five.
    let scale = 10_u128.checked_pow(u32::try_from(digits.len()).ok().filter(|count| *count <= 18)?)?;
    let product = digits.parse::<u128>().ok()? * u128::from(multiplier);
    (product % scale == 0).then(|| u64::try_from(product / scale).ok()).flatten()
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{text}\" is not a duration: {problem}; write it like 30s, 5min or 250ms")]
pub struct DurationError {
    /// The given text.
    pub text: String,
    /// The problem.
    pub problem: String,
}

/// Parses a duration such as `30s`, `5min`, `250ms` or `1h 30m`. A number without a unit is refused
/// as ambiguous; only `0` needs none.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    humantime::parse_duration(text.trim())
        .map_err(|error| DurationError { text: text.to_owned(), problem: error.to_string() })
}

/// Parses a time in UTC such as `2026-11-29T06:00:00Z` or `2026-11-29 06:00:00`.
///
/// The text is not a time.
pub fn parse_time(text: &str) -> Result<SystemTime, DurationError> {
    humantime::parse_rfc3339_weak(text.trim())
        .map_err(|error| DurationError { text: text.to_owned(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<ByteSize>().unwrap().bytes()
    }

    #[test]
    fn units_are_binary_except_with_a_bare_b() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("4kB", 4000),
            ("4KB", 4000),
            ("512M", 512 << 20),
            ("512MB", 512_000_000),
            ("10GiB", 10 << 30),
            ("1T", 1 << 40),
            ("2TB", 2_000_000_000_000),
            ("3PiB", 3 << 50),
            ("1.5GiB", 3 << 29),
            ("0.5K", 512),
            (" 7M ", 7 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused_with_a_reason() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err();
        for text in ["", "G", "-1", "1.", ".5K", "1.2.3K", "ten"] {
            assert!(matches!(error(text), SizeError::NoNumber { .. }), "{text}");
        }
        for text in ["1X", "1KiBs", "1 GB/s", "1  K", "1ki", "1é", "1MiB1"] {
            assert!(matches!(error(text), SizeError::UnknownUnit { .. }), "{text}");
        }
        assert!(matches!(error("1.3B"), SizeError::NotWhole { .. }));
        assert!(matches!(error("0.3KiB"), SizeError::NotWhole { .. }));
        for text in ["18446744073709551616", "16384P", "99999999999999999999999999"] {
            assert!(matches!(error(text), SizeError::TooLarge { .. }), "{text}");
        }
        assert_eq!(
            error("10Q").to_string(),
            "\"10Q\" is not a size: \"Q\" is not a unit; use K, M, G, T (1024) or kB, MB, GB, TB (1000)"
        );
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(parse_duration("5min").unwrap(), Duration::from_secs(300));
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(parse_duration("1h 30m").unwrap(), Duration::from_secs(5400));
        for text in ["30", "", "s", "-3s", "5 parsecs"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains("write it like 30s"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn printed_size_reads_back(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse::<ByteSize>(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text in "\\PC*") {
            let _ = text.parse::<ByteSize>();
            let _ = parse_duration(&text);
        }
    }
}
