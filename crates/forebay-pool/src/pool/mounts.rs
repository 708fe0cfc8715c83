//! Volumes as files: the FUSE mounts of a pool.
//!
//! A thread makes each mount, with a time limit: the path may lie on a file system whose server
//! does not answer, which would block the pool. The memory for the mount is reserved first.

use super::Pool;
use super::lost_exports::ExportLoss;
use super::volumes::NotExported;
use crate::direction::direction;
use crate::fuse_server::{BUFFER_BYTES_DEFAULT, Backend, FuseMemory, FuseOptions, FuseServer};
use crate::may_wait::MayWait;
use crate::mounting::{Made, reserve, ring_bytes};
use crate::recorder::Front;
use crate::token::FrontendOp;
use forebay_admin::{FileInfo, MessageId};
use forebay_config::mount_memory::MOUNTS_MAX;
use forebay_config::rules::ClientCache;
use forebay_core::{Nanos, Request, RequestError, RequestId, Treatment};
use forebay_export::fuse::{Caller, VolumeTree};
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use forebay_io::IoFailure;
use forebay_io::fuse::{FuseMount, MountTable, Standing};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Advice for a path that does not answer.
const LOOK_THERE: &str =
    "check whether the server of the file system there runs (findmnt, ls), end it, or choose another path";
/// Time limit for making a mount.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A volume mounted as a file.
pub(super) struct Mounted {
    volume: VolumeId,
    export: ExportUri,
    server: FuseServer<VolumeTree>,
    /// Identifies it among all mounts of this pool, past ones too.
    number: u64,
    /// `None` once it is being unmounted.
    mount: Option<FuseMount>,
    /// Another program has unmounted it. Its open files are still served.
    is_gone: bool,
    clients: ClientCache,
}

impl Mounted {
    /// Returns the state of its path in the mount table, unless it is being unmounted or known to
    /// be gone.
    pub(super) fn look(&mut self, table: &MountTable) -> Option<(VolumeId, ExportUri, Standing)> {
        let mount = self.mount.as_ref().filter(|_| !self.is_gone)?;
        let ExportUri::Fuse { path } = &self.export else { return None };
        let standing = table.standing_of(mount, path);
        self.is_gone = standing == Standing::Gone;
        Some((self.volume, self.export.clone(), standing))
    }
}

/// A mount being made.
pub(super) struct Mounting {
    volume: VolumeId,
    path: PathBuf,
    memory: FuseMemory,
    due: Instant,
    /// Set first by the thread, once it has made the mount, or by the pool, when it gives up.
    decided: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The engine, as a mount sees it.
struct MountBackend<'a> {
    front: Front<'a>,
    now: Nanos,
    clients: &'a mut ClientCache,
    at: Instant,
}

impl Backend for MountBackend<'_> {
    fn submit(&mut self, request: Request<'_>) {
        self.front.submit(self.now, request);
    }

    fn treatment(&mut self, caller: Caller, what: &forebay_export::request::ClientRequest) -> Treatment {
        let Some(direction) = direction(what.operation) else { return Treatment::Cache };
        let (offset, len) = (what.offset_bytes, what.length_bytes);
        self.clients.decide((caller.pid, caller.uid), direction, offset, len, self.at).0.into()
    }

    fn store(&mut self, _id: RequestId, _node: u64, _text: Vec<u8>) {
        unreachable!("a volume's tree has no control files");
    }

    fn interrupted(&mut self, _id: RequestId) {
        // Requests of a volume end soon enough on their own.
    }
}

