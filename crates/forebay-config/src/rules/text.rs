//! Rules in text form and as JSON.
//!
//! Both forms read back as the same rule. In JSON (and any other format of serde) a rule is one
//! object with the keys of [`KEYS`](super::KEYS); numbers may be numbers or text, and `null` means
//! not given.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::parse::{Draft, known_key};
use super::quote::quote;
use super::rule::{Action, Rule};

/// A value of a key: a number for numeric keys, else text.
enum Value {
    Number(u32),
    Text(String),
}

impl Rule {
    /// Returns the keys besides the action, in the order of `KEYS`.
    fn pairs(&self) -> impl Iterator<Item = (&'static str, Value)> {
        fn text<T: ToString>(value: Option<&T>) -> Option<Value> {
            value.map(|value| Value::Text(value.to_string()))
        }
        let number = |value: Option<u32>| value.map(Value::Number);
        let conditions = &self.conditions;
        [
            ("pid", number(conditions.pid.map(u32::from))),
            ("tgid", number(conditions.tgid.map(u32::from))),
            ("uid", number(conditions.uid)),
            ("exe", text(conditions.exe.as_ref())),
            ("cgroup", text(conditions.cgroup.as_ref())),
            ("export", text(conditions.export.as_ref())),
            ("lba", text(conditions.lba.as_ref())),
            ("size", text(conditions.size.as_ref())),
            ("direction", text(conditions.direction.as_ref())),
            ("expires", self.expires.map(|expires| Value::Text(duration_text(expires)))),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    }
}

/// Formats a duration as one word, `1h30m`.
fn duration_text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

impl fmt::Display for Rule {
    /// Formats the action, then `key=value` words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if let Some(name) = &self.name {
            write!(f, " name={name}")?;
        }
        self.pairs().try_for_each(|(key, value)| match value {
            Value::Number(number) => write!(f, " {key}={number}"),
            Value::Text(text) => write!(f, " {key}={}", quote(&text)),
        })
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        map.serialize_entry("action", &self.action)?;
        for (key, value) in self.pairs() {
            match value {
                Value::Number(number) => map.serialize_entry(key, &number)?,
                Value::Text(text) => map.serialize_entry(key, &text)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RuleVisitor)
    }
}

struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = Rule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule: an object such as {\"action\": \"bypass\", \"exe\": \"rsync\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rule, A::Error> {
        let mut draft = Draft::default();
        while let Some(key) = map.next_key::<String>()? {
            let value: Scalar = map
                .next_value()
                .map_err(|error| de::Error::custom(format!("{}: {error}", super::error::clip(&key))))?;
            let taken = match value.0 {
                Some(text) => draft.set(&key, &text),
                None => known_key(&key).map(drop),
            };
            taken.map_err(de::Error::custom)?;
        }
        draft.finish().map_err(de::Error::custom)
    }
}

/// A text or a number, as text; nothing if it is null.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a whole number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar(Some(text.to_owned())))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar(Some(number.to_string())))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar(Some(number.to_string())))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_is_read_and_written() {
        let json = r#"{"name":"a","action":"bypass","uid":0,"lba":"0..1GiB","expires":"1m"}"#;
        let rule: Rule = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), json);
        assert_eq!(rule.to_string(), "bypass name=a uid=0 lba=0..1GiB expires=1m");
        let same = r#"{"uid":"0","expires":"60s","lba":"..1024M","action":"bypass","name":"a","exe":null}"#;
        assert_eq!(serde_json::from_str::<Rule>(same).unwrap(), rule);
    }

    #[test]
    fn broken_json_names_the_key() {
        for (json, part) in [
            (r#"{"action":"pin","exec":"x"}"#, "did you mean exe?"),
            (r#"{"action":"pin","uid":-1}"#, "uid=\"-1\""),
            (
                r#"{"action":"pin","uid":[1]}"#,
                "uid: invalid type: sequence, expected a text or a whole number",
            ),
            (r#"{"action":"pin","uid":1.5}"#, "uid: invalid type"),
            (r#"{"action":"pin","uid":1,"uid":2}"#, "uid is given twice"),
            (r#"{"action":"pin","exec":null}"#, "did you mean exe?"),
            (r#"{"uid":1}"#, "no action"),
            (r#"["pin"]"#, "expected a rule"),
        ] {
            let message = serde_json::from_str::<Rule>(json).unwrap_err().to_string();
            assert!(message.contains(part), "{json}: {message}");
        }
    }

    #[test]
    fn values_with_spaces_are_quoted() {
        let rule = Rule::from_words(["pin", "exe=/opt/my \"app\"/x"]).unwrap();
        assert_eq!(rule.to_string(), r#"pin exe="/opt/my ""app""/x""#);
        assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    proptest! {
        #[test]
        fn both_forms_read_back(rule in arbitrary::rule()) {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule.clone()));
            let json = serde_json::to_string(&rule).unwrap();
            prop_assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
        }

        #[test]
        fn any_text_is_a_rule_or_an_error(
            text in "\\PC*|(bypass|[a-z]{3,9}=[0-9a-zA-Z.=/*\\[\"]{0,9})( (pin|[a-z]{3,9}=[0-9a-zA-Z./*\\[\"]{0,9})){0,4}"
        ) {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }
    }
}
