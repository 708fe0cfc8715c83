//! Sockets of the API: limits on clients, connections, and times.
//!
//! Invariants
//! - A client that sends nothing, sends slowly, or does not read loses its connection within a
//!   bounded time.
//! - Connections over TCP and over the Unix socket are counted separately, and connections of
//!   clients without a token are closed to make room (`strangers`): they cannot lock out the
//!   operator.
//! - [`ApiServer`] removes its socket when it is dropped.

use std::net::{SocketAddr, TcpListener as StdTcpListener, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::access::{Level, Tokens, level_of_user, may_do_everything};
use super::allowed_paths::AllowedPaths;
use super::event_loop::{ANSWERS_WITHIN, EventLoop};
use super::extract::check_length;
use super::problem::Problem;
use super::strangers::{Peer, Strangers};
use super::write_timeout::WriteTimeout;
use super::{ApiError, ApiOptions, Limits, Services, TcpOptions, browser, routes, tls, ui};
use forebay_admin::{AdminError, MessageId};
use forebay_config::AdminUsers;
use forebay_export::uri::Endpoint;
use forebay_io::SocketError;
use forebay_pool::MayWait;
use forebay_pool::handover::{Listener, ListenerStore};

/// Pause after a failed accept, usually for lack of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Time limit for a killed daemon to release its socket, and the polling interval.
const DEAD_WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);
/// Maximum number of headers of a request, and their maximum size in bytes.
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Maximum buffer of a connection in each direction, in bytes.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Response to a connection beyond the limit, with a literal head, because there is no HTTP
/// connection yet. It has a length: the request is not read, so a reset may follow the last byte.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
    retry-after: 1\r\ncontent-length: 216\r\nconnection: close\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"there are too many connections\",\"kind\":\"unavailable\",\"id\":\"api.too-many\",\"what\":\"there are too many connections\",\
    \"hint\":\"close some of them\"}";

/// A running API. Stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    socket: PathBuf,
    tcp: Option<SocketAddr>,
    /// The file of its Unix socket.
    file: Option<forebay_io::SocketFile>,
    event_loop: EventLoop,
    /// Duplicates of the listening sockets: they can outlive the server.
    listeners: Vec<Listener>,
    listener_store: Arc<ListenerStore>,
}

impl ApiServer {
    /// Returns its TCP address.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Stops serving, and returns the listening sockets: clients that connect wait for their next
    /// owner.
    pub(crate) fn into_listeners(mut self) -> Vec<Listener> {
        self.event_loop.end();
        std::mem::take(&mut self.listeners)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.event_loop.end();
        if !self.listeners.is_empty()
            && !self.listener_store.keeps()
            && let Some(file) = self.file
        {
            file.remove(&self.socket);
        }
    }
}

/// Serves the API until the result is dropped.
///
/// # Errors
/// The socket or address is in use or cannot be opened; the token, certificate or key cannot be
/// used, or others may read it; plaintext was configured on an address other than loopback; the
/// system refuses a thread. Then nothing is served.
pub fn serve(options: &ApiOptions, services: Services) -> Result<ApiServer, ApiError> {
    ReadyApi::open(options, services, Arc::default())?.serve()
}

/// Checks that the API could be served, before anything is opened that would have to be closed
/// again.
///
/// # Errors
/// As [`serve`], as far as they can be detected in advance.
pub(crate) fn check(options: &ApiOptions, listener_store: &ListenerStore) -> Result<(), ApiError> {
    let tcp = options.tcp.as_ref().map(TcpParts::read).transpose()?;
    if listener_store.has_passed() {
        return Ok(());
    }
    if let (Some(options), Some(tcp)) = (&options.tcp, tcp) {
        drop(StdTcpListener::bind(tcp.addresses.as_slice()).map_err(tcp_failed(options))?);
    }
    // A killed daemon may answer for a moment.
    let until = Instant::now() + DEAD_WITHIN;
    loop {
        match forebay_io::check_unix(&options.socket) {
            Err(SocketError::InUse { .. }) if Instant::now() < until => std::thread::sleep(LOOK),
            other => return Ok(other?),
        }
    }
}

