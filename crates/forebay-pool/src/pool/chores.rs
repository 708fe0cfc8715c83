//! Work of a pool that may block. Threads resolve names, make sockets, and remove mounts and socket
//! files, so that the pool does not wait.

use super::Pool;
use super::volumes::{Done, NotExported};
use crate::may_wait::MayWait;
use crate::server::{Socket, ToListen};
use crate::time_limit::spawn_or_return;
use forebay_admin::AdminError;
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_format::VolumeId;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit of a detach for the removal of its leftovers, and the interval of its checks.
const TIMEOUT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// A socket being made, and the exports that wait for it.
pub(super) struct Listening {
    endpoint: Endpoint,
    waiting: Vec<(VolumeId, ExportUri)>,
}

/// Interval of retries if no thread could be started.
const AGAIN: Duration = Duration::from_secs(1);

type Chore = Box<dyn FnOnce(&MayWait) + Send>;

/// Threads that remove leftovers, and the callers that wait for them, with deadlines.
#[derive(Default)]
pub(super) struct Chores {
    threads: Vec<JoinHandle<()>>,
    /// Chores without a thread, and the time of the next attempt.
    kept: Vec<Chore>,
    again_at: Option<Instant>,
    waiting: Vec<(Done, Result<(), AdminError>, Instant)>,
}

impl Chores {
    /// Adds a thread to wait for, which ends on its own.
    pub(super) fn wait_for(&mut self, thread: Option<JoinHandle<()>>) {
        self.threads.extend(thread);
    }
}

impl Pool {
    /// Starts a thread that listens for an export; [`Pool::exported`] gets the result.
    pub(super) fn begin_listen(
        &mut self,
        id: VolumeId,
        uri: &ExportUri,
        wanted: ToListen,
    ) -> Result<(), NotExported> {
        let endpoint = wanted.endpoint.clone();
        if let Some(there) = self.listening.iter_mut().find(|there| there.endpoint == endpoint) {
            there.waiting.push((id, uri.clone()));
            return Ok(());
        }
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move |may_wait: &MayWait| {
            let made = wanted.listen(may_wait);
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.listened(wanted, made))); // it may have ended
            waker.wake();
        };
        let thread = MayWait::spawn(format!("listen-{}", self.name), work);
        thread.map_err(NotExported::NoThread)?;
        self.listening.push(Listening { endpoint, waiting: vec![(id, uri.clone())] });
        Ok(())
    }

    fn listened(&mut self, wanted: ToListen, made: Result<Socket, String>) {
        let Some(at) = self.listening.iter().position(|there| there.endpoint == wanted.endpoint) else {
            return;
        };
        let waiting = self.listening.swap_remove(at).waiting;
        let (mut socket, why) = match made {
            Ok(socket) => (Some(socket), None),
            Err(why) => (None, Some(why)),
        };
        for (id, uri) in waiting {
            let is_wanted = self.served(id).is_some_and(|served| served.exporting.is_some());
            if self.stopping || !is_wanted {
                continue;
            }
            let result = match &why {
                Some(why) => Err(why.clone()),
                None => self.offer(id, &uri, &mut socket),
            };
            self.exported(id, &uri, result);
        }
        if let Some(socket) = socket {
            self.chore(move |may_wait| socket.undo(may_wait, &wanted.endpoint, &wanted.listener_store));
        }
    }

    /// Starts a thread for work that only a detach and the end of the pool wait for.
    pub(super) fn chore(&mut self, work: impl FnOnce(&MayWait) + Send + 'static) {
        self.chores.kept.push(Box::new(work));
        self.begin_chores();
    }

    /// Starts as many kept chores as threads can be started.
    fn begin_chores(&mut self) {
        let name = format!("chore-{}", self.name);
        for chore in std::mem::take(&mut self.chores.kept) {
            match spawn_or_return(&name, chore, |chore| chore(&MayWait::here())) {
                Ok(thread) => self.chores.threads.push(thread),
                Err(chore) => self.chores.kept.extend(chore),
            }
        }
        self.chores.again_at = (!self.chores.kept.is_empty()).then(|| Instant::now() + AGAIN);
    }

    /// Removes the socket files of endpoints that are no longer in use.
    pub(super) fn clear_sockets(&mut self) {
        for (file, path) in self.server.take_files() {
            self.chore(move |_| file.remove(&path));
        }
    }

    /// Answers a detach, or a failed attach, once its leftovers are removed, or that takes too
    /// long.
    pub(super) fn answer_after_chores(&mut self, done: Done, answer: Result<(), AdminError>) {
        self.chores.waiting.push((done, answer, Instant::now() + TIMEOUT));
        self.look_after_chores();
    }

    /// Returns true if no leftovers remain to be removed.
    pub(super) fn chores_are_done(&self) -> bool {
        self.chores.threads.iter().all(JoinHandle::is_finished) && self.chores.kept.is_empty()
    }

    /// Answers callers whose chores are done; returns how long the loop may sleep until the next
    /// check.
    pub(super) fn look_after_chores(&mut self) -> Option<Duration> {
        self.chores.threads.retain(|thread| !thread.is_finished());
        let (idle, now) = (self.chores.threads.is_empty(), Instant::now());
        if self.chores.again_at.is_some_and(|due| due <= now) {
            self.begin_chores();
        }
        self.chores.waiting.retain(|(done, answer, due)| {
            let is_over = idle || *due <= now;
            if is_over {
                let _ = done.try_send(answer.clone());
            }
            !is_over
        });
        let again = self.chores.again_at.map(|due| due.saturating_duration_since(now).max(LOOK));
        (!self.chores.waiting.is_empty()).then_some(LOOK).or(again)
    }
}
