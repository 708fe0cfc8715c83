//! Effect of a write to a control file.
//!
//! Invariant: a refused write has changed nothing, and its reason is in `last_error`.

use super::content::Content;
use super::errno;
use super::layout::{self, File, Node};
use forebay_admin::{AdminError, MessageId, RuleRequest, SettingsRequest, Target};
use forebay_export::fuse::Errno;
use serde_json::Value;
use std::collections::BTreeMap;

/// Result of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// The write is done, perhaps with a remark.
    Done { remark: Option<String> },
    /// The write is done when this job has ended.
    Job(String),
}

impl Written {
    fn silently<T>(_: T) -> Written {
        Written::Done { remark: None }
    }
}

impl Content {
    /// Executes a write to a file. `may_wait`: there is room for one more writer that waits for a
    /// job.
    pub(super) fn write(&self, path: &str, text: &[u8], may_wait: bool) -> Result<Written, Errno> {
        let done = self.carry_out(path, text, may_wait);
        match &done {
            Ok(Written::Done { remark: None }) => self.refusals.forget(path),
            Ok(Written::Done { remark: Some(remark) }) => self.refusals.note(path, remark),
            Ok(Written::Job(_)) => {}
            Err(error) => self.refusals.note(path, &reason(error)),
        }
        done.map_err(|error| errno(error.kind))
    }

    fn carry_out(&self, path: &str, text: &[u8], may_wait: bool) -> Result<Written, AdminError> {
        let text = one_line(text)?;
        match layout::parse(path) {
            Some(Node::File(File::Setting(target, key))) => self.set(target, key, text),
            Some(Node::File(File::Flush(volume))) => self.flush(volume, text, may_wait),
            Some(Node::File(File::Rules(volume))) => self.change_rules(volume, text),
            Some(Node::File(File::Cancel(id))) => match text {
                "1" => self.admin.cancel_job(id).map(Written::silently),
                _ => Err(invalid(text, "write 1 to cancel the job")),
            },
            // The kernel lets root open read-only files for writing.
            _ => Err(invalid(text, "this file is read-only")),
        }
    }

    fn set(&self, target: Target<'_>, key: &str, value: &str) -> Result<Written, AdminError> {
        let set = BTreeMap::from([(key.to_owned(), Some(value.to_owned()))]);
        let request = SettingsRequest { set, ..SettingsRequest::default() };
        self.admin.set(target, request).map(Written::silently)
    }

    fn flush(&self, volume: &str, text: &str, may_wait: bool) -> Result<Written, AdminError> {
        match text {
            "1" if !may_wait => Err(AdminError::new(
                MessageId::ControlTooMany,
                "too many writers already wait for flushes; no flush was started",
                "write bg and read this file, or wait for fewer",
            )),
            "1" => Ok(Written::Job(self.admin.flush_volume(volume, None)?.id)),
            "bg" => self.admin.flush_volume(volume, None).map(Written::silently),
            _ => Err(invalid(text, "write 1 to flush and wait, bg to flush in the background")),
        }
    }

    fn change_rules(&self, volume: &str, text: &str) -> Result<Written, AdminError> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (rest, usage) = (rest.trim(), "write \"add RULE\", \"insert POSITION RULE\" or \"delete ID\"");
        let (position, rule) = match verb {
            "delete" if !rest.is_empty() => {
                return self.admin.delete_rule(volume, rest).map(Written::silently);
            }
            "add" if !rest.is_empty() => (None, rest),
            "insert" => {
                let (position, rule) = rest.split_once(' ').ok_or_else(|| invalid(text, usage))?;
                (Some(position.parse().map_err(|_| invalid(text, usage))?), rule.trim())
            }
            _ => return Err(invalid(text, usage)),
        };
        let added = self.admin.add_rule(volume, RuleRequest { rule: rule.to_owned(), position })?;
        Ok(Written::Done { remark: warnings(&added) })
    }
}

/// Returns the written text without the newline of `echo`.
fn one_line(text: &[u8]) -> Result<&str, AdminError> {
    let text = std::str::from_utf8(text).map_err(|_| invalid("...", "it is not UTF-8 text"))?;
    let text = text.trim();
    if text.contains(char::is_control) {
        return Err(invalid(text, "each write takes one line"));
    }
    Ok(text)
}

fn invalid(text: &str, hint: &str) -> AdminError {
    const SHOWN_CHARS: usize = 80;
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    AdminError::new(MessageId::ControlSyntax, format!("\"{shown}\" was not understood"), hint)
}

/// Returns an error as one line.
pub(super) fn reason(error: &AdminError) -> String {
    if error.hint.is_empty() { error.what.clone() } else { format!("{} ({})", error.what, error.hint) }
}

/// Returns warnings about a rule that was added nevertheless.
fn warnings(added: &Value) -> Option<String> {
    let warnings = added.get("warnings")?.as_array()?;
    let texts: Vec<&str> = warnings.iter().filter_map(Value::as_str).collect();
    (!texts.is_empty()).then(|| format!("the rule was added, but: {}", texts.join("; ")))
}
