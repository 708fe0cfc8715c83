//! Volumes as files: the FUSE mounts of a pool.
//!
//! A thread makes each mount, with a time limit: the path may lie on a file system whose server
//! does not answer, which would block the pool. The memory for the mount is reserved first.

use super::mount_table::MountLook;
use super::{DeviceDisposition, ExportLoss, Frontend, FrontendCx, FrontendEvent, NotExported, Users};
use crate::fuse_server::{BUFFER_BYTES_DEFAULT, FuseMemory, FuseOptions, FuseServer};
use crate::may_wait::MayWait;
use crate::mounting::{Made, reserve, ring_bytes};
use crate::recorder::TracedEngine;
use crate::token::FrontendOp;
use forebay_admin::FileInfo;
use forebay_config::mount_memory::MOUNTS_MAX;
use forebay_config::rules::ClientCache;
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use forebay_io::fuse::{FuseMount, MountTable, Standing};
use forebay_io::{IoFailure, Reactor};
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

/// The mounts of a pool.
#[derive(Default)]
pub(super) struct FuseFrontend {
    /// By slot.
    mounts: Vec<Option<Mounted>>,
    /// Mounts made so far.
    made: u64,
    mounting: Vec<Mounting>,
    /// Paths of mounts being unmounted.
    unmounting: Vec<(PathBuf, mpsc::Receiver<()>)>,
    /// Threads that appear to hang on the path of a mount.
    hung: Vec<(PathBuf, JoinHandle<()>)>,
    table: MountLook,
}

/// A volume mounted as a file.
struct Mounted {
    volume: VolumeId,
    export: ExportUri,
    server: FuseServer,
    /// Identifies it among all mounts of this pool, past ones too.
    number: u64,
    /// `None` once it is being unmounted.
    mount: Option<FuseMount>,
    /// Another program has unmounted it. Its open files are still served.
    is_gone: bool,
}

impl Mounted {
    /// Returns the state of its path in the mount table, unless it is being unmounted or known to
    /// be gone.
    fn look(&mut self, table: &MountTable) -> Option<FrontendEvent> {
        let mount = self.mount.as_ref().filter(|_| !self.is_gone)?;
        let ExportUri::Fuse { path } = &self.export else { return None };
        let standing = table.standing_of(mount, path);
        self.is_gone = standing == Standing::Gone;
        let uri = self.export.clone();
        Some(match standing {
            Standing::There => FrontendEvent::Back(self.volume, uri),
            Standing::Covered(by) => FrontendEvent::Lost(self.volume, uri, ExportLoss::Covered(by)),
            Standing::Gone => FrontendEvent::Lost(self.volume, uri, ExportLoss::Gone),
        })
    }
}

