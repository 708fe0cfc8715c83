//! Volumes as devices of virtual machines: the `vhost-user:` exports of a pool.

use super::Pool;
use super::volumes::NotExported;
use crate::guest::control::Control;
use crate::guest::{GuestOptions, GuestServer, Order, Shared};
use crate::may_wait::MayWait;
use crate::recorder::Front;
use crate::token::FrontendOp;
use forebay_core::{RequestError, RequestId};
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_format::VolumeId;
use forebay_io::{IoFailure, SocketFile};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most such exports of a pool.
pub(super) const GUESTS_MAX: usize = 64;
/// Time limit for an earlier export at the same path to end.
const ENDING_WITHIN: Duration = Duration::from_secs(10);

/// A `vhost-user:` export.
pub(super) struct Exported {
    volume: VolumeId,
    /// As the configuration has it.
    uri: ExportUri,
    /// Its socket.
    path: PathBuf,
    server: GuestServer,
    /// Identifies it among all exports of this pool, past ones too.
    number: u64,
    /// It listens, and ends on its own when the export ends.
    thread: Option<JoinHandle<()>>,
}

impl Pool {
    /// Begins to listen for frontends at a socket; [`Pool::exported`] gets the result.
    pub(super) fn begin_guest(&mut self, volume: VolumeId, uri: &ExportUri) -> Result<(), NotExported> {
        let ExportUri::VhostUser { path, permissions } = uri else {
            return Err("it is not a vhost-user export".into());
        };
        if self.guests.iter().flatten().count() >= GUESTS_MAX {
            return Err(format!("a pool has at most {GUESTS_MAX} vhost-user exports").into());
        }
        let mut there = self.guests.iter().flatten().filter(|guest| guest.path == *path);
        let (is_ending, is_taken) =
            (there.clone().next().is_some(), there.any(|guest| !guest.server.is_closing()));
        let wanted = self.server.must_listen(&Endpoint::Unix(path.to_owned()), permissions);
        let wanted = wanted.filter(|_| !is_taken);
        let wanted = wanted.ok_or_else(|| format!("{} is the socket of another export", path.display()))?;
        let wanted = if is_ending { wanted.within(ENDING_WITHIN) } else { wanted };
        let served = self.served(volume).ok_or("the volume is gone")?;
        let (rules, name) = (Arc::clone(&served.spec.rules), served.spec.name.clone());
        let block_bytes = served.sector_bytes;
        let index = self.guests.iter().position(Option::is_none).unwrap_or(self.guests.len());
        let options = GuestOptions {
            volume,
            rules,
            export: uri.for_clients(),
            slot: index as u16,
            buffer_bytes: self.buffer_bytes,
        };
        let size_bytes = self.engine.volume_size_bytes(volume).unwrap_or(0);
        let shared = Arc::new(Shared::new(size_bytes, block_bytes, &name));
        let (stop, stopped) =
            UnixStream::pair().map_err(|error| format!("cannot create a socket: {error}"))?;
        let server = GuestServer::new(self.reactor.pool_mut(), options, Arc::clone(&shared), stop);
        let server = server.ok_or("not enough memory for it: raise buffer_memory of the pool")?;
        self.guests_made += 1;
        let number = self.guests_made;
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let orders = move |order: Order| {
            let sent = tasks.send(Box::new(move |pool: &mut Self| pool.guest_order(number, order)));
            waker.wake();
            sent.is_ok()
        };
        let (tasks, waker, at) = (self.myself.clone(), self.reactor.waker(), path.to_owned());
        let work = move |may_wait: &MayWait| {
            let told = |result: Result<(), String>| {
                let _ = tasks.send(Box::new(move |pool: &mut Self| pool.guest_listened(number, result))); // it may have ended
                waker.wake();
            };
            match wanted.listen(may_wait) {
                Err(why) => told(Err(why)),
                Ok(socket) => {
                    told(Ok(()));
                    let (fd, file) = socket.into_parts();
                    let listener = UnixListener::from(fd);
                    let control = Control { listener, stop: stopped, shared, orders: Box::new(orders) };
                    control.run(may_wait);
                    file.into_iter().for_each(|file: SocketFile| file.remove(&at));
                }
            }
        };
        let thread = match MayWait::spawn(format!("vhost-{}", self.name), work) {
            Ok(thread) => thread,
            Err(error) => {
                server.end(self.reactor.pool_mut());
                return Err(NotExported::NoThread(error));
            }
        };
        if index == self.guests.len() {
            self.guests.push(None);
        }
        let (uri, path) = (uri.clone(), path.clone());
        self.guests[index] = Some(Exported { volume, uri, path, server, number, thread: Some(thread) });
        Ok(())
    }

