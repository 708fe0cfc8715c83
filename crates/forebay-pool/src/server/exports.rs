//! Exports of volumes: endpoints that the server listens on, and their exports.
//!
//! The server listens on an endpoint as long as a volume is exported there. Several volumes can
//! share one endpoint: the export name that the client requests selects the volume. Endpoint
//! numbers are never reused, so that a late completion of an accept is never attributed to another
//! endpoint.

use super::{Server, ServerToken};
use crate::guard::{AccessEntry, Peer, TlsEntry};
use crate::handover::{Listener, ListenerStore};
use crate::may_wait::MayWait;
use forebay_config::rules::{Client, Identity, RuleSet};
use forebay_export::directory::{ExportInfo, Exports};
use forebay_export::uri::{Endpoint, ExportUri, FilePermissions, Guards};
use forebay_format::VolumeId;
use forebay_io::{
    ListenerId, Op, Reactor, SocketError, SocketFile, SocketPermissions, listen_tcp, listen_unix,
    set_permissions,
};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Only owner and group may connect, unless the export specifies others.
const SOCKET_MODE: u32 = 0o660;
/// A killed server answers on its sockets for a moment, until the kernel has ended its operations
/// in flight: a start waits up to this long for that, and checks at this interval. Later a wait
/// would delay all served clients, and an error is better.
const STALE_TIMEOUT: Duration = Duration::from_secs(2);
const STALE_PAUSE: Duration = Duration::from_millis(10);
const STARTING: Duration = Duration::from_secs(5);

/// One name at one endpoint.
#[derive(Debug)]
struct Export {
    endpoint: u32,
    volume: VolumeId,
    info: ExportInfo,
    mark: String,
    /// Connections to the volume at once.
    connections_max: u32,
    /// Clients that may see it; all if there is no list.
    access: Option<Arc<AccessEntry>>,
}

impl Export {
    fn allows(&self, peer: &Peer) -> bool {
        self.access.as_ref().is_none_or(|access| access.allows(peer))
    }
}

/// An export to create, and its endpoint.
pub struct Offer<'a> {
    /// Its endpoint.
    pub endpoint: &'a Endpoint,
    /// Permissions of the socket's file.
    pub permissions: &'a FilePermissions,
    /// The volume.
    pub volume: VolumeId,
    /// Its properties as clients see them.
    pub info: ExportInfo,
    /// Identifies the volume, also across processes: equal only if it is the same volume.
    pub mark: String,
    /// Connections to the volume at once.
    pub connections_max: u32,
    /// TLS, with these certificates.
    pub tls: Option<Arc<TlsEntry>>,
    /// Clients that may see it.
    pub access: Option<Arc<AccessEntry>>,
}

/// A listening socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// With the port that the kernel chose.
    actual: Endpoint,
    /// Its file, if it is a unix socket.
    file: Option<SocketFile>,
}

impl Socket {
    fn new(fd: OwnedFd, actual: Endpoint) -> Self {
        let file = match &actual {
            Endpoint::Unix(path) => SocketFile::at(path),
            Endpoint::Tcp { .. } => None,
        };
        Self { fd, actual, file }
    }

    /// The descriptor, and its file if it is a unix socket.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<SocketFile>) {
        (self.fd, self.file)
    }

    /// Closes a socket that is not needed, without a trace.
    pub(crate) fn undo(self, _: &MayWait, wanted: &Endpoint, store: &ListenerStore) {
        store.forget(wanted);
        if let (Endpoint::Unix(path), Some(file), false) = (&self.actual, self.file, store.is_parked()) {
            file.remove(path);
        }
    }
}

/// An endpoint for which the caller must get a socket.
#[derive(Debug)]
pub struct ToListen {
    pub(crate) endpoint: Endpoint,
    permissions: FilePermissions,
    pub(crate) listener_store: Arc<ListenerStore>,
    /// How long to wait for a place where another process listens.
    timeout: Duration,
}

