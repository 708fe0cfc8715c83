//! Rules in the form of the file: keys and values with their places. [`crate::rules`] interprets
//! them when the file is checked.

use super::diagnostic::{Diagnostic, Span};
use crate::rules::{Rule, RuleError};
use std::fmt;

/// A value of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleValue {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(u64),
}

impl fmt::Display for RuleValue {
    /// Formats it for `key=value` words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
        }
    }
}

/// A key of a rule with its value and places.
#[derive(Clone, Debug)]
pub struct RuleEntry {
    /// Key.
    pub key: String,
    /// Value.
    pub value: RuleValue,
    /// Place of the key in the file; empty if it did not come from one.
    pub key_span: Span,
    /// Place of the value.
    pub value_span: Span,
}

/// One rule of the file. Equality ignores the places.
#[derive(Clone, Debug, Default)]
pub struct RuleTable {
    /// In the order of the file.
    pub entries: Vec<RuleEntry>,
    /// Start of the rule in the file.
    pub span: Span,
}

impl RuleTable {
    /// Creates a rule that does not come from a file.
    pub fn from_pairs<K: Into<String>>(pairs: impl IntoIterator<Item = (K, RuleValue)>) -> Self {
        let entry = |(key, value): (K, RuleValue)| RuleEntry {
            key: key.into(),
            value,
            key_span: 0..0,
            value_span: 0..0,
        };
        Self { entries: pairs.into_iter().map(entry).collect(), span: 0..0 }
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&RuleValue> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Converts it to a rule.
    ///
    /// If it is not a valid rule.
    pub fn rule(&self) -> Result<Rule, RuleError> {
        let values: Vec<String> = self.entries.iter().map(|entry| entry.value.to_string()).collect();
        Rule::from_pairs(
            self.entries.iter().map(|entry| entry.key.as_str()).zip(values.iter().map(String::as_str)),
        )
    }

    /// Returns keys and values sorted by key; the order has no meaning.
    fn sorted(&self) -> Vec<(&str, &RuleValue)> {
        let mut pairs: Vec<_> = self.entries.iter().map(|entry| (entry.key.as_str(), &entry.value)).collect();
        pairs.sort_by_key(|(key, _)| *key);
        pairs
    }
}

impl PartialEq for RuleTable {
    fn eq(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }
}

impl Eq for RuleTable {}

/// Checks each rule of a volume by itself. Errors that depend on the volume's size or on running
/// processes are only known when it is attached.
#[must_use]
pub fn check(_volume: &str, rules: &[RuleTable]) -> Vec<Diagnostic> {
    let wrong = |table: &RuleTable| {
        let error = table.rule().err()?;
        let entry = error.key().and_then(|key| table.entries.iter().find(|entry| entry.key == key));
        let span = entry.map_or_else(|| table.span.clone(), |entry| entry.value_span.clone());
        Some(Diagnostic::error(error.id(), span, error.to_string()))
    };
    rules.iter().filter(|table| table.get("action").is_some()).filter_map(wrong).collect()
}
