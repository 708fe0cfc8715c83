//! Values of tunables: accepted values, input syntax and output.
//!
//! Invariants
//! - A [`Value`] returned by [`ValueKind::parse`] or [`ValueKind::read`] is within the limits of
//!   its kind.
//! - Printed values read back as the same value (tested for arbitrary values of every tunable).
//! - Errors state the accepted values; they do not repeat the name of the tunable or the place,
//!   which the caller knows.

use crate::KeySource;
use crate::endurance::{Endurance, EnduranceError};
use forebay_admin::MessageId;
use forebay_admin::size::{ByteSize, parse_duration};
use forebay_io::DeviceModel;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// One word that a [`ValueKind::Choice`] accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The word.
    pub name: &'static str,
    /// Its effect, in one line.
    pub help: &'static str,
}

/// Accepted values of a tunable. All limits are inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// One of several words.
    Choice(&'static [Choice]),
    /// A whole percentage.
    Percent {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A whole number.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// The unit.
        unit: &'static str,
        /// Meaning of 0, if not simply none.
        zero: Option<&'static str>,
        /// `auto` is accepted too.
        auto: bool,
    },
    /// A number of bytes.
    Size {
        /// Least, in bytes.
        min: u64,
        /// Most, in bytes.
        max: u64,
        /// Only powers of two.
        power_of_two: bool,
        /// `auto` is accepted too.
        auto: bool,
    },
    /// Bytes per second, 0 for no limit.
    Rate,
    /// A time.
    Duration {
        /// Least.
        min: Duration,
        /// Most.
        max: Duration,
        /// `off` is accepted too.
        off: bool,
    },
    /// Place of a key, or `off`.
    Key,
    /// A device to emulate, or `none`.
    Device,
    /// An amount of writes, or `off`: a rating of devices, or a budget.
    Endurance {
        /// It is a rating.
        rating: bool,
    },
}

/// Emulate nothing.
const NO_DEVICE: &str = "none";

/// A value within the limits of its [`ValueKind`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A word of a [`ValueKind::Choice`].
    Choice(&'static str),
    /// A number or percentage.
    Count(u64),
    /// Bytes, or bytes per second.
    Size(ByteSize),
    /// A time.
    Duration(Duration),
    /// Place of a key.
    Key(KeySource),
    /// A device to emulate, if any.
    Device(Option<DeviceModel>),
    /// An amount of writes.
    Endurance(Endurance),
    /// Switched off.
    Off,
    /// A size that is determined elsewhere.
    Auto,
}

/// Types of the typed structures.
pub(crate) trait AsValue: Sized {
    /// Returns nothing if the value is of another kind.
    fn from_value(value: Value) -> Option<Self>;

    /// Returns the value.
    fn into_value(self) -> Value;
}

impl AsValue for u64 {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Count(number) = value { Some(number) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Count(self)
    }
}

impl AsValue for u32 {
    fn from_value(value: Value) -> Option<Self> {
        u64::from_value(value).and_then(|number| number.try_into().ok())
    }

    fn into_value(self) -> Value {
        Value::Count(self.into())
    }
}

impl AsValue for bool {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Choice(word) = value { Some(word == "on") } else { None }
    }

    fn into_value(self) -> Value {
        Value::Choice(if self { "on" } else { "off" })
    }
}

impl AsValue for ByteSize {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Size(size) = value { Some(size) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Size(self)
    }
}

impl AsValue for Duration {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Duration(time) = value { Some(time) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Duration(self)
    }
}

impl AsValue for KeySource {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Key(source) = value { Some(source) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Key(self)
    }
}

impl AsValue for Endurance {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Endurance(amount) = value { Some(amount) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Endurance(self)
    }
}

impl AsValue for Option<DeviceModel> {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Device(model) = value { Some(model) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Device(self)
    }
}

/// Types with a value that stands for none.
macro_rules! optional {
    ($($type:ty: $none:ident),*) => {
        $(impl AsValue for Option<$type> {
            fn from_value(value: Value) -> Option<Self> {
                if value == Value::$none { Some(None) } else { <$type>::from_value(value).map(Some) }
            }

            fn into_value(self) -> Value {
                self.map_or(Value::$none, AsValue::into_value)
            }
        })*
    };
}

optional! { u32: Auto, ByteSize: Auto, Duration: Off, KeySource: Off, Endurance: Off }

/// A value in a configuration file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raw<'a> {
    /// A quoted text.
    Text(&'a str),
    /// A whole number that fits in 64 bits and is not negative.
    Integer(u64),
    /// `true` or `false`.
    Flag(bool),
    /// Another type, by its name.
    Other(&'static str),
}

impl Raw<'_> {
    /// Returns its type, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::Other(what) => what,
        }
    }
}

