//! The configuration file, and the rule for changing it (decisions 0008, 0082).
//!
//! A change is written into the file before it takes effect. If it then fails, the file is edited
//! back. A kill in between leaves the change in the file: the next start, or a repeated command,
//! completes it.
//!
//! `forebay run` has no file: there a change only takes effect.

use forebay_admin::{AdminError, ErrorKind};
use forebay_config::{Checked, Config, ConfigFile, Diagnostic, Edit, EditError, RuleTable, StoreError};
use std::path::Path;

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or is wrong; the error lists every problem.
pub(crate) fn load(path: &Path) -> Result<(ConfigFile, Checked), StoreError> {
    ConfigFile::load(path, &check_rules)
}

/// Checks the rules of the file with the module that defines their meaning.
fn check_rules(volume: &str, tables: &[RuleTable]) -> Vec<Diagnostic> {
    forebay_config::rule_table::check(volume, tables)
}

/// Returns the error for the operator when the configuration file cannot be changed.
fn stored(error: &StoreError) -> AdminError {
    let kind = match error {
        StoreError::Edit(_) | StoreError::Refused { .. } => ErrorKind::Invalid,
        StoreError::WrongMeanwhile { .. } | StoreError::Busy { .. } => ErrorKind::Conflict,
        _ => ErrorKind::Failed,
    };
    AdminError::new(error.id(), error, "").of_kind(kind)
}

/// The configuration file, if there is one.
#[derive(Debug)]
pub(super) struct StoredConfig(Option<ConfigFile>);

impl StoredConfig {
    /// Returns the given file; `None` for `forebay run`.
    pub(super) fn new(file: Option<ConfigFile>) -> Self {
        Self(file)
    }

    /// Returns the file, which the successor of this service uses.
    pub(super) fn take(&mut self) -> Option<ConfigFile> {
        self.0.take()
    }

    /// Returns true if there is a file.
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the text last read or written; empty without a file.
    pub(super) fn text(&self) -> &str {
        self.0.as_ref().map_or("", ConfigFile::text)
    }

    /// Returns the configuration last read or written; `None` without a file.
    ///
    /// # Errors
    /// None: an invalid text is neither read nor written.
    pub(super) fn last(&self) -> Result<Option<Config>, AdminError> {
        self.0.as_ref().map(|file| config_of(file.last(&check_rules))).transpose()
    }

    /// Returns the present configuration of the file, with edits that the daemon has not read;
    /// `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong.
    pub(super) fn newest(&self) -> Result<Option<Config>, AdminError> {
        self.0.as_ref().map(|file| config_of(file.newest(&check_rules))).transpose()
    }

    /// Reads the file again and returns its configuration; `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong.
    pub(super) fn reload(&mut self) -> Result<Option<Config>, AdminError> {
        self.0.as_mut().map(|file| config_of(file.reload(&check_rules))).transpose()
    }

    /// Checks whether edits can be written; writes nothing.
    ///
    /// # Errors
    /// The file or the result would be invalid.
    pub(super) fn check(&self, edits: &[Edit]) -> Result<(), AdminError> {
        let Some(file) = &self.0 else { return Ok(()) };
        file.would_take(edits, &check_rules).map_err(|error| stored(&error))
    }

    /// Makes a change: writes it, then applies it. If that fails, edits the file back by `undo`.
    /// Without edits it is only applied, for a change until the next start.
    ///
    /// # Errors
    /// The edits cannot be written, and nothing was changed; or the error of `apply`, as
    /// [`Self::revert`] returns it.
    pub(super) fn commit<T>(
        &mut self,
        edits: &[Edit],
        undo: &[Edit],
        apply: impl FnOnce() -> Result<T, AdminError>,
    ) -> Result<T, AdminError> {
        self.write(edits)?;
        apply().map_err(|error| self.revert(undo, error))
    }

