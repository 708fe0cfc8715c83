//! Reasons for refusing to open a cache.

use forebay_admin::MessageId;
use std::fmt;

/// The problem with its place, and the next step for the user. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Message id, for scripts.
    pub id: MessageId,
    /// The problem, with its place.
    pub what: String,
    /// The next step; may be empty.
    pub hint: String,
    /// The request itself was wrong: no cache would satisfy it.
    pub is_usage: bool,
}

impl Refusal {
    /// Creates a refusal of a cache, or of one of its devices.
    pub fn new(id: MessageId, what: impl fmt::Display) -> Self {
        Self { id, what: what.to_string(), hint: String::new(), is_usage: false }
    }

    /// Creates a refusal of a wrong request.
    pub fn usage(id: MessageId, what: impl fmt::Display) -> Self {
        Self { is_usage: true, ..Self::new(id, what) }
    }

    /// Adds the next step for the user.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Refusal {}