/// Why a text is not a value of a kind, with the accepted values.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{problem}")]
pub struct ValueError {
    /// Id of the message, for scripts.
    pub id: MessageId,
    /// The problem, and the accepted values.
    pub problem: String,
    /// Suggested word.
    pub suggestion: Option<&'static str>,
}

impl ValueError {
    /// Creates an error from a problem.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { id: MessageId::SettingValue, problem: problem.into(), suggestion: None }
    }

    /// Changes the id.
    #[must_use]
    pub fn about(self, id: MessageId) -> Self {
        Self { id, ..self }
    }
}

impl ValueKind {
    /// Parses a value as users type it: `4KiB`, `30s`, `off`, `70`, `70%`, `elevator`.
    ///
    /// # Errors
    /// If the text is no such value, or out of range.
    pub fn parse(&self, text: &str) -> Result<Value, ValueError> {
        let text = text.trim();
        match *self {
            ValueKind::Choice(choices) => choose(choices, text),
            ValueKind::Percent { .. } => self.number(text.strip_suffix('%').unwrap_or(text)),
            ValueKind::Count { zero: Some(zero), .. } if text == zero => Ok(Value::Count(0)),
            ValueKind::Count { auto: true, .. } if text == "auto" => Ok(Value::Auto),
            ValueKind::Count { .. } => self.number(text),
            ValueKind::Size { auto: true, .. } if text == "auto" => Ok(Value::Auto),
            ValueKind::Rate if matches!(text, "off" | "unlimited") => Ok(Value::Size(ByteSize(0))),
            ValueKind::Rate => self.size(text.strip_suffix("/s").unwrap_or(text)),
            ValueKind::Size { .. } => self.size(text),
            ValueKind::Duration { off: true, .. } if text == "off" => Ok(Value::Off),
            ValueKind::Duration { .. } => {
                let read = parse_duration(text).map_err(|error| ValueError::new(error.to_string()))?;
                self.within(Value::Duration(read))
            }
            ValueKind::Key if text == "off" => Ok(Value::Off),
            ValueKind::Key => text.parse().map(Value::Key).map_err(ValueError::new),
            ValueKind::Device if text == NO_DEVICE => Ok(Value::Device(None)),
            ValueKind::Device => match text.parse() {
                Ok(model) => Ok(Value::Device(Some(model))),
                Err(problem) => Err(ValueError::new(format!("{problem}; or {NO_DEVICE}"))),
            },
            ValueKind::Endurance { .. } if text == "off" => Ok(Value::Off),
            ValueKind::Endurance { .. } => {
                let read =
                    text.parse().map_err(|error: EnduranceError| ValueError::new(error.to_string()))?;
                self.within(Value::Endurance(read))
            }
        }
    }

    /// Reads a value from a configuration file, which quotes everything except numbers and flags.
    ///
    /// # Errors
    /// If it is of the wrong type, no such value, or out of range.
    pub fn read(&self, raw: Raw<'_>) -> Result<Value, ValueError> {
        match (self, raw) {
            (ValueKind::Percent { .. } | ValueKind::Count { .. }, Raw::Integer(number)) => {
                self.within(Value::Count(number))
            }
            (ValueKind::Size { .. } | ValueKind::Rate, Raw::Integer(bytes)) => {
                self.within(Value::Size(ByteSize(bytes)))
            }
            (ValueKind::Percent { .. } | ValueKind::Count { .. }, Raw::Text(text)) => {
                let value = self.parse(text)?;
                match text.trim().parse::<u64>() {
                    Ok(number) => {
                        Err(ValueError::new(format!("a number stands without quotes: write {number}")))
                    }
                    Err(_) => Ok(value),
                }
            }
            (_, Raw::Text(text)) => self.parse(text),
            (ValueKind::Duration { .. }, Raw::Integer(number)) => Err(ValueError::new(format!(
                "a duration needs a unit, in quotes: \"{number}s\" or \"{number}ms\""
            ))),
            (ValueKind::Choice(_), Raw::Integer(number)) => self.parse(&number.to_string()),
            (ValueKind::Choice(choices), Raw::Flag(flag)) if is_switch(choices) => {
                self.parse(if flag { "on" } else { "off" })
            }
            (_, other @ (Raw::Flag(_) | Raw::Other(_))) => {
                Err(ValueError::new(format!("{} is not possible; {}", other.what(), self.range())))
            }
            (ValueKind::Key | ValueKind::Device | ValueKind::Endurance { .. }, Raw::Integer(_)) => {
                Err(ValueError::new(format!("a number is not possible; {}", self.range())))
            }
        }
    }

