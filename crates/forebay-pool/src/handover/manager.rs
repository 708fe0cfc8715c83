//! The service manager: systemd, or another program with its datagram protocol (sd_notify(3)).
//!
//! The daemon reports to it when it serves and which process it is, and the manager keeps listening
//! sockets open while there is no daemon (`FDSTORE=1`; `FileDescriptorStoreMax=` of the unit limits
//! their number). Messages that cannot be sent are dropped: no notice is worth failing for.

use forebay_export::uri::Endpoint;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg_addr, socket_with,
};
use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// A status is one line on a screen, or a few.
const STATUS_CHARS_MAX: usize = 400;

/// A connection to the service manager.
#[derive(Debug)]
pub struct Manager {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl Manager {
    /// The manager that started this process, if there is one that listens.
    pub fn from_env() -> Option<Self> {
        Self::at(&std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty())?)
    }

    pub(super) fn at(path: &OsStr) -> Option<Self> {
        let bytes = path.as_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name),
            None => SocketAddrUnix::new(bytes),
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        Some(Self { socket: socket.ok()?, address: address.ok()? })
    }

    /// Reports that clients can be served.
    pub fn ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}\n", std::process::id()), None);
    }

    /// Reports the current state in one line, which `systemctl status` shows.
    pub fn status(&self, text: &str) {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let cut = line.char_indices().nth(STATUS_CHARS_MAX).map_or(line.len(), |(at, _)| at);
        self.send(&format!("STATUS={}\n", &line[..cut]), None);
    }

    /// Reports that an orderly stop has begun.
    pub fn stopping(&self) {
        self.send("STOPPING=1\n", None);
    }

    /// Extends the time limit of the stop to this time from now on.
    pub fn needs_more(&self, time: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}\n", time.as_micros()), None);
    }

    /// Reports that another process is the daemon from now on.
    pub fn main_pid(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\n"), None);
    }

    /// Keeps a socket open for the next start.
    pub(crate) fn store(&self, endpoint: &Endpoint, fd: BorrowedFd<'_>) {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}\n", name_of(endpoint)), Some(fd));
    }

    /// Closes a stored socket.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={}\n", name_of(endpoint)), None);
    }

    fn send(&self, text: &str, fd: Option<BorrowedFd<'_>>) {
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let text = [IoSlice::new(text.as_bytes())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg_addr(&self.socket, &self.address, &text, &mut control, flags);
    }
}

/// The name of a stored socket: names are short, and exclude some characters of paths.
fn name_of(endpoint: &Endpoint) -> String {
    let text = match endpoint {
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
        Endpoint::Tcp { host, port } => format!("tcp:{host}:{port}"),
    };
    // FNV-1a: must be the same in every version.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("forebay-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn manager_gets_messages_and_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let heard = UnixDatagram::bind(&path).unwrap();
        let manager = Manager::at(path.as_os_str()).unwrap();
        let mut words = [0; 1024];
        let mut next = || {
            let length = heard.recv(&mut words).unwrap();
            String::from_utf8_lossy(&words[..length]).into_owned()
        };
        manager.ready();
        assert_eq!(next(), format!("READY=1\nMAINPID={}\n", std::process::id()));
        manager.status("two\nlines");
        assert_eq!(next(), "STATUS=two lines\n");
        manager.status(&"ü".repeat(2 * STATUS_CHARS_MAX));
        assert_eq!(next().chars().count(), "STATUS=\n".len() + STATUS_CHARS_MAX);
        let endpoint = Endpoint::Unix("/run/a.sock".into());
        manager.store(&endpoint, heard.as_fd());
        let stored = next();
        assert!(stored.starts_with("FDSTORE=1\nFDPOLL=0\nFDNAME=forebay-"), "{stored}");
        manager.forget(&endpoint);
        assert_eq!(next().lines().last(), stored.lines().last());
    }

    #[test]
    fn missing_service_manager_is_no_failure() {
        Manager::at(OsStr::new("/nowhere/at/all")).unwrap().ready();
        Manager::at(OsStr::new("@forebay-test-nobody")).unwrap().stopping();
        assert!(Manager::at(OsStr::new(&"x".repeat(300))).is_none());
    }
}