impl ToListen {
    /// Sets how long to wait for the process that listens there now and is about to end.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the kept socket, or a new one. May wait for the resolution of names of hosts, users
    /// and groups.
    ///
    /// # Errors
    /// Another process listens there, or listening failed: a message.
    pub fn listen(&self, may_wait: &MayWait) -> Result<Socket, String> {
        let wanted = &self.endpoint;
        match self.listener_store.take(may_wait, wanted) {
            Some(kept) if self.is_there()? => bound(&kept, wanted).map(|actual| Socket::new(kept, actual)),
            _ => listen(may_wait, self),
        }
    }
}

impl ToListen {
    /// Gives the file of a kept socket the permissions of the current configuration; false if the
    /// file is gone.
    fn is_there(&self) -> Result<bool, String> {
        match &self.endpoint {
            Endpoint::Unix(path) => {
                set_permissions(path, &of_socket(&self.permissions)).map_err(|error| error.to_string())
            }
            Endpoint::Tcp { .. } => Ok(true),
        }
    }
}

/// An endpoint that the server listens on, or listened on.
#[derive(Debug)]
struct Listening {
    asked: Endpoint,
    /// With the port that the kernel chose.
    actual: Endpoint,
    listener: Option<ListenerId>,
    /// Its file, if it is a unix socket.
    file: Option<SocketFile>,
    /// An accept is in flight.
    accepting: bool,
    /// The same for all exports here: the export is not known before the client has chosen it.
    tls: Option<Arc<TlsEntry>>,
    /// The same for all exports here: the socket's file has only one set of them.
    permissions: FilePermissions,
}

/// Endpoints and exports.
#[derive(Debug)]
pub(super) struct Directory {
    /// When the server was started.
    since: Instant,
    endpoints: Vec<Listening>,
    exports: Vec<Export>,
    /// Connections to each volume, by its number.
    connected: Vec<u32>,
    /// Sockets that outlive this process.
    listener_store: Arc<ListenerStore>,
    /// Socket files without a listener, to be removed.
    files: Vec<(SocketFile, PathBuf)>,
}

/// The exports that a client at one endpoint sees: no option and no error reveals others.
pub(super) struct Seen<'a> {
    directory: &'a Directory,
    endpoint: u32,
    peer: &'a Peer,
    /// Why it was refused an existing export.
    pub(super) hidden: RefCell<Option<String>>,
}

impl Exports for Seen<'_> {
    fn list(&self) -> Vec<ExportInfo> {
        let here = self.directory.exports.iter().filter(|export| export.endpoint == self.endpoint);
        here.filter(|export| export.allows(self.peer)).map(|export| export.info.clone()).collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let export = self.directory.find(self.endpoint, name)?;
        if export.allows(self.peer) {
            return Some(export.info.clone());
        }
        *self.hidden.borrow_mut() = Some(format!("has no access to \"{}\"", name.escape_debug()));
        None
    }

    fn is_full(&self, name: &str) -> bool {
        let Some(export) = self.directory.find(self.endpoint, name) else { return false };
        let connected = self.directory.connected.get(usize::from(export.volume.0)).copied().unwrap_or(0);
        let full = connected >= export.connections_max;
        if full {
            let name = name.escape_debug();
            *self.hidden.borrow_mut() =
                Some(format!("is refused: \"{name}\" has {connected} connections (connections_max)"));
        }
        full
    }
}

impl Directory {
    pub(super) fn new(listener_store: Arc<ListenerStore>) -> Self {
        let since = Instant::now();
        Self {
            since,
            endpoints: Vec::new(),
            exports: Vec::new(),
            connected: Vec::new(),
            listener_store,
            files: Vec::new(),
        }
    }

    pub(super) fn listener_store(&self) -> &ListenerStore {
        &self.listener_store
    }

    /// The endpoint as configured.
    pub(super) fn asked(&self, endpoint: u32) -> Option<&Endpoint> {
        self.endpoints.get(endpoint as usize).map(|listening| &listening.asked)
    }

    /// Notes whether an accept is in flight.
    pub(super) fn set_accepting(&mut self, endpoint: u32, accepting: bool) {
        if let Some(listening) = self.endpoints.get_mut(endpoint as usize) {
            listening.accepting = accepting;
        }
    }

    /// Numbers of the endpoints with a listener.
    pub(super) fn open_endpoints(&self) -> Vec<u32> {
        (0..self.endpoints.len() as u32).filter(|at| self.is_open(*at)).collect()
    }

