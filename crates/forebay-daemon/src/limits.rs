//! Limits of the process: file descriptors and locked memory.

use forebay_admin::MessageId;
use forebay_config::choices::LockMemory;
use forebay_pool::RunError;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of file descriptors to the hard limit (the soft limit is small for programs
/// that use `select`).
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If that fails, the present limit must suffice: connections beyond it are refused.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Locks present and future memory if configured, so that it is not swapped out.
///
/// # Errors
/// The limit is too small: an allocation beyond it would fail at any time, so there must be none.
pub(crate) fn lock_memory(wanted: LockMemory) -> Result<(), RunError> {
    if wanted == LockMemory::No {
        return Ok(());
    }
    const HINT: &str = "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`; or lock_memory = \"no\"";
    let limit = getrlimit(Resource::Memlock);
    // The limit applies without CAP_IPC_LOCK; root has it, and usually no limit either.
    if let Some(bytes) = limit.maximum.filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(RunError::failed(
            MessageId::DaemonMemoryLock,
            format!("lock_memory = \"yes\", but this process may lock only {bytes} bytes (RLIMIT_MEMLOCK)"),
            HINT,
        ));
    }
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum });
    // Only touched pages: reserved, unused pages cost nothing.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(|error| {
        RunError::failed(MessageId::DaemonMemoryLock, format!("cannot lock memory: {error}"), HINT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_is_raised() {
        raise_descriptors();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert!(lock_memory(LockMemory::No).is_ok());
    }
}