    /// Returns the accepted values, in words.
    #[must_use]
    pub fn takes(&self) -> String {
        match *self {
            ValueKind::Choice(choices) => names(choices).join(", "),
            ValueKind::Percent { min, max } => format!("{min} to {max} percent"),
            ValueKind::Count { min, max, unit, zero, auto } => {
                let zero = zero.map_or_else(String::new, |zero| format!(" (0: {zero})"));
                join(&format!("{min} to {max}"), unit) + &zero + if auto { ", or auto" } else { "" }
            }
            ValueKind::Size { min, max, power_of_two, auto } => format!(
                "{} to {}{}{}",
                ByteSize(min),
                ByteSize(max),
                if power_of_two { ", power of two" } else { "" },
                if auto { ", or auto" } else { "" }
            ),
            ValueKind::Rate => "size per second (0: unlimited)".into(),
            ValueKind::Duration { min, max, off } => format!(
                "duration from {} to {}{}",
                Value::Duration(min),
                Value::Duration(max),
                if off { ", or off" } else { "" }
            ),
            ValueKind::Key => "path, credential:NAME, or off".into(),
            ValueKind::Device => format!("{NO_DEVICE}, {}", DeviceModel::NAMES),
            ValueKind::Endurance { rating: true } => {
                "size, or device writes per day and years (0.3DWPD/5y), or off".into()
            }
            ValueKind::Endurance { rating: false } => {
                "size per day, device writes per day (0.3DWPD), years of the rating (7y), or off".into()
            }
        }
    }

    fn number(&self, text: &str) -> Result<Value, ValueError> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u64>().ok()).flatten();
        match number {
            Some(number) => self.within(Value::Count(number)),
            None => Err(ValueError::new(format!("\"{text}\" is not a whole number; {}", self.range()))),
        }
    }

    fn size(&self, text: &str) -> Result<Value, ValueError> {
        let size: ByteSize = text.parse().map_err(|error| ValueError::new(format!("{error}")))?;
        self.within(Value::Size(size))
    }

    /// Returns the value if it is within the limits.
    fn within(&self, value: Value) -> Result<Value, ValueError> {
        let fits = match (*self, &value) {
            (ValueKind::Percent { min, max } | ValueKind::Count { min, max, .. }, Value::Count(number)) => {
                (min..=max).contains(number)
            }
            (ValueKind::Size { power_of_two: true, .. }, Value::Size(size)) if !size.0.is_power_of_two() => {
                return Err(ValueError::new(format!("{size} is not a power of two")));
            }
            (ValueKind::Size { min, max, .. }, Value::Size(size)) => (min..=max).contains(&size.0),
            (ValueKind::Duration { off: true, .. }, Value::Duration(time)) if time.is_zero() => {
                return Err(ValueError::new("0 could mean at once or never: write off, or a time above 0"));
            }
            (ValueKind::Duration { min, max, .. }, Value::Duration(time)) => (min..=max).contains(time),
            (ValueKind::Rate, Value::Size(_)) => true,
            (ValueKind::Endurance { rating }, Value::Endurance(amount)) => match amount {
                Endurance::Bytes(_) => true,
                Endurance::WritesForYears { .. } => rating,
                Endurance::Writes { .. } | Endurance::Years(_) => !rating,
            },
            _ => false,
        };
        if fits { Ok(value) } else { Err(ValueError::new(format!("{value} is {}", self.out_of_range()))) }
    }

    fn range(&self) -> String {
        format!("allowed: {}", self.takes())
    }

    fn out_of_range(&self) -> String {
        format!("out of range; {}", self.range())
    }
}

/// Returns whether the words of a choice are `on` and `off`, which a file may also write as true
/// and false.
pub(crate) fn is_switch(choices: &[Choice]) -> bool {
    choices.len() == 2 && choices.iter().all(|choice| matches!(choice.name, "on" | "off"))
}

fn names(choices: &[Choice]) -> Vec<&'static str> {
    choices.iter().map(|choice| choice.name).collect()
}

fn join(text: &str, unit: &str) -> String {
    if unit.is_empty() { text.to_owned() } else { format!("{text} {unit}") }
}

fn choose(choices: &'static [Choice], text: &str) -> Result<Value, ValueError> {
    match choices.iter().find(|choice| choice.name == text) {
        Some(choice) => Ok(Value::Choice(choice.name)),
        None => Err(ValueError {
            id: MessageId::SettingValue,
            problem: format!("\"{text}\" is not one of {}", names(choices).join(", ")),
            suggestion: nearest(text, names(choices)),
        }),
    }
}