    /// Counts a connection that has chosen an export of this volume.
    pub(super) fn came(&mut self, volume: Option<VolumeId>) {
        let Some(number) = volume.map(|volume| usize::from(volume.0)) else { return };
        if number >= self.connected.len() {
            self.connected.resize(number + 1, 0);
        }
        self.connected[number] += 1;
    }

    /// Counts the end of such a connection.
    pub(super) fn went(&mut self, volume: Option<VolumeId>) {
        let number = volume.map(|volume| usize::from(volume.0));
        if let Some(connected) = number.and_then(|number| self.connected.get_mut(number)) {
            *connected = connected.saturating_sub(1);
        }
    }

    /// Cancels the accepts in flight.
    pub(super) fn cancel_accepts(&self, reactor: &mut Reactor) {
        for listening in self.endpoints.iter().filter(|listening| listening.accepting) {
            listening.listener.into_iter().for_each(|listener| reactor.cancel_accepts(listener));
        }
    }

    pub(super) fn is_accepting_at(&self, endpoint: u32) -> bool {
        self.endpoints.get(endpoint as usize).is_some_and(|listening| listening.accepting)
    }

    pub(super) fn is_accepting(&self) -> bool {
        self.endpoints.iter().any(|listening| listening.accepting)
    }

    /// Releases all listening sockets, with their files.
    pub(super) fn release(&mut self, reactor: &mut Reactor) -> Vec<Listener> {
        let released = self.endpoints.iter_mut().filter_map(|listening| {
            let fd = reactor.release_listener(listening.listener?)?;
            listening.listener = None;
            Some(Listener { endpoint: listening.asked.clone(), fd })
        });
        released.collect()
    }

    pub(super) fn seen_by<'a>(&'a self, endpoint: u32, peer: &'a Peer) -> Seen<'a> {
        Seen { directory: self, endpoint, peer, hidden: RefCell::new(None) }
    }

    /// The certificates of an endpoint, if it has TLS.
    pub(super) fn tls(&self, endpoint: u32) -> Option<&Arc<TlsEntry>> {
        self.endpoints.get(endpoint as usize)?.tls.as_ref()
    }

    /// True if the endpoint has an export that a client with this address could ever see.
    pub(super) fn may_greet(&self, endpoint: u32, peer: &Peer) -> bool {
        let mut here = self.exports.iter().filter(|export| export.endpoint == endpoint);
        here.any(|export| export.access.as_ref().is_none_or(|access| access.allows_address(peer)))
    }

    /// True if a client may go on using its export.
    pub(super) fn still_allows(&self, endpoint: u32, name: &str, peer: &Peer) -> bool {
        self.find(endpoint, name).is_none_or(|export| export.allows(peer))
    }

