//! Listening sockets and the identity of peers.
//!
//! A unix socket path is taken over only from a dead server: a server that still accepts
//! connections keeps it. Not known here: protocols; connections (the reactor owns them).

use std::fs::{File, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::error::SocketError;
use crate::sys;
use crate::users::{group_id, user_id};

/// Longest path of a unix socket in bytes: `sun_path` of `sockaddr_un`, less the final NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// The process on the other side of a unix socket, as of when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id; 0 if the process lives in a PID namespace that is not visible from here.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Users that may connect to a unix socket: those that may write to its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPermissions {
    /// Permission bits, such as `0o660`.
    pub mode: u32,
    /// Name or number of the user that owns the file; the daemon's by default.
    pub user: Option<String>,
    /// Name or number of its group; the daemon's by default.
    pub group: Option<String>,
}

impl From<u32> for SocketPermissions {
    /// A file with the daemon's user and group.
    fn from(mode: u32) -> Self {
        Self { mode, user: None, group: None }
    }
}

/// Listens on a unix socket whose file gets these permissions. Can block on the name service.
///
/// Removes and replaces a socket file that a dead server left; a live server on it is an error.
///
/// # Errors
/// [`SocketError::InUse`], [`SocketError::NotASocket`], [`SocketError::TooLong`],
/// [`SocketError::NoFolder`], [`SocketError::NoOwner`], [`SocketError::NotGiven`],
/// [`SocketError::System`].
pub fn listen_unix(
    path: impl AsRef<Path>,
    permissions: impl Into<SocketPermissions>,
) -> Result<OwnedFd, SocketError> {
    let (path, permissions) = (path.as_ref(), permissions.into());
    if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        return Err(SocketError::TooLong { path: path.into(), max: UNIX_PATH_BYTES_MAX });
    }
    let failed =
        |what| move |source| SocketError::System { address: path.display().to_string(), what, source };
    let owner = Owner::of(path, &permissions)?;
    let _alone = alone_in(path);
    remove_stale(path)?;
    let socket = unix_socket().map_err(failed("socket"))?;
    // The file inherits the socket's own mode, so it is never more open. SAFETY: fchmod takes no
    // pointers.
    sys::check(unsafe { libc::fchmod(socket.as_raw_fd(), permissions.mode) }).map_err(failed("chmod"))?;
    let (address, len) = unix_address(path);
    // SAFETY: the address is a valid sockaddr_un and `len` lies within it.
    match sys::check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }) {
        // Another server bound it between the check and bind, so it is alive.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            return Err(SocketError::InUse { path: path.into() });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SocketError::NoFolder { path: path.into(), folder: folder_of(path).into() });
        }
        result => result.map_err(failed("bind"))?,
    };
    // No client can connect before listen. The umask might have cleared bits.
    let listens = owner.take(path, permissions.mode).and_then(|()| {
        // SAFETY: listen takes no pointers.
        sys::check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) }).map_err(failed("listen"))
    });
    if let Err(error) = listens {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// Gives the file of a listening socket these permissions. Can block on the name service. Returns
/// false if the file is gone and clients can no longer find the socket.
///
/// # Errors
/// As [`listen_unix`].
pub fn set_permissions(path: &Path, permissions: &SocketPermissions) -> Result<bool, SocketError> {
    let owner = Owner::of(path, permissions)?;
    if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    owner.take(path, permissions.mode).map(|()| true)
}

/// Intended owner of a socket's file.
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
    /// For messages.
    name: String,
}