    /// Edits the file back after a written change failed with this error. Returns the error, which
    /// also reports an edit that failed. A section that the edit would add or remove, and that is
    /// there or gone already, needs none.
    pub(super) fn revert(&mut self, undo: &[Edit], error: AdminError) -> AdminError {
        let already = |error: &StoreError| {
            matches!(error, StoreError::Edit(EditError::NotThere { .. } | EditError::ThereAlready { .. }))
        };
        match self.edit(undo) {
            Err(not) if !already(&not) => AdminError {
                what: format!("{}; the configuration file keeps the failed change: {not}", error.what),
                ..error
            },
            _ => error,
        }
    }

    /// Writes edits whose effect cannot fail, or has come already.
    ///
    /// # Errors
    /// The file cannot be written, or would be invalid: nothing was written.
    pub(super) fn write(&mut self, edits: &[Edit]) -> Result<(), AdminError> {
        self.edit(edits).map_err(|error| stored(&error))
    }

    /// Removes pools and volumes from the file. Entries that are already missing (the operator
    /// edited the file, and requested a reload) are skipped.
    ///
    /// # Errors
    /// As for [`Self::write`]; some of the entries may be removed.
    pub(super) fn remove(&mut self, edits: impl IntoIterator<Item = Edit>) -> Result<(), AdminError> {
        for edit in edits {
            match self.edit(&[edit]) {
                Err(StoreError::Edit(EditError::NotThere { .. })) | Ok(()) => {}
                Err(error) => return Err(stored(&error)),
            }
        }
        Ok(())
    }

    fn edit(&mut self, edits: &[Edit]) -> Result<(), StoreError> {
        match &mut self.0 {
            Some(file) if !edits.is_empty() => file.edit(edits, &check_rules).map(drop),
            _ => Ok(()),
        }
    }
}

fn config_of(read: Result<Checked, StoreError>) -> Result<Config, AdminError> {
    read.map(|checked| checked.config).map_err(|error| stored(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::MessageId;
    use forebay_config::Scope;
    use std::path::PathBuf;

    /// Returns a file with the pool `a`, and its path.
    fn file_in(folder: &Path) -> (StoredConfig, PathBuf) {
        let path = folder.join("forebay.toml");
        std::fs::write(&path, "[pool.a]\ndevices = [\"/flash\"]\n").unwrap();
        (StoredConfig::new(Some(load(&path).unwrap().0)), path)
    }

    fn survivors(value: &str) -> [Edit; 1] {
        let (name, key) = ("a".into(), "survivors_max_pct".into());
        [Edit::Set { scope: Scope::Pool, name, key, value: value.into() }]
    }

    fn failure() -> AdminError {
        AdminError::new(MessageId::PoolStopped, "it failed", "a hint")
    }

    #[test]
    fn a_failed_change_is_edited_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        file.commit(&survivors("20"), &[], || Ok(())).unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        let failed = file.commit(&survivors("30"), &survivors("20"), || {
            assert!(std::fs::read_to_string(&path).unwrap().contains("= 30"), "written first");
            Err::<(), _>(failure())
        });
        assert_eq!(failed.unwrap_err(), failure());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }

    #[test]
    fn a_failed_edit_back_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        let failed = file.commit(&survivors("30"), &survivors("20"), || {
            std::fs::write(&path, "nonsense").unwrap();
            Err::<(), _>(failure())
        });
        let AdminError { what, hint, id, .. } = failed.unwrap_err();
        assert!(what.starts_with("it failed; the configuration file keeps the failed change: "), "{what}");
        assert_eq!((id, hint.as_str()), (MessageId::PoolStopped, "a hint"));
    }

    #[test]
    fn an_entry_that_is_gone_needs_no_edit_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = file_in(folder.path());
        let undo = [Edit::RemovePool { name: "b".into() }];
        assert_eq!(file.revert(&undo, failure()), failure());
    }

    #[test]
    fn a_refused_edit_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        let before = std::fs::read_to_string(&path).unwrap();
        let refused = file
            .commit(&survivors("many"), &survivors("20"), || -> Result<(), _> { panic!("it was applied") });
        assert!(refused.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }
}