    fn find(&self, endpoint: u32, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.endpoint == endpoint && export.info.name == name)
    }

    pub(super) fn volume(&self, endpoint: u32, name: &str) -> Option<VolumeId> {
        self.find(endpoint, name).map(|export| export.volume)
    }

    /// Identifies the volume of an export ([`Offer::mark`]).
    pub(super) fn mark(&self, endpoint: u32, name: &str) -> Option<&str> {
        self.find(endpoint, name).map(|export| export.mark.as_str())
    }

    /// The properties of an export as clients see them.
    pub(super) fn info(&self, endpoint: u32, name: &str) -> Option<ExportInfo> {
        self.find(endpoint, name).map(|export| export.info.clone())
    }

    pub(super) fn listener(&self, endpoint: u32) -> Option<ListenerId> {
        self.endpoints.get(endpoint as usize)?.listener
    }

    pub(super) fn is_open(&self, endpoint: u32) -> bool {
        self.listener(endpoint).is_some()
    }

    /// Stops listening. Sockets that a store keeps open for the next start stay in place.
    pub(super) fn close(&mut self, reactor: &mut Reactor) {
        for at in 0..self.endpoints.len() {
            self.stop_listening(reactor, at, self.listener_store.keeps());
        }
    }

    fn stop_listening(&mut self, reactor: &mut Reactor, at: usize, keep: bool) {
        let Some(listener) = self.endpoints[at].listener.take() else { return };
        reactor.close_listener(listener);
        if keep {
            return;
        }
        self.listener_store.forget(&self.endpoints[at].asked);
        let Listening { asked, file, .. } = &self.endpoints[at];
        if let (Endpoint::Unix(path), Some(file), false) = (asked, file, self.listener_store.is_parked()) {
            self.files.push((*file, path.clone()));
        }
    }

    fn resize(&mut self, volume: VolumeId, size_bytes: u64) {
        for export in self.exports.iter_mut().filter(|export| export.volume == volume) {
            export.info.size_bytes = size_bytes;
        }
    }

    fn position(&self, wanted: &Endpoint) -> Option<usize> {
        let open = |listening: &Listening| listening.listener.is_some() && listening.asked == *wanted;
        self.endpoints.iter().position(open)
    }

    /// Finds the endpoint, or uses the socket created for it; returns whether it is new.
    fn endpoint(
        &mut self,
        reactor: &mut Reactor,
        (wanted, permissions): (&Endpoint, &FilePermissions),
        tls: Option<&Arc<TlsEntry>>,
        made: &mut Option<Socket>,
    ) -> Result<(u32, bool), String> {
        if let Some(at) = self.position(wanted) {
            if self.endpoints[at].permissions != *permissions {
                return Err("another export at the same place has other mode=, user= or group=".into());
            }
            let same = match (tls, &self.endpoints[at].tls) {
                (None, None) => true,
                (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
                _ => false,
            };
            return if same {
                Ok((at as u32, false))
            } else {
                Err("another export at the same place has other TLS settings".into())
            };
        }
        let Socket { fd, actual, file } = made.take().ok_or("there is no listener")?;
        self.listener_store.keep(wanted, &fd);
        let listener = reactor.add_listener(fd).map_err(|error| format!("cannot listen: {error}"))?;
        let (asked, tls) = (wanted.clone(), tls.cloned());
        self.endpoints.push(Listening {
            asked,
            actual,
            listener: Some(listener),
            file,
            accepting: false,
            tls,
            permissions: permissions.clone(),
        });
        Ok((self.endpoints.len() as u32 - 1, true))
    }
}

fn listen(_: &MayWait, wanted: &ToListen) -> Result<Socket, String> {
    let began = Instant::now();
    loop {
        match listen_once(&wanted.endpoint, &wanted.permissions) {
            Err(Refusal::Taken(_)) if began.elapsed() < wanted.timeout => std::thread::sleep(STALE_PAUSE),
            Err(Refusal::Taken(what) | Refusal::Other(what)) => return Err(what),
            Ok((fd, actual)) => return Ok(Socket::new(fd, actual)),
        }
    }
}

/// Why listening failed: a message.
enum Refusal {
    /// Another process listens there.
    Taken(String),
    Other(String),
}

impl From<SocketError> for Refusal {
    fn from(error: SocketError) -> Refusal {
        let taken = match &error {
            SocketError::InUse { .. } => true,
            SocketError::System { source, .. } => source.kind() == ErrorKind::AddrInUse,
            _ => false,
        };
        if taken { Refusal::Taken(error.to_string()) } else { Refusal::Other(error.to_string()) }
    }
}

/// Permissions of a socket's file, with defaults for those that an export leaves out.
fn of_socket(permissions: &FilePermissions) -> SocketPermissions {
    let FilePermissions { mode, user, group } = permissions.clone();
    SocketPermissions { mode: mode.unwrap_or(SOCKET_MODE), user, group }
}

fn listen_once(wanted: &Endpoint, permissions: &FilePermissions) -> Result<(OwnedFd, Endpoint), Refusal> {
    match wanted {
        Endpoint::Unix(path) => Ok((listen_unix(path, of_socket(permissions))?, wanted.clone())),
        Endpoint::Tcp { host, port } => {
            let address = (host.as_str(), *port).to_socket_addrs().ok().and_then(|mut found| found.next());
            let address = address.ok_or_else(|| Refusal::Other(format!("no address for {host}")))?;
            let (socket, bound) = listen_tcp(address)?;
            Ok((socket, Endpoint::Tcp { host: host.clone(), port: bound.port() }))
        }
    }
}

