//! Rules as words: `bypass exe=rsync direction=read`.
//!
//! Command line, API and configuration all use [`Draft`], so that a key means the same everywhere,
//! and a mistake gets the same message.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use forebay_admin::size::parse_duration;

use super::error::{RuleError, clip, closest};
use super::pattern::Pattern;
use super::range::ByteRange;
use super::rule::{ACTION_NAMES, Action, Conditions, Rule};

/// The keys of a rule, in the order in which they are printed.
pub const KEYS: [&str; 12] = [
    "name",
    "action",
    "pid",
    "tgid",
    "uid",
    "exe",
    "cgroup",
    "export",
    "lba",
    "size",
    "direction",
    "expires",
];
/// Longest name of a rule in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest time until a rule expires: a rule for longer should be permanent.
pub const EXPIRES_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Returns the index in [`KEYS`].
pub(super) fn known_key(key: &str) -> Result<usize, RuleError> {
    let unknown = || RuleError::UnknownKey { key: clip(key), suggestion: closest(key, &KEYS) };
    KEYS.iter().position(|known| *known == key).ok_or_else(unknown)
}

/// A rule under construction, key by key.
#[derive(Debug, Default)]
pub(super) struct Draft {
    name: Option<String>,
    action: Option<Action>,
    conditions: Conditions,
    expires: Option<Duration>,
    /// One bit for each of [`KEYS`] that was given.
    given: u16,
}

impl Draft {
    /// Adds one key and its value.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), RuleError> {
        let index = known_key(key)?;
        let key = KEYS[index];
        if self.given & (1 << index) != 0 {
            return Err(RuleError::Repeated { key });
        }
        self.given |= 1 << index;
        let bad = |problem: String| RuleError::bad_value(key, value, problem);
        let conditions = &mut self.conditions;
        match key {
            "name" => self.name = Some(rule_name(value).map_err(bad)?),
            "action" => self.action = Some(value.parse()?),
            "pid" => conditions.pid = Some(process(value).map_err(bad)?),
            "tgid" => conditions.tgid = Some(process(value).map_err(bad)?),
            "uid" => conditions.uid = Some(user(value).map_err(bad)?),
            "exe" => conditions.exe = Some(executable(value).map_err(bad)?),
            "cgroup" => conditions.cgroup = Some(control_group(value).map_err(bad)?),
            "export" => conditions.export = Some(Pattern::name(value).map_err(bad)?),
            "lba" => conditions.lba = Some(ByteRange::parse(value).map_err(bad)?),
            "size" => conditions.size = Some(ByteRange::parse_or_single(value).map_err(bad)?),
            "direction" => conditions.direction = Some(value.parse()?),
            _ => self.expires = Some(lifetime(value).map_err(bad)?),
        }
        Ok(())
    }

    /// Adds `key=value`, or an action alone.
    pub(super) fn word(&mut self, word: &str) -> Result<(), RuleError> {
        match word.split_once('=') {
            Some((key, value)) => self.set(key, value),
            None if ACTION_NAMES.contains(&word) => self.set("action", word),
            None => Err(RuleError::StrayWord { word: clip(word), suggestion: closest(word, &ACTION_NAMES) }),
        }
    }

    /// Returns the rule, if it is complete.
    pub(super) fn finish(self) -> Result<Rule, RuleError> {
        let action = self.action.ok_or(RuleError::NoAction)?;
        Ok(Rule { name: self.name, action, conditions: self.conditions, expires: self.expires })
    }
}

impl Rule {
    /// Parses words as a shell passes them: `bypass`, `exe=rsync`, `direction=read`.
    ///
    /// # Errors
    /// [`RuleError`], which names the key.
    pub fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, RuleError> {
        let mut draft = Draft::default();
        words.into_iter().try_for_each(|word| draft.word(word))?;
        draft.finish()
    }

    /// Parses keys and values, such as those of a table in a configuration file.
    ///
    /// [`RuleError`]; [`RuleError::key`] returns the key that it is about.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, RuleError> {
        let mut draft = Draft::default();
        pairs.into_iter().try_for_each(|(key, value)| draft.set(key, value))?;
        draft.finish()
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    /// Parses a line of words; a part in double quotes may contain spaces, and `""` in it is one
    /// quote.
    fn from_str(line: &str) -> Result<Self, RuleError> {
        let words = super::quote::split(line)
            .ok_or_else(|| RuleError::StrayWord { word: clip(line), suggestion: Some("a closing quote") })?;
        Self::from_words(words.iter().map(String::as_str))
    }
}

fn rule_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(allowed) {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, -, _ or ."));
    }
    Ok(text.to_owned())
}

