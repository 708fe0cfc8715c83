//! The NBD server as a front end: listening, and offering volumes.

use super::{DeviceDisposition, Frontend, FrontendCx, Frontends, NotExported, Users};
use crate::may_wait::MayWait;
use crate::recorder::TracedEngine;
use crate::server::{Offer, Server, Socket, ToListen};
use crate::token::FrontendOp;
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::directory::ExportInfo;
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_format::VolumeId;
use forebay_io::{IoFailure, Reactor};
use std::time::Duration;

/// A socket being made, and the exports that wait for it.
pub(super) struct Listening {
    endpoint: Endpoint,
    waiting: Vec<(VolumeId, ExportUri)>,
}

impl Frontends {
    /// Starts a thread that listens for an export; an event has the result.
    pub(super) fn listen(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        uri: &ExportUri,
        wanted: ToListen,
    ) -> Result<(), NotExported> {
        let endpoint = wanted.endpoint.clone();
        if let Some(there) = self.listening.iter_mut().find(|there| there.endpoint == endpoint) {
            there.waiting.push((volume, uri.clone()));
            return Ok(());
        }
        let tasks = cx.tasks();
        let work = move |may_wait: &MayWait| {
            let made = wanted.listen(may_wait);
            tasks.send(move |frontends, cx| frontends.listened(cx, wanted, made));
        };
        let thread = MayWait::spawn(format!("listen-{}", cx.pool_name), work);
        thread.map_err(NotExported::NoThread)?;
        self.listening.push(Listening { endpoint, waiting: vec![(volume, uri.clone())] });
        Ok(())
    }

    fn listened(&mut self, cx: &mut FrontendCx<'_>, wanted: ToListen, made: Result<Socket, String>) {
        let Some(at) = self.listening.iter().position(|there| there.endpoint == wanted.endpoint) else {
            return;
        };
        let waiting = self.listening.swap_remove(at).waiting;
        let (mut socket, why) = match made {
            Ok(socket) => (Some(socket), None),
            Err(why) => (None, Some(why)),
        };
        for (volume, uri) in waiting {
            let is_wanted = cx.served(volume).is_some_and(|served| served.is_exporting);
            if cx.is_stopping || !is_wanted {
                continue;
            }
            let result = match &why {
                Some(why) => Err(why.clone()),
                None => self.offer(cx, volume, &uri, &mut socket),
            };
            cx.exported(volume, uri, result);
        }
        if let Some(socket) = socket {
            cx.background
                .start(move |may_wait| socket.undo(may_wait, &wanted.endpoint, &wanted.listener_store));
        }
    }

    /// Offers a volume to NBD clients, at an endpoint that the server listens on already, or on a
    /// socket made for it, which it takes.
    pub(super) fn offer(
        &mut self,
        cx: &mut FrontendCx<'_>,
        volume: VolumeId,
        uri: &ExportUri,
        socket: &mut Option<Socket>,
    ) -> Result<String, String> {
        let ExportUri::Nbd { endpoint, name, guards, permissions } = uri else {
            return Err("it is not an NBD export".into());
        };
        let info = ExportInfo::new(name, cx.size_bytes(volume));
        let tls = guards.tls.as_deref().map(|name| cx.guards.tls(name)).transpose()?;
        let access = guards.access.as_deref().map(|name| cx.guards.access(name)).transpose()?;
        let connections_max = cx.served(volume).map_or(u32::MAX, |served| served.connections_max);
        let mark = mark(cx, volume).ok_or("the volume is gone")?;
        let offer = Offer { endpoint, permissions, volume, info, mark, connections_max, tls, access };
        self.nbd.export(cx.reactor, offer, socket)
    }
}

/// Returns a mark that identifies a volume even after its name was reused.
fn mark(cx: &FrontendCx<'_>, volume: VolumeId) -> Option<String> {
    let entry = cx.engine.volume_table().into_iter().find(|entry| entry.id == volume)?;
    let served = cx.served(volume)?;
    Some(format!("{:032x} {} {}", u128::from_be_bytes(entry.uuid), served.name, served.backing))
}

impl Frontend for Server {
    fn poll(&mut self, reactor: &mut Reactor, engine: &mut TracedEngine<'_>, now: Nanos) -> bool {
        self.turn(engine, reactor, now)
    }

    fn on_completion(&mut self, reactor: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        self.completed(reactor, op, result);
    }

    fn on_reply(&mut self, reactor: &mut Reactor, request: RequestId, result: Result<(), RequestError>) {
        self.replied(reactor, request, result);
    }

    fn send_replies(&mut self, reactor: &mut Reactor) {
        self.send_all(reactor);
    }

    fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        Server::timers(self, reactor)
    }

    fn tend(&mut self, _: &mut FrontendCx<'_>) -> Option<Duration> {
        None
    }

    fn reap(&mut self, _: &mut FrontendCx<'_>) {
        self.wake_blocked();
    }

    fn resize(&mut self, _: &mut FrontendCx<'_>, volume: VolumeId, size_bytes: u64) {
        Server::resize(self, volume, size_bytes);
    }

    fn close(&mut self, cx: &mut FrontendCx<'_>, volume: Option<VolumeId>, _: &mut DeviceDisposition) {
        match volume {
            Some(volume) => self.withdraw(cx.reactor, volume),
            None => Server::close(self, cx.reactor),
        }
    }

    fn is_idle(&self) -> bool {
        self.is_quiet()
    }

    fn add_users(&self, reactor: &Reactor, volume: VolumeId, users: &mut Users) {
        users.clients.extend(self.clients_of(reactor, volume));
    }

    fn user_count(&self, volume: VolumeId) -> u64 {
        self.connections_to(volume)
    }
}