/// Actual endpoint of a socket that is already bound.
fn bound(socket: &OwnedFd, wanted: &Endpoint) -> Result<Endpoint, String> {
    let Endpoint::Tcp { host, .. } = wanted else { return Ok(wanted.clone()) };
    let address = socket.try_clone().and_then(|socket| TcpListener::from(socket).local_addr());
    let address = address.map_err(|error| format!("cannot listen: {error}"))?;
    Ok(Endpoint::Tcp { host: host.clone(), port: address.port() })
}

impl Server {
    /// Gives a volume its rules, before its first export.
    pub fn add_volume(&mut self, volume: VolumeId, rules: Arc<RuleSet>) {
        let index = usize::from(volume.0);
        if index >= self.rules.len() {
            self.rules.resize(index + 1, None);
        }
        self.rules[index] = Some(rules);
    }

    /// The socket that the caller must get before an export at an endpoint; `None` if none is
    /// missing.
    pub fn must_listen(&self, endpoint: &Endpoint, permissions: &FilePermissions) -> Option<ToListen> {
        let directory = &self.directory;
        let timeout = if directory.since.elapsed() < STARTING { STALE_TIMEOUT } else { Duration::ZERO };
        directory.position(endpoint).is_none().then(|| ToListen {
            endpoint: endpoint.clone(),
            permissions: permissions.clone(),
            listener_store: Arc::clone(&directory.listener_store),
            timeout,
        })
    }

    /// Takes the files of closed listening sockets, which the caller removes.
    pub fn take_files(&mut self) -> Vec<(SocketFile, PathBuf)> {
        std::mem::take(&mut self.directory.files)
    }

    /// Serves a volume as an offer describes, with this socket if the server does not listen there
    /// yet; returns the URI for clients (with the port, if the kernel chose it).
    ///
    /// # Errors
    /// The endpoint cannot be listened on, has other TLS settings or permissions, or another export
    /// of this name; nothing was changed.
    pub fn export(
        &mut self,
        reactor: &mut Reactor,
        offer: Offer<'_>,
        socket: &mut Option<Socket>,
    ) -> Result<String, String> {
        let Offer { endpoint, permissions, volume, info, mark, connections_max, tls, access } = offer;
        let (at, new) = self.directory.endpoint(reactor, (endpoint, permissions), tls.as_ref(), socket)?;
        let name = info.name.clone();
        if self.directory.find(at, &name).is_some() {
            return Err(format!("there is another export \"{name}\" at the same place"));
        }
        self.directory.exports.push(Export { endpoint: at, volume, info, mark, connections_max, access });
        if new {
            self.accept(reactor, at);
        }
        self.adopt_guests(reactor, at, &name);
        let endpoint = self.directory.endpoints[at as usize].actual.clone();
        let guards = Guards { tls: tls.map(|_| String::new()), access: None };
        let permissions = FilePermissions::default();
        Ok(ExportUri::Nbd { endpoint, name, guards, permissions }.for_clients())
    }

    /// Withdraws the exports of a volume: new clients do not find it, and connected ones are
    /// disconnected once their requests are answered.
    pub(crate) fn withdraw(&mut self, reactor: &mut Reactor, volume: VolumeId) {
        self.directory.exports.retain(|export| export.volume != volume);
        if let Some(rules) = self.rules.get_mut(usize::from(volume.0)) {
            *rules = None;
        }
        for at in 0..self.directory.endpoints.len() {
            if !self.directory.exports.iter().any(|export| export.endpoint as usize == at) {
                self.directory.stop_listening(reactor, at, false);
            }
        }
        for index in 0..self.connections.len() as u32 {
            if let Some(Some(connection)) = self.connections.get_mut(index as usize)
                && connection.volume == Some(volume)
            {
                connection.closing = true;
                self.enqueue(index);
            }
        }
    }

    /// Notes the new size of a volume. Connected clients see a larger size only when they
    /// reconnect; requests beyond a smaller end are refused.
    pub(crate) fn resize(&mut self, volume: VolumeId, size_bytes: u64) {
        self.directory.resize(volume, size_bytes);
        for connection in self.connections.iter_mut().flatten().filter(|c| c.volume == Some(volume)) {
            connection.session.set_size_bytes(size_bytes);
        }
    }