    /// The thread of an export listens, or has failed to.
    fn guest_listened(&mut self, number: u64, result: Result<(), String>) {
        let mut guests = self.guests.iter_mut().flatten();
        let Some(guest) = guests.find(|guest| guest.number == number) else { return };
        if result.is_err() {
            guest.server.close();
        }
        let (volume, uri) = (guest.volume, guest.uri.clone());
        self.exported(volume, &uri, result.map(|()| uri.for_clients()));
    }

    /// Handles a request of an export's thread. If the export is gone, it has no effect, and the
    /// thread ends.
    fn guest_order(&mut self, number: u64, order: Order) {
        let mut guests = self.guests.iter_mut().flatten();
        if let Some(guest) = guests.find(|guest| guest.number == number) {
            guest.server.follow(&mut self.reactor, order);
        }
    }

    /// Takes and begins the requests of every guest; returns true if the engine got a request.
    pub(super) fn turn_guests(&mut self) -> bool {
        if self.guests.is_empty() {
            return false;
        }
        let times = (self.io.now(), Instant::now());
        let mut started = false;
        for guest in self.guests.iter_mut().flatten() {
            let mut front = Front { engine: &mut self.engine, recorder: &mut self.recorder };
            started |= guest.server.turn(&mut front, &mut self.reactor, times);
        }
        started
    }

    /// Signals the completions of this turn to the guests.
    pub(super) fn signal_guests(&mut self) {
        for guest in self.guests.iter_mut().flatten() {
            guest.server.signal_all(&mut self.reactor);
        }
    }

    /// Some guest has requests that the last turn did not take.
    pub(super) fn guests_have_more(&self) -> bool {
        self.guests.iter().flatten().any(|guest| guest.server.has_more())
    }

    /// An operation of a guest's event counters has completed.
    pub(super) fn guest_completed(&mut self, op: FrontendOp, result: Result<u32, IoFailure>) {
        if let Some(Some(guest)) = self.guests.get_mut(usize::from(op.slot)) {
            guest.server.completed(op, result);
        }
    }

    pub(super) fn guest_replied(
        &mut self,
        op: FrontendOp,
        request: RequestId,
        result: Result<(), RequestError>,
    ) {
        if let Some(Some(guest)) = self.guests.get_mut(usize::from(op.slot)) {
            guest.server.replied(&mut self.reactor, request, result);
        }
    }

    /// Ends the exports of a volume (of all volumes if `None`): requests in progress are answered,
    /// then the frontend is disconnected.
    pub(super) fn close_guests(&mut self, volume: Option<VolumeId>) {
        for guest in self.guests.iter_mut().flatten() {
            if volume.is_none_or(|volume| volume == guest.volume) {
                guest.server.close();
                self.chores.wait_for(guest.thread.take());
            }
        }
    }

    /// The volume was resized.
    pub(super) fn resize_guests(&mut self, volume: VolumeId, size_bytes: u64) {
        for guest in self.guests.iter_mut().flatten().filter(|guest| guest.volume == volume) {
            guest.server.set_size_bytes(size_bytes);
        }
    }

    /// Describes the frontends that are connected to a volume.
    pub(super) fn frontends(&self, volume: VolumeId) -> Vec<String> {
        let of = self.guests.iter().flatten().filter(|guest| guest.volume == volume);
        of.filter_map(|guest| guest.server.frontend().map(str::to_owned)).collect()
    }

    /// True if the pool has `vhost-user:` exports; their connections cannot be handed over.
    pub fn has_guests(&self) -> bool {
        self.guests.iter().any(Option::is_some)
    }

    /// Reports the notes of guests, limited in rate like refusals of other clients, and forgets
    /// exports that have ended.
    pub(super) fn look_after_guests(&mut self) {
        let mut notes = Vec::new();
        for slot in &mut self.guests {
            let Some(guest) = slot else { continue };
            guest.server.renew();
            notes.append(&mut guest.server.take_notes());
            if let Some(guest) = slot.take_if(|guest| guest.server.is_over()) {
                guest.server.end(self.reactor.pool_mut());
            }
        }
        notes.into_iter().for_each(|note| self.server.note_refusal(note));
    }

    /// Every request of every guest is answered.
    pub(super) fn guests_are_quiet(&self) -> bool {
        self.guests.iter().flatten().all(|guest| guest.server.is_quiet())
    }
}
