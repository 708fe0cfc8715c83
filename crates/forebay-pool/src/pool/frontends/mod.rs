//! The front ends of a pool: the protocols by which clients reach its volumes.
//!
//! Each protocol implements [`Frontend`], and [`Frontends`] owns one of each. Its methods are the
//! only places that pass something to all of them. On the path of a request they call each front
//! end by its field, so calls are static and can be inlined.
//!
//! Invariants
//! - A front end does not know the pool. It borrows what it needs ([`FrontendCx`]), and returns
//!   results as events ([`FrontendEvent`]), which the pool handles once the call has returned.
//! - The owner of an operation or a request is the one that `crate::token` encodes.
//!
//! Files: `nbd` (listening, offering volumes), `fuse` (volumes as files), `mount_table` (mounts
//! that other programs remove or hide), `ublk` (volumes as block devices), `vhost_user` (volumes as
//! devices of virtual machines), `users` (users of a volume).

mod fuse;
mod mount_table;
mod nbd;
mod ublk;
mod users;
mod vhost_user;

pub(super) use ublk::DeviceDisposition;
pub use ublk::ExclusiveOpens;
pub use users::Users;

use super::background::BackgroundTasks;
use super::handle::PoolTask;
use super::lost_exports::ExportLoss;
use super::volumes::NotExported;
use super::{Pool, PoolEvent, Served};
use crate::guard::GuardBook;
use crate::may_wait::MayWait;
use crate::recorder::TracedEngine;
use crate::server::Server;
use crate::token::{FrontendOp, Protocol};
use crate::ublk_device::UblkDevice;
use forebay_admin::{FileInfo, MessageId};
use forebay_core::{Engine, Nanos, RequestError, RequestId};
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use forebay_io::{IoFailure, Reactor, Waker};
use fuse::FuseFrontend;
use nbd::Listening;
use std::sync::mpsc;
use std::time::Duration;
use ublk::UblkFrontend;
use vhost_user::VhostUserFrontend;

/// A protocol by which clients reach volumes.
trait Frontend {
    /// Passes requests that have arrived to the engine; returns true if there were any.
    fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool;

    /// An operation of the front end has completed.
    fn on_completion(&mut self, reactor: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>);

    /// The engine has answered a request.
    fn on_reply(&mut self, reactor: &mut Reactor, request: RequestId, result: Result<(), RequestError>);

    /// Performs what is due in each turn; returns how long the loop may sleep because of it.
    fn tend(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration>;

    /// Forgets exports and clients that have ended.
    fn reap(&mut self, cx: &mut FrontendCx<'_>);

    /// The volume was resized.
    fn resize(&mut self, cx: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64);

    /// Ends the exports of a volume (of all volumes if `None`, at a stop). Requests in flight are
    /// answered. `devices` is for the owner of block devices.
    fn close(&mut self, cx: &mut FrontendCx<'_>, volume: Option<VolumeId>, devices: &mut DeviceDisposition);

    /// Returns true if every request is answered.
    fn is_idle(&self) -> bool;

    /// Adds the users of a volume, as far as this thread can see them.
    fn add_users(&self, reactor: &Reactor, volume: VolumeId, users: &mut Users);

    /// Counts the users of a volume: connections, and open handles of its files.
    fn user_count(&self, volume: VolumeId) -> u64;
}

/// The state of the pool that a front end borrows.
pub(super) struct FrontendCx<'a> {
    reactor: &'a mut Reactor,
    engine: &'a Engine,
    volumes: &'a [Option<Served>],
    guards: &'a GuardBook,
    background: &'a mut BackgroundTasks,
    tasks: &'a mpsc::Sender<PoolTask>,
    pool_name: &'a str,
    buffer_bytes: usize,
    is_stopping: bool,
    events: Vec<FrontendEvent>,
}

impl FrontendCx<'_> {
    fn served(&self, volume: VolumeId) -> Option<&Served> {
        self.volumes.get(usize::from(volume.0))?.as_ref()
    }

    fn size_bytes(&self, volume: VolumeId) -> u64 {
        self.engine.volume_size_bytes(volume).unwrap_or(0)
    }

    fn tasks(&self) -> FrontendTasks {
        FrontendTasks { tasks: self.tasks.clone(), waker: self.reactor.waker() }
    }

    /// Reports whether an export is made (`Ok` has its address for clients).
    fn exported(&mut self, volume: VolumeId, uri: ExportUri, result: Result<String, impl Into<NotExported>>) {
        self.events.push(FrontendEvent::Exported(volume, uri, result.map_err(Into::into)));
    }

    /// Starts a thread for work that only a detach and the end of the pool wait for; reports an
    /// error of it to the operator.
    fn in_background(&mut self, work: impl FnOnce(&MayWait) -> Result<(), String> + Send + 'static) {
        let tasks = self.tasks();
        self.background.start(move |may_wait| {
            if let Err(why) = work(may_wait) {
                tasks.send(move |_, cx| cx.events.push(FrontendEvent::Note(why)));
            }
        });
    }
}

/// Runs closures of other threads on the thread of the pool, between two turns.
#[derive(Clone)]
struct FrontendTasks {
    tasks: mpsc::Sender<PoolTask>,
    waker: Waker,
}

impl FrontendTasks {
    /// Sends a closure; returns false if the pool has ended.
    fn send(&self, task: impl FnOnce(&mut Frontends, &mut FrontendCx<'_>) + Send + 'static) -> bool {
        let sent = self.tasks.send(Box::new(move |pool: &mut Pool| pool.with_frontends(task)));
        self.waker.wake();
        sent.is_ok()
    }
}

/// A result of a front end for the pool.
enum FrontendEvent {
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

/// The front ends of a pool.
pub(super) struct Frontends {
    /// NBD connections.
    pub(super) nbd: Server,
    listening: Vec<Listening>,
    fuse: FuseFrontend,
    ublk: UblkFrontend,
    vhost_user: VhostUserFrontend,
}

impl Frontends {
    pub(super) fn new(nbd: Server) -> Self {
        Self {
            nbd,
            listening: Vec::new(),
            fuse: FuseFrontend::default(),
            ublk: UblkFrontend::default(),
            vhost_user: VhostUserFrontend::default(),
        }
    }