impl Owner {
    fn of(path: &Path, permissions: &SocketPermissions) -> Result<Owner, SocketError> {
        let find = |kind, name: &Option<String>, id: fn(&str) -> io::Result<Option<u32>>| {
            let Some(name) = name else { return Ok(None) };
            let found = id(name).map_err(|source| SocketError::System {
                address: path.display().to_string(),
                what: "the name service",
                source,
            })?;
            let no_owner = || SocketError::NoOwner { path: path.into(), kind, name: name.clone() };
            found.ok_or_else(no_owner).map(Some)
        };
        let SocketPermissions { user, group, .. } = permissions;
        let names = [("user", user), ("group", group)].map(|(kind, name)| Some((kind, name.as_ref()?)));
        let names: Vec<_> =
            names.into_iter().flatten().map(|(kind, name)| format!("{kind} {name}")).collect();
        let (uid, gid) = (find("user", user, user_id)?, find("group", group, group_id)?);
        Ok(Owner { uid, gid, name: names.join(" and ") })
    }

    /// Gives a socket's file to this owner and sets its permission bits. Refuses any other file
    /// under its name: a process that may write to the folder could put a link there.
    fn take(&self, path: &Path, mode: u32) -> Result<(), SocketError> {
        let failed =
            |source| SocketError::System { address: path.display().to_string(), what: "chmod", source };
        let file = File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path);
        let file = file.map_err(failed)?;
        if !file.metadata().map_err(failed)?.file_type().is_socket() {
            return Err(failed(io::Error::other("another file has taken its place")));
        }
        // An `O_PATH` descriptor supports neither fchown nor, before Linux 6.6, fchmod.
        let named = format!("/proc/self/fd/{}", file.as_raw_fd());
        if self.uid.or(self.gid).is_some() {
            std::os::unix::fs::chown(&named, self.uid, self.gid).map_err(|source| SocketError::NotGiven {
                path: path.into(),
                owner: self.name.clone(),
                source,
            })?;
        }
        std::fs::set_permissions(named, Permissions::from_mode(mode)).map_err(failed)
    }
}

/// Identity of the file that a unix socket is bound to: another server might have replaced it
/// since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketFile {
    device: u64,
    inode: u64,
    /// Creation time: inode numbers are reused.
    made: Option<SystemTime>,
}

impl SocketFile {
    /// The file at `path`, if it is a socket.
    pub fn at(path: &Path) -> Option<SocketFile> {
        let found = std::fs::symlink_metadata(path).ok()?;
        let made = found.created().ok();
        found.file_type().is_socket().then(|| SocketFile { device: found.dev(), inode: found.ino(), made })
    }

    /// Removes the file at `path` if it is this one; leaves another server's.
    pub fn remove(self, path: &Path) {
        let _alone = alone_in(path);
        if SocketFile::at(path) == Some(self) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Longest wait for another process that creates or removes sockets in the same folder, which
/// normally takes no time.
const ALONE_WITHIN: Duration = Duration::from_secs(2);

/// Keeps other servers from creating or removing sockets in the folder of `path` while the result
/// lives. Otherwise two servers that start at once could each take the other's socket for a dead
/// server's: between bind and listen it refuses connections. A folder that cannot be read cannot be
/// locked; the caller then proceeds without the lock.
fn alone_in(path: &Path) -> Option<File> {
    let folder = File::open(folder_of(path)).ok()?;
    let until = Instant::now() + ALONE_WITHIN;
    // SAFETY: flock takes no pointers.
    while sys::check(unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).is_err() {
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(folder)
}

fn unix_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes no pointers.
    let fd = sys::check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of a path of at most `UNIX_PATH_BYTES_MAX` bytes, and its length.
fn unix_address(path: &Path) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: sockaddr_un is a plain struct for which all zeroes is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *from as libc::c_char;
    }
    (address, size_of::<libc::sockaddr_un>() as libc::socklen_t)
}

/// Tries to connect without blocking (a full backlog returns `EAGAIN`).
fn try_connect(path: &Path) -> io::Result<()> {
    let socket = unix_socket()?;
    let (address, len) = unix_address(path);
    // SAFETY: the address is a valid sockaddr_un and `len` lies within it.
    sys::check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Checks that [`listen_unix`] would find the path free, or a file there that a dead server left.
/// For callers that check before they start other work; changes nothing.
///
/// # Errors
/// As [`listen_unix`].
pub fn check_unix(path: &Path) -> Result<(), SocketError> {
    if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        return Err(SocketError::TooLong { path: path.into(), max: UNIX_PATH_BYTES_MAX });
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(SocketError::NoFolder { path: path.into(), folder: folder.into() });
    }
    is_stale(path).map(drop)
}

/// Returns whether the file of a dead server is at the path.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let failed =
        |what| move |source| SocketError::System { address: path.display().to_string(), what, source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(failed("stat")(source)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    match try_connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Connected, or alive but refusing (full backlog, no permission): not to be taken over.
        _ => Err(SocketError::InUse { path: path.into() }),
    }
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    if !is_stale(path)? {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SocketError::System {
            address: path.display().to_string(),
            what: "remove stale socket",
            source,
        }),
        _ => Ok(()),
    }
}