impl Pool {
    /// Begins to mount a volume as the file `path`; [`Pool::exported`] gets the result.
    pub(super) fn begin_mount(&mut self, volume: VolumeId, path: &Path) -> Result<(), NotExported> {
        let there = self.mounts.iter().flatten().count() + self.mounting.len();
        if there + self.blocks.iter().flatten().count() >= usize::from(MOUNTS_MAX) {
            return Err(format!("a pool has at most {MOUNTS_MAX} block devices and FUSE files").into());
        }
        self.hung.retain(|(_, thread)| !thread.is_finished());
        if self.hung.iter().any(|(hung, _)| hung == path) {
            let path = path.display();
            return Err(format!(
                "the last attempt to mount at {path} still waits for that path: {LOOK_THERE}"
            )
            .into());
        }
        let memory = reserve(self.reactor.pool_mut(), there, self.buffer_bytes)?;
        let decided = Arc::new(AtomicBool::new(false));
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let (first, at) = (Arc::clone(&decided), path.to_owned());
        let before = self.unmounting.extract_if(.., |(target, _)| path.starts_with(target));
        let before: Vec<_> = before.map(|(_, until)| until).collect();
        let work = move |may_wait: &MayWait| {
            // An earlier mount at this path may not be gone yet.
            for until in &before {
                let _ = until.recv_timeout(TIMEOUT);
            }
            let made = Made::at(may_wait, &at);
            if first.swap(true, Ordering::AcqRel) {
                return; // The pool has given up: the mount is dropped here.
            }
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.mount_made(volume, &at, made)));
            waker.wake();
        };
        match MayWait::spawn(format!("mount-{}", self.name), work) {
            Ok(thread) => {
                let (path, due) = (path.to_owned(), Instant::now() + TIMEOUT);
                self.mounting.push(Mounting { volume, path, memory, due, decided, thread });
                Ok(())
            }
            Err(error) => {
                memory.give_back(self.reactor.pool_mut());
                Err(NotExported::NoThread(error))
            }
        }
    }

    /// A thread has made a mount, or has failed to.
    fn mount_made(&mut self, volume: VolumeId, path: &Path, made: Result<Made, String>) {
        let waits = |mounting: &Mounting| mounting.volume == volume && mounting.path == path;
        let Some(at) = self.mounting.iter().position(waits) else {
            return crate::time_limit::let_go(made); // The volume is gone.
        };
        let memory = self.mounting.swap_remove(at).memory;
        let result = match made {
            Ok(made) => self.serve_mount(volume, path, made, memory),
            Err(why) => {
                memory.give_back(self.reactor.pool_mut());
                Err(why)
            }
        };
        self.exported(volume, &ExportUri::Fuse { path: path.to_owned() }, result);
    }

    fn serve_mount(
        &mut self,
        volume: VolumeId,
        path: &Path,
        made: Made,
        memory: FuseMemory,
    ) -> Result<String, String> {
        let index = self.mounts.iter().position(Option::is_none).unwrap_or(self.mounts.len());
        let options = FuseOptions {
            volume,
            slot: index as u16,
            buffer_bytes: BUFFER_BYTES_DEFAULT.min(self.buffer_bytes / 8),
        };
        let Some(rules) = self.served(volume).map(|served| Arc::clone(&served.spec.rules)) else {
            memory.give_back(self.reactor.pool_mut());
            crate::time_limit::let_go(made); // unmounting may block
            return Err("the volume is gone".into());
        };
        let size_bytes = self.engine.volume_size_bytes(volume).unwrap_or(0);
        let others = self.mounts.iter().flatten().count() + self.mounting.len();
        let ring_bytes = ring_bytes(self.reactor.pool(), others, self.buffer_bytes);
        let (server, mount) = made.serve(&mut self.reactor, size_bytes, options, memory, ring_bytes)?;
        let export = ExportUri::Fuse { path: path.to_owned() };
        let text = export.to_string();
        let clients = ClientCache::new(rules, text.as_str());
        if index == self.mounts.len() {
            self.mounts.push(None);
        }
        self.mounted += 1;
        let (number, mount) = (self.mounted, Some(mount));
        self.mounts[index] = Some(Mounted { volume, export, server, number, mount, is_gone: false, clients });
        self.mount_look.renew();
        Ok(text)
    }

    /// Gives up mounts that have taken too long; returns how long the loop may sleep until the next
    /// deadline.
    pub(super) fn look_after_mounts(&mut self) -> Option<Duration> {
        let now = Instant::now();
        while let Some(at) = self.mounting.iter().position(|mounting| mounting.due <= now) {
            let Some((volume, path)) = self.give_up_mount(at) else { continue };
            let why = format!(
                "mounting at {} did not complete within {} s: {LOOK_THERE}",
                path.display(),
                TIMEOUT.as_secs()
            );
            self.exported(volume, &ExportUri::Fuse { path }, Err(why));
        }
        let due = self.mounting.iter().map(|mounting| mounting.due).min();
        due.map(|due| due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// Gives up a mount. Returns `None` if the thread has just made it: its task then passes it to
    /// the export, or drops it if there is none.
    fn give_up_mount(&mut self, at: usize) -> Option<(VolumeId, PathBuf)> {
        if self.mounting[at].decided.swap(true, Ordering::AcqRel) {
            self.mounting[at].due = Instant::now() + TIMEOUT;
            return None;
        }
        let Mounting { volume, path, memory, thread, .. } = self.mounting.swap_remove(at);
        memory.give_back(self.reactor.pool_mut());
        self.hung.push((path.clone(), thread));
        Some((volume, path))
    }

    /// Lets every mount take and answer requests; returns true if the engine got a request.
    pub(super) fn turn_mounts(&mut self) -> bool {
        if self.mounts.is_empty() {
            return false;
        }
        let (now, at) = (self.io.now(), Instant::now());
        let mut started = false;
        for mounted in self.mounts.iter_mut().flatten() {
            let Mounted { server, clients, .. } = mounted;
            let front = Front { engine: &mut self.engine, recorder: &mut self.recorder };
            let mut backend = MountBackend { front, now, clients, at };
            started |= server.turn(&mut backend, &mut self.reactor);
        }
        started
    }

    /// An operation of a mount has completed.
    pub(super) fn mount_completed(&mut self, op: FrontendOp, result: Result<u32, IoFailure>) {
        if let Some(Some(mounted)) = self.mounts.get_mut(usize::from(op.slot)) {
            mounted.server.completed(&mut self.reactor, op, result);
        }
    }

    pub(super) fn mount_replied(
        &mut self,
        op: FrontendOp,
        request: RequestId,
        result: Result<(), RequestError>,
    ) {
        if let Some(Some(mounted)) = self.mounts.get_mut(usize::from(op.slot)) {
            mounted.server.replied(&mut self.reactor, request, result);
        }
    }

    /// Unmounts the files of a volume (of all volumes if `None`). Open handles return errors from
    /// then on.
    pub(super) fn unmount(&mut self, volume: Option<VolumeId>) {
        for at in (0..self.mounting.len()).rev() {
            if volume.is_none_or(|volume| volume == self.mounting[at].volume)
                && self.give_up_mount(at).is_none()
            {
                // Its task finds no entry, and drops the mount.
                self.mounting.swap_remove(at).memory.give_back(self.reactor.pool_mut());
            }
        }
        for index in 0..self.mounts.len() {
            let Some(mounted) = &mut self.mounts[index] else { continue };
            if volume.is_some_and(|volume| volume != mounted.volume) {
                continue;
            }
            let number = mounted.number;
            let Some(mount) = mounted.mount.take() else { continue };
            let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
            let (gone, until) = mpsc::channel::<()>();
            self.unmounting.retain(|(_, until)| until.try_recv() == Err(mpsc::TryRecvError::Empty));
            self.unmounting.push((mount.target().to_owned(), until));
            self.chore(move |_| {
                let _gone = gone; // dropped when this ends
                let ended = mount.unmount().map_err(|error| error.to_string());
                let _ = tasks.send(Box::new(move |pool: &mut Self| pool.unmounted(number, ended))); // it may have ended
                waker.wake();
            });
        }
    }

    /// A thread has unmounted a mount, or has failed to.
    fn unmounted(&mut self, number: u64, ended: Result<(), String>) {
        if let Err(why) = ended {
            self.emit(super::PoolEvent::Note(MessageId::ExportNote, format!("cannot unmount: {why}")));
        }
        let mut mounts = self.mounts.iter_mut().flatten();
        if let Some(mounted) = mounts.find(|mounted| mounted.number == number) {
            mounted.server.close(&mut self.reactor);
        }
    }

    /// Returns the open files of a volume, with the number of handles.
    pub(super) fn open_files(&self, volume: VolumeId) -> Vec<(std::path::PathBuf, u64)> {
        let mounts = self.mounts.iter().flatten().filter(|mounted| mounted.volume == volume);
        let open = mounts.filter(|mounted| mounted.server.ended().is_none()).filter_map(|mounted| {
            let ExportUri::Fuse { path } = &mounted.export else { return None };
            Some((path.clone(), mounted.server.open_files()))
        });
        open.filter(|(_, open)| *open > 0).collect()
    }

    /// Describes how requests of a volume's files reach the pool.
    pub(super) fn files_of(&self, volume: VolumeId) -> Vec<FileInfo> {
        let mounts = self.mounts.iter().flatten();
        let mounts = mounts.filter(|mounted| mounted.volume == volume && mounted.server.ended().is_none());
        let info = |mounted: &Mounted| {
            let way = mounted.server.way();
            FileInfo { export: mounted.export.to_string(), over: way.name().into(), detail: way.to_string() }
        };
        mounts.map(info).collect()
    }

    /// The volume was resized.
    pub(super) fn resize_mounts(&mut self, volume: VolumeId, size_bytes: u64) {
        for mounted in self.mounts.iter_mut().flatten().filter(|mounted| mounted.volume == volume) {
            mounted.server.tree().set_size_bytes(size_bytes);
        }
    }

    /// Forgets mounts that have ended: unmounted, by the pool or by another program, with every
    /// request answered.
    pub(super) fn forget_mounts(&mut self) {
        let mut lost = Vec::new();
        for slot in &mut self.mounts {
            if let Some(mounted) = slot.take_if(|mounted| mounted.server.is_over()) {
                mounted.server.end(&mut self.reactor);
                if let Some(mount) = mounted.mount {
                    lost.extend((!mounted.is_gone).then_some((mounted.volume, mounted.export)));
                    crate::time_limit::let_go(mount);
                }
            }
        }
        for (volume, export) in lost {
            self.export_lost(volume, &export, ExportLoss::Gone);
        }
    }

    /// Every request of every mount is answered.
    pub(super) fn mounts_are_quiet(&self) -> bool {
        self.mounts.iter().flatten().all(|mounted| mounted.server.is_quiet())
    }
}
