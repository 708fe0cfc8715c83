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
//! Files: `event` (reports to the pool), `nbd` (listening, offering volumes), `fuse` (volumes as
//! files), `mount_table` (mounts that other programs remove or hide), `ublk` (volumes as block
//! devices), `vhost_user` (volumes as devices of virtual machines), `users` (users of a volume).

mod event;
mod fuse;
mod mount_table;
mod nbd;
mod ublk;
mod users;
mod vhost_user;

pub(crate) use event::{ExportLoss, FrontendEvent, NotExported};
pub(crate) use ublk::DeviceDisposition;
pub use ublk::ExclusiveOpens;
pub use users::Users;

use crate::background::BackgroundTasks;
use crate::guard::GuardBook;
use crate::may_wait::MayWait;
use crate::recorder::TracedEngine;
use crate::server::Server;
use crate::token::{FrontendOp, Protocol};
use crate::ublk_device::UblkDevice;
use forebay_admin::FileInfo;
use forebay_config::rules::RuleSet;
use forebay_core::{Engine, Nanos, RequestError, RequestId};
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::VolumeId;
use forebay_io::{IoFailure, Reactor, Waker};
use fuse::FuseFrontend;
use nbd::Listening;
use std::sync::Arc;
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

    /// Sends the replies that this turn has collected.
    fn send_replies(&mut self, reactor: &mut Reactor);

    /// Performs due timers of clients; returns how long the loop may sleep because of them.
    fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration>;

    /// Performs what is due for exports; returns how long the loop may sleep because of it.
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
pub(crate) struct FrontendCx<'a> {
    pub(crate) reactor: &'a mut Reactor,
    pub(crate) engine: &'a Engine,
    pub(crate) volumes: &'a dyn ServedVolumes,
    pub(crate) guards: &'a GuardBook,
    pub(crate) background: &'a mut BackgroundTasks,
    pub(crate) tasks: &'a SendTask,
    pub(crate) pool_name: &'a str,
    pub(crate) buffer_bytes: usize,
    pub(crate) is_stopping: bool,
    pub(crate) events: Vec<FrontendEvent>,
}

impl<'a> FrontendCx<'a> {
    fn served(&self, volume: VolumeId) -> Option<ServedVolume<'a>> {
        self.volumes.served(volume)
    }

    fn size_bytes(&self, volume: VolumeId) -> u64 {
        self.engine.volume_size_bytes(volume).unwrap_or(0)
    }

    fn tasks(&self) -> FrontendTasks {
        FrontendTasks { send: Arc::clone(self.tasks), waker: self.reactor.waker() }
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

/// A volume as front ends see it.
pub(crate) struct ServedVolume<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its backing store.
    pub(crate) backing: &'a BackingUri,
    /// Its rules.
    pub(crate) rules: &'a Arc<RuleSet>,
    /// Connections at once.
    pub(crate) connections_max: u32,
    /// Sector of its backing store.
    pub(crate) sector_bytes: u32,
    /// Its exports are being made.
    pub(crate) is_exporting: bool,
}

/// The volumes of the pool.
pub(crate) trait ServedVolumes {
    /// Returns a volume that is attached, or being attached or detached.
    fn served(&self, volume: VolumeId) -> Option<ServedVolume<'_>>;
}