fn process(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "expected the number of a process, from 1 on; for a name use exe".into())
}

fn user(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected the number of a user, as `id -u NAME` prints it".into())
}

/// Parses a name without `/`, or a full path or glob, since clients have only full paths.
fn executable(text: &str) -> Result<Pattern, String> {
    if text.contains('/') && !text.starts_with(['/', '*', '{', '[', '?', '\\']) {
        return Err("expected a name (rsync), a full path (/usr/bin/rsync) or a glob (/usr/bin/*)".into());
    }
    if text.ends_with('/') {
        return Err(
            "a folder is not an executable; for all in it write /folder/*, or /folder/** with those below"
                .into(),
        );
    }
    Pattern::path(text, false)
}

fn control_group(text: &str) -> Result<Pattern, String> {
    if !text.starts_with(['/', '*', '{', '[', '?', '\\']) {
        return Err(
            "expected a path such as /system.slice/db.service, with a final / to take in all below".into()
        );
    }
    Pattern::path(text, true)
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("the rule would be dropped at once; give a time, or leave expires out to keep it".into());
    }
    if duration > EXPIRES_MAX {
        return Err("at most a year (366 days); leave expires out to keep the rule".into());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        line.parse::<Rule>().unwrap_err().to_string()
    }

    #[test]
    fn all_keys_are_read() {
        let line = "name=nightly bypass pid=7 tgid=7 uid=0 exe=/usr/bin/rs* cgroup=/b.slice/ export=db* \
                    lba=0..1GiB size=..=64KiB direction=read expires=90min";
        let rule: Rule = line.parse().unwrap();
        assert_eq!(rule.name.as_deref(), Some("nightly"));
        assert_eq!(rule.action, Action::Bypass);
        assert_eq!(rule.expires, Some(Duration::from_secs(5400)));
        assert_eq!(rule.conditions.size.unwrap().last(), 65536);
        assert_eq!(rule.conditions.exe.as_ref().unwrap().text(), "/usr/bin/rs*");
        assert!(rule.is_transient());
        assert!(!Rule::from_words(["pin"]).unwrap().is_transient());
        assert_eq!(Rule::from_pairs([("action", "pin")]), Rule::from_words(["action=pin"]));
    }

    #[test]
    fn mistakes_get_an_answer_that_helps() {
        for (line, parts) in [
            ("bypass exec=rsync", vec!["\"exec\" is not a key", "did you mean exe?", "cgroup, export"]),
            ("bypas exe=x", vec!["\"bypas\" is neither", "did you mean bypass?"]),
            ("action=writethrough", vec!["not one of cache", "did you mean write-through?"]),
            ("pin direction=reads", vec!["direction=\"reads\"", "read, write", "did you mean read?"]),
            ("exe=rsync", vec!["no action", "cache, bypass, pin, write-through"]),
            ("", vec!["no action"]),
            ("pin bypass", vec!["action is given twice"]),
            ("pin uid=1 uid=2", vec!["uid is given twice", "two rules"]),
            ("pin uid=root", vec!["uid=\"root\"", "id -u"]),
            ("pin pid=0", vec!["from 1 on"]),
            ("pin pid=-3", vec!["from 1 on"]),
            ("pin pid=99999999999", vec!["from 1 on"]),
            ("pin exe=bin/rsync", vec!["full path"]),
            ("pin exe=/usr/bin/", vec!["/folder/**"]),
            ("pin exe=a[", vec!["exe=\"a[\"", "put a \\ before"]),
            ("pin cgroup=db.service", vec!["/system.slice"]),
            ("pin lba=4G..1G", vec!["lba", "empty", "smaller end first"]),
            ("pin lba=4096", vec!["not a range", "0..1GiB"]),
            ("pin size=4Q..", vec!["\"Q\" is not a unit"]),
            ("pin expires=30", vec!["write it like 30s"]),
            ("pin expires=0s", vec!["dropped at once"]),
            ("pin expires=10years", vec!["at most a year"]),
            ("pin name=a/b", vec!["letters, digits"]),
            ("pin \"exe=x", vec!["closing quote"]),
        ] {
            let message = error(line);
            for part in parts {
                assert!(message.contains(part), "{line}: {message}");
            }
        }
    }

    #[test]
    fn messages_quote_little_of_the_input() {
        let message = error(&format!("pin {}=1", "\u{7}k".repeat(10_000)));
        assert!(message.len() < 800 && !message.contains('\u{7}'), "{message}");
        assert_eq!(Rule::from_words(["pin", "lba=x"]).unwrap_err().key(), Some("lba"));
    }
}