/// Returns the candidate closest to a mistyped text, if it is close enough.
pub(crate) fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // At most a third of the letters may be wrong; beyond that a suggestion is a guess.
    let worst = (text.chars().count() / 3).clamp(1, 4);
    let lower = text.to_ascii_lowercase().replace('-', "_");
    let distance =
        |name: &str| strsim::damerau_levenshtein(&lower, &name.to_ascii_lowercase().replace('-', "_"));
    candidates
        .into_iter()
        .map(|name| (distance(name), name))
        .filter(|(distance, _)| *distance <= worst)
        .min()
        .map(|(_, name)| name)
}

/// Units of durations from large to small, in nanoseconds.
const TIMES: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

impl fmt::Display for Value {
    /// Formats it in the largest unit that is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Choice(name) => f.write_str(name),
            Value::Count(number) => write!(f, "{number}"),
            Value::Size(ByteSize(0)) => f.write_str("0"),
            Value::Size(size) => write!(f, "{size}"),
            Value::Duration(time) if time.is_zero() => f.write_str("0s"),
            Value::Duration(time) => {
                let ns = time.as_nanos();
                let unit = TIMES.iter().find(|(_, unit)| ns.is_multiple_of(*unit)).unwrap_or(&TIMES[6]);
                write!(f, "{}{}", ns / unit.1, unit.0)
            }
            Value::Key(source) => write!(f, "{source}"),
            Value::Device(None) => f.write_str(NO_DEVICE),
            Value::Device(Some(model)) => write!(f, "{model}"),
            Value::Endurance(amount) => write!(f, "{amount}"),
            Value::Off => f.write_str("off"),
            Value::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: ValueKind =
        ValueKind::Count { min: 0, max: 10, unit: "things", zero: Some("off"), auto: true };
    const TIME: ValueKind =
        ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60), off: true };

    #[test]
    fn common_spellings_of_values_are_accepted() {
        let size = ValueKind::Size { min: 4096, max: 1 << 40, power_of_two: false, auto: true };
        assert_eq!(size.parse("512M"), Ok(Value::Size(ByteSize(512 << 20))));
        assert_eq!(size.parse("auto"), Ok(Value::Auto));
        assert_eq!(ValueKind::Percent { min: 0, max: 100 }.parse(" 70% "), Ok(Value::Count(70)));
        assert_eq!(COUNT.parse("off"), Ok(Value::Count(0)));
        assert_eq!(COUNT.parse("auto"), Ok(Value::Auto));
        assert_eq!(ValueKind::Rate.parse("10MiB/s"), Ok(Value::Size(ByteSize(10 << 20))));
        assert_eq!(TIME.parse("1min"), Ok(Value::Duration(Duration::from_secs(60))));
        assert_eq!(TIME.parse("off"), Ok(Value::Off));
    }

    #[test]
    fn invalid_values_name_the_allowed_ones() {
        let says = |kind: ValueKind, text: &str| kind.parse(text).unwrap_err().to_string();
        assert_eq!(says(COUNT, "11"), "11 is out of range; allowed: 0 to 10 things (0: off), or auto");
        assert_eq!(
            says(COUNT, "-1"),
            "\"-1\" is not a whole number; allowed: 0 to 10 things (0: off), or auto"
        );
        assert!(says(TIME, "2h").contains("2h is out of range"), "{}", says(TIME, "2h"));
        assert!(says(TIME, "0s").contains("write off"));
        assert!(says(TIME, "30").contains("30s"));
        let said = says(ValueKind::Device, "card-x");
        assert_eq!(said, "\"card-x\" is not one of hdd-7200, card-d[:SCALE], card-t[:SCALE]; or none");
    }

    #[test]
    fn file_values_need_numbers_and_units() {
        assert!(COUNT.read(Raw::Text("5")).unwrap_err().problem.contains("write 5"));
        assert_eq!(COUNT.read(Raw::Text("off")), Ok(Value::Count(0)));
        assert!(TIME.read(Raw::Integer(5)).unwrap_err().problem.contains("\"5s\""));
        let switch = ValueKind::Choice(&[Choice { name: "off", help: "" }, Choice { name: "on", help: "" }]);
        assert_eq!(switch.read(Raw::Flag(true)), Ok(Value::Choice("on")));
        assert_eq!(switch.read(Raw::Flag(false)), Ok(Value::Choice("off")));
        assert!(TIME.read(Raw::Flag(false)).unwrap_err().problem.contains("true or false is not possible"));
        assert!(
            TIME.read(Raw::Other("a boolean")).unwrap_err().problem.contains("a boolean is not possible")
        );
    }

    #[test]
    fn a_suggestion_is_near_or_not_made() {
        let names = ["dirty_high_pct", "dirty_low_pct", "mode"];
        assert_eq!(nearest("dirty_hihg_pct", names), Some("dirty_high_pct"));
        assert_eq!(nearest("dirty-low-pct", names), Some("dirty_low_pct"));
        assert_eq!(nearest("colour", names), None);
    }
}
