//! Sockets that existed before this process, and those that will outlive it.
//!
//! Code that needs a listening socket asks here first ([`ListenerStore::take`]). A socket is taken
//! only for the endpoint where it is bound, and only if clients still find it there.

use super::{Guest, HandoverSockets, Listener, Manager};
use crate::may_wait::MayWait;
use forebay_export::uri::Endpoint;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module documentation.
#[derive(Debug, Default)]
pub struct ListenerStore {
    inherited: Mutex<HandoverSockets>,
    manager: Option<Manager>,
    /// Sockets came from the service manager, which has them too.
    passed: bool,
    /// Nothing may be read or accepted yet: everything is still the predecessor's, including files
    /// and the state of the manager.
    parked: AtomicBool,
    /// Sockets for the manager to keep once this process is the daemon: before, the manager ignores
    /// its messages.
    waiting: Mutex<Vec<Listener>>,
}

impl ListenerStore {
    /// Creates a store with the sockets that the service manager has kept, if there is one.
    pub fn from_manager(manager: Option<Manager>) -> Self {
        let passed = forebay_io::passed_listeners();
        let inherited =
            HandoverSockets { listeners: passed.into_iter().filter_map(named).collect(), guests: Vec::new() };
        let passed = !inherited.listeners.is_empty();
        Self { inherited: Mutex::new(inherited), manager, passed, ..Self::default() }
    }

    /// Creates a store with the sockets that a predecessor has passed. Nothing of it is used before
    /// [`ListenerStore::go_on`]. `passed`: its sockets came from the service manager.
    pub fn parked(inherited: HandoverSockets, manager: Option<Manager>, passed: bool) -> Self {
        let parked = AtomicBool::new(true);
        Self { inherited: Mutex::new(inherited), manager, passed, parked, ..Self::default() }
    }

    /// Takes back the sockets that no successor has taken.
    pub fn put_back(&self, inherited: HandoverSockets) {
        self.lock().append(inherited);
    }

    fn lock(&self) -> MutexGuard<'_, HandoverSockets> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if sockets came from the service manager.
    pub fn has_passed(&self) -> bool {
        self.passed
    }

    /// The service manager, if it keeps sockets.
    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// True while everything must stay unchanged.
    pub fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }

    /// Marks this process as the daemon.
    pub fn go_on(&self) {
        self.parked.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting());
        for listener in waiting {
            self.keep(&listener.endpoint, &listener.fd);
        }
    }

    /// True if listening sockets stay open after the end of this process, so that their files must
    /// stay.
    pub fn keeps(&self) -> bool {
        self.passed || self.manager.is_some() || self.is_parked()
    }

    /// The socket of an endpoint, if there is one. May wait for the resolution of its name.
    pub fn take(&self, may_wait: &MayWait, wanted: &Endpoint) -> Option<OwnedFd> {
        if self.lock().listeners.is_empty() {
            return None;
        }
        // Before the lock is taken: threads of pools take it too.
        let is_found = is_found_at(may_wait, wanted);
        let mut inherited = self.lock();
        let at = inherited.listeners.iter().position(is_found)?;
        Some(inherited.listeners.swap_remove(at).fd)
    }

    /// The connections to an export, which the export must take or close.
    pub(crate) fn guests(&self, endpoint: &Endpoint, export: &str) -> Vec<Guest> {
        let mut inherited = self.lock();
        let ours = |guest: &mut Guest| guest.endpoint == *endpoint && guest.export == export;
        inherited.guests.extract_if(.., ours).collect()
    }

    /// Keeps a socket open for the next start.
    pub fn keep(&self, endpoint: &Endpoint, fd: &OwnedFd) {
        let Some(manager) = &self.manager else { return };
        if self.is_parked() {
            let copy = fd.try_clone().map(|fd| Listener { endpoint: endpoint.clone(), fd });
            self.waiting().extend(copy);
            return;
        }
        // An untaken socket that clients no longer find has the same name: if it were removed
        // later, the manager would remove this one too.
        let mut inherited = self.lock();
        let before = inherited.listeners.len();
        inherited.listeners.retain(|listener| listener.endpoint != *endpoint);
        if inherited.listeners.len() < before {
            manager.forget(endpoint);
        }
        manager.store(endpoint, fd.as_fd());
    }

    /// Removes a socket that is no longer listened on; while parked it is the predecessor's.
    pub fn forget(&self, endpoint: &Endpoint) {
        self.waiting().retain(|listener| listener.endpoint != *endpoint);
        if let Some(manager) = self.manager.as_ref().filter(|_| !self.is_parked()) {
            manager.forget(endpoint);
        }
    }

    /// Closes the sockets that were not taken, once every endpoint has its socket.
    pub fn close_rest(&self) {
        let rest = std::mem::take(&mut *self.lock());
        for listener in &rest.listeners {
            self.forget(&listener.endpoint);
        }
    }
}

/// The endpoint at which a socket of the service manager is bound.
fn named(fd: OwnedFd) -> Option<Listener> {
    let endpoint = match (bound_path(&fd), bound_address(&fd)) {
        (Some(path), _) => Endpoint::Unix(path),
        (_, Some(address)) => Endpoint::Tcp { host: address.ip().to_string(), port: address.port() },
        _ => return None,
    };
    Some(Listener { endpoint, fd })
}

