//! The JSON schema (draft 2020-12) of forebay.toml, for editors that complete and check while the
//! user types. Generated from the registry and the tables of keys, without the checks that only the
//! daemon can make (references, duplicates, sums).

use super::keys::{self, Key, Shape};
use super::model::NAME_BYTES_MAX;
use super::tunables::{Applies, Scope, Tunable};
use super::value::{Choice, Value as Tuned, ValueKind, is_switch};
use serde_json::{Map, Value, json};

/// Patterns of sizes and durations: looser than the parser, strict enough for an editor.
const SIZE: &str = r"^[0-9]+(\.[0-9]+)? ?([KkMmGgTtPp]?[Bb]?|[KkMmGgTtPp][Ii][Bb])$";
const RATE: &str = r"^([0-9]+(\.[0-9]+)? ?([KkMmGgTtPp]?[Bb]?|[KkMmGgTtPp][Ii][Bb])(/s)?|off|unlimited)$";
const DEVICE: &str = r"^(none|hdd-7200|card-[dt](:[1-9][0-9]*)?)$";
const RATING: &str =
    r"^[0-9.]+ ?([KkMmGgTtPp]?[Bb]?|[KkMmGgTtPp][Ii][Bb]|[Dd][Ww][Pp][Dd] ?/ ?[0-9.]+ ?y(ears?)?)$";
const BUDGET: &str = r"^[0-9.]+ ?([KkMmGgTtPp]?[Bb]?|[KkMmGgTtPp][Ii][Bb]|[Dd][Ww][Pp][Dd]|y(ears?)?)$";
const DURATION: &str = r"^0$|^([0-9]+ ?(ns|us|ms|s|sec|m|min|h|d|w|[a-z]+) ?)+$";

/// Returns the schema.
#[must_use]
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "forebay.toml",
        "description": "Configuration of the Forebay daemon (forebay serve)",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "daemon": table(keys::DAEMON, None),
            "tls": named(table(keys::TLS, None)),
            "access": named(table(keys::ACCESS, None)),
            "pool": named(table(keys::POOL, Some(Scope::Pool))),
            "volume": named(table(keys::VOLUME, Some(Scope::Volume))),
        },
    })
}

/// Returns the schema as text, in the form of the file under docs.
#[must_use]
pub fn text() -> String {
    format!("{:#}\n", schema())
}

/// Returns the schema of a table whose keys are names.
fn named(section: Value) -> Value {
    let name = json!({ "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": NAME_BYTES_MAX });
    json!({ "type": "object", "propertyNames": name, "additionalProperties": section })
}

