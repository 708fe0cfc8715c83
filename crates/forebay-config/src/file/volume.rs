//! `[volume.NAME]` and `[[volume.NAME.rule]]`

use super::reader::{Reader, Table, Value, near_key, raw};
use crate::diagnostic::{Diagnostic, Span};
use crate::keys;
use crate::model::VolumeConfig;
use crate::rule_table::{RuleEntry, RuleTable, RuleValue};
use crate::rules::RULES_MAX;
use crate::settings::Settings;
use crate::tunables::Scope;
use crate::value::Raw;
use forebay_admin::MessageId;
use forebay_export::uri::{BackingUri, ExportUri, UriError};
use toml::de::DeValue;

/// Reads the section; returns nothing if the pool or the backing store is unknown, which is
/// reported.
pub(super) fn read(reader: &mut Reader, name: &str, table: &Table<'_>, span: Span) -> Option<VolumeConfig> {
    let section = format!("volume.{name}");
    reader.require(&section, table, keys::VOLUME, &span);
    let mut settings = Settings::new(Scope::Volume);
    let (mut pool, mut backing, mut size_bytes) = (None, None, None);
    let (mut exports, mut rules) = (Vec::new(), Vec::new());
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        if keys::VOLUME.iter().any(|key| key.name == name) {
            reader.note(format!("{section}.{name}"), value.span());
        }
        match name {
            "pool" => pool = reader.text(name, value, "the name of a pool").map(str::to_owned),
            "backing" => backing = backing_uri(reader, value),
            "exports" => exports = export_uris(reader, &section, value),
            "size" => size_bytes = volume_size(reader, value),
            "rule" => rules = rule_tables(reader, &section, value),
            _ => reader.tunable(&section, &mut settings, (name, key.span()), value, keys::VOLUME),
        }
    }
    Some(VolumeConfig { pool: pool?, backing: backing?, exports, size_bytes, settings, rules })
}

/// Reports an error in a URI, and marks its place in the text if the text has no escapes.
fn uri_error(key: &str, value: &Value<'_>, error: &UriError) -> Diagnostic {
    let span = value.span();
    let plain = span.len() == error.text.len() + 2;
    let mark = if plain && error.at > 0 {
        let at = (span.start + 1 + error.at).min(span.end - 1);
        at..at + 1
    } else {
        span
    };
    Diagnostic::error(MessageId::ConfigValue, mark, format!("`{key}`: {}", error.problem))
        .help(format!("for example: {}", error.example))
}

fn backing_uri(reader: &mut Reader, value: &Value<'_>) -> Option<BackingUri> {
    let text = reader.text("backing", value, "a path or URI in quotes, like \"/dev/sdb\"")?;
    let uri: BackingUri = match text.parse() {
        Ok(uri) => uri,
        Err(error) => {
            reader.push(uri_error("backing", value, &error));
            return None;
        }
    };
    if uri.nbd().is_none() && uri.path().is_relative() {
        let message = "`backing`: a path starts with `/`: this is a relative path";
        reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
        return None;
    }
    Some(uri)
}

fn export_uris(reader: &mut Reader, section: &str, value: &Value<'_>) -> Vec<ExportUri> {
    const TAKES: &str = "a list of URIs, like [\"nbd+unix:///db?socket=/run/forebay/db.sock\"]";
    let DeValue::Array(list) = value.get_ref() else {
        reader.wrong_type("exports", value, TAKES);
        return Vec::new();
    };
    let mut exports = Vec::new();
    for value in list.iter() {
        let Some(text) = reader.text("exports", value, TAKES) else { continue };
        match text.parse::<ExportUri>() {
            Ok(uri) => {
                reader.note(format!("{section}.exports[{}]", exports.len()), value.span());
                exports.push(uri);
            }
            Err(error) => reader.push(uri_error("exports", value, &error)),
        }
    }
    exports
}

fn volume_size(reader: &mut Reader, value: &Value<'_>) -> Option<u64> {
    let bytes = reader.size("size", value)?;
    if !bytes.is_multiple_of(512) {
        let message = format!("`size`: a volume has a multiple of 512 bytes, and {bytes} is not");
        reader.push(Diagnostic::error(MessageId::ConfigValue, value.span(), message));
        return None;
    }
    Some(bytes)
}

fn rule_tables(reader: &mut Reader, section: &str, value: &Value<'_>) -> Vec<RuleTable> {
    const TAKES: &str = "tables, each beginning with [[volume.NAME.rule]]";
    let DeValue::Array(list) = value.get_ref() else {
        reader.wrong_type("rule", value, TAKES);
        return Vec::new();
    };
    if let Some(value) = list.get(RULES_MAX) {
        let message = format!("{section} has {} rules, and at most {RULES_MAX} are possible", list.len());
        reader.push(
            Diagnostic::error(MessageId::RuleTooMany, value.span(), message)
                .help("combine rules into one: names may have * and ?"),
        );
        return Vec::new();
    }
    let mut rules = Vec::new();
    for value in list.iter() {
        match value.get_ref() {
            DeValue::Table(table) => rules.push(rule(reader, section, table, value.span())),
            _ => reader.wrong_type("rule", value, TAKES),
        }
    }
    rules
}

/// Reads keys and values; the rules check their meaning.
fn rule(reader: &mut Reader, section: &str, table: &Table<'_>, span: Span) -> RuleTable {
    reader.require(&format!("a rule of {section}"), table, keys::RULE, &span);
    let mut entries = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        if !keys::RULE.iter().any(|key| key.name == name) {
            let known = keys::names(keys::RULE).join(", ");
            reader.unknown("a rule", name, key.span(), near_key(name, keys::RULE), &known);
            continue;
        }
        let read = match raw(value.get_ref()) {
            Raw::Text(text) => RuleValue::Text(text.to_owned()),
            Raw::Integer(number) => RuleValue::Integer(number),
            other => {
                let message = format!("`{name}` takes a text or a number from 0 on, not {}", other.what());
                reader.push(Diagnostic::error(MessageId::ConfigType, value.span(), message));
                continue;
            }
        };
        entries.push(RuleEntry {
            key: name.to_owned(),
            value: read,
            key_span: key.span(),
            value_span: value.span(),
        });
    }
    // The parser sorts by name; users expect the order of the file.
    entries.sort_by_key(|entry| entry.key_span.start);
    RuleTable { entries, span }
}
