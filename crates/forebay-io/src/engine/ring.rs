//! The ring in one of two forms: with entries of 128 bytes, or of 64 if the kernel does not support
//! those.
//!
//! FUSE commands need 24 bytes of payload in an entry, and an entry of 64 bytes has 16. A kernel
//! with such commands (Linux 6.14) supports long entries (5.19); an older one uses the short form.

use std::io;

use io_uring::cqueue::CompletionQueue;
use io_uring::squeue::{self, EntryMarker};
use io_uring::{IoUring, Submitter};

/// An entry that waits for room in the queue.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "memory of its own for each command costs more than the copy")]
pub(super) enum Queued {
    /// Fits into either form.
    Short(squeue::Entry),
    /// For long entries only.
    Long(squeue::Entry128),
}

impl Queued {
    #[cfg(test)]
    pub(super) fn opcode(&self) -> u8 {
        let opcode = match self {
            Self::Short(entry) => entry.get_opcode(),
            Self::Long(entry) => entry.get_opcode(),
        };
        opcode as u8
    }

    pub(super) fn user_data(&self) -> u64 {
        match self {
            Self::Short(entry) => entry.get_user_data(),
            Self::Long(entry) => entry.get_user_data(),
        }
    }
}

/// State of the submission queue.
pub(super) struct QueueState {
    pub(super) is_empty: bool,
    pub(super) is_full: bool,
    pub(super) task_work: bool,
    pub(super) overflow: bool,
}

pub(super) enum Ring {
    Short(IoUring),
    Long(IoUring<squeue::Entry128>),
}

impl Ring {
    /// Builds the best ring that the kernel supports: with cheap completions if possible (then
    /// returns true: the ring flags deferred work), otherwise a plain ring.
    pub(super) fn build(entries: u32, completions: u32) -> io::Result<(Ring, bool)> {
        let completions = completions.max(entries).next_power_of_two();
        let mut long = IoUring::<squeue::Entry128>::builder();
        long.dontfork().setup_clamp().setup_cqsize(completions).setup_r_disabled();
        long.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        match long.build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map(|ring| (Ring::Long(ring), true)),
        }
        let base = || {
            let mut builder = IoUring::<squeue::Entry>::builder();
            builder.dontfork().setup_clamp().setup_cqsize(completions).setup_r_disabled();
            builder
        };
        let mut fair = base();
        fair.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        match fair.build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map(|ring| (Ring::Short(ring), true)),
        }
        base().build(entries).map(|ring| (Ring::Short(ring), false))
    }

    pub(super) fn has_long_entries(&self) -> bool {
        matches!(self, Self::Long(_))
    }

    pub(super) fn params(&self) -> &io_uring::Parameters {
        match self {
            Self::Short(ring) => ring.params(),
            Self::Long(ring) => ring.params(),
        }
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        match self {
            Self::Short(ring) => ring.submitter(),
            Self::Long(ring) => ring.submitter(),
        }
    }

    pub(super) fn completion(&mut self) -> CompletionQueue<'_> {
        match self {
            Self::Short(ring) => ring.completion(),
            Self::Long(ring) => ring.completion(),
        }
    }

    pub(super) fn queue_state(&mut self) -> QueueState {
        fn state<E: EntryMarker>(queue: &squeue::SubmissionQueue<'_, E>) -> QueueState {
            QueueState {
                is_empty: queue.is_empty(),
                is_full: queue.is_full(),
                task_work: queue.taskrun(),
                overflow: queue.cq_overflow(),
            }
        }
        match self {
            Self::Short(ring) => state(&ring.submission()),
            Self::Long(ring) => state(&ring.submission()),
        }
    }

    /// Puts an entry into the queue; false if it is full.
    ///
    /// # Safety
    /// The memory that the entry points to lives until its completion.
    pub(super) unsafe fn push(&mut self, entry: &Queued) -> bool {
        // SAFETY: the caller guarantees it.
        unsafe {
            match (self, entry) {
                (Self::Short(ring), Queued::Short(entry)) => ring.submission().push(entry).is_ok(),
                (Self::Long(ring), Queued::Short(entry)) => {
                    ring.submission().push(&entry.clone().into()).is_ok()
                }
                (Self::Long(ring), Queued::Long(entry)) => ring.submission().push(entry).is_ok(),
                (Self::Short(_), Queued::Long(_)) => unreachable!("refused before it was queued"),
            }
        }
    }
}