fn bound_path(fd: &OwnedFd) -> Option<PathBuf> {
    let listener = UnixListener::from(fd.try_clone().ok()?);
    listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
}

fn bound_address(fd: &OwnedFd) -> Option<SocketAddr> {
    TcpListener::from(fd.try_clone().ok()?).local_addr().ok()
}

/// Returns a check whether a socket is bound at the wanted endpoint, and clients find it there.
fn is_found_at<'a>(_: &MayWait, wanted: &'a Endpoint) -> impl Fn(&Listener) -> bool + use<'a> {
    let is_socket =
        |path: &&PathBuf| std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let (path, addresses) = match wanted {
        Endpoint::Unix(path) => (Some(path).filter(is_socket), Vec::new()),
        Endpoint::Tcp { port: 0, .. } => (None, Vec::new()),
        Endpoint::Tcp { host, port } => {
            (None, (host.as_str(), *port).to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect))
        }
    };
    move |listener| match wanted {
        Endpoint::Unix(_) => path.is_some_and(|path| bound_path(&listener.fd).as_ref() == Some(path)),
        // Only the configuration that requested a port chosen by the kernel identifies it.
        Endpoint::Tcp { port: 0, .. } => listener.endpoint == *wanted,
        Endpoint::Tcp { .. } => bound_address(&listener.fd).is_some_and(|bound| addresses.contains(&bound)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    fn parked_with(listeners: Vec<Listener>) -> ListenerStore {
        ListenerStore::parked(HandoverSockets { listeners, guests: Vec::new() }, None, false)
    }

    #[test]
    fn socket_is_taken_only_if_clients_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        let listener = |path: &Path| {
            let fd = OwnedFd::from(UnixListener::bind(path).unwrap());
            named(fd).unwrap()
        };
        let store = parked_with(vec![listener(&path), listener(&other)]);
        assert!(store.take(&MayWait::here(), &Endpoint::Unix(folder.path().join("c"))).is_none());
        assert!(store.take(&MayWait::here(), &Endpoint::Unix(path.clone())).is_some());
        assert!(store.take(&MayWait::here(), &Endpoint::Unix(path)).is_none(), "it is taken once");
        std::fs::remove_file(&other).unwrap();
        assert!(store.take(&MayWait::here(), &Endpoint::Unix(other)).is_none(), "no client finds it");
    }

    #[test]
    fn manager_gets_sockets_of_the_daemon_only() {
        let folder = tempfile::tempdir().unwrap();
        let heard = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        heard.set_nonblocking(true).unwrap();
        let words = || {
            let mut bytes = [0; 256];
            let length = heard.recv(&mut bytes).ok()?;
            String::from_utf8_lossy(&bytes[..length]).lines().next().map(str::to_owned)
        };
        let path = folder.path().join("a");
        let stale = OwnedFd::from(UnixListener::bind(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let fd = OwnedFd::from(UnixListener::bind(&path).unwrap());
        let (endpoint, gone) = (Endpoint::Unix(path), Endpoint::Unix("/gone".into()));
        let listeners = vec![Listener { endpoint: endpoint.clone(), fd: stale }];
        let manager = Manager::at(folder.path().join("notify").as_os_str());
        let store = ListenerStore::parked(HandoverSockets { listeners, guests: Vec::new() }, manager, false);
        store.keep(&endpoint, &fd);
        store.keep(&gone, &fd);
        store.forget(&gone);
        assert_eq!(words(), None);
        store.go_on();
        assert_eq!(words().as_deref(), Some("FDSTOREREMOVE=1"), "the one that no client finds");
        assert_eq!(words().as_deref(), Some("FDSTORE=1"));
        store.close_rest();
        assert_eq!(words(), None, "what was just stored stays");
    }

    #[test]
    fn only_the_owning_daemon_removes_files() {
        let parked = |passed| ListenerStore::parked(HandoverSockets::default(), None, passed);
        assert!(parked(false).keeps() && !ListenerStore::default().keeps());
        for passed in [false, true] {
            let store = parked(passed);
            store.go_on();
            assert_eq!(store.keeps(), passed, "sockets of the service manager");
        }
    }

    #[test]
    fn port_is_found_by_address_or_request() {
        let fd = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        let port = bound_address(&fd).unwrap().port();
        let asked = Endpoint::Tcp { host: "127.0.0.1".into(), port: 0 };
        let store = parked_with(vec![Listener { endpoint: asked.clone(), fd }]);
        assert!(
            store
                .take(&MayWait::here(), &Endpoint::Tcp { host: "127.0.0.1".into(), port: port ^ 1 })
                .is_none()
        );
        assert!(store.take(&MayWait::here(), &Endpoint::Tcp { host: "127.0.0.2".into(), port }).is_none());
        assert!(store.take(&MayWait::here(), &Endpoint::Tcp { host: "127.0.0.1".into(), port }).is_some());
        let fd = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        store.put_back(HandoverSockets {
            listeners: vec![Listener { endpoint: asked.clone(), fd }],
            guests: Vec::new(),
        });
        assert!(store.take(&MayWait::here(), &asked).is_some());
    }
}
