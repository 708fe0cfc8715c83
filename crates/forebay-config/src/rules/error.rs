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
    #[error("\"{key}\" is no key of a rule{}; the keys are {}", hint(*.suggestion), KEYS.join(", "))]
    UnknownKey {
        /// What was given.
        key: String,
        /// The key that was probably meant.
        suggestion: Option<&'static str>,
    },
    /// A word that is neither an action nor `key=value`.
    #[error("\"{word}\" is neither an action nor key=value{}", hint(*.suggestion))]
    StrayWord {
        /// What was given.
        word: String,
        /// The word that was probably meant.
        suggestion: Option<&'static str>,
    },
    /// A key, or the action, was given more than once.
    #[error("{key} is given twice; a rule takes it once: write two rules to match either value")]
    Repeated {
        /// Which one.
        key: &'static str,
    },
    /// There is no action.
    #[error("the rule has no action; give one of cache, bypass, pin, write-through")]
    NoAction,
    /// A value that the key does not take.
    #[error("{key}=\"{value}\": {problem}{}", hint(*.suggestion))]
    BadValue {
        /// Which key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is wrong, and what is allowed.
        problem: String,
        /// The value that was probably meant.
        suggestion: Option<&'static str>,
    },
    /// No request can ever match.
    #[error("the rule can match nothing: {key}: {problem}")]
    MatchesNothing {
        /// The key to change.
        key: &'static str,
        /// Why nothing matches, and what to do.
        problem: String,
    },
    /// `/proc` did not tell whether a process exists.
    #[error("{key}: cannot look up process {pid} in /proc: {problem}; use exe, uid or cgroup instead")]
    CannotCheck {
        /// `pid` or `tgid`.
        key: &'static str,
        /// The process.
        pid: u32,
        /// What the system said.
        problem: String,
    },
    /// Another rule of the volume has this name.
    #[error("name: rule {id} is already called \"{name}\"; remove it first or choose another name")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        id: RuleId,
    },
    /// The volume has as many rules as it may.
    #[error(
        "the volume already has {max} rules, which is the most; remove some, or match by exe, cgroup or tgid"
    )]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// There is no such rule.
    #[error("there is no rule {id}; it may have expired: list the rules to see what there is")]
    NoSuchRule {
        /// The number that was asked for.
        id: RuleId,
    },
    /// The list is not that long.
    #[error("there is no place {place}: the volume has {rules} rules, so places are 0 to {rules}")]
    NoSuchPlace {
        /// The place that was asked for.
        place: usize,
        /// How many rules there are.
        rules: usize,
    },
    /// One of several rules is wrong; none was taken.
    #[error("rule {number} of the list: {source}; no rule was changed")]
    InList {
        /// Its place in the list, from 1.
        number: usize,
        /// What is wrong with it.
        source: Box<RuleError>,
    },
}

impl RuleError {
    /// The key that has to be changed, if it is one: lets a configuration point at the place.
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

    /// What it is about, for scripts.
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

    /// A value that is none of the words that the key takes.
    pub(super) fn not_one_of(key: &'static str, value: &str, allowed: &[&'static str]) -> Self {
        let problem = format!("not one of {}", allowed.join(", "));
        Self::BadValue { key, value: clip(value), problem, suggestion: closest(value, allowed) }
    }
}

impl From<RuleError> for AdminError {
    fn from(error: RuleError) -> Self {
        // The message says what to do as well.
        Self::new(error.id(), &error, "")
    }
}

/// A text as a message may repeat it: short, and on one line.
pub(super) fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        clipped.push_str("...");
    }
    clipped
}

/// The allowed word that `text` is a slip of, if there is one.
pub(super) fn closest(text: &str, allowed: &[&'static str]) -> Option<&'static str> {
    // Longer texts cannot be slips of a known word, and the distance costs their product.
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        return None;
    }
    let text = text.to_lowercase();
    let distance = |word: &&'static str| strsim::damerau_levenshtein(&text, word);
    let word = allowed.iter().copied().min_by_key(distance)?;
    // A third of the word may be wrong: `exec` is `exe`, `xyz` is nothing.
    (distance(&word) <= word.len().div_ceil(3)).then_some(word)
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|word| format!(" (did you mean {word}?)")).unwrap_or_default()
}
