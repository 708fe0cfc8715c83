//! Changes to the text of forebay.toml that keep its comments, order and layout.
//!
//! An [`Edit`] changes only the text; [`super::parse`] checks the result, which [`super::store`]
//! does before any write.

use super::rule_table::{RuleTable, RuleValue};
use super::tunables::{self, Scope, Tunable};
use super::value::{Value, ValueError};
use crate::CacheSpec;
use forebay_admin::MessageId;
use forebay_admin::size::ByteSize;
use forebay_export::uri::{BackingUri, ExportUri};
use thiserror::Error;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, value};

/// One change. Indexes of rules count from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields say what they are: which pool or volume, and what is to hold")]
pub enum Edit {
    /// Sets a tunable, by its name, to a value as text.
    Set { scope: Scope, name: String, key: String, value: String },
    /// Removes a tunable: the default applies again.
    Unset { scope: Scope, name: String, key: String },
    /// Sets a key of `[daemon]`, creating the section if necessary, or removes the key.
    Daemon { key: String, value: Option<String> },
    /// Adds a pool.
    AddPool { name: String, devices: Vec<CacheSpec>, settings: Vec<(String, String)> },
    /// Removes a pool.
    RemovePool { name: String },
    /// Sets the devices of a pool.
    SetDevices { pool: String, devices: Vec<CacheSpec> },
    /// Adds a volume.
    AddVolume {
        name: String,
        pool: String,
        backing: BackingUri,
        exports: Vec<ExportUri>,
        size_bytes: Option<u64>,
        settings: Vec<(String, String)>,
    },
    /// Removes a volume and its rules.
    RemoveVolume { name: String },
    /// Sets the exports of a volume.
    SetExports { volume: String, exports: Vec<ExportUri> },
    /// Sets the backing store of a volume.
    SetBacking { volume: String, backing: BackingUri },
    /// Sets the served size of a volume.
    SetSize { volume: String, size_bytes: Option<u64> },
    /// Adds a rule, before the one at `index`, or at the end.
    AddRule { volume: String, index: Option<usize>, rule: RuleTable },
    /// Removes a rule.
    RemoveRule { volume: String, index: usize },
    /// Replaces all rules.
    ReplaceRules { volume: String, rules: Vec<RuleTable> },
}

/// Why a change failed. The text is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EditError {
    /// The pool or volume is not in the file.
    #[error("the file has no {kind} `{name}`")]
    NotThere {
        /// `pool` or `volume`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The pool or volume is already in the file.
    #[error("the file has a {kind} `{name}` already")]
    ThereAlready {
        /// `pool` or `volume`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is no such tunable, or it does not accept the value.
    #[error("`{key}`: {error}")]
    Value {
        /// Name of the tunable.
        key: String,
        /// The problem.
        error: ValueError,
    },
    /// The index exceeds the number of rules.
    #[error("volume `{volume}` has {count} rules, and none at index {index} (they count from 0)")]
    NoRule {
        /// The volume.
        volume: String,
        /// Number of rules.
        count: usize,
        /// The requested index.
        index: usize,
    },
    /// A device path is not UTF-8, so the file cannot hold it.
    #[error("the path {0} is not UTF-8, and the configuration file is")]
    NotUtf8(String),
    /// The section is written in a form that cannot be edited.
    #[error("`{0}` in the file is not a table: edit the file by hand")]
    Shape(String),
}

impl Edit {
    /// Applies the change.
    ///
    /// If it cannot be applied. The document may be partly changed then; discard it.
    pub fn apply(&self, document: &mut DocumentMut) -> Result<(), EditError> {
        match self {
            Edit::Set { scope, name, key, value } => {
                let (tunable, read) = read(*scope, key, value)?;
                set_tunable(section(document, scope.name(), name)?, tunable, read);
            }
            Edit::Unset { scope, name, key } => {
                let tunable = tunable(*scope, key)?;
                section(document, scope.name(), name)?.remove(tunable.name);
            }
            Edit::Daemon { key, value: Some(text) } => {
                put(daemon_section(document)?, key, text.as_str().into());
            }
            Edit::Daemon { key, value: None } => {
                if document.contains_key("daemon") {
                    daemon_section(document)?.remove(key);
                }
            }
            Edit::AddPool { name, devices, settings } => {
                let table = new_section(document, "pool", name)?;
                table.insert("devices", value(device_list(devices)?));
                set_all(table, Scope::Pool, settings)?;
            }
            Edit::RemovePool { name } => remove_section(document, "pool", name)?,
            Edit::SetDevices { pool, devices } => {
                let list = device_list(devices)?;
                put(section(document, "pool", pool)?, "devices", list.into());
            }
            Edit::AddVolume { .. } => add_volume(document, self)?,
            Edit::RemoveVolume { name } => remove_section(document, "volume", name)?,
            Edit::SetExports { volume, exports } => {
                put(section(document, "volume", volume)?, "exports", export_list(exports).into());
            }
            Edit::SetBacking { volume, backing } => {
                put(section(document, "volume", volume)?, "backing", backing.to_string().into());
            }
            Edit::SetSize { volume, size_bytes: Some(bytes) } => {
                put(section(document, "volume", volume)?, "size", ByteSize(*bytes).to_string().into());
            }
            Edit::SetSize { volume, size_bytes: None } => {
                section(document, "volume", volume)?.remove("size");
            }
            Edit::AddRule { volume, index, rule } => add_rule(document, volume, *index, rule)?,
            Edit::RemoveRule { volume, index } => {
                let rules = rules_of(document, volume)?;
                has_rule(volume, rules, *index)?;
                rules.remove(*index);
                drop_empty_rules(document, volume)?;
            }
            Edit::ReplaceRules { volume, rules } => {
                let list = rules_of(document, volume)?;
                list.clear();
                rules.iter().for_each(|rule| list.push(rule_table(rule)));
                drop_empty_rules(document, volume)?;
            }
        }
        Ok(())
    }
}

fn add_volume(document: &mut DocumentMut, edit: &Edit) -> Result<(), EditError> {
    let Edit::AddVolume { name, pool, backing, exports, size_bytes, settings } = edit else {
        return Ok(());
    };
    let table = new_section(document, "volume", name)?;
    table.insert("pool", value(pool.as_str()));
    table.insert("backing", value(backing.to_string()));
    table.insert("exports", value(export_list(exports)));
    if let Some(bytes) = size_bytes {
        table.insert("size", value(ByteSize(*bytes).to_string()));
    }
    set_all(table, Scope::Volume, settings)
}

fn tunable(scope: Scope, key: &str) -> Result<&'static Tunable, EditError> {
    tunables::find(scope, key).ok_or_else(|| {
        let hint = tunables::hint(scope, key, &[]).map_or(String::new(), |hint| format!("; {hint}"));
        let problem = format!("a {} has no such setting{hint}", scope.name());
        EditError::Value { key: key.into(), error: ValueError::new(problem).about(MessageId::SettingUnknown) }
    })
}