    /// All front ends, in the order of their work; not for the path of a request.
    fn each(&mut self) -> [&mut dyn Frontend; 4] {
        let Self { nbd, listening: _, fuse, ublk, vhost_user } = self;
        [nbd, fuse, ublk, vhost_user]
    }

    fn each_ref(&self) -> [&dyn Frontend; 4] {
        let Self { nbd, listening: _, fuse, ublk, vhost_user } = self;
        [nbd, fuse, ublk, vhost_user]
    }

    /// Passes requests that have arrived to the engine; returns true if there were any.
    pub(super) fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        let mut started = Frontend::poll(&mut self.nbd, reactor, engine, now);
        started |= self.fuse.poll(reactor, engine, now);
        started |= self.ublk.poll(reactor, engine, now);
        started | self.vhost_user.poll(reactor, engine, now)
    }

    /// An operation of a front end has completed.
    pub(super) fn on_completion(
        &mut self,
        reactor: &mut Reactor,
        op: FrontendOp,
        result: Result<u32, IoFailure>,
    ) {
        match op.protocol {
            Protocol::Nbd => self.nbd.on_completion(reactor, op, result),
            Protocol::Fuse => self.fuse.on_completion(reactor, op, result),
            Protocol::Ublk => self.ublk.on_completion(reactor, op, result),
            Protocol::VhostUser => self.vhost_user.on_completion(reactor, op, result),
        }
    }

    /// The engine has answered a request.
    pub(super) fn on_reply(
        &mut self,
        reactor: &mut Reactor,
        request: RequestId,
        result: Result<(), RequestError>,
    ) {
        match FrontendOp::of_request(request).protocol {
            Protocol::Nbd => self.nbd.on_reply(reactor, request, result),
            Protocol::Fuse => self.fuse.on_reply(reactor, request, result),
            Protocol::Ublk => self.ublk.on_reply(reactor, request, result),
            Protocol::VhostUser => self.vhost_user.on_reply(reactor, request, result),
        }
    }

    /// Sends the replies that this turn has collected.
    pub(super) fn send_replies(&mut self, reactor: &mut Reactor) {
        self.nbd.send_all(reactor);
        self.vhost_user.signal(reactor);
    }

    /// Performs what is due in each turn; returns how long the loop may sleep because of it.
    pub(super) fn tend(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration> {
        self.each().into_iter().filter_map(|frontend| frontend.tend(cx)).min()
    }

    /// Performs due timers of clients; returns how long the loop may sleep because of them.
    pub(super) fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        if self.vhost_user.has_more() { Some(Duration::ZERO) } else { self.nbd.timers(reactor) }
    }

    /// Forgets exports and clients that have ended.
    pub(super) fn reap(&mut self, cx: &mut FrontendCx<'_>) {
        self.each().into_iter().for_each(|frontend| frontend.reap(cx));
    }