/// An API with open sockets that does not accept yet.
pub(crate) struct ReadyApi {
    options: ApiOptions,
    services: Services,
    unix: StdUnixListener,
    tcp: Option<TcpEndpoint<StdTcpListener>>,
    listeners: Vec<Listener>,
    listener_store: Arc<ListenerStore>,
}

impl ReadyApi {
    /// Opens everything, with the sockets in `listener_store`.
    pub(crate) fn open(
        options: &ApiOptions,
        services: Services,
        listener_store: Arc<ListenerStore>,
    ) -> Result<Self, ApiError> {
        let failed = |source| ApiError::System { what: "socket", source };
        let tcp = options.tcp.as_ref().map(|tcp| TcpEndpoint::open(tcp, &listener_store)).transpose()?;
        let endpoint = Endpoint::Unix(options.socket.clone());
        let permissions = &options.socket_permissions;
        let unix = match listener_store.take(&MayWait::here(), &endpoint) {
            Some(kept) if forebay_io::set_permissions(&options.socket, permissions)? => kept,
            _ => forebay_io::listen_unix(&options.socket, permissions.clone())?,
        };
        let mut listeners = vec![Listener { endpoint, fd: unix.try_clone().map_err(failed)? }];
        if let (Some(bound), Some(asked)) = (&tcp, &options.tcp) {
            let endpoint = Endpoint::Tcp { host: asked.host.clone(), port: asked.port };
            listeners.push(Listener { endpoint, fd: bound.listener.try_clone().map_err(failed)?.into() });
        }
        for listener in &listeners {
            listener_store.keep(&listener.endpoint, &listener.fd);
        }
        Ok(Self { options: options.clone(), services, unix: unix.into(), tcp, listeners, listener_store })
    }

    /// Begins to accept.
    pub(crate) fn serve(self) -> Result<ApiServer, ApiError> {
        let Self { options, services, unix, tcp, listeners, listener_store } = self;
        let tcp_address = tcp.as_ref().map(|bound| bound.address);
        let event_loop = EventLoop::spawn("forebay-admin", |stopping| {
            let failed = |source| ApiError::System { what: "socket", source };
            unix.set_nonblocking(true).map_err(failed)?;
            let unix = UnixListener::from_std(unix).map_err(failed)?;
            let tcp = tcp.map(TcpEndpoint::into_tokio).transpose().map_err(failed)?;
            let router = routes::router(services, &options.limits, stopping.clone());
            let router = router.map_err(ApiError::Thread)?;
            let state = ServerState::new(options.limits, options.users, stopping);
            Ok(state.with_allowed_paths(options.allowed_paths.as_deref()).serve(unix, tcp, router))
        })?;
        let file = forebay_io::SocketFile::at(&options.socket);
        let (socket, tcp) = (options.socket, tcp_address);
        Ok(ApiServer { socket, file, tcp, event_loop, listeners, listener_store })
    }
}

/// The TCP side before it is served.
struct TcpEndpoint<L> {
    listener: L,
    address: SocketAddr,
    tokens: Tokens,
    tls: Option<TlsAcceptor>,
}

/// Parts of the TCP side besides its socket.
struct TcpParts {
    addresses: Vec<SocketAddr>,
    tokens: Tokens,
    tls: Option<TlsAcceptor>,
}

impl TcpParts {
    fn read(options: &TcpOptions) -> Result<Self, ApiError> {
        let found = (options.host.as_str(), options.port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = found.map_err(tcp_failed(options))?.collect();
        if options.tls.is_none()
            && let Some(&address) = addresses.iter().find(|address| !address.ip().is_loopback())
        {
            return Err(ApiError::Plaintext { address });
        }
        let tokens = Tokens::read(&options.token_file, options.read_token_file.as_deref())?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        Ok(Self { addresses, tokens, tls })
    }
}

fn tcp_failed(options: &TcpOptions) -> impl Fn(std::io::Error) -> ApiError {
    let address = format!("{}:{}", options.host, options.port);
    move |source| ApiError::Tcp { address: address.clone(), source }
}

impl TcpEndpoint<StdTcpListener> {
    fn open(options: &TcpOptions, listener_store: &ListenerStore) -> Result<Self, ApiError> {
        let failed = tcp_failed(options);
        let TcpParts { addresses, tokens, tls } = TcpParts::read(options)?;
        let listener = match listener_store
            .take(&MayWait::here(), &Endpoint::Tcp { host: options.host.clone(), port: options.port })
        {
            Some(socket) => socket.into(),
            None => StdTcpListener::bind(addresses.as_slice()).map_err(&failed)?,
        };
        listener.set_nonblocking(true).map_err(&failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, tokens, tls })
    }