fn read(scope: Scope, key: &str, text: &str) -> Result<(&'static Tunable, Value), EditError> {
    let tunable = tunable(scope, key)?;
    let read = tunable.kind.parse(text);
    read.map(|read| (tunable, read)).map_err(|error| EditError::Value { key: key.into(), error })
}

fn set_all(table: &mut Table, scope: Scope, settings: &[(String, String)]) -> Result<(), EditError> {
    for (key, text) in settings {
        let (tunable, read) = read(scope, key, text)?;
        set_tunable(table, tunable, read);
    }
    Ok(())
}

/// Sets a tunable at its place in the file, under its own name.
fn set_tunable(table: &mut dyn TableLike, tunable: &Tunable, read: Value) {
    let written = match read {
        Value::Count(number) => i64::try_from(number).map_or_else(|_| number.to_string().into(), Into::into),
        other => other.to_string().into(),
    };
    put(table, tunable.name, written);
}

/// Sets a value; an existing one keeps its comment.
fn put(table: &mut dyn TableLike, key: &str, mut new: toml_edit::Value) {
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        _ => {
            table.insert(key, value(new));
        }
    }
}

/// Returns an existing section.
fn section<'a>(
    document: &'a mut DocumentMut,
    kind: &'static str,
    name: &str,
) -> Result<&'a mut dyn TableLike, EditError> {
    let all = document.get_mut(kind).and_then(Item::as_table_like_mut);
    let found = all.and_then(|all| all.get_mut(name));
    match found {
        Some(item) => item.as_table_like_mut().ok_or_else(|| EditError::Shape(format!("{kind}.{name}"))),
        None => Err(EditError::NotThere { kind, name: name.into() }),
    }
}

fn new_section<'a>(
    document: &'a mut DocumentMut,
    kind: &'static str,
    name: &str,
) -> Result<&'a mut Table, EditError> {
    let table = table_at_the_end(document);
    let all = document.entry(kind).or_insert_with(|| {
        let mut all = Table::new();
        all.set_implicit(true);
        Item::Table(all)
    });
    let shape = || EditError::Shape(kind.into());
    let all = all.as_table_mut().ok_or_else(shape)?;
    if all.contains_key(name) {
        return Err(EditError::ThereAlready { kind, name: name.into() });
    }
    all.insert(name, Item::Table(table));
    all.get_mut(name).and_then(Item::as_table_mut).ok_or_else(shape)
}