    /// Begins to make an export; returns its address for clients, or `None` if an event has it
    /// later.
    pub(super) fn export(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        uri: &ExportUri,
    ) -> Result<Option<String>, NotExported> {
        match uri {
            ExportUri::Nbd { endpoint, permissions, .. } => match self.nbd.must_listen(endpoint, permissions)
            {
                Some(wanted) => self.listen(cx, volume, uri, wanted).map(|()| None),
                None => Ok(Some(self.offer(cx, volume, uri, &mut None)?)),
            },
            ExportUri::Fuse { path } => self.fuse.begin(cx, volume, path, self.ublk.devices()).map(|()| None),
            ExportUri::Ublk { .. } => self.ublk.begin(cx, volume, uri, self.fuse.mounts()),
            ExportUri::VhostUser { .. } => self.vhost_user.begin(cx, volume, uri, &self.nbd).map(|()| None),
        }
    }

    /// The volume was resized.
    pub(super) fn resize(&mut self, cx: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        self.each().into_iter().for_each(|frontend| frontend.resize(cx, volume, size_bytes));
    }

    /// Ends the exports of a volume (of all volumes if `None`, at a stop), and decides what becomes
    /// of their block devices. Requests in flight are answered.
    pub(super) fn close(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: Option<VolumeId>,
        mut devices: DeviceDisposition,
    ) {
        self.each().into_iter().for_each(|frontend| frontend.close(cx, volume, &mut devices));
        devices.release();
        for (file, path) in self.nbd.take_files() {
            cx.background.start(move |_| file.remove(&path));
        }
    }

    /// Returns true if every request of every client is answered.
    pub(super) fn are_idle(&self) -> bool {
        self.each_ref().into_iter().all(Frontend::is_idle)
    }

    /// Returns the users of a volume, except those of its block devices: only threads that may wait
    /// can query the kernel for them ([`Users::of_devices`]).
    pub(super) fn users(&self, reactor: &Reactor, volume: VolumeId) -> Users {
        let mut users = Users::default();
        self.each_ref().into_iter().for_each(|frontend| frontend.add_users(reactor, volume, &mut users));
        users
    }

    /// Counts the users of a volume: connections, and open handles of its files.
    pub(super) fn user_count(&self, volume: VolumeId) -> u64 {
        self.each_ref().into_iter().map(|frontend| frontend.user_count(volume)).sum()
    }

    /// Returns true if volumes are, or will be, files; their open handles cannot be handed over.
    pub(super) fn has_files(&self) -> bool {
        self.fuse.mounts() > 0
    }

    /// Returns true if there are `vhost-user:` exports; their connections cannot be handed over.
    pub(super) fn has_vhost_user(&self) -> bool {
        self.vhost_user.has_exports()
    }

    /// Returns a block device of a volume whose size the kernel cannot change.
    pub(super) fn fixed_device(&self, volume: VolumeId) -> Option<&UblkDevice> {
        self.ublk.fixed_device(volume)
    }

    /// Describes how requests of a volume's files reach the pool.
    pub(super) fn files_of(&self, volume: VolumeId) -> Vec<FileInfo> {
        self.fuse.files_of(volume)
    }
}

impl Pool {
    /// Calls the front ends, and then handles their events.
    pub(super) fn with_frontends<R>(
        &mut self,
        call: impl FnOnce(&mut Frontends, &mut FrontendCx<'_>) -> R,
    ) -> R {
        let mut cx = FrontendCx {
            reactor: &mut self.reactor,
            engine: &self.engine,
            volumes: &self.volumes,
            guards: &self.guards,
            background: &mut self.background,
            tasks: &self.myself,
            pool_name: &self.name,
            buffer_bytes: self.buffer_bytes,
            is_stopping: self.stopping,
            events: Vec::new(),
        };
        let result = call(&mut self.frontends, &mut cx);
        for event in cx.events {
            self.frontend_event(event);
        }
        result
    }

    fn frontend_event(&mut self, event: FrontendEvent) {
        match event {
            FrontendEvent::Exported(volume, uri, result) => self.exported(volume, &uri, result),
            FrontendEvent::Lost(volume, uri, loss) => self.export_lost(volume, &uri, loss),
            FrontendEvent::Back(volume, uri) => self.export_back(volume, &uri),
            FrontendEvent::Note(what) => self.emit(PoolEvent::Note(MessageId::ExportNote, what)),
            FrontendEvent::Refused(what) => self.frontends.nbd.note_refusal(what),
        }
    }

    /// Returns the devices of a volume, for a thread that may query the kernel about them.
    pub fn block_devices(&self, name: &str) -> Vec<UblkDevice> {
        self.find(name).map_or_else(Vec::new, |volume| self.frontends.ublk.devices_of(volume))
    }
}
