//! `/metrics` without a token, on a loopback port (`metrics_listen`). The port may change at run
//! time.
//!
//! Invariants
//! - It listens on loopback only, and answers nothing but GET and HEAD of `/metrics`, and at `/` a
//!   line that points there.
//! - It has an event loop, connections and threads of its own: its requests delay none of the API.
//! - A change opens the new port before it closes the old one, so a failure changes nothing.

use super::event_loop::EventLoop;
use super::server::ServerState;
use super::{ApiError, Limits, Services, routes};
use forebay_export::uri::Endpoint;
use forebay_pool::MayWait;
use forebay_pool::handover::{Listener, ListenerStore};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;

/// Prometheus keeps one connection; the rest is for manual requests.
const CONNECTIONS_MAX: usize = 16;

/// See the top of this file. Closes when it is dropped; the listener store decides whether its
/// socket stays open.
#[derive(Debug, Default)]
pub(crate) struct MetricsPort {
    listener_store: Arc<ListenerStore>,
    port: Mutex<Option<Port>>,
}

/// A port that is open.
#[derive(Debug)]
struct Port {
    wanted: SocketAddr,
    bound: SocketAddr,
    listener: StdTcpListener,
    /// The server; `None` before [`MetricsPort::serve`].
    server: Option<EventLoop>,
}

impl MetricsPort {
    /// Returns a `MetricsPort` without an open port.
    pub(crate) fn new(listener_store: Arc<ListenerStore>) -> Self {
        Self { listener_store, port: Mutex::default() }
    }

    fn port(&self) -> MutexGuard<'_, Option<Port>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the port without answering. A port that is already open stays.
    ///
    /// # Errors
    /// The port is in use, or the system refuses it.
    pub(crate) fn open(&self, wanted: SocketAddr) -> Result<(), ApiError> {
        let mut port = self.port();
        if port.is_none() {
            *port = Some(self.bind(wanted)?);
        }
        Ok(())
    }

    /// Begins to answer at the open port.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn serve(&self, services: Services) -> Result<(), ApiError> {
        match &mut *self.port() {
            Some(port) => port.serve(services),
            None => Ok(()),
        }
    }

    /// Moves to the wanted port, or closes it.
    ///
    /// # Errors
    /// As for [`MetricsPort::open`] and [`MetricsPort::serve`]. Then everything stays as it was.
    pub(crate) fn change(&self, wanted: Option<SocketAddr>, services: Services) -> Result<(), ApiError> {
        let mut port = self.port();
        if port.as_ref().map(|port| port.wanted) == wanted {
            return Ok(());
        }
        let new = wanted.map(|wanted| {
            let mut new = self.bind(wanted)?;
            new.serve(services).inspect_err(|_| self.listener_store.forget(&endpoint(wanted)))?;
            Ok::<_, ApiError>(new)
        });
        if let Some(old) = std::mem::replace(&mut *port, new.transpose()?) {
            self.listener_store.forget(&endpoint(old.wanted));
        }
        Ok(())
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.port().as_ref().map(|port| port.bound)
    }

    /// Stops answering, and returns the socket: clients that connect wait for its next owner.
    pub(crate) fn give_away(&self) -> Option<Listener> {
        let port = self.port().take()?;
        Some(Listener { endpoint: endpoint(port.wanted), fd: port.listener.into() })
    }

    /// Stops answering.
    pub(crate) fn close(&self) {
        *self.port() = None;
    }

    fn bind(&self, wanted: SocketAddr) -> Result<Port, ApiError> {
        let failed = |source| ApiError::Metrics { address: wanted, source };
        let endpoint = endpoint(wanted);
        let listener = match self.listener_store.take(&MayWait::here(), &endpoint) {
            Some(socket) => socket.into(),
            None => StdTcpListener::bind(wanted).map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        // A port that the system chose is another one after a restart.
        if wanted.port() != 0 {
            self.listener_store.keep(&endpoint, &listener.try_clone().map_err(failed)?.into());
        }
        Ok(Port { wanted, bound, listener, server: None })
    }
}

impl Port {
    fn serve(&mut self, services: Services) -> Result<(), ApiError> {
        if self.server.is_some() {
            return Ok(());
        }
        let limits = Limits { connections_max: CONNECTIONS_MAX, ..Limits::default() };
        let listener = &self.listener;
        let server = EventLoop::spawn("metrics", |stopping| {
            let listener = listener.try_clone().and_then(TcpListener::from_std);
            let listener = listener.map_err(|source| ApiError::System { what: "socket", source })?;
            let router = routes::metrics_router(services, &limits, stopping.clone());
            let router = router.map_err(ApiError::Thread)?;
            Ok(ServerState::new(limits, None, stopping).serve_metrics(listener, router))
        })?;
        self.server = Some(server);
        Ok(())
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::Tcp { host: address.ip().to_string(), port: address.port() }
}
