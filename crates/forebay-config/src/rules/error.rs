//! Errors of a rule. Each names the key, the problem and the allowed values.

use thiserror::Error;

use forebay_admin::{AdminError, MessageId};

use super::RuleId;
use super::parse::KEYS;

/// Characters of a user's text that a message repeats.
const QUOTED_CHARS_MAX: usize = 80;

/// Why a rule was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A key that rules do not have.
    #[error("\"{key}\" is not a key of a rule{}; the keys are {}", hint(*.suggestion), KEYS.join(", "))]
    UnknownKey {
        /// The given key.
        key: String,
        /// Suggested key.
        suggestion: Option<&'static str>,
    },
    /// A word that is neither an action nor `key=value`.
    #[error("\"{word}\" is neither an action nor key=value{}", hint(*.suggestion))]
    StrayWord {
        /// The given word.
        word: String,
        /// Suggested word.
        suggestion: Option<&'static str>,
    },
    /// A key, or the action, was given more than once.
    #[error("{key} is given twice; a rule takes it once: write two rules to match either value")]
    Repeated {
        /// The key.
        key: &'static str,
    },
    /// There is no action.
    #[error("the rule has no action; give one of cache, bypass, pin, write-through")]
    NoAction,
    /// A value that the key does not accept.
    #[error("{key}=\"{value}\": {problem}{}", hint(*.suggestion))]
    BadValue {
        /// The key.
        key: &'static str,
        /// The given value.
        value: String,
        /// The problem, and the allowed values.
        problem: String,
        /// Suggested value.
        suggestion: Option<&'static str>,
    },
    /// No request can ever match.
    #[error("the rule can match nothing: {key}: {problem}")]
    MatchesNothing {
        /// The key to change.
        key: &'static str,
        /// Why nothing matches, and the suggested action.
        problem: String,
    },
    /// `/proc` did not show whether a process exists.
    #[error("{key}: cannot look up process {pid} in /proc: {problem}; use exe, uid or cgroup instead")]
    CannotCheck {
        /// `pid` or `tgid`.
        key: &'static str,
        /// The process.
        pid: u32,
        /// The system's error.
        problem: String,
    },
    /// Another rule of the volume has this name.
    #[error("name: rule {id} is already called \"{name}\"; remove it first or choose another name")]
    NameTaken {
        /// The name.
        name: String,
        /// The rule that has it.
        id: RuleId,
    },
    /// The volume has the maximum number of rules.
    #[error(
        "the volume already has {max} rules, which is the most; remove some, or match by exe, cgroup or tgid"
    )]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// There is no such rule.
    #[error("there is no rule {id}; it may have expired: list the rules to see the current ones")]
    NoSuchRule {
        /// The requested number.
        id: RuleId,
    },
    /// The index exceeds the list.
    #[error("there is no place {place}: the volume has {rules} rules, so places are 0 to {rules}")]
    NoSuchPlace {
        /// The requested index.
        place: usize,
        /// The number of rules.
        rules: usize,
    },
    /// One of several rules is invalid; none was added.
    #[error("rule {number} of the list: {source}; no rule was changed")]
    InList {
        /// Its position in the list, from 1.
        number: usize,
        /// Its error.
        source: Box<RuleError>,
    },
}

impl RuleError {
    /// Returns the key to change, if there is a single one: a configuration can then mark its
    /// place.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { key, .. } => Some(key),
            Self::Repeated { key }
            | Self::BadValue { key, .. }
            | Self::MatchesNothing { key, .. }
            | Self::CannotCheck { key, .. } => Some(key),
            Self::NoAction => Some("action"),
            Self::NameTaken { .. } => Some("name"),
            Self::InList { source, .. } => source.key(),
            Self::StrayWord { .. }
            | Self::TooMany { .. }
            | Self::NoSuchRule { .. }
            | Self::NoSuchPlace { .. } => None,
        }
    }

    /// Returns the id of the message, for scripts.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::UnknownKey { .. } | Self::StrayWord { .. } | Self::Repeated { .. } | Self::NoAction => {
                MessageId::RuleSyntax
            }
            Self::BadValue { .. } => MessageId::RuleValue,
            Self::MatchesNothing { .. } => MessageId::RuleMatchesNothing,
            Self::CannotCheck { .. } => MessageId::RuleProcess,
            Self::NameTaken { .. } => MessageId::RuleNameTaken,
            Self::TooMany { .. } => MessageId::RuleTooMany,
            Self::NoSuchRule { .. } => MessageId::RuleUnknown,
            Self::NoSuchPlace { .. } => MessageId::RulePlace,
            Self::InList { source, .. } => source.id(),
        }
    }

    pub(super) fn bad_value(key: &'static str, value: &str, problem: impl Into<String>) -> Self {
        Self::BadValue { key, value: clip(value), problem: problem.into(), suggestion: None }
    }

    /// Creates the error for a value that is none of the words that the key accepts.
    pub(super) fn not_one_of(key: &'static str, value: &str, allowed: &[&'static str]) -> Self {
        let problem = format!("not one of {}", allowed.join(", "));
        Self::BadValue { key, value: clip(value), problem, suggestion: closest(value, allowed) }
    }
}

impl From<RuleError> for AdminError {
    fn from(error: RuleError) -> Self {
        // The message includes the suggested action.
        Self::new(error.id(), &error, "")
    }
}

/// Shortens a text to one line for a message.
pub(super) fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        clipped.push_str("...");
    }
    clipped
}

/// Returns the allowed word closest to `text`, if it is close enough.
pub(super) fn closest(text: &str, allowed: &[&'static str]) -> Option<&'static str> {
    // Longer texts are never close to a known word, and the distance takes time proportional to the
    // product of the lengths.
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        return None;
    }
    let text = text.to_lowercase();
    let distance = |word: &&'static str| strsim::damerau_levenshtein(&text, word);
    let word = allowed.iter().copied().min_by_key(distance)?;
    // Up to a third of the word may be wrong: `exec` is `exe`, `xyz` is nothing.
    (distance(&word) <= word.len().div_ceil(3)).then_some(word)
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|word| format!(" (did you mean {word}?)")).unwrap_or_default()
}
