//! Volumes as devices of virtual machines: the `vhost-user:` exports of a pool.

use super::{DeviceDisposition, Frontend, FrontendCx, FrontendEvent, NotExported, Users};
use crate::may_wait::MayWait;
use crate::recorder::TracedEngine;
use crate::server::Server;
use crate::token::FrontendOp;
use crate::vhost_user::control::Control;
use crate::vhost_user::{ControlRequest, Shared, VhostUserOptions, VhostUserServer};
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_format::VolumeId;
use forebay_io::{IoFailure, Reactor, SocketFile};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most such exports of a pool.
const EXPORTS_MAX: usize = 64;
/// Time limit for an earlier export at the same path to end.
const ENDING_WITHIN: Duration = Duration::from_secs(10);

/// The `vhost-user:` exports of a pool.
#[derive(Default)]
pub(super) struct VhostUserFrontend {
    /// By slot.
    exports: Vec<Option<Exported>>,
    /// Exports made so far.
    made: u64,
}

/// A `vhost-user:` export.
struct Exported {
    volume: VolumeId,
    /// As the configuration has it.
    uri: ExportUri,
    /// Its socket.
    path: PathBuf,
    server: VhostUserServer,
    /// Identifies it among all exports of this pool, past ones too.
    number: u64,
    /// It listens, and ends on its own when the export ends.
    thread: Option<JoinHandle<()>>,
}

impl VhostUserFrontend {
    /// Begins to listen for frontends at a socket; an event has the result.
    pub(super) fn begin(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        uri: &ExportUri,
        nbd: &Server,
    ) -> Result<(), NotExported> {
        let ExportUri::VhostUser { path, permissions } = uri else {
            return Err("it is not a vhost-user export".into());
        };
        if self.exports.iter().flatten().count() >= EXPORTS_MAX {
            return Err(format!("a pool has at most {EXPORTS_MAX} vhost-user exports").into());
        }
        let mut there = self.exports.iter().flatten().filter(|export| export.path == *path);
        let (is_ending, is_taken) =
            (there.clone().next().is_some(), there.any(|export| !export.server.is_closing()));
        let wanted = nbd.must_listen(&Endpoint::Unix(path.to_owned()), permissions);
        let wanted = wanted.filter(|_| !is_taken);
        let wanted = wanted.ok_or_else(|| format!("{} is the socket of another export", path.display()))?;
        let wanted = if is_ending { wanted.within(ENDING_WITHIN) } else { wanted };
        let served = cx.served(volume).ok_or("the volume is gone")?;
        let (rules, name) = (Arc::clone(served.rules), served.name.to_owned());
        let block_bytes = served.sector_bytes;
        let index = self.exports.iter().position(Option::is_none).unwrap_or(self.exports.len());
        let options = VhostUserOptions {
            volume,
            rules,
            export: uri.for_clients(),
            slot: index as u16,
            buffer_bytes: cx.buffer_bytes,
        };
        let size_bytes = cx.size_bytes(volume);
        let shared = Arc::new(Shared::new(size_bytes, block_bytes, &name));
        let (stop, stopped) =
            UnixStream::pair().map_err(|error| format!("cannot create a socket: {error}"))?;
        let server = VhostUserServer::new(cx.reactor.pool_mut(), options, Arc::clone(&shared), stop);
        let server = server.ok_or("not enough memory for it: raise buffer_memory of the pool")?;
        self.made += 1;
        let (number, tasks) = (self.made, cx.tasks());
        let sender = tasks.clone();
        let send = move |request: ControlRequest| {
            sender.send(move |frontends, cx| frontends.vhost_user.execute(cx.reactor, number, request))
        };
        let at = path.to_owned();
        let work = move |may_wait: &MayWait| {
            let told = |result: Result<(), String>| {
                tasks.send(move |frontends, cx| frontends.vhost_user.listened(cx, number, result));
            };
            match wanted.listen(may_wait) {
                Err(why) => told(Err(why)),
                Ok(socket) => {
                    told(Ok(()));
                    let (fd, file) = socket.into_parts();
                    let listener = UnixListener::from(fd);
                    let control = Control { listener, stop: stopped, shared, send: Box::new(send) };
                    control.run(may_wait);
                    file.into_iter().for_each(|file: SocketFile| file.remove(&at));
                }
            }
        };
        let thread = match MayWait::spawn(format!("vhost-{}", cx.pool_name), work) {
            Ok(thread) => thread,
            Err(error) => {
                server.end(cx.reactor.pool_mut());
                return Err(NotExported::NoThread(error));
            }
        };
        if index == self.exports.len() {
            self.exports.push(None);
        }
        let (uri, path) = (uri.clone(), path.clone());
        self.exports[index] = Some(Exported { volume, uri, path, server, number, thread: Some(thread) });
        Ok(())
    }

