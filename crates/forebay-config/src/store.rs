//! The configuration file: reads it and writes live changes into it.
//!
//! Order of a change
//! 1. Read the current text. Another program may have changed it since it was loaded; it must be
//!    valid as it is.
//! 2. Apply the edits and check the result as a whole. If it is invalid, nothing is changed.
//! 3. Write a new file in the same folder, with the same owner and permissions, and make it durable
//!    (fsync).
//! 4. Read the old file again; if another program has changed it meanwhile, start again.
//! 5. Rename the new file over the old one, and make the folder durable.
//!
//! So a crash at any instant leaves the old file or the new one. An editor that saves at the same
//! time loses its text only between 4 and 5; no file system can close that gap. Extended attributes
//! are not kept.

use super::diagnostic::Report;
use super::edit::{Edit, EditError};
use super::file::{Checked, RuleCheck, parse_with};
use forebay_admin::MessageId;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use thiserror::Error;
use toml_edit::DocumentMut;

/// Attempts at a change while other programs write the file.
const ATTEMPTS: u32 = 5;

/// Why the file could not be read or changed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {doing} {path}: {error}{unchanged}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: String,
        /// The system's error.
        error: io::Error,
        /// States that the file is unchanged, if so.
        unchanged: &'static str,
    },
    /// The file is too large or not UTF-8.
    #[error("{path} is not a configuration file: {problem}")]
    NotText {
        /// The file.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The file is invalid, before the change.
    #[error("{report}")]
    Wrong {
        /// Its errors.
        report: Box<Report>,
    },
    /// Another program changed the file, which is invalid now, so that no change can be written.
    #[error(
        "the file was changed since it was loaded and is wrong now: nothing was written; correct it first\n\n{report}"
    )]
    WrongMeanwhile {
        /// Its errors.
        report: Box<Report>,
    },
    /// The change does not fit the file.
    #[error("nothing was written: {0}")]
    Edit(#[from] EditError),
    /// The change would make the file invalid.
    #[error("nothing was written: the change would make the configuration wrong\n\n{report}")]
    Refused {
        /// Its errors after the change.
        report: Box<Report>,
    },
    /// Other programs keep changing the file.
    #[error(
        "{path} was changed by another program {ATTEMPTS} times while it was written: nothing was written; try again"
    )]
    Busy {
        /// The file.
        path: String,
    },
}

impl StoreError {
    /// Returns the id of the message, for scripts.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Io { .. } => MessageId::ConfigUnreadable,
            Self::NotText { .. } => MessageId::ConfigSyntax,
            Self::Wrong { report } => report.id().unwrap_or(MessageId::ConfigWrong),
            Self::WrongMeanwhile { .. } => MessageId::ConfigWrongMeanwhile,
            Self::Edit(_) => MessageId::ConfigEdit,
            Self::Refused { report } => report.id().unwrap_or(MessageId::ConfigChangeRefused),
            Self::Busy { .. } => MessageId::ConfigBusy,
        }
    }
}

/// Result of a change.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The current configuration of the file, including changes by others.
    pub checked: Checked,
    /// The file was changed elsewhere since it was loaded: compare as for a reload.
    pub changed_elsewhere: bool,
}

/// forebay.toml on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Path as the user gave it. Each use follows links: a change does not replace a link by a
    /// file, but writes to the link's current target.
    shown: PathBuf,
    /// The text last loaded or written.
    text: String,
}