/// Listens on a TCP address; returns the socket and the address in use (of interest with port 0).
///
/// # Errors
/// [`SocketError::System`].
pub fn listen_tcp(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), SocketError> {
    let failed = |what| move |source| SocketError::System { address: address.to_string(), what, source };
    let listener = TcpListener::bind(address).map_err(failed("bind"))?;
    let local = listener.local_addr().map_err(failed("address query"))?;
    Ok((listener.into(), local))
}

/// First descriptor that a service manager passes: `SD_LISTEN_FDS_START` of sd_listen_fds(3).
const PASSED_FROM: i32 = 3;
/// Most descriptors taken from a service manager.
const PASSED_MAX: i32 = 1024;

/// Returns the listening stream sockets that a service manager has passed to this process
/// (`LISTEN_FDS`; sd_listen_fds(3)). Closes all other passed descriptors. Only the first call finds
/// any.
pub fn passed_listeners() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let ours = number("LISTEN_PID") == Some(std::process::id());
    if !ours || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| i32::try_from(count).ok()).unwrap_or(0);
    let passed = (PASSED_FROM..PASSED_FROM + count.clamp(0, PASSED_MAX)).filter_map(|number| {
        // SAFETY: fcntl with these commands takes no pointers, and returns an error for a
        // descriptor that does not exist.
        sys::check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }).ok()?;
        // SAFETY: it is open, was passed to this process as its owner, and this is done only once,
        // before any other code could use its number.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    });
    passed.filter(|fd| is_listening(fd.as_fd())).collect()
}

/// Returns whether it is a listening stream socket.
pub fn is_listening(fd: BorrowedFd<'_>) -> bool {
    let option = |name| {
        let mut value: [libc::c_int; 1] = [0];
        read_option(fd, name, &mut value).0.ok().map(|_| value[0])
    };
    option(libc::SO_ACCEPTCONN) == Some(1) && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// The process on the other side of a connected unix socket.
///
/// # Errors
/// The kernel's error; a TCP socket gives an error or a process id of 0.
pub fn peer_cred(socket: BorrowedFd<'_>) -> io::Result<PeerCred> {
    let mut cred = [libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX }];
    read_option(socket, libc::SO_PEERCRED, &mut cred).0?;
    Ok(PeerCred { pid: cred[0].pid, uid: cred[0].uid, gid: cred[0].gid })
}

/// Reads a socket option into numbers, or structures of numbers; also returns its length in bytes.
fn read_option<T: Copy>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    into: &mut [T],
) -> (io::Result<libc::c_int>, usize) {
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    let mut len = size_of_val(into) as libc::socklen_t;
    // SAFETY: the kernel writes the value to an array of the stated size in bytes, of which all bit
    // patterns are valid, and its length to a socklen_t.
    let answer = unsafe { libc::getsockopt(fd, level, name, into.as_mut_ptr().cast(), &raw mut len) };
    (sys::check(answer), len as usize)
}

/// Most supplementary groups that are requested: the kernel's limit for a process.
const GROUPS_MAX: usize = 65536;