    /// The thread of an export listens, or has failed to.
    fn listened(&mut self, cx: &mut FrontendCx<'_>, number: u64, result: Result<(), String>) {
        let Some(export) = self.export_mut(number) else { return };
        if result.is_err() {
            export.server.close();
        }
        let (volume, uri) = (export.volume, export.uri.clone());
        let result = result.map(|()| uri.for_clients());
        cx.exported(volume, uri, result);
    }

    /// Handles a request of an export's thread. If the export is gone, it has no effect, and the
    /// thread ends.
    fn execute(&mut self, reactor: &mut Reactor, number: u64, request: ControlRequest) {
        if let Some(export) = self.export_mut(number) {
            export.server.execute(reactor, request);
        }
    }

    fn export_mut(&mut self, number: u64) -> Option<&mut Exported> {
        self.exports.iter_mut().flatten().find(|export| export.number == number)
    }

    /// Returns true if there are exports.
    pub(super) fn has_exports(&self) -> bool {
        self.exports.iter().any(Option::is_some)
    }

    /// Descriptions of the frontends that are connected to a volume.
    fn connected(&self, volume: VolumeId) -> impl Iterator<Item = &str> {
        let of = self.exports.iter().flatten().filter(move |export| export.volume == volume);
        of.filter_map(|export| export.server.frontend())
    }
}

impl Frontend for VhostUserFrontend {
    fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        if self.exports.is_empty() {
            return false;
        }
        let times = (now, Instant::now());
        let mut started = false;
        for export in self.exports.iter_mut().flatten() {
            started |= export.server.turn(engine, reactor, times);
        }
        started
    }

    fn on_completion(&mut self, _: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        if let Some(Some(export)) = self.exports.get_mut(usize::from(op.slot)) {
            export.server.completed(op, result);
        }
    }

    fn on_reply(&mut self, reactor: &mut Reactor, request: RequestId, result: Result<(), RequestError>) {
        let slot = FrontendOp::of_request(request).slot;
        if let Some(Some(export)) = self.exports.get_mut(usize::from(slot)) {
            export.server.replied(reactor, request, result);
        }
    }

    /// Signals the completions of this turn to the guests.
    fn send_replies(&mut self, reactor: &mut Reactor) {
        for export in self.exports.iter_mut().flatten() {
            export.server.signal_all(reactor);
        }
    }

    /// A guest may have requests that the last turn did not take.
    fn timers(&mut self, _: &mut Reactor) -> Option<Duration> {
        self.exports.iter().flatten().any(|export| export.server.has_more()).then_some(Duration::ZERO)
    }

    fn tend(&mut self, _: &mut FrontendCx<'_>) -> Option<Duration> {
        None
    }

    /// Takes the notes of guests, and forgets exports that have ended.
    fn reap(&mut self, cx: &mut FrontendCx<'_>) {
        for slot in &mut self.exports {
            let Some(export) = slot else { continue };
            export.server.renew();
            cx.events.extend(export.server.take_notes().into_iter().map(FrontendEvent::Refused));
            if let Some(export) = slot.take_if(|export| export.server.is_over()) {
                export.server.end(cx.reactor.pool_mut());
            }
        }
    }

    fn resize(&mut self, _: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        for export in self.exports.iter_mut().flatten().filter(|export| export.volume == volume) {
            export.server.set_size_bytes(size_bytes);
        }
    }

    /// Frontends are disconnected once requests in flight are answered.
    fn close(&mut self, cx: &mut FrontendCx<'_>, volume: Option<VolumeId>, _: &mut DeviceDisposition) {
        for export in self.exports.iter_mut().flatten() {
            if volume.is_none_or(|volume| volume == export.volume) {
                export.server.close();
                cx.background.wait_for(export.thread.take());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.exports.iter().flatten().all(|export| export.server.is_quiet())
    }

    fn add_users(&self, _: &Reactor, volume: VolumeId, users: &mut Users) {
        users.frontends.extend(self.connected(volume).map(str::to_owned));
    }

    fn user_count(&self, volume: VolumeId) -> u64 {
        self.connected(volume).count() as u64
    }
}