    /// The handshake is complete: the connection belongs to a volume now.
    pub(super) fn established(&mut self, reactor: &Reactor, index: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.greeted_by.take().is_some() {
            self.greeting -= 1;
        }
        let name = connection.session.export().map(|info| info.name.clone()).unwrap_or_default();
        connection.volume = self.directory.volume(connection.endpoint, &name);
        let rules = connection.volume.and_then(|id| self.rules.get(usize::from(id.0)).cloned().flatten());
        let Some(rules) = rules else {
            // Withdrawn during the handshake.
            (connection.closing, connection.volume) = (true, None);
            return;
        };
        let identity = match reactor.peer_cred(connection.socket) {
            Ok(peer) => Identity::of_peer(rules.proc(), peer),
            Err(_) => Identity::unknown(), // not a unix socket
        };
        connection.client = Some(Client::new(rules, name, identity));
        let volume = connection.volume;
        self.directory.came(volume);
    }

    /// Allow lists have changed: disconnects clients that are no longer allowed, once their
    /// requests are answered.
    pub(crate) fn look_at_clients_again(&mut self) {
        for index in 0..self.connections.len() as u32 {
            let Some(Some(connection)) = self.connections.get_mut(index as usize) else { continue };
            let Some(name) = connection.session.export().map(|info| info.name.clone()) else { continue };
            if self.directory.still_allows(connection.endpoint, &name, &connection.peer) {
                continue;
            }
            connection.closing = true;
            let what = format!("{} no longer has access to \"{}\"", connection.peer, name.escape_debug());
            self.refusals.note(what);
            self.enqueue(index);
        }
    }

    pub(super) fn accept(&mut self, reactor: &mut Reactor, endpoint: u32) {
        if self.quiescing || self.directory.is_accepting_at(endpoint) {
            return;
        }
        if let Some(listener) = self.directory.listener(endpoint) {
            self.directory.set_accepting(endpoint, true);
            reactor.submit(ServerToken::Accept(endpoint).encode(), Op::Accept { listener });
        }
    }

    /// Describes the clients of a volume, without those that are being disconnected.
    pub(crate) fn clients_of(&self, reactor: &Reactor, volume: VolumeId) -> Vec<String> {
        let all = self.connections.iter().flatten();
        let of = all.filter(|connection| connection.volume == Some(volume) && !connection.closing);
        of.map(|connection| match reactor.peer_cred(connection.socket) {
            Ok(cred) if cred.pid > 0 => format!("{} (process {})", connection.peer, cred.pid),
            _ => connection.peer.to_string(),
        })
        .collect()
    }

    /// Connections to a volume.
    pub(crate) fn connections_to(&self, volume: VolumeId) -> u64 {
        self.connections.iter().flatten().filter(|connection| connection.volume == Some(volume)).count()
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A server that releases its socket after a while, as the kernel does for a killed one.
    fn waits_for(wanted: &Endpoint, old: OwnedFd) {
        let within = |timeout| ToListen {
            endpoint: wanted.clone(),
            permissions: FilePermissions::default(),
            listener_store: Arc::default(),
            timeout,
        };
        assert!(listen(&MayWait::here(), &within(Duration::ZERO)).is_err(), "{wanted:?} is taken");
        let (told, tell) = mpsc::channel::<()>();
        let asked = within(Duration::from_secs(60));
        let waits = std::thread::spawn(move || {
            told.send(()).unwrap();
            listen(&MayWait::here(), &asked).map(|socket| socket.actual)
        });
        tell.recv().unwrap();
        std::thread::sleep(STALE_PAUSE * 5);
        drop(old);
        assert_eq!(waits.join().unwrap().as_ref(), Ok(wanted));
    }

    #[test]
    fn start_waits_for_a_closing_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let old = listen_unix(&path, SOCKET_MODE).unwrap();
        waits_for(&Endpoint::Unix(path), old);
    }

    #[test]
    fn start_waits_for_a_closing_port() {
        let (old, address) = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        waits_for(&Endpoint::Tcp { host: "127.0.0.1".into(), port: address.port() }, old);
    }
}
