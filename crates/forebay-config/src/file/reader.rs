//! Reads the keys of a section: places, types, paths, tunables and errors.

use crate::diagnostic::{Diagnostic, Span};
use crate::keys::{self, Key};
use crate::settings::Settings;
use crate::tunables::{self, Applies, Scope};
use crate::value::{Raw, nearest};
use forebay_admin::MessageId;
use forebay_admin::size::ByteSize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table of the file.
pub(super) type Table<'a> = DeTable<'a>;
/// A value of the file with its place.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// Collects errors and the places of settings.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) diagnostics: Vec<Diagnostic>,
    places: HashMap<String, Span>,
}

impl Reader {
    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Records the place of a setting.
    pub(super) fn note(&mut self, what: String, span: Span) {
        self.places.insert(what, span);
    }

    /// Returns the place of a setting, if the file has it.
    pub(super) fn place(&self, what: &str) -> Option<Span> {
        self.places.get(what).cloned()
    }

    /// Drops errors at places with syntax errors, and errors about keys that are missing or
    /// swallowed.
    pub(super) fn keep_only_what_does_not_touch(&mut self, syntax: &[Diagnostic], swallowed_from: usize) {
        let touches = |a: &Span, b: &Span| a.start <= b.end && b.start <= a.end;
        self.diagnostics.retain(|diagnostic| {
            let missing = diagnostic.message.starts_with(MISSING);
            let swallowed = diagnostic.span.start >= swallowed_from;
            !missing && !swallowed && !syntax.iter().any(|error| touches(&error.span, &diagnostic.span))
        });
    }

    /// Reports a value of the wrong type.
    pub(super) fn wrong_type(&mut self, key: &str, value: &Value<'_>, takes: &str) {
        let found = describe(value.get_ref());
        self.push(Diagnostic::error(
            MessageId::ConfigType,
            value.span(),
            format!("`{key}` takes {takes}, not {found}"),
        ));
    }

    pub(super) fn table<'a, 'i>(&mut self, key: &str, value: &'a Value<'i>) -> Option<&'a Table<'i>> {
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(key, value, "a table");
            return None;
        };
        Some(table)
    }

    pub(super) fn text<'a>(&mut self, key: &str, value: &'a Value<'_>, takes: &str) -> Option<&'a str> {
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(key, value, takes);
            return None;
        };
        Some(text)
    }

    /// Reads an absolute path.
    pub(super) fn path(&mut self, key: &str, value: &Value<'_>) -> Option<PathBuf> {
        let text = self.text(key, value, "a path in quotes")?;
        let problem = match text {
            "" => "the path is empty".to_owned(),
            _ if text.contains('\0') => "a path has no zero byte".to_owned(),
            _ if !text.starts_with('/') => {
                format!("a path starts with `/`: \"{text}\" is a relative path")
            }
            _ => return Some(PathBuf::from(text)),
        };
        self.push(Diagnostic::error(MessageId::ConfigValue, value.span(), format!("`{key}`: {problem}")));
        None
    }

    /// Reads a size of at least one byte.
    pub(super) fn size(&mut self, key: &str, value: &Value<'_>) -> Option<u64> {
        let size = match raw(value.get_ref()) {
            Raw::Integer(bytes) => Ok(ByteSize(bytes)),
            Raw::Text(text) => text.parse::<ByteSize>().map_err(|error| error.to_string()),
            other => {
                let found = other.what();
                Err(format!("a size is written \"10GiB\" or as a number of bytes, not {found}"))
            }
        };
        let size = size.and_then(|size| if size.0 == 0 { Err("the size is 0".into()) } else { Ok(size.0) });
        size.map_err(|problem| {
            self.push(Diagnostic::error(MessageId::ConfigValue, value.span(), format!("`{key}`: {problem}")));
        })
        .ok()
    }

    /// Reports a key that a section does not have; `hint` is the suggestion.
    pub(super) fn unknown(
        &mut self,
        section: &str,
        key: &str,
        span: Span,
        hint: Option<String>,
        known: &str,
    ) {
        let diagnostic =
            Diagnostic::error(MessageId::ConfigUnknownKey, span, format!("unknown key `{key}` in {section}"));
        self.push(match hint {
            Some(hint) => diagnostic.label(hint),
            None => diagnostic.help(format!("there are: {known}")),
        });
    }

    /// Reports missing required keys.
    pub(super) fn require(&mut self, section: &str, table: &Table<'_>, keys: &'static [Key], span: &Span) {
        for key in keys.iter().filter(|key| key.required && !table.contains_key(key.name)) {
            self.push(
                Diagnostic::error(
                    MessageId::ConfigMissing,
                    span.clone(),
                    format!("{MISSING}`{}` in {section}", key.name),
                )
                .help(format!("{}; for example: {} = {}", key.help, key.name, key.example)),
            );
        }
    }

    /// Reads a key of a section with tunables; reports an unknown one.
    pub(super) fn tunable(
        &mut self,
        section: &str,
        settings: &mut Settings,
        key: (&str, Span),
        value: &Value<'_>,
        others: &'static [Key],
    ) {
        let (name, key_span) = key;
        let scope = settings.scope();
        let Some(tunable) = tunables::find(scope, name) else {
            let hint = tunables::hint(scope, name, &keys::names(others));
            self.unknown(section, name, key_span, hint, &known(scope, others));
            return;
        };
        match tunable.kind.read(raw(value.get_ref())) {
            Err(error) => {
                let hint = error.suggestion.map(|near| format!("did you mean \"{near}\"?"));
                let message = format!("`{name}`: {}", error.problem);
                self.push(Diagnostic::error(error.id, value.span(), message).label(hint.unwrap_or_default()));
            }
            Ok(read) => {
                settings.put(tunable, read);
                self.note(format!("{section}.{name}"), key_span);
            }
        }
    }
}