/// Returns the schema of a table with these keys, and the tunables of a scope.
fn table(keys: &[Key], scope: Option<Scope>) -> Value {
    let mut properties = Map::new();
    for key in keys {
        properties.insert(key.name.into(), with_help(shape(key.shape), key.help, &default_of(key)));
    }
    for tunable in scope.map_or(&[][..], Scope::tunables) {
        properties.insert(tunable.name.into(), tuned(tunable));
    }
    let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

/// Returns the default of a key, without the quotes of the file.
fn default_of(key: &Key) -> Option<Value> {
    (!key.default.is_empty()).then(|| key.default.trim_matches('"').into())
}

fn with_help(mut schema: Value, help: &str, default: &Option<Value>) -> Value {
    schema["description"] = help.into();
    if let Some(default) = default {
        schema["default"] = default.clone();
    }
    schema
}

fn tuned(tunable: &Tunable) -> Value {
    let default = match (tunable.default)() {
        Tuned::Count(number) => number.into(),
        other => other.to_string().into(),
    };
    let help = match tunable.applies {
        Applies::Live => tunable.help.to_owned(),
        other => format!("{} (applies {})", tunable.help, other.words()),
    };
    with_help(of_kind(&tunable.kind), &help, &Some(default))
}

fn words(choices: &[Choice]) -> Value {
    let each = |choice: &Choice| json!({ "const": choice.name, "description": choice.help });
    json!({ "oneOf": choices.iter().map(each).collect::<Vec<_>>() })
}

fn of_kind(kind: &ValueKind) -> Value {
    match *kind {
        ValueKind::Choice(choices) if is_switch(choices) => {
            json!({ "anyOf": [words(choices), { "type": "boolean" }] })
        }
        ValueKind::Choice(choices) => words(choices),
        ValueKind::Percent { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::Count { min, max, zero, auto, .. } => {
            let number = json!({ "type": "integer", "minimum": min, "maximum": max });
            let words: Vec<_> = zero.into_iter().chain(auto.then_some("auto")).collect();
            if words.is_empty() {
                return number;
            }
            let words = words.into_iter().map(|word| json!({ "const": word }));
            let ways: Vec<_> = [number].into_iter().chain(words).collect();
            json!({ "anyOf": ways })
        }
        ValueKind::Size { min, max, auto, .. } => {
            let mut ways = vec![
                json!({ "type": "string", "pattern": SIZE }),
                json!({ "type": "integer", "minimum": min, "maximum": max }),
            ];
            if auto {
                ways.push(json!({ "const": "auto" }));
            }
            json!({ "anyOf": ways })
        }
        ValueKind::Key => {
            json!({ "anyOf": [{ "const": "off" }, { "type": "string", "pattern": "^(/|credential:)." }] })
        }
        ValueKind::Device => json!({ "type": "string", "pattern": DEVICE }),
        ValueKind::Endurance { rating } => {
            json!({ "anyOf": [{ "const": "off" }, { "type": "string", "pattern": if rating { RATING } else { BUDGET } }] })
        }
        ValueKind::Rate => {
            json!({ "anyOf": [{ "type": "string", "pattern": RATE }, { "type": "integer", "minimum": 0 }] })
        }
        ValueKind::Duration { off: false, .. } => json!({ "type": "string", "pattern": DURATION }),
        ValueKind::Duration { off: true, .. } => {
            json!({ "anyOf": [{ "const": "off" }, { "type": "string", "pattern": DURATION }] })
        }
    }
}

fn shape(shape: Shape) -> Value {
    match shape {
        Shape::Path => json!({ "type": "string", "pattern": "^/" }),
        Shape::Paths => json!({ "type": "array", "items": { "type": "string", "pattern": "^/" } }),
        Shape::Command => {
            json!({ "type": "array", "prefixItems": [{ "type": "string", "pattern": "^/" }], "items": { "type": "string" }, "minItems": 1 })
        }
        Shape::Group => json!({ "type": ["string", "integer"] }),
        Shape::Name | Shape::Backing => json!({ "type": "string", "minLength": 1 }),
        Shape::Address => json!({ "type": "string", "pattern": ":[0-9]+$" }),
        Shape::LoopbackAddress => {
            json!({ "anyOf": [{ "const": "off" }, { "type": "string", "pattern": "^(127[.][0-9.]+|\\[::1\\]):[0-9]+$" }] })
        }
        Shape::Exports => json!({ "type": "array", "items": { "type": "string", "pattern": "^[a-z+]+:" } }),
        Shape::Devices => {
            let path = json!({ "type": "string", "pattern": "^/" });
            json!({ "type": "array", "minItems": 1, "items": { "anyOf": [path, table(keys::DEVICE, None)] } })
        }
        Shape::Size => {
            json!({ "anyOf": [{ "type": "string", "pattern": SIZE }, { "type": "integer", "minimum": 1 }] })
        }
        Shape::FileMode => {
            json!({ "anyOf": [{ "type": "string", "pattern": "^(0o)?[0-7]{1,4}$" },
                              { "type": "integer", "minimum": 0, "maximum": 0o777 }] })
        }
        Shape::Ids => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": u32::MAX - 1 } })
        }
        Shape::ClientNames => {
            json!({ "type": "array", "items": { "type": "string", "pattern": "^(cn|dns|uri):." } })
        }
        Shape::Addresses => {
            json!({ "type": "array", "items": { "type": "string", "pattern": "^[0-9A-Fa-f.:]+(/[0-9]+)?$" } })
        }
        Shape::Choice(choices) => words(choices),
        Shape::Table(keys) => table(keys, None),
        Shape::Tables(keys) => json!({ "type": "array", "items": table(keys, None) }),
        Shape::Scalar => json!({ "type": ["string", "integer"] }),
    }
}
