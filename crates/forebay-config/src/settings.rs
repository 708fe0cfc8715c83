//! Tunables of a volume or pool that were set, as opposed to defaulted.

use super::tunables::{self, Scope, Tunable};
use super::value::{Value, ValueError};
use forebay_admin::MessageId;
use std::collections::BTreeMap;

/// Checked values by the name of their tunable, without defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    scope: Scope,
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Creates settings without values.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self { scope, values: BTreeMap::new() }
    }

    /// Returns whether these are of a volume or of a pool.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Sets a tunable, given by its name, to a value as text. Returns the tunable.
    ///
    /// If there is no such tunable, or it does not accept the value; nothing is changed.
    pub fn set(&mut self, name: &str, text: &str) -> Result<&'static Tunable, ValueError> {
        let tunable = self.named(name)?;
        let value = tunable.kind.parse(text)?;
        self.values.insert(tunable.name, value);
        Ok(tunable)
    }

    /// Removes the set value of a tunable, given by its name: the default applies
    /// again. Returns the tunable.
    ///
    /// # Errors
    /// If there is no such tunable.
    pub fn unset(&mut self, name: &str) -> Result<&'static Tunable, ValueError> {
        let tunable = self.named(name)?;
        self.values.remove(tunable.name);
        Ok(tunable)
    }

    fn named(&self, name: &str) -> Result<&'static Tunable, ValueError> {
        tunables::find(self.scope, name).ok_or_else(|| {
            let hint =
                tunables::hint(self.scope, name, &[]).map_or(String::new(), |hint| format!("; {hint}"));
            ValueError::new(format!("a {} has no setting `{name}`{hint}", self.scope.name()))
                .about(MessageId::SettingUnknown)
        })
    }

    /// Sets a value that the tunable has parsed.
    pub(crate) fn put(&mut self, tunable: &'static Tunable, value: Value) {
        self.values.insert(tunable.name, value);
    }

    /// Returns the set value of a tunable.
    #[must_use]
    pub fn explicit(&self, name: &str) -> Option<Value> {
        tunables::find(self.scope, name).and_then(|tunable| self.values.get(tunable.name).cloned())
    }

    /// Returns the effective value of a tunable: the set one, or the default. Returns nothing if
    /// there is no such tunable.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value> {
        let tunable = tunables::find(self.scope, name)?;
        Some(self.values.get(tunable.name).cloned().unwrap_or_else(|| (tunable.default)()))
    }

    /// Returns every tunable of the scope with its effective value.
    pub fn effective(&self) -> impl Iterator<Item = (&'static Tunable, Value)> + '_ {
        let table = self.scope.tunables().iter();
        table.map(|tunable| {
            let set = self.values.get(tunable.name).cloned();
            (tunable, set.unwrap_or_else(|| (tunable.default)()))
        })
    }

    /// Returns the set values, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        self.values.iter().map(|(name, value)| (*name, value.clone()))
    }
}