/// A closure that another thread sends to that of the pool.
pub(crate) type FrontendTask = Box<dyn FnOnce(&mut Frontends, &mut FrontendCx<'_>) + Send>;
/// Sends one; returns false if the pool has ended.
pub(crate) type SendTask = Arc<dyn Fn(FrontendTask) -> bool + Send + Sync>;

/// Runs closures of other threads on the thread of the pool, between two turns.
#[derive(Clone)]
struct FrontendTasks {
    send: SendTask,
    waker: Waker,
}

impl FrontendTasks {
    /// Sends a closure; returns false if the pool has ended.
    fn send(&self, task: impl FnOnce(&mut Frontends, &mut FrontendCx<'_>) + Send + 'static) -> bool {
        let is_sent = (self.send)(Box::new(task));
        self.waker.wake();
        is_sent
    }
}

/// The front ends of a pool.
pub(crate) struct Frontends {
    /// NBD connections.
    pub(crate) nbd: Server,
    listening: Vec<Listening>,
    fuse: FuseFrontend,
    ublk: UblkFrontend,
    vhost_user: VhostUserFrontend,
}

impl Frontends {
    pub(crate) fn new(nbd: Server) -> Self {
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
    pub(crate) fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        let mut started = Frontend::poll(&mut self.nbd, reactor, engine, now);
        started |= self.fuse.poll(reactor, engine, now);
        started |= self.ublk.poll(reactor, engine, now);
        started | self.vhost_user.poll(reactor, engine, now)
    }

    /// An operation of a front end has completed.
    pub(crate) fn on_completion(
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
    pub(crate) fn on_reply(
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
    pub(crate) fn send_replies(&mut self, reactor: &mut Reactor) {
        let Self { nbd, listening: _, fuse, ublk, vhost_user } = self;
        nbd.send_replies(reactor);
        fuse.send_replies(reactor);
        ublk.send_replies(reactor);
        vhost_user.send_replies(reactor);
    }

    /// Performs what is due for exports; returns how long the loop may sleep because of it.
    pub(crate) fn tend(&mut self, cx: &mut FrontendCx<'_>) -> Option<Duration> {
        self.each().into_iter().filter_map(|frontend| frontend.tend(cx)).min()
    }

    /// Performs due timers of clients; returns how long the loop may sleep because of them.
    pub(crate) fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        self.each().into_iter().filter_map(|frontend| frontend.timers(reactor)).min()
    }

    /// Forgets exports and clients that have ended.
    pub(crate) fn reap(&mut self, cx: &mut FrontendCx<'_>) {
        self.each().into_iter().for_each(|frontend| frontend.reap(cx));
    }

    /// Begins to make an export; returns its address for clients, or `None` if an event has it
    /// later.
    pub(crate) fn export(
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
    pub(crate) fn resize(&mut self, cx: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        self.each().into_iter().for_each(|frontend| frontend.resize(cx, volume, size_bytes));
    }

    /// Ends the exports of a volume (of all volumes if `None`, at a stop), and decides what becomes
    /// of their block devices. Requests in flight are answered.
    pub(crate) fn close(
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
    pub(crate) fn are_idle(&self) -> bool {
        self.each_ref().into_iter().all(Frontend::is_idle)
    }

    /// Returns the users of a volume, except those of its block devices: only threads that may wait
    /// can query the kernel for them ([`Users::of_devices`]).
    pub(crate) fn users(&self, reactor: &Reactor, volume: VolumeId) -> Users {
        let mut users = Users::default();
        self.each_ref().into_iter().for_each(|frontend| frontend.add_users(reactor, volume, &mut users));
        users
    }

    /// Counts the users of a volume: connections, and open handles of its files.
    pub(crate) fn user_count(&self, volume: VolumeId) -> u64 {
        self.each_ref().into_iter().map(|frontend| frontend.user_count(volume)).sum()
    }

    /// Returns true if volumes are, or will be, files; their open handles cannot be handed over.
    pub(crate) fn has_files(&self) -> bool {
        self.fuse.mounts() > 0
    }

    /// Returns true if there are `vhost-user:` exports; their connections cannot be handed over.
    pub(crate) fn has_vhost_user(&self) -> bool {
        self.vhost_user.has_exports()
    }

    /// Returns a block device of a volume whose size the kernel cannot change.
    pub(crate) fn fixed_device(&self, volume: VolumeId) -> Option<&UblkDevice> {
        self.ublk.fixed_device(volume)
    }

    /// Returns the block devices of a volume.
    pub(crate) fn block_devices(&self, volume: VolumeId) -> Vec<UblkDevice> {
        self.ublk.devices_of(volume)
    }

    /// Describes how requests of a volume's files reach the pool.
    pub(crate) fn files_of(&self, volume: VolumeId) -> Vec<FileInfo> {
        self.fuse.files_of(volume)
    }
}
