//! forebay.toml: reading and checking it as a whole, before anything starts.
//!
//! First the syntax, then each section by itself, then relations between sections. A place with a
//! TOML syntax error gets no second error; relations between sections are only checked if the
//! syntax is valid, because otherwise half of the file may be missing.

mod check;
mod daemon;
mod guards;
mod pool;
mod reader;
mod volume;

use super::diagnostic::{Diagnostic, Report, Severity, Span};
use super::keys::SECTIONS;
use super::model::{Config, check_name};
use super::rule_table::RuleTable;
use super::value::nearest;
use forebay_admin::MessageId;
use reader::{Reader, Table, Value, describe};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Largest file that is read, in bytes.
pub const BYTES_MAX: usize = 4 << 20;

/// Checks the rules of a volume (given by its name); places come from the tables.
pub type RuleCheck<'a> = dyn Fn(&str, &[RuleTable]) -> Vec<Diagnostic> + 'a;

/// A valid file.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Its configuration.
    pub config: Config,
    /// Probable mistakes.
    pub warnings: Report,
}

/// Reads and checks a file's text; `path` is for messages.
///
/// A report of all errors.
pub fn parse(path: &Path, text: &str) -> Result<Checked, Report> {
    parse_with(path, text, &super::rule_table::check)
}

/// Like [`parse`], with a check of the rules that may know more than [`super::rule_table::check`].
///
/// A report of all errors.
pub fn parse_with(path: &Path, text: &str, rules: &RuleCheck<'_>) -> Result<Checked, Report> {
    if text.len() > BYTES_MAX {
        let message = format!("the file has {} bytes; at most {BYTES_MAX} are read", text.len());
        return Err(Report::new(path, "", vec![Diagnostic::error(MessageId::ConfigLimit, 0..0, message)]));
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader::default();
    let config = document(&mut reader, root.get_ref());
    let (syntax, swallowed_from) = syntax_errors(&errors, text);
    if syntax.is_empty() {
        check::all(&mut reader, &config);
        for (name, volume) in &config.volumes {
            reader.diagnostics.extend(rules(name, &volume.rules));
        }
    } else {
        reader.keep_only_what_does_not_touch(&syntax, swallowed_from);
    }
    let mut all = syntax;
    all.append(&mut reader.diagnostics);
    let report = Report::new(path, text, all);
    let failed = report.diagnostics().iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    if failed { Err(report) } else { Ok(Checked { config, warnings: report }) }
}

/// Reads sections by themselves, without relations between them and to a file.
///
/// A report of the errors within them.
pub(crate) fn parse_sections(path: &Path, text: &str) -> Result<Config, Report> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader::default();
    let config = document(&mut reader, root.get_ref());
    let (syntax, swallowed_from) = syntax_errors(&errors, text);
    if !syntax.is_empty() {
        reader.keep_only_what_does_not_touch(&syntax, swallowed_from);
    }
    let all: Vec<Diagnostic> = syntax.into_iter().chain(reader.diagnostics).collect();
    let failed = all.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    if failed { Err(Report::new(path, text, all)) } else { Ok(config) }
}

/// Returns the syntax errors, and the offset from which the rest of the text is unreliable: an
/// unclosed bracket swallows the following text. Of the errors about that bracket, only the first,
/// at the place of the missing bracket, and the one at the bracket itself are kept.
fn syntax_errors(errors: &[toml::de::Error], text: &str) -> (Vec<Diagnostic>, usize) {
    let unclosed = |error: &&toml::de::Error| error.message().starts_with("unclosed");
    let swallowed = errors.iter().any(|error| unclosed(&error));
    let all = errors.iter().enumerate();
    let kept = all.filter(|(index, error)| *index == 0 || !swallowed || unclosed(error));
    let kept: Vec<Diagnostic> = kept.map(|(_, error)| syntax_error(error, text)).collect();
    let first = kept.iter().map(|error| error.span.start).min();
    (kept, first.filter(|_| swallowed).unwrap_or(usize::MAX))
}

fn syntax_error(error: &toml::de::Error, text: &str) -> Diagnostic {
    let span = error.span().unwrap_or(text.len()..text.len());
    let here = text.get(span.clone()).unwrap_or_default();
    let message = error.message();
    if message == "duplicate key" {
        return Diagnostic::error(MessageId::ConfigTwice, span, format!("`{here}` is given twice"))
            .help("keep one of them");
    }
    let bare = message.starts_with("string values must be quoted") || message.starts_with("invalid boolean");
    match here {
        "" if bare => Diagnostic::error(MessageId::ConfigSyntax, span, "the value is missing"),
        _ if bare => Diagnostic::error(MessageId::ConfigSyntax, span, message)
            .help(format!("a text stands in quotes: \"{here}\"")),
        _ => Diagnostic::error(MessageId::ConfigSyntax, span, message),
    }
}

/// Reads the sections.
fn document(reader: &mut Reader, root: &Table<'_>) -> Config {
    let mut config = Config::default();
    for (key, value) in root {
        let name = key.get_ref().as_ref();
        match name {
            "daemon" => {
                if let Some(table) = reader.table(name, value) {
                    config.daemon = daemon::read(reader, table, key.span());
                }
            }
            "tls" => sections(reader, name, value, |reader, name, table, span| {
                config.tls.extend(guards::tls(reader, name, table, span).map(|tls| (name.to_owned(), tls)));
            }),
            "access" => sections(reader, name, value, |reader, name, table, span| {
                config.access.insert(name.to_owned(), guards::access(reader, name, table, span));
            }),
            "pool" => sections(reader, name, value, |reader, name, table, span| {
                config.pools.insert(name.to_owned(), pool::read(reader, name, table, span));
            }),
            "volume" => sections(reader, name, value, |reader, name, table, span| {
                if let Some(volume) = volume::read(reader, name, table, span) {
                    config.volumes.insert(name.to_owned(), volume);
                }
            }),
            _ => {
                let hint = nearest(name, SECTIONS).map(|near| format!("did you mean `{near}`?"));
                reader.push(
                    Diagnostic::error(
                        MessageId::ConfigUnknownKey,
                        key.span(),
                        format!("there is no section `{name}`"),
                    )
                    .label(hint.unwrap_or_default())
                    .help("there are [daemon], [tls.NAME], [access.NAME], [pool.NAME] and [volume.NAME]"),
                );
            }
        }
    }
    config
}

/// Reads the named sections below `pool`, `volume` and the like.
fn sections(
    reader: &mut Reader,
    kind: &str,
    value: &Value<'_>,
    mut each: impl FnMut(&mut Reader, &str, &Table<'_>, Span),
) {
    let Some(table) = reader.table(kind, value) else { return };
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        reader.note(format!("{kind}.{name}"), key.span());
        let DeValue::Table(inner) = value.get_ref() else {
            let found = describe(value.get_ref());
            reader.push(
                Diagnostic::error(
                    MessageId::ConfigType,
                    key.span(),
                    format!("`{name}` is {found}, not a {kind}"),
                )
                .help(format!("each {kind} has a name and a section of its own: [{kind}.NAME]")),
            );
            continue;
        };
        if let Err(problem) = check_name(name) {
            let message = format!("\"{}\" cannot be the name of a {kind}", name.escape_debug());
            reader.push(Diagnostic::error(MessageId::ConfigName, key.span(), message).label(problem));
        }
        each(reader, name, inner, key.span());
    }
}
