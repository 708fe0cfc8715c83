//! A rule as a value. Its text is in `text`, its checks are in `check`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use forebay_core::Treatment;

use super::error::RuleError;
use super::pattern::Pattern;
use super::range::ByteRange;

/// Number of a rule of a volume; not reused while the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u64);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for RuleId {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let number = text.parse().map(Self);
        number.map_err(|_| {
            RuleError::bad_value("id", text, "expected the number of a rule, as the list shows it")
        })
    }
}

/// Treatment of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// According to the mode of the volume.
    Cache,
    /// Reads are not cached, writes bypass the cache. Cached data is still returned, and the cached
    /// copy of overwritten data becomes void: this changes speed, never content.
    Bypass,
    /// Cached, and kept as long as possible.
    Pin,
    /// Cached, and a write is acknowledged only when the backing store has it too.
    WriteThrough,
}

/// Names of [`Action`]s.
const ACTIONS: [(&str, Action); 4] = [
    ("cache", Action::Cache),
    ("bypass", Action::Bypass),
    ("pin", Action::Pin),
    ("write-through", Action::WriteThrough),
];
/// The names alone.
pub(super) const ACTION_NAMES: [&str; 4] = [ACTIONS[0].0, ACTIONS[1].0, ACTIONS[2].0, ACTIONS[3].0];

impl Action {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Bypass => "bypass",
            Self::Pin => "pin",
            Self::WriteThrough => "write-through",
        }
    }
}

impl From<Action> for Treatment {
    fn from(action: Action) -> Self {
        match action {
            Action::Cache => Self::Cache,
            Action::Bypass => Self::Bypass,
            Action::Pin => Self::Pin,
            Action::WriteThrough => Self::WriteThrough,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let found = ACTIONS.iter().find(|(name, _)| *name == text).map(|(_, action)| *action);
        found.ok_or_else(|| RuleError::not_one_of("action", text, &ACTION_NAMES))
    }
}

/// Action for requests that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DefaultAction {
    /// It is cached.
    #[default]
    Cache,
    /// It bypasses the cache.
    Bypass,
}

impl From<DefaultAction> for Action {
    fn from(default: DefaultAction) -> Self {
        match default {
            DefaultAction::Cache => Self::Cache,
            DefaultAction::Bypass => Self::Bypass,
        }
    }
}

impl fmt::Display for DefaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Action::from(*self).name())
    }
}

/// Direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the client.
    Read,
    /// To the volume: writes, and also trims and zeroes.
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl FromStr for Direction {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            _ => Err(RuleError::not_one_of("direction", text, &["read", "write"])),
        }
    }
}

/// Conditions of a rule: all given ones must hold. Without any, the rule always applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// The process that connected, or the thread of a FUSE request.
    pub pid: Option<NonZeroU32>,
    /// The thread group: the process with all its threads.
    pub tgid: Option<NonZeroU32>,
    /// The user.
    pub uid: Option<u32>,
    /// The executable: its full path if the pattern has a `/`, else its name.
    pub exe: Option<Pattern>,
    /// The control group; a pattern with a final `/` includes all groups below.
    pub cgroup: Option<Pattern>,
    /// The name of the export.
    pub export: Option<Pattern>,
    /// Offset of the request in the volume, in bytes.
    pub lba: Option<ByteRange>,
    /// Length of the request in bytes.
    pub size: Option<ByteRange>,
    /// Direction.
    pub direction: Option<Direction>,
}

impl Conditions {
    /// Returns whether the result depends on the identity of the client.
    pub fn depend_on_client(&self) -> bool {
        self.pid.is_some()
            || self.tgid.is_some()
            || self.uid.is_some()
            || self.exe.is_some()
            || self.cgroup.is_some()
    }
}

/// A caching rule of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// For people; unique in the volume.
    pub name: Option<String>,
    /// Treatment of requests that match.
    pub action: Action,
    /// Conditions on requests.
    pub conditions: Conditions,
    /// Time after its addition at which the rule is dropped.
    pub expires: Option<Duration>,
}

impl Rule {
    /// Returns whether the rule is temporary: it ends by itself, or names a process. Such a rule
    /// does not belong in a configuration file.
    pub fn is_transient(&self) -> bool {
        self.expires.is_some() || self.conditions.pid.is_some() || self.conditions.tgid.is_some()
    }
}
