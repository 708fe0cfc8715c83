//! Guards of exports: TLS by `[tls.NAME]`, allow lists by `[access.NAME]`. They decide which
//! clients may use an export, and how clients authenticate.
//!
//! - `names`: names that a certificate gives a client.
//! - `access`: the known facts about a client, and the allow lists in use.
//! - `certificates`: certificates and keys from files.
//! - `tls`: those of a section, as a configuration of rustls.
//! - here: `GuardBook`, all guards by name. Each export keeps one entry; a reload changes the
//!   content of the entry, so that exports need no notice.
//!
//! Invariants
//! - A file that cannot be read leaves the previous content in force: a reload with a broken
//!   certificate does not end TLS, and never goes on without it.
//! - A list that was removed from the configuration, or that is unknown, allows no client.
//! - The lock is not held while a file is read: a file system that does not answer must not delay
//!   the pools, whose threads look entries up.
//! - No key is in the text of an error or in a debug format.

mod access;
pub mod certificates;
mod names;
mod tls;

pub(crate) use access::{AccessEntry, Peer};
pub(crate) use tls::TlsEntry;

use forebay_config::{Config, TlsConfig};
use forebay_export::uri::{ExportUri, Guards};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// All guards by name. The service fills it, and the pools read it.
#[derive(Debug, Default)]
pub struct GuardBook {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    tls: BTreeMap<String, Arc<TlsEntry>>,
    access: BTreeMap<String, Arc<AccessEntry>>,
}

/// Result of an update of the book, as messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Changes.
    pub changed: Vec<String>,
    /// Failures; the previous content stays in force.
    pub refused: Vec<String>,
    /// An allow list has changed: connected clients must be checked again.
    pub access: bool,
}

impl GuardBook {
    /// Reads all files that the exports of this configuration name, and takes all lists.
    ///
    /// It waits for the files, and must not be called on a pool's thread.
    pub fn update(&self, config: &Config) -> Updated {
        let mut updated = Updated::default();
        for (name, wanted) in &config.tls {
            let used = config.exports().any(|guards| guards.tls.as_deref() == Some(name));
            let Some(entry) = self.tls_entry(name, used) else { continue };
            match entry.load(wanted) {
                Ok(true) => updated.changed.push(format!("certificates of tls.{name}")),
                Ok(false) => {}
                Err(problem) => updated.refused.push(format!("tls.{name}: {problem}")),
            }
        }
        let mut entries = self.lock();
        for (name, list) in &config.access {
            let entry = entries.access.entry(name.clone()).or_default();
            if entry.replace(Some(list.clone())) {
                updated.changed.push(format!("access.{name}"));
                updated.access = true;
            }
        }
        for (name, entry) in &entries.access {
            if !config.access.contains_key(name) && entry.replace(None) {
                updated.changed.push(format!("access.{name}: removed, so no client has access"));
                updated.access = true;
            }
        }
        updated
    }

    /// Reads the files of these sections that the exports name and no export has used so far.
    /// `GuardBook::tls` returns their errors. It waits for the files, as `update` does.
    pub fn prepare(&self, sections: &BTreeMap<String, TlsConfig>, exports: &[ExportUri]) {
        for uri in exports {
            let ExportUri::Nbd { guards: Guards { tls: Some(name), .. }, .. } = uri else { continue };
            let Some((wanted, entry)) = sections.get(name).zip(self.tls_entry(name, true)) else { continue };
            if entry.current().is_none() {
                let _ = entry.load(wanted); // the entry keeps the error
            }
        }
    }

    /// The entry of a section; creates a missing one if it is used.
    fn tls_entry(&self, name: &str, used: bool) -> Option<Arc<TlsEntry>> {
        let mut entries = self.lock();
        if used {
            Some(Arc::clone(entries.tls.entry(name.into()).or_default()))
        } else {
            entries.tls.get(name).cloned()
        }
    }

    /// The certificates of a section.
    ///
    /// # Errors
    /// It does not exist, or its files could not be used.
    pub(crate) fn tls(&self, name: &str) -> Result<Arc<TlsEntry>, String> {
        let entry = self.lock().tls.get(name).cloned();
        let entry = entry.ok_or_else(|| format!("there is no [tls.{name}] in the configuration"))?;
        match entry.current() {
            Some(_) => Ok(entry),
            None => Err(format!("[tls.{name}] cannot be used: {}", entry.problem())),
        }
    }

    /// An allow list.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn access(&self, name: &str) -> Result<Arc<AccessEntry>, String> {
        let entry = self.lock().access.get(name).cloned();
        entry.ok_or_else(|| format!("there is no [access.{name}] in the configuration"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
