//! The threads of the control file system: each takes one request at a time, calls the daemon, and
//! replies.
//!
//! Invariants
//! - The session is locked only briefly, never during a call of [`forebay_admin::Admin`].
//! - Every request is answered, also after an error or a panic: a process that waits for a missing
//!   answer cannot be killed.
//! - A request is in the table of [`PendingRequests`] from its receipt to its answer, so that an
//!   interrupt finds it.

use super::content::Content;
use super::pending_requests::{InterruptOutcome, NoWait, PendingRequests, Wait};
use super::write::Written;
use forebay_admin::{ErrorKind, JobInfo};
use forebay_export::fuse::prepared::{self, PreparedSession};
use forebay_export::fuse::request::Header;
use forebay_export::fuse::wire::{self, WRITE_HEAD_BYTES};
use forebay_export::fuse::{Answer, Errno, FuseStep, Limits, UserLimits, reply};
use forebay_io::fuse::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that take requests: this many calls to the daemon may be slow at once without delaying a
/// `cat`.
pub(super) const THREADS: usize = 8;

/// A write longer than the longest accepted text must arrive as one request, so that it is refused
/// as a whole.
pub(super) const LIMITS: Limits = Limits {
    payload_bytes_max: 128 << 10,
    background_max: 64,
    handles_max: 1 << 14,
    user: UserLimits {
        handles_max: 256,
        bytes_max: 16 << 20,
        all_handles_max: 1 << 13,
        all_bytes_max: 64 << 20,
    },
    text_bytes_max: 64 << 10,
    ring_payload_bytes_max: 0,
};

/// Duration of one poll of all jobs with waiters, if none of them ends.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause after an error of the kernel, such as lack of memory.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// State shared by the threads.
pub(super) struct Server {
    pub(super) connection: Connection,
    pub(super) session: Mutex<PreparedSession>,
    pub(super) content: Content,
    pub(super) pending: PendingRequests,
}

impl Server {
    /// Takes requests until the mount is gone or [`Server::stop`] is called.
    pub(super) fn take_requests(&self) {
        let mut buffer = vec![0; WRITE_HEAD_BYTES + LIMITS.payload_bytes_max as usize];
        let mut out = Vec::new();
        loop {
            match self.connection.receive(&mut buffer) {
                Ok(Some(bytes)) => self.take(&buffer[..bytes], &mut out),
                Ok(None) => return,
                Err(_) => self.pending.pause(RETRY_AFTER),
            }
        }
    }