/// Start of the message about a missing key.
const MISSING: &str = "missing ";

/// Lists the settings of a section, if no single one is a near match.
fn known(scope: Scope, others: &'static [Key]) -> String {
    let live = scope.tunables().iter().filter(|tunable| tunable.applies == Applies::Live);
    let names = others.iter().map(|key| key.name).chain(live.map(|tunable| tunable.name));
    names.collect::<Vec<_>>().join(", ")
}

/// Converts a value to the form that kinds of tunables read.
pub(super) fn raw<'a>(value: &'a DeValue<'_>) -> Raw<'a> {
    match value {
        DeValue::String(text) => Raw::Text(text),
        DeValue::Integer(integer) => {
            let parsed = u64::from_str_radix(integer.as_str(), integer.radix());
            parsed.map_or(Raw::Other("a negative or too large number"), Raw::Integer)
        }
        DeValue::Boolean(flag) => Raw::Flag(*flag),
        other => Raw::Other(describe(other)),
    }
}

/// Returns the type of a value, in words.
pub(super) fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns the key of a table closest to a mistyped one.
pub(super) fn near_key(name: &str, keys: &'static [Key]) -> Option<String> {
    nearest(name, keys::names(keys)).map(|near| format!("did you mean `{near}`?"))
}

/// Removes `.` and doubled slashes from a path, and resolves `..` by its text: two spellings of one
/// path become equal. Links are not followed, because nothing is opened here.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    clean
}

/// Users of things that can be used only once, with the place of the first.
#[derive(Debug, Default)]
pub(super) struct Taken<K>(BTreeMap<K, (String, Span)>);

impl<K: Ord> Taken<K> {
    /// Takes a thing. If it is taken already, returns its user and the place.
    pub(super) fn take(&mut self, what: K, who: &str, span: Span) -> Option<(String, Span)> {
        match self.0.get(&what) {
            Some(holder) => Some(holder.clone()),
            None => {
                self.0.insert(what, (who.to_owned(), span));
                None
            }
        }
    }

    pub(super) fn holder(&self, what: &K) -> Option<(String, Span)> {
        self.0.get(what).cloned()
    }
}