impl ConfigFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub fn load(path: &Path, rules: &RuleCheck<'_>) -> Result<(Self, Checked), StoreError> {
        let text = read(path)?;
        let checked = parse_with(path, &text, rules)
            .map_err(|report| StoreError::Wrong { report: Box::new(report) })?;
        Ok((Self { shown: path.to_owned(), text }, checked))
    }

    /// Reads and checks the file again. If it is invalid, the loaded text stays.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub fn reload(&mut self, rules: &RuleCheck<'_>) -> Result<Checked, StoreError> {
        let (file, checked) = Self::load(&self.shown, rules)?;
        *self = file;
        Ok(checked)
    }

    /// Returns the text last loaded or written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the configuration last loaded or written.
    ///
    /// None: an invalid text is neither loaded nor written.
    pub fn last(&self, rules: &RuleCheck<'_>) -> Result<Checked, StoreError> {
        let wrong = |report| StoreError::Wrong { report: Box::new(report) };
        parse_with(&self.shown, &self.text, rules).map_err(wrong)
    }

    /// Returns the current configuration of the file, including changes by others. The loaded text
    /// stays.
    ///
    /// The file cannot be read, or is invalid now.
    pub fn newest(&self, rules: &RuleCheck<'_>) -> Result<Checked, StoreError> {
        let text = read(&self.shown)?;
        parse_with(&self.shown, &text, rules)
            .map_err(|report| StoreError::WrongMeanwhile { report: Box::new(report) })
    }

    /// Checks whether these changes can be written; writes nothing.
    ///
    /// The file or the result would be invalid.
    pub fn would_take(&self, edits: &[Edit], rules: &RuleCheck<'_>) -> Result<(), StoreError> {
        let newest = read(&self.shown)?;
        self.edited(&newest, newest != self.text, edits, rules).map(drop)
    }

    /// Writes changes into the file: all of them or none.
    ///
    /// If the file or the result would be invalid, or a write fails. Nothing is changed then,
    /// unless the message states that the change is not durable.
    pub fn edit(&mut self, edits: &[Edit], rules: &RuleCheck<'_>) -> Result<Edited, StoreError> {
        for _ in 0..ATTEMPTS {
            let newest = read(&self.shown)?;
            let changed_elsewhere = newest != self.text;
            let (text, checked) = self.edited(&newest, changed_elsewhere, edits, rules)?;
            if text == newest || self.replace(&newest, &text)? {
                self.text = text;
                return Ok(Edited { checked, changed_elsewhere });
            }
        }
        Err(StoreError::Busy { path: self.shown.display().to_string() })
    }

    /// Returns the text with the changes, and the checked configuration.
    fn edited(
        &self,
        newest: &str,
        changed_elsewhere: bool,
        edits: &[Edit],
        rules: &RuleCheck<'_>,
    ) -> Result<(String, Checked), StoreError> {
        let wrong = |report: Report| {
            let report = Box::new(report);
            if changed_elsewhere {
                StoreError::WrongMeanwhile { report }
            } else {
                StoreError::Wrong { report }
            }
        };
        parse_with(&self.shown, newest, rules).map_err(wrong)?;
        let problem = |error: toml_edit::TomlError| StoreError::NotText {
            path: self.shown.display().to_string(),
            problem: error.message().to_owned(),
        };
        let mut document: DocumentMut = newest.parse().map_err(problem)?;
        for edit in edits {
            edit.apply(&mut document)?;
        }
        let text = document.to_string();
        let checked = parse_with(&self.shown, &text, rules)
            .map_err(|report| StoreError::Refused { report: Box::new(report) })?;
        Ok((text, checked))
    }

    /// Writes a new file next to the old one and renames it over it. Returns false if the old one
    /// is no longer `newest`.
    fn replace(&self, newest: &str, text: &str) -> Result<bool, StoreError> {
        let real =
            self.shown.canonicalize().map_err(|error| io_error("find", &self.shown, error, UNCHANGED))?;
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        let beside = real.with_file_name(format!(".{name}.{}.new", std::process::id()));
        let folder = real.parent().unwrap_or(Path::new("/"));
        // Opened before any change: the rename needs this descriptor to become durable.
        let names = File::open(folder).map_err(|error| io_error("open", folder, error, UNCHANGED))?;
        let written = self.write_beside(&real, &beside, text).and_then(|()| {
            let unchanged = read(&real)? == newest;
            if unchanged {
                std::fs::rename(&beside, &real)
                    .map_err(|error| io_error("rename to", &self.shown, error, UNCHANGED))?;
            }
            Ok(unchanged)
        });
        if !matches!(written, Ok(true)) {
            // The temporary file is of no use; if this fails too, it is left behind without harm.
            let _ = std::fs::remove_file(&beside);
        }
        if written? {
            names.sync_all().map_err(|error| io_error("make durable", folder, error, NOT_DURABLE))?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes a durable new file with the permissions and owner of the old one.
    fn write_beside(&self, real: &Path, beside: &Path, text: &str) -> Result<(), StoreError> {
        let failed = |doing| move |error| io_error(doing, beside, error, UNCHANGED);
        let old =
            std::fs::metadata(real).map_err(|error| io_error("look at", &self.shown, error, UNCHANGED))?;
        // A killed daemon with this process id may have left one behind.
        let _ = std::fs::remove_file(beside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(beside)
            .map_err(failed("create"))?;
        let new = file.metadata().map_err(failed("look at"))?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid())).map_err(failed("give its owner to"))?;
        }
        // After the owner, since a change of owner clears some permissions.
        let permissions = std::fs::Permissions::from_mode(old.permissions().mode() & 0o7777);
        file.set_permissions(permissions).map_err(failed("set the permissions of"))?;
        file.write_all(text.as_bytes()).map_err(failed("write"))?;
        file.sync_all().map_err(failed("make durable"))
    }
}

const UNCHANGED: &str = "; the configuration is as it was";
const NOT_DURABLE: &str = "; the change is in the file, but may be gone after a loss of power";

fn io_error(doing: &'static str, path: &Path, error: io::Error, unchanged: &'static str) -> StoreError {
    StoreError::Io { doing, path: path.display().to_string(), error, unchanged }
}

/// Reads a file as text, within limits.
fn read(path: &Path) -> Result<String, StoreError> {
    let problem = |problem: String| StoreError::NotText { path: path.display().to_string(), problem };
    let failed = |error| io_error("read", path, error, "");
    let mut bytes = Vec::new();
    let limit = super::file::BYTES_MAX;
    // Opening a FIFO would block until a writer appears, and block all other changes.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(problem("it is not a regular file".into()));
    }
    let file = File::open(path).map_err(failed)?;
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > limit {
        return Err(problem(format!("it has more than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        problem(format!("it is not UTF-8 at byte {at}"))
    })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