    /// Takes one request. A panic in a handler costs an error, not the thread.
    fn take(&self, request: &[u8], out: &mut Vec<u8>) {
        // The kernel sends whole requests; one without a header cannot be answered.
        let Ok(header) = Header::decode(request, request.len()) else { return };
        use wire::opcode::{BATCH_FORGET, FORGET, INTERRUPT};
        let is_work = !matches!(header.opcode, FORGET | BATCH_FORGET | INTERRUPT);
        if is_work {
            self.pending.begin(header.unique);
        }
        out.clear();
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&header, request, out)));
        if served.is_err() && is_work {
            out.clear();
            reply::failed(out, header.unique, Errno::Io);
        }
        self.send(header.unique, out);
        if is_work {
            self.pending.end(header.unique);
        }
    }

    /// Serves one request; the caller sends the bytes left in `out`.
    fn serve(&self, header: &Header, request: &[u8], out: &mut Vec<u8>) {
        let need = prepared::need(&mut self.session(), request, request.len());
        let found = match self.content.look(need) {
            Ok(found) => found,
            Err(errno) => return reply::failed(out, header.unique, errno),
        };
        let mut session = self.session();
        let step = prepared::step(&mut session, found, request, request.len(), out);
        let path = match step {
            Ok(FuseStep::Store { node, .. }) => session.tree().path(node).map(str::to_owned),
            _ => None,
        };
        drop(session);
        match step {
            Ok(FuseStep::Answered | FuseStep::Silent | FuseStep::Destroyed) | Err(_) => {}
            Ok(FuseStep::Volume(request)) => request.answer.failed(out, Errno::Io), // a tree of texts has no volume
            Ok(FuseStep::Interrupt { request, unique }) => self.interrupt(request, unique, out),
            Ok(FuseStep::Store { length_bytes, answer, .. }) => {
                let text = request.get(WRITE_HEAD_BYTES..WRITE_HEAD_BYTES + length_bytes as usize);
                match path.zip(text) {
                    Some((path, text)) => self.store(path, text, answer, out),
                    None => answer.failed(out, Errno::NotFound),
                }
            }
        }
    }

    fn store(&self, path: String, text: &[u8], answer: Answer, out: &mut Vec<u8>) {
        let written = self.content.write(&path, text, self.pending.may_wait());
        let waits = match written {
            Ok(Written::Done { .. }) => return answer.ok(out),
            Err(errno) => return answer.failed(out, errno),
            Ok(Written::Job(job)) => self.pending.wait(Wait { job, path, answer }),
        };
        match waits {
            Ok(()) => {}
            Err(NoWait::Interrupted) => answer.failed(out, Errno::Interrupted),
            Err(NoWait::Stopping) => answer.failed(out, Errno::Shutdown),
        }
    }

    fn interrupt(&self, request: u64, unique: u64, out: &mut Vec<u8>) {
        match self.pending.interrupt(request) {
            InterruptOutcome::Waiting(wait) => wait.answer.failed(out, Errno::Interrupted),
            InterruptOutcome::Working => {}
            // Another thread may have read it and not noted it yet: the kernel repeats the
            // interrupt, unless the request has been answered.
            InterruptOutcome::Nothing => reply::failed(out, unique, Errno::TryAgain),
        }
    }

    /// Answers writers whose jobs have ended, until [`Server::stop`].
    pub(super) fn look_after_waiting(&self) {
        while let Some(jobs) = self.pending.jobs() {
            let slice = LOOK_EVERY / u32::try_from(jobs.len().max(1)).unwrap_or(u32::MAX);
            let begun = Instant::now();
            let mut ended = false;
            for job in &jobs {
                let looked = catch_unwind(AssertUnwindSafe(|| self.look_at_job(job, slice)));
                ended |= looked.unwrap_or_else(|_| {
                    self.answer_waiting(
                        job,
                        Err((Errno::Io, "the daemon failed while it checked the job".into())),
                    );
                    true
                });
            }
            if !ended {
                self.pending.pause(LOOK_EVERY.saturating_sub(begun.elapsed()));
            }
        }
    }

    /// Answers the waiters of a job if it ends within `timeout`; returns true if it did.
    fn look_at_job(&self, job: &str, timeout: Duration) -> bool {
        let outcome = match self.content.admin.wait_for_job(job, timeout) {
            Ok(info) => match outcome(&info) {
                Some(outcome) => outcome,
                None => return false,
            },
            // A daemon that is too busy does not know the state of the job.
            Err(error) if error.kind == ErrorKind::Unavailable => return false,
            Err(error) => Err((Errno::Io, super::write::reason(&error))),
        };
        self.answer_waiting(job, outcome);
        true
    }

    fn answer_waiting(&self, job: &str, outcome: Result<(), (Errno, String)>) {
        for Wait { path, answer, .. } in self.pending.take(job) {
            let mut out = Vec::new();
            match &outcome {
                Ok(()) => {
                    self.content.refusals.forget(&path);
                    answer.ok(&mut out);
                }
                Err((errno, reason)) => {
                    self.content.refusals.note(&path, reason);
                    answer.failed(&mut out, *errno);
                }
            }
            self.send(answer.unique, &out);
        }
    }

    /// Ends everything: waiting writers get an error (their jobs continue), and the threads return.
    pub(super) fn stop(&self) {
        for wait in self.pending.stop() {
            let mut out = Vec::new();
            wait.answer.failed(&mut out, Errno::Shutdown);
            self.send(wait.answer.unique, &out);
        }
        self.connection.stop();
    }

    /// Sends an answer, if there is one. If the kernel does not accept it, sends a shorter one.
    fn send(&self, unique: u64, answer: &[u8]) {
        if !answer.is_empty() && self.connection.reply(answer).is_err() {
            let mut failure = Vec::new();
            reply::failed(&mut failure, unique, Errno::Io);
            let _ = self.connection.reply(&failure); // no further recourse
        }
    }

    fn session(&self) -> MutexGuard<'_, PreparedSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the result of an ended job for its waiters; `None` while it runs.
fn outcome(job: &JobInfo) -> Option<Result<(), (Errno, String)>> {
    match job.state.as_str() {
        "completed" => Some(Ok(())),
        "failed" => {
            let why = job.error.as_deref().unwrap_or("unknown reason");
            Some(Err((Errno::Io, format!("job {} failed: {why}", job.id))))
        }
        "cancelled" => Some(Err((Errno::Cancelled, format!("job {} was cancelled", job.id)))),
        _ => None,
    }
}
