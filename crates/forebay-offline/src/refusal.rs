//! Why a cache cannot be opened.

use forebay_admin::MessageId;
use std::fmt;

/// What was wrong and where, and what to do next. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What it is about, for scripts.
    pub id: MessageId,
    /// What was wrong, and where.
    pub what: String,
    /// What to do next; may be empty.
    pub hint: String,
    /// It was asked for in a wrong way: no cache would do.
    pub is_usage: bool,
}

impl Refusal {
    /// A cache, or one of its devices, cannot be used.
    pub fn new(id: MessageId, what: impl fmt::Display) -> Self {
        Self { id, what: what.to_string(), hint: String::new(), is_usage: false }
    }

    /// It was asked for in a wrong way.
    pub fn usage(id: MessageId, what: impl fmt::Display) -> Self {
        Self { is_usage: true, ..Self::new(id, what) }
    }

    /// Says what to do next.
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
