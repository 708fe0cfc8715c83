//! The admin API of the daemon: HTTP/JSON over a Unix socket, and over TCP for clients with the
//! token. [`Admin`] does the work; this module connects sockets with that trait. For users:
//! `docs/operate/api.md`.
//!
//! Files: `server` (connections and their limits), `strangers` (which connections are closed to
//! make room), `access` and `tls` (access over TCP), `allowed_paths` (paths that clients may name),
//! `event_loop` (the thread that serves them), `metrics_port` (`/metrics` without a token),
//! `browser` (pages of other origins), `write_timeout` (connections whose peer reads nothing),
//! `extract` (checks of requests), `calls` (blocking calls), `routes` (a handler for each path),
//! `openapi` (their description), `ui` (the dashboard), `problem` (the form of an error).
//!
//! Invariants
//! - It has a thread and an event loop of its own, which never block: no request can delay another,
//!   or the engine.
//! - Everything has a bound: connections, headers, bodies, names, waiting, threads. [`Limits`] has
//!   the configurable ones.
//! - Every error of a handler or a router is a [`Problem`]. (The HTTP library refuses bytes that
//!   are not HTTP at all with a bare status.)
//! - Over TCP a request is processed only after its token was checked, except on the port of the
//!   metrics, and for the dashboard, whose files contain no data; without TLS the API listens on
//!   loopback only. Clients of the Unix socket need no token: the mode of the file and its
//!   directory decide, and lists of users if there are any.
//! - A client with read access changes nothing: the method of a request decides.
//! - Pages of other origins in a browser get nothing.

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

/// Addresses and limits of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiOptions {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Permissions of its file, usually `0o660`.
    pub socket_permissions: SocketPermissions,
    /// Access levels on the socket; `None`: every user that can open it has full access.
    pub users: Option<AdminUsers>,
    /// Prefixes of the paths that requests may name; `None`: all.
    pub allowed_paths: Option<Vec<PathBuf>>,
    /// Serves TCP as well.
    pub tcp: Option<TcpOptions>,
    /// Bounds.
    pub limits: Limits,
}

impl ApiOptions {
    /// Returns options for a socket at this path with full access for owner and group, and the
    /// default bounds.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        let (socket_permissions, limits) = (0o660.into(), Limits::default());
        Self { socket, socket_permissions, users: None, allowed_paths: None, tcp: None, limits }
    }
}

impl From<&DaemonConfig> for ApiOptions {
    /// Returns the configured options, with the default bounds.
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

/// Address and access of the API over TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpOptions {
    /// Name or address to listen on, without brackets.
    pub host: String,
    /// Port; 0 for any free port.
    pub port: u16,
    /// File with the token for changes.
    pub token_file: PathBuf,
    /// File with the token for read access.
    pub read_token_file: Option<PathBuf>,
    /// TLS; without it only loopback is allowed.
    pub tls: Option<TlsFiles>,
}

/// Bounds of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections at a time on each of the Unix socket and TCP. A further one replaces the
    /// oldest connection of an unauthenticated client; if there is none, it gets a 503 and is
    /// closed.
    pub connections_max: usize,
    /// Time for the headers of a request, for a TLS handshake, and of silence between two requests,
    /// each.
    pub headers_within: Duration,
    /// Time in which a client must read some of the bytes sent to it.
    pub write_timeout: Duration,
    /// Time for a query.
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

/// The interfaces behind the API.
#[derive(Clone)]
pub struct Services {
    /// Queries and changes.
    pub admin: Arc<dyn Admin>,
    /// The jobs of that interface: waiting for one takes no thread.
    pub jobs: Jobs,
    /// The events and alarms of that interface.
    pub events: Hub,
}

/// Reason why the API could not be started.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The Unix socket cannot be opened.
    #[error("admin socket: {0}")]
    Socket(#[from] forebay_io::SocketError),
    /// The address cannot be listened on.
    #[error("admin API: cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The port of the metrics cannot be opened.
    #[error("metrics_listen: cannot listen on {address}: {source}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Others could read the traffic.
    #[error(
        "admin API: {address} is not loopback, and without TLS the token could be read on the network: give \
         cert_file and key_file, or listen on 127.0.0.1"
    )]
    Plaintext {
        /// The address in question.
        address: SocketAddr,
    },
    /// Token, certificate or key cannot be used.
    #[error("admin API: {0}")]
    File(#[from] FileError),
    /// The system cannot create a thread for it.
    #[error("admin API: cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The system refused an event queue or a socket.
    #[error("admin API: {what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
}
