//! The admin API of the daemon: HTTP/JSON over a unix socket, and over TCP for clients with the
//! token. [`Admin`] does the work. This module connects sockets with that trait. For users:
//! `docs/operate/api.md`.
//!
//! Files: `server` (connections and their limits), `strangers` (which of them make room), `access`
//! and `tls` (who may come in over TCP), `allowed_paths` (what they may name),
//! `event_loop` (the thread that serves them), `metrics_port` (`/metrics` without a token),
//! `browser` (pages of others), `write_timeout` (connections whose peer takes nothing), `extract`
//! (checks of what comes in), `calls` (calls that block), `routes` (a handler for each path),
//! `openapi` (their description), `ui` (the dashboard), `problem` (the form of an error).
//!
//! Invariants
//! - It has a thread and an event loop of its own, which never block: no request can hold up
//!   another, or the engine.
//! - Everything has a bound: connections, headers, bodies, names, waiting, threads. [`Limits`] has
//!   the ones that can be set.
//! - Every error that a handler or a router gives is a [`Problem`]. (What is not HTTP at all is
//!   refused by the HTTP library with a bare status.)
//! - Over TCP nothing is done before the token was seen, except on the port of the metrics, and for
//!   the dashboard, whose files tell nothing;
//!   without TLS it listens on loopback only. Whoever can open the unix socket needs no token: the
//!   file's mode and its folder decide, and lists of users if there are any.
//! - Who may only look changes nothing: that is decided by the method of a request.
//! - Pages that a browser has from somewhere else get nothing.

mod access;
mod allowed_paths;
mod browser;
mod calls;
mod event_loop;
mod extract;
mod metrics_port;
mod openapi;
mod problem;
mod routes;
mod server;
mod strangers;
mod tls;
mod ui;
mod write_timeout;

pub use extract::BODY_BYTES_MAX;
pub(crate) use extract::{Names, Parameters};
pub use forebay_pool::secret_file::{FileError, FileProblem, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN};
pub(crate) use metrics_port::MetricsPort;
pub use openapi::document;
pub use problem::Problem;
pub use server::{ApiServer, serve};
pub(crate) use server::{ReadyApi, check};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use forebay_admin::Admin;
use forebay_admin::events::Hub;
use forebay_admin::jobs::Jobs;
pub use forebay_config::TlsFiles;
use forebay_config::{AdminUsers, DaemonConfig};
use forebay_io::SocketPermissions;

/// Where the API is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiOptions {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Permissions of its file, usually `0o660`.
    pub socket_permissions: SocketPermissions,
    /// Who may do what over the socket; without, whoever can open it may do everything.
    pub users: Option<AdminUsers>,
    /// Prefixes of the paths that requests may name; without, all.
    pub allowed_paths: Option<Vec<PathBuf>>,
    /// TCP as well.
    pub tcp: Option<TcpOptions>,
    /// Bounds.
    pub limits: Limits,
}

impl ApiOptions {
    /// A socket at this path for owner and group, who may do everything, with the usual bounds.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        let (socket_permissions, limits) = (0o660.into(), Limits::default());
        Self { socket, socket_permissions, users: None, allowed_paths: None, tcp: None, limits }
    }
}

impl From<&DaemonConfig> for ApiOptions {
    /// As the configuration has it, with the usual bounds.
    fn from(config: &DaemonConfig) -> Self {
        let tcp = config.admin_tcp.as_ref().map(|tcp| TcpOptions {
            host: tcp.host.clone(),
            port: tcp.port,
            token_file: tcp.token_file.clone(),
            read_token_file: tcp.read_token_file.clone(),
            tls: tcp.tls.clone(),
        });
        let (mode, group) = (config.admin_mode, config.admin_group.clone());
        Self {
            socket_permissions: SocketPermissions { mode, user: None, group },
            users: config.admin_users.clone(),
            allowed_paths: config.allowed_paths.clone(),
            tcp,
            ..Self::at(config.admin_socket.clone())
        }
    }
}

/// How the API is served over TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpOptions {
    /// Name or address to listen on, without brackets.
    pub host: String,
    /// Port; 0 for any that is free.
    pub port: u16,
    /// File with the token of those who may change things.
    pub token_file: PathBuf,
    /// File with the token of those who may only look.
    pub read_token_file: Option<PathBuf>,
    /// TLS; without it only loopback is allowed.
    pub tls: Option<TlsFiles>,
}

/// Bounds of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections at a time on each of the unix socket and TCP. One more takes the place of
    /// the oldest whose client is not known; if there is none, it is answered 503 and closed.
    pub connections_max: usize,
    /// Time for the headers of a request, for a TLS handshake, and of silence between two requests.
    pub headers_within: Duration,
    /// Time in which a client must take something of what is sent to it.
    pub write_timeout: Duration,
    /// Time for a request that looks.
    pub look_within: Duration,
    /// Time for a request that changes something (and is not a job).
    pub change_within: Duration,
    /// Silence on a stream of events after which a heartbeat is sent.
    pub heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 128,
            headers_within: Duration::from_secs(15),
            write_timeout: Duration::from_secs(30),
            look_within: Duration::from_secs(5),
            change_within: Duration::from_secs(60),
            heartbeat: routes::events::HEARTBEAT,
        }
    }
}

/// What the API speaks for.
#[derive(Clone)]
pub struct Services {
    /// What can be asked and done.
    pub admin: Arc<dyn Admin>,
    /// The jobs of that interface: waiting for one takes no thread.
    pub jobs: Jobs,
    /// The events and alarms of that interface.
    pub events: Hub,
}

/// Why the API could not be started.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The unix socket cannot be had.
    #[error("admin socket: {0}")]
    Socket(#[from] forebay_io::SocketError),
    /// The address cannot be listened on.
    #[error("admin API: cannot listen on {address}: {source}")]
    Tcp {
        /// Which.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The port of the metrics cannot be had.
    #[error("metrics_listen: cannot listen on {address}: {source}")]
    Metrics {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// It would be read by others.
    #[error(
        "admin API: {address} is not loopback, and without TLS whoever is on the way could read the token: \
         give cert_file and key_file, or listen on 127.0.0.1"
    )]
    Plaintext {
        /// The address in question.
        address: SocketAddr,
    },
    /// Token, certificate or key cannot be used.
    #[error("admin API: {0}")]
    File(#[from] FileError),
    /// The system has no thread for it.
    #[error("admin API: cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The system refused an event queue or a socket.
    #[error("admin API: {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}
