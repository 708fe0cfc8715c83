//! Values as text: one value per file, or one item per line.
//!
//! Invariant: the content of a value never creates an additional line.

use forebay_admin::{JobInfo, LossInfo};
use forebay_config::rules::Rule;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::{Display, Write};

/// Returns a value as the text of a file: with a newline at its end, or empty.
pub(super) fn file(value: &str) -> String {
    if value.is_empty() || value.ends_with('\n') { value.to_owned() } else { format!("{value}\n") }
}

/// Returns one line for each value, with line breaks in it escaped.
pub(super) fn lines<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| line(&value.to_string()).into_owned() + "\n").collect()
}

/// Returns a text as one line.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        text.chars().flat_map(escaped).collect::<String>().into()
    } else {
        text.into()
    }
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    let (plain, escape) = if c.is_control() { (None, Some(c.escape_default())) } else { (Some(c), None) };
    plain.into_iter().chain(escape.into_iter().flatten())
}

/// Returns an empty text for `None`.
pub(super) fn optional(value: Option<&str>) -> String {
    value.map(|value| line(value).into_owned()).unwrap_or_default()
}

/// Formats seconds with one decimal.
pub(super) fn seconds(seconds: f64) -> String {
    format!("{seconds:.1}")
}

/// Converts an age in nanoseconds to seconds.
pub(super) fn oldest_age(age_ns: u64) -> String {
    format!("{}.{:03}", age_ns / 1_000_000_000, age_ns / 1_000_000 % 1_000)
}

/// Formats a JSON object as `key=value` lines; keys of nested objects are joined by dots, and
/// `null` values are omitted.
pub(super) fn key_values(value: &Value) -> String {
    let mut text = String::new();
    flatten("", value, &mut text);
    text
}

fn flatten(key: &str, value: &Value, text: &mut String) {
    let below = |name: &dyn Display| if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(&below(name), value, text)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| flatten(&below(&index), value, text));
        }
        _ => {
            let _ = writeln!(text, "{}={}", line(key), word(value)); // writing to a string cannot fail
        }
    }
}

/// Formats a scalar as one line.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => line(text).into_owned(),
        other => other.to_string(),
    }
}

/// Formats lost ranges: a line for each, with first byte, length in bytes, and the time of the
/// oldest lost write.
pub(super) fn losses(losses: &[LossInfo]) -> String {
    let line = |loss: &LossInfo| format!("{} {} {}\n", loss.offset_bytes, loss.bytes, loss.written_unix_s);
    losses.iter().map(line).collect()
}

/// Formats rules as [`forebay_admin::Admin::rules`] returns them (a list, or an object with the
/// list and the default action): `ID requests=N bytes=N ... RULE`, in order.
pub(super) fn rules(value: &Value) -> String {
    let list = value.as_array().or_else(|| value.get("rules")?.as_array());
    let mut text: String = list.into_iter().flatten().map(rule).collect();
    if let Some(action) = value.get("default").and_then(Value::as_str) {
        let _ = writeln!(text, "default {}", line(action));
    }
    text
}

fn rule(entry: &Value) -> String {
    const FIRST: [&str; 2] = ["requests", "bytes"];
    let mut text = entry.get("id").map(word).unwrap_or_default();
    let counters = entry.as_object().into_iter().flatten();
    let others = counters.filter(|(key, value)| {
        !value.is_null() && !["id", "rule"].contains(&key.as_str()) && !FIRST.contains(&key.as_str())
    });
    let first = FIRST.into_iter().filter_map(|key| Some((key, entry.get(key)?)));
    for (key, value) in first.chain(others.map(|(key, value)| (key.as_str(), value))) {
        let _ = write!(text, " {key}={}", word(value));
    }
    let typed = entry.get("rule").map(|rule| match serde_json::from_value::<Rule>(rule.clone()) {
        Ok(rule) => line(&rule.to_string()).into_owned(),
        Err(_) => word(rule),
    });
    let _ = writeln!(text, " {}", typed.unwrap_or_default());
    text
}

/// Formats an alarm of the HTTP API: `ID SEVERITY CONDITION key=value ...: MESSAGE`.
pub(super) fn alarm(value: &Value) -> String {
    const WORDS: [&str; 3] = ["id", "severity", "condition"];
    let shown = |key: &str| value.get(key).filter(|value| !value.is_null()).map(word).unwrap_or_default();
    let mut text = WORDS.map(shown).join(" ");
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            _ if WORDS.contains(&key.as_str()) || key == "message" => {}
            Value::Object(_) => {
                let _ = write!(text, " {key}=yes");
            }
            _ => {
                let _ = write!(text, " {key}={}", word(value));
            }
        }
    }
    text + ": " + &shown("message") + "\n"
}

/// Splits statistics under FlashCache's names into its two files: those of errors are the last
/// line.
pub(super) fn flashcache_parts(text: &str) -> (&str, &str) {
    let text = text.trim_end_matches('\n');
    let at = text.rfind('\n').map_or(0, |newline| newline + 1);
    let is_errors = text[at..].split('=').next().is_some_and(|key| key.trim().ends_with("_errors"));
    if is_errors { text.split_at(at) } else { (text, "") }
}

/// Returns the state of the last flush of a volume.
pub(super) fn flush_state(last: Option<&JobInfo>) -> String {
    let Some(job) = last else { return "idle".into() };
    let head = format!("{} {}", job.state, job.id);
    match job.state.as_str() {
        "running" => format!("{head} {:.0}%", job.percent.unwrap_or(0.0)),
        "failed" => match &job.error {
            Some(error) => format!("{head}: {}", line(error)),
            None => head,
        },
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_statistics_are_flat_lines() {
        let stats = json!({"reads": 7, "limited_by": null, "mode": "write\nback", "latency": {"hit": {"p50_us": 1.5}}, "a": [1]});
        assert_eq!(key_values(&stats), "reads=7\nmode=write\\nback\nlatency.hit.p50_us=1.5\na.0=1\n");
    }

    #[test]
    fn rules_are_lines_with_counters() {
        let rule = json!({"id": 3, "rule": {"action": "bypass", "exe": "rsync"}, "requests": 5, "bytes": 4096,
            "last_match_ago_ms": 12, "expires_in_ms": null});
        let expected = "3 requests=5 bytes=4096 last_match_ago_ms=12 bypass exe=rsync\n";
        assert_eq!(rules(&json!([rule])), expected);
        let all = json!({"default": "cache", "rules": [rule]});
        assert_eq!(rules(&all), format!("{expected}default cache\n"));
        assert_eq!(rules(&json!([{"id": 1, "rule": "bypass all"}])), "1 bypass all\n");
    }

    #[test]
    fn an_alarm_is_a_line() {
        let value = json!({"id": "a1", "condition": "cache-full", "severity": "warning", "message": "no\nroom",
            "pool": null, "volume": "db", "acknowledged": {"by": "me"}});
        assert_eq!(alarm(&value), "a1 warning cache-full volume=db acknowledged=yes: no\\nroom\n");
    }

    #[test]
    fn flashcache_text_is_split_before_errors() {
        assert_eq!(
            flashcache_parts("a=1 \nb=2\ndisk_read_errors=0 x=1\n"),
            ("a=1 \nb=2\n", "disk_read_errors=0 x=1")
        );
        assert_eq!(flashcache_parts("a=1\nb=2\n"), ("a=1\nb=2", ""));
        assert_eq!(flashcache_parts(""), ("", ""));
    }

    #[test]
    fn ages_keep_milliseconds() {
        assert_eq!(oldest_age(61_234_999_999), "61.234");
        assert_eq!(oldest_age(0), "0.000");
    }
}