/// A mount being made.
struct Mounting {
    volume: VolumeId,
    path: PathBuf,
    memory: FuseMemory,
    due: Instant,
    /// Set first by the thread, once it has made the mount, or by the pool, when it gives up.
    decided: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl FuseFrontend {
    /// Number of mounts, and of those being made.
    pub(super) fn mounts(&self) -> usize {
        self.mounts.iter().flatten().count() + self.mounting.len()
    }

    /// Begins to mount a volume as the file `path`; an event has the result. The pool has
    /// `devices` block devices, which count for the same limit.
    pub(super) fn begin(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        path: &Path,
        devices: usize,
    ) -> Result<(), NotExported> {
        let there = self.mounts();
        if there + devices >= usize::from(MOUNTS_MAX) {
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
        let memory = reserve(cx.reactor.pool_mut(), there, cx.buffer_bytes)?;
        let decided = Arc::new(AtomicBool::new(false));
        let (tasks, first, at) = (cx.tasks(), Arc::clone(&decided), path.to_owned());
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
            tasks.send(move |frontends, cx| frontends.fuse.mount_made(cx, volume, at, made));
        };
        match MayWait::spawn(format!("mount-{}", cx.pool_name), work) {
            Ok(thread) => {
                let (path, due) = (path.to_owned(), Instant::now() + TIMEOUT);
                self.mounting.push(Mounting { volume, path, memory, due, decided, thread });
                Ok(())
            }
            Err(error) => {
                memory.give_back(cx.reactor.pool_mut());
                Err(NotExported::NoThread(error))
            }
        }
    }

    /// A thread has made a mount, or has failed to.
    fn mount_made(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        path: PathBuf,
        made: Result<Made, String>,
    ) {
        let waits = |mounting: &Mounting| mounting.volume == volume && mounting.path == path;
        let Some(at) = self.mounting.iter().position(waits) else {
            return crate::time_limit::drop_in_background(made); // The volume is gone.
        };
        let memory = self.mounting.swap_remove(at).memory;
        let export = ExportUri::Fuse { path };
        let result = match made {
            Ok(made) => self.serve(cx, volume, export.clone(), made, memory),
            Err(why) => {
                memory.give_back(cx.reactor.pool_mut());
                Err(why)
            }
        };
        cx.exported(volume, export, result);
    }

    fn serve(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        export: ExportUri,
        made: Made,
        memory: FuseMemory,
    ) -> Result<String, String> {
        let index = self.mounts.iter().position(Option::is_none).unwrap_or(self.mounts.len());
        let options = FuseOptions {
            volume,
            slot: index as u16,
            buffer_bytes: BUFFER_BYTES_DEFAULT.min(cx.buffer_bytes / 8),
        };
        let Some(rules) = cx.served(volume).map(|served| Arc::clone(served.rules)) else {
            memory.give_back(cx.reactor.pool_mut());
            crate::time_limit::drop_in_background(made); // unmounting may block
            return Err("the volume is gone".into());
        };
        let ring_bytes = ring_bytes(cx.reactor.pool(), self.mounts(), cx.buffer_bytes);
        let size_bytes = cx.size_bytes(volume);
        let text = export.to_string();
        let clients = ClientCache::new(rules, text.as_str());
        let (server, mount) = made.serve(cx.reactor, size_bytes, options, memory, ring_bytes, clients)?;
        if index == self.mounts.len() {
            self.mounts.push(None);
        }
        self.made += 1;
        let (number, mount) = (self.made, Some(mount));
        self.mounts[index] = Some(Mounted { volume, export, server, number, mount, is_gone: false });
        self.table.renew();
        Ok(text)
    }

    /// Gives up mounts that have taken too long; returns how long the loop may sleep until the next
    /// deadline.
    fn give_up_late(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration> {
        let now = Instant::now();
        while let Some(at) = self.mounting.iter().position(|mounting| mounting.due <= now) {
            let Some((volume, path)) = self.give_up(cx, at) else { continue };
            let why = format!(
                "mounting at {} did not complete within {} s: {LOOK_THERE}",
                path.display(),
                TIMEOUT.as_secs()
            );
            cx.exported(volume, ExportUri::Fuse { path }, Err(why));
        }
        let due = self.mounting.iter().map(|mounting| mounting.due).min();
        due.map(|due| due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// Gives up a mount. Returns `None` if the thread has just made it: its task then passes it to
    /// the export, or drops it if there is none.
    fn give_up(&mut self, cx: &mut FrontendCx<'_>, at: usize) -> Option<(VolumeId, PathBuf)> {
        if self.mounting[at].decided.swap(true, Ordering::AcqRel) {
            self.mounting[at].due = Instant::now() + TIMEOUT;
            return None;
        }
        let Mounting { volume, path, memory, thread, .. } = self.mounting.swap_remove(at);
        memory.give_back(cx.reactor.pool_mut());
        self.hung.push((path.clone(), thread));
        Some((volume, path))
    }

    /// Compares the mounts with the mount table when that is due; returns how long the loop may
    /// sleep until the next check.
    fn look_at_table(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration> {
        self.mounts.iter().flatten().next()?;
        let (table, left) = self.table.look();
        if let Some(table) = table {
            let mounts = self.mounts.iter_mut().flatten();
            cx.events.extend(mounts.filter_map(|mounted| mounted.look(&table)));
        }
        left
    }

    /// A thread has unmounted a mount, or has failed to.
    fn unmounted(&mut self, cx: &mut FrontendCx<'_>, number: u64, ended: Result<(), String>) {
        if let Err(why) = ended {
            cx.events.push(FrontendEvent::Note(format!("cannot unmount: {why}")));
        }
        let mut mounts = self.mounts.iter_mut().flatten();
        if let Some(mounted) = mounts.find(|mounted| mounted.number == number) {
            mounted.server.close(cx.reactor);
        }
    }

    /// The mounts of a volume that are served.
    fn served(&self, volume: VolumeId) -> impl Iterator<Item = &Mounted> {
        let mounts = self.mounts.iter().flatten();
        mounts.filter(move |mounted| mounted.volume == volume && mounted.server.ended().is_none())
    }

    /// Describes how requests of a volume's files reach the pool.
    pub(super) fn files_of(&self, volume: VolumeId) -> Vec<FileInfo> {
        let info = |mounted: &Mounted| {
            let way = mounted.server.way();
            FileInfo { export: mounted.export.to_string(), over: way.name().into(), detail: way.to_string() }
        };
        self.served(volume).map(info).collect()
    }
}

impl Frontend for FuseFrontend {
    fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        if self.mounts.is_empty() {
            return false;
        }
        let at = Instant::now();
        let mut started = false;
        for mounted in self.mounts.iter_mut().flatten() {
            started |= mounted.server.turn(engine, reactor, now, at);
        }
        started
    }

    fn on_completion(&mut self, reactor: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        if let Some(Some(mounted)) = self.mounts.get_mut(usize::from(op.slot)) {
            mounted.server.completed(reactor, op, result);
        }
    }

    fn on_reply(&mut self, reactor: &mut Reactor, request: RequestId, result: Result<(), RequestError>) {
        let slot = FrontendOp::of_request(request).slot;
        if let Some(Some(mounted)) = self.mounts.get_mut(usize::from(slot)) {
            mounted.server.replied(reactor, request, result);
        }
    }

    fn send_replies(&mut self, _: &mut Reactor) {
        // Each reply is sent at once.
    }

    fn timers(&mut self, _: &mut Reactor) -> Option<Duration> {
        None
    }

    fn tend(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration> {
        self.give_up_late(cx).into_iter().chain(self.look_at_table(cx)).min()
    }

    /// Forgets mounts that have ended: unmounted, by the pool or by another program, with every
    /// request answered.
    fn reap(&mut self, cx: &mut FrontendCx<'_>) {
        for slot in &mut self.mounts {
            if let Some(mounted) = slot.take_if(|mounted| mounted.server.is_over()) {
                mounted.server.end(cx.reactor);
                if let Some(mount) = mounted.mount {
                    if !mounted.is_gone {
                        let (volume, export) = (mounted.volume, mounted.export);
                        cx.events.push(FrontendEvent::Lost(volume, export, ExportLoss::Gone));
                    }
                    crate::time_limit::drop_in_background(mount);
                }
            }
        }
    }

    fn resize(&mut self, _: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        for mounted in self.mounts.iter_mut().flatten().filter(|mounted| mounted.volume == volume) {
            mounted.server.set_size_bytes(size_bytes);
        }
    }

    /// Unmounts the files. Open handles return errors from then on.
    fn close(&mut self, cx: &mut FrontendCx<'_>, volume: Option<VolumeId>, _: &mut DeviceDisposition) {
        for at in (0..self.mounting.len()).rev() {
            if volume.is_none_or(|volume| volume == self.mounting[at].volume)
                && self.give_up(cx, at).is_none()
            {
                // Its task finds no entry, and drops the mount.
                self.mounting.swap_remove(at).memory.give_back(cx.reactor.pool_mut());
            }
        }
        for mounted in self.mounts.iter_mut().flatten() {
            if volume.is_some_and(|volume| volume != mounted.volume) {
                continue;
            }
            let number = mounted.number;
            let Some(mount) = mounted.mount.take() else { continue };
            let (gone, until) = mpsc::channel::<()>();
            self.unmounting.retain(|(_, until)| until.try_recv() == Err(mpsc::TryRecvError::Empty));
            self.unmounting.push((mount.target().to_owned(), until));
            let tasks = cx.tasks();
            cx.background.start(move |_| {
                let _gone = gone; // dropped when this ends
                let ended = mount.unmount().map_err(|error| error.to_string());
                tasks.send(move |frontends, cx| frontends.fuse.unmounted(cx, number, ended));
            });
        }
    }

    fn is_idle(&self) -> bool {
        self.mounts.iter().flatten().all(|mounted| mounted.server.is_quiet())
    }

    fn add_users(&self, _: &Reactor, volume: VolumeId, users: &mut Users) {
        let open = self.served(volume).filter_map(|mounted| {
            let ExportUri::Fuse { path } = &mounted.export else { return None };
            Some((path.clone(), mounted.server.open_files()))
        });
        users.files.extend(open.filter(|(_, open)| *open > 0));
    }

    fn user_count(&self, volume: VolumeId) -> u64 {
        self.served(volume).map(|mounted| mounted.server.open_files()).sum()
    }
}
