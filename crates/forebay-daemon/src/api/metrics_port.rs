//! `/metrics` without a token, on a port of loopback (`metrics_listen`). The port may change while
//! the daemon runs.
//!
//! Invariants
//! - It listens on loopback only, and answers nothing but GET and HEAD of `/metrics`, and a line at
//!   `/` that says so.
//! - It has an event loop, connections and threads of its own: who asks here holds up nobody at the
//!   API.
//! - A change opens the new port before it closes the old one, so a failure changes nothing.

use super::event_loop::EventLoop;
use super::server::House;
use super::{ApiError, Limits, Services, routes};
use forebay_export::uri::Endpoint;
use forebay_pool::MayWait;
use forebay_pool::handover::{Listener, ListenerStore};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;

/// A Prometheus keeps one connection; some more look by hand.
const CONNECTIONS_MAX: usize = 16;

/// See the head of this file. Ends when it is dropped, and keeps its socket as the listener store
/// says.
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
    /// Who answers there; nobody yet before [`MetricsPort::serve`].
    server: Option<EventLoop>,
}

impl MetricsPort {
    /// None is open.
    pub(crate) fn new(listener_store: Arc<ListenerStore>) -> Self {
        Self { listener_store, port: Mutex::default() }
    }

    fn port(&self) -> MutexGuard<'_, Option<Port>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the port, without answering there. One that is open stays.
    ///
    /// # Errors
    /// Somebody else has it, or the system refuses it.
    pub(crate) fn open(&self, wanted: SocketAddr) -> Result<(), ApiError> {
        let mut port = self.port();
        if port.is_none() {
            *port = Some(self.bind(wanted)?);
        }
        Ok(())
    }

    /// Begins to answer where it is open.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn serve(&self, services: Services) -> Result<(), ApiError> {
        match &mut *self.port() {
            Some(port) => port.serve(services),
            None => Ok(()),
        }
    }

    /// Answers there from now on, or nowhere.
    ///
    /// # Errors
    /// As for [`MetricsPort::open`] and [`MetricsPort::serve`]. Everything is as it was then.
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

    /// Where it answers.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.port().as_ref().map(|port| port.bound)
    }

    /// Stops answering, and gives the socket away: who connects waits for who takes it.
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
            Ok(House::new(limits, None, stopping).serve_metrics(listener, router))
        })?;
        self.server = Some(server);
        Ok(())
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::Tcp { host: address.ip().to_string(), port: address.port() }
}
