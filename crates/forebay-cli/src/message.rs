//! Messages of commands on stderr. All go through one function, [`Message::write`]: as text, or
//! with `FOREBAY_MESSAGES=json` as one JSON object per line for scripts.
//!
//! A failed write is no failure of the command: the reader of stderr may have gone, or the file
//! system of a log may be full. Lost messages are counted, and reported with the first message that
//! can be written again.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_admin::MessageId;
use forebay_admin::events::Severity;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The environment variable that selects the form of messages.
pub(crate) const VARIABLE: &str = "FOREBAY_MESSAGES";

/// Number of messages that could not be written.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

/// Form of messages; decided once, at the beginning.
static FORM: OnceLock<Form> = OnceLock::new();

/// Form of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Text,
    Json,
}

/// Reads the form of messages from the environment.
///
/// # Errors
/// The variable has an invalid value.
pub(crate) fn choose() -> Result<(), Failure> {
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    let form = form_of(&value.to_string_lossy())?;
    FORM.get_or_init(|| form);
    Ok(())
}

fn form_of(value: &str) -> Result<Form, Failure> {
    match value {
        "" | "text" => Ok(Form::Text),
        "json" => Ok(Form::Json),
        other => Err(Failure::usage(
            MessageId::CliArgument,
            format!("{VARIABLE}={}: there is no such message format", crate::screen::harmless(other)),
        )
        .hint("give json or text, or leave it out")),
    }
}

/// Returns true if messages are written for scripts.
pub(crate) fn is_json() -> bool {
    FORM.get() == Some(&Form::Json)
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Message<'a> {
    /// Severity.
    severity: Severity,
    /// Name of the ID; a daemon of another version may have one that is unknown here.
    id: &'a str,
    what: &'a str,
    hint: &'a str,
    pool: Option<&'a str>,
    volume: Option<&'a str>,
}

impl<'a> Message<'a> {
    /// Returns a message.
    pub(crate) fn new(severity: Severity, id: &'a str, what: &'a str) -> Self {
        Self { severity, id, what, hint: "", pool: None, volume: None }
    }

    /// Adds advice.
    pub(crate) fn hint(self, hint: &'a str) -> Self {
        Self { hint, ..self }
    }

    /// Adds the pool and the volume that it is about.
    pub(crate) fn of(self, pool: Option<&'a str>, volume: Option<&'a str>) -> Self {
        Self { pool, volume, ..self }
    }

    /// Writes it: as an object, or as this text, which ends in a line break.
    pub(crate) fn write(&self, text: impl FnOnce() -> String) {
        put(&if is_json() { self.line() } else { text() });
    }

    /// Returns it as a line of JSON.
    fn line(&self) -> String {
        let mut object = Map::new();
        let mut set = |name: &str, value: &str| object.insert(name.into(), Value::from(value));
        set("severity", self.severity.name());
        set("id", self.id);
        set("what", self.what);
        set("hint", self.hint);
        if let Some(pool) = self.pool {
            set("pool", pool);
        }
        if let Some(volume) = self.volume {
            set("volume", volume);
        }
        format!("{}\n", Value::Object(object))
    }
}

/// Writes a note of a command that continues: `note: ...` as text.
pub(crate) fn note(id: MessageId, what: &str) {
    say(id, what, || format!("note: {what}\n"));
}

/// Writes a message with a text in the command's own form; the severity is that of the ID.
pub(crate) fn say(id: MessageId, what: &str, text: impl FnOnce() -> String) {
    Message::new(id.severity(), id.name(), what).write(text);
}

/// The only function that writes messages to stderr.
fn put(text: &str) {
    put_to(&mut std::io::stderr().lock(), &UNWRITTEN, text);
}

fn put_to(log: &mut impl Write, unwritten: &AtomicU64, text: &str) {
    let lost = unwritten.swap(0, Ordering::Relaxed);
    let told = if lost > 0 { log.write_all(lost_line(lost).as_bytes()) } else { Ok(()) };
    let left = if told.is_ok() { 0 } else { lost };
    let written = told.and_then(|()| log.write_all(text.as_bytes()));
    unwritten.fetch_add(left + u64::from(written.is_err()), Ordering::Relaxed);
}

fn lost_line(lost: u64) -> String {
    let (id, what) = (MessageId::LogLost, format!("{lost} messages before this one could not be written"));
    if is_json() {
        Message::new(id.severity(), id.name(), &what).line()
    } else {
        crate::log::lines(id.severity(), &what, crate::log::is_journal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_object_on_one_line() {
        let message = Message::new(Severity::Error, "volume.unknown", "no volume \"a\"\nat all")
            .hint("there are: b")
            .of(Some("fast"), Some("a"));
        let line = message.line();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(
            line,
            "{\"severity\":\"error\",\"id\":\"volume.unknown\",\"what\":\"no volume \\\"a\\\"\\nat all\",\
             \"hint\":\"there are: b\",\"pool\":\"fast\",\"volume\":\"a\"}\n"
        );
    }

    /// A log that accepts nothing for a while.
    struct Full(bool, Vec<u8>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 { Err(std::io::ErrorKind::StorageFull.into()) } else { self.1.write(bytes) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lost_messages_are_reported_once() {
        let (mut log, unwritten) = (Full(true, Vec::new()), AtomicU64::new(0));
        ["a\n", "b\n", "c\n"].iter().for_each(|text| put_to(&mut log, &unwritten, text));
        log.0 = false;
        ["d\n", "e\n"].iter().for_each(|text| put_to(&mut log, &unwritten, text));
        let text = String::from_utf8(log.1).unwrap();
        assert!(text.contains("3 messages before this one"), "{text}");
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), ["d", "e"]);
    }

    #[test]
    fn the_variable_takes_two_words() {
        assert_eq!(form_of("").unwrap(), Form::Text);
        assert_eq!(form_of("text").unwrap(), Form::Text);
        assert_eq!(form_of("json").unwrap(), Form::Json);
        let refused = form_of("xml").unwrap_err();
        assert_eq!((refused.code(), refused.id()), (2, "cli.argument"));
    }
}