/// Returns `[daemon]`, created at the end if missing.
fn daemon_section(document: &mut DocumentMut) -> Result<&mut dyn TableLike, EditError> {
    if !document.contains_key("daemon") {
        let table = table_at_the_end(document);
        document.insert("daemon", Item::Table(table));
    }
    let section = document.get_mut("daemon").and_then(Item::as_table_like_mut);
    section.ok_or_else(|| EditError::Shape("daemon".into()))
}

/// Creates an empty table after all others. Text after the last table stays before the new one.
fn table_at_the_end(document: &mut DocumentMut) -> Table {
    let end = document.trailing().as_str().unwrap_or_default().to_owned();
    document.set_trailing("");
    let prefix = if document.is_empty() && end.is_empty() { end } else { end + "\n" };
    let mut table = Table::new();
    table.set_position(Some(AT_THE_END));
    table.decor_mut().set_prefix(prefix);
    table
}

/// Position of a table after all parsed ones.
const AT_THE_END: isize = isize::MAX / 2;

fn remove_section(document: &mut DocumentMut, kind: &'static str, name: &str) -> Result<(), EditError> {
    let all = document.get_mut(kind).and_then(Item::as_table_like_mut);
    let removed = all.and_then(|all| all.remove(name));
    removed.map(|_| ()).ok_or_else(|| EditError::NotThere { kind, name: name.into() })
}

fn device_list(devices: &[CacheSpec]) -> Result<Array, EditError> {
    let mut list = Array::new();
    for device in devices {
        let path = device.path.to_str();
        let path = path.ok_or_else(|| EditError::NotUtf8(device.path.display().to_string()))?;
        match device.size_bytes {
            None => list.push(path),
            Some(bytes) => {
                let mut table = InlineTable::new();
                table.insert("path", path.into());
                table.insert("size", ByteSize(bytes).to_string().into());
                list.push(table);
            }
        }
    }
    Ok(list)
}

fn export_list(exports: &[ExportUri]) -> Array {
    exports.iter().map(ToString::to_string).collect()
}

/// Returns the rules of a volume as tables with headers of their own, converted if they were
/// written in another form.
fn rules_of<'a>(document: &'a mut DocumentMut, volume: &str) -> Result<&'a mut ArrayOfTables, EditError> {
    let shape = || EditError::Shape(format!("volume.{volume}.rule"));
    let table = section(document, "volume", volume)?;
    let item = table.entry("rule").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    if !item.is_array_of_tables() {
        let old = std::mem::take(item);
        *item = Item::ArrayOfTables(old.into_array_of_tables().map_err(|_| shape())?);
    }
    item.as_array_of_tables_mut().ok_or_else(shape)
}

/// Removes an empty list of tables, which cannot be written as headers.
fn drop_empty_rules(document: &mut DocumentMut, volume: &str) -> Result<(), EditError> {
    if rules_of(document, volume)?.is_empty() {
        section(document, "volume", volume)?.remove("rule");
    }
    Ok(())
}

fn has_rule(volume: &str, rules: &ArrayOfTables, index: usize) -> Result<(), EditError> {
    let count = rules.len();
    if index < count { Ok(()) } else { Err(EditError::NoRule { volume: volume.into(), count, index }) }
}

fn add_rule(
    document: &mut DocumentMut,
    volume: &str,
    index: Option<usize>,
    rule: &RuleTable,
) -> Result<(), EditError> {
    let rules = rules_of(document, volume)?;
    let index = index.unwrap_or(rules.len());
    if index < rules.len() {
        has_rule(volume, rules, index)?;
    } else if index > rules.len() {
        return Err(EditError::NoRule { volume: volume.into(), count: rules.len(), index });
    }
    // Tables are printed in the order in which they were parsed, so the later ones are reinserted.
    let mut later = Vec::new();
    while rules.len() > index {
        if let Some(table) = rules.get(index) {
            let mut table = table.clone();
            table.set_position(None);
            later.push(table);
        }
        rules.remove(index);
    }
    rules.push(rule_table(rule));
    later.into_iter().for_each(|table| rules.push(table));
    Ok(())
}

fn rule_table(rule: &RuleTable) -> Table {
    let mut table = Table::new();
    for entry in &rule.entries {
        let written = match &entry.value {
            RuleValue::Text(text) => value(text.as_str()),
            RuleValue::Integer(number) => {
                i64::try_from(*number).map_or_else(|_| value(number.to_string()), value)
            }
        };
        table.insert(&entry.key, written);
    }
    table
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
