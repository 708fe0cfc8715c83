//! Errors that several operations return.

use forebay_admin::{AdminError, ErrorKind, MessageId};
use std::path::Path;
use std::time::Duration;

/// Returns the error for a request that can never succeed as it is.
pub(super) fn invalid(id: MessageId, what: impl ToString, hint: impl ToString) -> AdminError {
    AdminError::new(id, what, hint).of_kind(ErrorKind::Invalid)
}

/// Returns the error for a request that the present state does not permit.
pub(super) fn conflict(id: MessageId, what: impl ToString, hint: impl ToString) -> AdminError {
    AdminError::new(id, what, hint).of_kind(ErrorKind::Conflict)
}

/// Returns the error for a pool that ended before it answered.
pub(super) fn stopped() -> AdminError {
    AdminError::new(MessageId::PoolStopped, "the pool stopped meanwhile", "")
}

/// Returns the error for a configured volume that is not attached.
pub(super) fn not_attached(name: &str) -> AdminError {
    AdminError::new(
        MessageId::VolumeNotAttached,
        format!("volume {name} is not attached"),
        format!("see the log for the reason; to try again: forebay volume attach {name}"),
    )
}

/// Returns the error for a cache device that does not answer.
pub(super) fn no_answer(path: &Path, within: Duration) -> AdminError {
    AdminError::new(
        MessageId::CacheNotAnswering,
        format!(
            "{} does not answer: no reply within {} s, or an earlier attempt still waits",
            path.display(),
            within.as_secs()
        ),
        "check that it works, or that its server runs; then try again",
    )
}

/// Returns the error for a change that was made, but could not be written into the configuration.
pub(super) fn not_in_file(so: &str, error: AdminError) -> AdminError {
    let what = format!("{so}, but the configuration file has the old state: {}", error.what);
    AdminError { what, ..error }
}
