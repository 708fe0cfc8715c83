//! What front ends report to the pool.

use forebay_admin::{AdminError, MessageId};
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Reason why an export is not made.
#[derive(Debug, Error)]
pub(crate) enum NotExported {
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    NoThread(io::Error),
    /// Everything else.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for NotExported {
    fn from(what: String) -> Self {
        Self::Refused(what)
    }
}

impl From<&str> for NotExported {
    fn from(what: &str) -> Self {
        Self::Refused(what.into())
    }
}

impl NotExported {
    /// Returns the error for the caller. It is a conflict, so no caller retries on its own.
    pub(crate) fn error(&self, volume: &str) -> AdminError {
        let what = format!("cannot export {volume}: {self}");
        match self {
            Self::NoThread(error) => AdminError { what, ..AdminError::no_thread(error) },
            Self::Refused(_) => AdminError::new(MessageId::ExportFailed, what, ""),
        }
    }
}

/// How an export was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExportLoss {
    /// It no longer exists: unmounted, or removed.
    Gone,
    /// A mount on this path hides it.
    Covered(PathBuf),
}

/// A result of a front end for the pool.
pub(crate) enum FrontendEvent {
    /// An export is made (its address for clients), or has failed.
    Exported(VolumeId, ExportUri, Result<String, NotExported>),
    /// Another program has removed or hidden an export.
    Lost(VolumeId, ExportUri, ExportLoss),
    /// A hidden export is visible again.
    Back(VolumeId, ExportUri),
    /// A message for the operator.
    Note(String),
    /// The reason why a client was refused or disconnected; reports of these are limited in rate.
    Refused(String),
}