/// The supplementary groups of the process on the other side of a connected unix socket, as of when
/// it connected.
///
/// # Errors
/// The kernel's error; a TCP socket gives an error.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let (answer, bytes) = read_option(socket, libc::SO_PEERGROUPS, &mut groups);
        let count = bytes / size_of::<u32>();
        match answer {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // Too short, and `len` gives the length needed.
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                groups.resize(count.min(GROUPS_MAX), 0);
                if count > GROUPS_MAX {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The address on the other side of a connected TCP socket; an IPv4 address mapped to IPv6 is
/// returned as IPv4.
///
/// # Errors
/// The kernel's error, for instance that the connection has ended; a unix socket gives an error.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<IpAddr> {
    let stream = TcpStream::from(socket.try_clone_to_owned()?);
    Ok(stream.peer_addr()?.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn file_behind_a_link_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, link, file) = (dir.path().join("victim"), dir.path().join("s"), dir.path().join("f"));
        for path in [&victim, &file] {
            std::fs::write(path, b"").unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        for (path, of) in [(&link, &victim), (&file, &file)] {
            assert!(set_permissions(path, &0o666.into()).is_err());
            assert_eq!(std::fs::metadata(of).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn stale_socket_is_replaced_live_one_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = listen_unix(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen_unix(&path, 0o600), Err(SocketError::InUse { .. })));
        drop(first);
        let group = std::fs::metadata(&path).unwrap().gid().to_string();
        let given = SocketPermissions { mode: 0o620, user: None, group: Some(group.clone()) };
        let listens = listen_unix(&path, given).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.gid().to_string()), (0o620, group));
        assert!(set_permissions(&path, &0o600.into()).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        assert!(!set_permissions(&path, &0o600.into()).unwrap());
        drop(listens);
        let nobodys = SocketPermissions { mode: 0o660, user: None, group: Some("no-such-group".into()) };
        let refused = listen_unix(&path, nobodys).unwrap_err().to_string();
        assert!(refused.contains("no group \"no-such-group\""), "{refused}");
        listen_unix(&path, 0o660).unwrap();
        std::fs::write(dir.path().join("f"), b"").unwrap();
        assert!(matches!(listen_unix(dir.path().join("f"), 0o600), Err(SocketError::NotASocket { .. })));
        let long = dir.path().join("x".repeat(200));
        assert!(matches!(listen_unix(long, 0o600), Err(SocketError::TooLong { .. })));
        let lost = listen_unix(dir.path().join("missing/s"), 0o600).unwrap_err().to_string();
        assert!(
            lost.contains(&format!("no folder {}: create it", dir.path().join("missing").display())),
            "{lost}"
        );
    }

    #[test]
    fn only_one_of_concurrent_starts_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..50 {
            // The socket file of a killed server.
            drop(listen_unix(&path, 0o600));
            let started: Vec<_> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| listen_unix(&path, 0o600).ok())).collect();
                starts.into_iter().filter_map(|start| start.join().unwrap()).collect()
            });
            assert_eq!(started.len(), 1, "two serve at one place, and nobody finds one of them");
            UnixStream::connect(&path).expect("the socket of the one that listens was removed");
        }
    }

    #[test]
    fn socket_of_another_server_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = listen_unix(&path, 0o600).unwrap();
        let ours = SocketFile::at(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = listen_unix(&path, 0o600).unwrap();
        drop(first);
        ours.remove(&path);
        assert!(path.exists());
        SocketFile::at(&path).unwrap().remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn peer_groups_match_those_of_the_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut mine: Vec<u32> = line.split_whitespace().map(|group| group.parse().unwrap()).collect();
        let mut told = peer_groups(a.as_fd()).unwrap();
        mine.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, mine);
    }

    #[test]
    fn peer_address_has_one_form() {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert_eq!(peer_address(stream.as_fd()).unwrap().to_string(), "127.0.0.1");
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(peer_address(a.as_fd()).is_err());
        assert!(peer_groups(stream.as_fd()).is_err());
    }

    #[test]
    fn the_peer_of_a_unix_socket_is_known() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert_eq!(peer_cred(a.as_fd()).unwrap().pid as u32, std::process::id());
    }
}