    fn into_tokio(self) -> std::io::Result<TcpEndpoint<TcpListener>> {
        let Self { listener, address, tokens, tls } = self;
        Ok(TcpEndpoint { listener: TcpListener::from_std(listener)?, address, tokens, tls })
    }
}

/// State shared by all connections.
#[derive(Clone)]
pub(super) struct ServerState {
    limits: Limits,
    users: Option<Arc<AdminUsers>>,
    allowed_paths: AllowedPaths,
    stopping: watch::Receiver<bool>,
    /// Number of open connections.
    open: Arc<watch::Sender<usize>>,
}

/// Counts a connection until it ends.
struct OpenConnection(Arc<watch::Sender<usize>>);

impl OpenConnection {
    fn new(open: &Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|count| *count += 1);
        Self(Arc::clone(open))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl ServerState {
    pub(super) fn new(limits: Limits, users: Option<AdminUsers>, stopping: watch::Receiver<bool>) -> Self {
        let (users, allowed_paths) = (users.map(Arc::new), AllowedPaths::default());
        Self { limits, users, allowed_paths, stopping, open: Arc::new(watch::Sender::new(0)) }
    }

    /// Restricts clients to paths below these prefixes.
    fn with_allowed_paths(mut self, prefixes: Option<&[PathBuf]>) -> Self {
        self.allowed_paths = prefixes.map(AllowedPaths::below).unwrap_or_default();
        self
    }

    async fn serve(self, unix: UnixListener, tcp: Option<TcpEndpoint<TcpListener>>, router: Router) {
        let router = router.layer(from_fn(refuse_large)).layer(from_fn(browser::refuse_other_pages));
        let serve_tcp = async {
            match tcp {
                Some(TcpEndpoint { listener, tokens, tls, .. }) => {
                    let router = router.clone().layer(Extension(self.allowed_paths.clone()));
                    let router = router.layer(from_fn_with_state(tokens, check_token));
                    self.clone().serve_tcp(listener, tls, router).await;
                }
                None => std::future::pending().await,
            }
        };
        let serve = async { tokio::join!(self.clone().serve_unix(unix, router.clone()), serve_tcp) };
        self.until_stopped(serve).await;
    }

    /// Serves without a token. The host names that browsers use are checked as over the Unix
    /// socket.
    pub(super) async fn serve_metrics(self, listener: TcpListener, router: Router) {
        let router = router
            .layer(from_fn(refuse_large))
            .layer(from_fn(browser::refuse_other_pages))
            .layer(from_fn(browser::refuse_other_names));
        self.until_stopped(self.clone().serve_tcp(listener, None, router)).await;
    }

    async fn until_stopped<T>(&self, serve: impl Future<Output = T>) {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            _ = serve => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        // Connections receive the same signal, and end after the response in flight: a client that
        // requested an upgrade must receive its start.
        let mut open = self.open.subscribe();
        let _ = tokio::time::timeout(ANSWERS_WITHIN, open.wait_for(|count| *count == 0)).await;
    }

    async fn serve_unix(self, listener: UnixListener, router: Router) {
        let router = router.layer(from_fn(browser::refuse_other_names));
        let (places, strangers) =
            (Arc::new(Semaphore::new(self.limits.connections_max)), Strangers::default());
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            };
            match place(&places, &strangers).await {
                Some(place) => {
                    let peer = if self.is_stranger(&stream) { strangers.enter() } else { Arc::default() };
                    let router = self.for_user(&stream, router.clone());
                    drop(tokio::spawn(self.clone().connection(stream, router, place, peer)));
                }
                None => drop(tokio::spawn(turn_away(stream))),
            }
        }
    }

    /// Returns true if the peer's user does not even have read access.
    fn is_stranger(&self, stream: &UnixStream) -> bool {
        self.users.is_some() && self.level_of(stream).is_none()
    }

    fn level_of(&self, stream: &UnixStream) -> Option<Level> {
        let peer = forebay_io::peer_cred(stream.as_fd()).ok()?;
        let groups = forebay_io::peer_groups(stream.as_fd()).unwrap_or_default();
        level_of_user(self.users.as_ref()?, peer, &groups)
    }

    /// Returns the routes with the access level of the peer's user.
    fn for_user(&self, stream: &UnixStream, router: Router) -> Router {
        let peer = forebay_io::peer_cred(stream.as_fd());
        let is_limited = !peer.is_ok_and(may_do_everything);
        let router = if is_limited { router.layer(Extension(self.allowed_paths.clone())) } else { router };
        if self.users.is_none() {
            return router;
        }
        router.layer(from_fn_with_state(self.level_of(stream), check_level))
    }

    async fn serve_tcp(self, listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
        let (places, strangers) =
            (Arc::new(Semaphore::new(self.limits.connections_max)), Strangers::default());
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            };
            let _ = stream.set_nodelay(true); // a response is one write or few
            let peer = || {
                let peer = strangers.enter();
                (router.clone().layer(Extension(peer.clone())), peer)
            };
            match (place(&places, &strangers).await, &tls) {
                (Some(place), Some(tls)) => {
                    let (state, (router, peer), handshake) = (self.clone(), peer(), tls.accept(stream));
                    tokio::spawn(async move {
                        let shaken = tokio::time::timeout(state.limits.headers_within, handshake);
                        let shaken = tokio::select! {
                            shaken = shaken => shaken,
                            () = peer.must_leave() => return,
                        };
                        if let Ok(Ok(stream)) = shaken {
                            state.connection(stream, router, place, peer).await;
                        }
                    });
                }
                (Some(place), None) => {
                    let (router, peer) = peer();
                    drop(tokio::spawn(self.clone().connection(stream, router, place, peer)));
                }
                (None, None) => drop(tokio::spawn(turn_away(stream))),
                (None, Some(_)) => {} // close it: a response would cost a handshake
            }
        }
    }

    /// Serves one connection until either side ends it, or it must make room.
    async fn connection<S>(mut self, stream: S, router: Router, _place: OwnedSemaphorePermit, peer: Arc<Peer>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let _open = OpenConnection::new(&self.open);
        let stream = TokioIo::new(WriteTimeout::new(stream, self.limits.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.headers_within)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEADER_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(stream, TowerToHyperService::new(router));
        let mut connection = pin!(connection);
        // Errors are those of the client: it disconnected, or did not speak HTTP.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = peer.must_leave() => return,
            _ = self.stopping.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// Returns a place for one more connection, if necessary that of the oldest stranger.
async fn place(places: &Arc<Semaphore>, strangers: &Strangers) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = places.clone().try_acquire_owned() {
        return Some(place);
    }
    if !strangers.send_away_oldest() {
        return None;
    }
    tokio::time::timeout(ACCEPT_REST, places.clone().acquire_owned()).await.ok()?.ok()
}

/// Sends the refusal of a connection beyond the limit, if the client takes it at once.
async fn turn_away<S: AsyncWrite + Unpin>(mut stream: S) {
    let _ = tokio::time::timeout(ACCEPT_REST, async {
        stream.write_all(TOO_MANY).await?;
        stream.shutdown().await
    })
    .await;
}

async fn refuse_large(request: Request, next: Next) -> Response {
    match check_length(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn check_level(State(level): State<Option<Level>>, mut request: Request, next: Next) -> Response {
    let needs = Level::needed(request.method());
    if ui::is_asked_for(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    if let Some(has) = level.filter(|has| *has >= needs) {
        request.extensions_mut().insert(has); // the dashboard shows the level
        return next.run(request).await;
    }
    Level::refusal(level, needs).into_response()
}

async fn check_token(State(tokens): State<Tokens>, request: Request, next: Next) -> Response {
    if ui::is_asked_for(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    if let Some(level) = tokens.level(request.headers()) {
        if let Some(peer) = request.extensions().get::<Arc<Peer>>() {
            peer.is_known_now();
        }
        return check_level(State(Some(level)), request, next).await;
    }
    let hint = "send the header Authorization: Bearer TOKEN, with the token of the daemon's token_file";
    Problem::from(AdminError::new(MessageId::ApiToken, "no token, or a wrong one", hint)).into_response()
}
