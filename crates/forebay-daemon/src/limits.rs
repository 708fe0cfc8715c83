//! Limits of the process: descriptors, and locked memory.

use forebay_admin::MessageId;
use forebay_config::choices::LockMemory;
use forebay_pool::RunError;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes all descriptors that it may have (the soft limit is small for the sake of programs that
/// use `select`).
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If that is not allowed, what there is must do: who is one too many is told.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Keeps memory from being swapped out, if that is asked for: what is used now, and what will be.
///
/// # Errors
/// The limit is too small: an allocation beyond it would fail in the middle of everything, so there
/// must be none.
pub(crate) fn lock_memory(wanted: LockMemory) -> Result<(), RunError> {
    if wanted == LockMemory::No {
        return Ok(());
    }
    const HINT: &str = "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`; or lock_memory = \"no\"";
    let limit = getrlimit(Resource::Memlock);
    // The limit holds for whoever lacks CAP_IPC_LOCK; root has it, and usually no limit either.
    if let Some(bytes) = limit.maximum.filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(RunError::failed(
            MessageId::DaemonMemoryLock,
            format!("lock_memory = \"yes\", but this process may lock {bytes} bytes only (RLIMIT_MEMLOCK)"),
            HINT,
        ));
    }
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum });
    // Only what is touched: pages that are reserved and not used cost nothing.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(|error| {
        RunError::failed(MessageId::DaemonMemoryLock, format!("cannot lock memory: {error}"), HINT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_descriptors_are_taken() {
        raise_descriptors();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert!(lock_memory(LockMemory::No).is_ok());
    }
}
