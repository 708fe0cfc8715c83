//! Rules and identities of attached volumes.

use super::lock;
use forebay_config::rules::RuleSet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct AttachedVolumes {
    /// Rules of attached volumes.
    rules: Mutex<BTreeMap<String, Arc<RuleSet>>>,
    /// Identities in the former cache of volumes that are about to be attached to a new one. Their
    /// block devices (`ublk:`), which are found by these identities, may still be in use.
    identities: Mutex<BTreeMap<String, [u8; 16]>>,
}

impl AttachedVolumes {
    /// Returns the rules of an attached volume.
    pub(super) fn rules(&self, volume: &str) -> Option<Arc<RuleSet>> {
        lock(&self.rules).get(volume).cloned()
    }

    /// Returns the rules of all attached volumes.
    pub(super) fn all_rules(&self) -> Vec<(String, Arc<RuleSet>)> {
        lock(&self.rules).iter().map(|(name, rules)| (name.clone(), Arc::clone(rules))).collect()
    }

    /// Notes a volume that was just attached.
    pub(super) fn insert(&self, volume: &str, rules: Arc<RuleSet>) {
        lock(&self.rules).insert(volume.into(), rules);
        lock(&self.identities).remove(volume);
    }

    /// Forgets a volume that was detached.
    pub(super) fn remove(&self, volume: &str) {
        lock(&self.rules).remove(volume);
        lock(&self.identities).remove(volume);
    }

    /// Returns the identity that a volume had in the former cache of its pool.
    pub(super) fn former_identity(&self, volume: &str) -> Option<[u8; 16]> {
        lock(&self.identities).get(volume).copied()
    }

    /// Keeps the identities of volumes that will be attached to a new cache.
    pub(super) fn keep_identities(&self, identities: impl IntoIterator<Item = (String, [u8; 16])>) {
        lock(&self.identities).extend(identities);
    }
}
