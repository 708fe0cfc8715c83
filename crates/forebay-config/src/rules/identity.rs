//! Identity of a client, looked up once, so that matching a request reads nothing from `/proc`.
//!
//! | client | process | user | executable, control group |
//! | --- | --- | --- | --- |
//! | unix socket | the connecting one (from the kernel; always a thread group) | at connect time | at connect time |
//! | FUSE request | the *thread* of the request, and its group | of the request | of the thread, some moments old |
//! | FUSE, write-back of the page cache | none | of the kernel's choice | none |
//! | TCP | none | none | none |
//!
//! Invariants
//! - An unknown attribute matches no condition on it.
//! - If the number of a process was reused during the look-up, only the data from the kernel itself
//!   is kept. (Reuse before that cannot be detected; it takes a client that connects and ends at
//!   once.)

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_io::PeerCred;

use super::proc::ProcFs;

/// A process or thread, distinct from later ones with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelTask {
    /// Its number.
    pub id: u32,
    /// Start time, in clock ticks since boot; `None` if `/proc` did not have it.
    pub start_ticks: Option<u64>,
}

/// A client, as far as known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The process, or over FUSE the thread.
    pub pid: Option<KernelTask>,
    /// Its thread group: the process in the usual sense.
    pub tgid: Option<KernelTask>,
    /// User.
    pub uid: Option<u32>,
    /// Group of the user.
    pub gid: Option<u32>,
    /// Path of the executable.
    pub exe: Option<PathBuf>,
    /// The name that the process gave itself, at most 15 bytes. Used if `exe` is not readable.
    pub comm: Option<OsString>,
    /// Path of the control group, from the root of the hierarchy that the daemon sees.
    pub cgroup: Option<OsString>,
}

impl Identity {
    /// Creates a client of which nothing is known, such as one over TCP.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Looks up the client of a unix socket.
    pub fn of_peer(proc: &ProcFs, peer: PeerCred) -> Self {
        let pid = u32::try_from(peer.pid).unwrap_or(0);
        Self { gid: Some(peer.gid), ..Self::of_process(proc, pid, peer.uid) }
    }

    /// Looks up the client of a request that carries the number of a process or thread (0: none)
    /// and a user.
    pub fn of_process(proc: &ProcFs, pid: u32, uid: u32) -> Self {
        let user_only = Self { uid: Some(uid), ..Self::default() };
        if pid == 0 {
            return user_only;
        }
        let start_ticks = || proc.stat(pid).ok().flatten().map(|stat| stat.start_ticks);
        let start = start_ticks();
        let bare = Self { pid: Some(KernelTask { id: pid, start_ticks: None }), ..user_only };
        if start.is_none() {
            return bare;
        }
        let found = Self::look_up(proc, KernelTask { id: pid, start_ticks: start }, uid);
        if start_ticks() == start { found } else { bare }
    }

    fn look_up(proc: &ProcFs, pid: KernelTask, uid: u32) -> Self {
        let tgid = proc.tgid(pid.id).map(|group| {
            let other = || proc.stat(group).ok().flatten().map(|stat| stat.start_ticks);
            KernelTask { id: group, start_ticks: if group == pid.id { pid.start_ticks } else { other() } }
        });
        Self {
            pid: Some(pid),
            tgid,
            uid: Some(uid),
            gid: None,
            exe: proc.exe(pid.id),
            comm: proc.comm(pid.id),
            cgroup: proc.cgroup(pid.id),
        }
    }

    /// Returns the name of the executable without its folder; if the path is unknown, the process's
    /// own name.
    pub fn exe_name(&self) -> Option<&OsStr> {
        let of_path = self.exe.as_deref().and_then(Path::file_name);
        of_path.or(self.comm.as_deref()).filter(|name| !name.as_bytes().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_client_of_a_unix_socket_is_known() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let identity = Identity::of_peer(&ProcFs::default(), forebay_io::peer_cred(socket.as_fd()).unwrap());
        let me = std::process::id();
        assert_eq!(identity.pid.unwrap().id, me);
        assert_eq!(identity.tgid, identity.pid);
        assert!(identity.pid.unwrap().start_ticks.is_some() && identity.gid.is_some());
        assert_eq!(identity.exe, std::env::current_exe().ok());
        assert_eq!(identity.exe_name(), identity.exe.as_deref().unwrap().file_name());
    }

    #[test]
    fn a_thread_is_found_with_its_group() {
        let (send, receive) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let link = std::fs::read_link("/proc/thread-self").unwrap();
            send.send(link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()).unwrap();
            let _ = stopped.recv();
        });
        let tid = receive.recv().unwrap();
        let identity = Identity::of_process(&ProcFs::default(), tid, 7);
        assert_eq!((identity.pid.unwrap().id, identity.tgid.unwrap().id), (tid, std::process::id()));
        assert_ne!(tid, std::process::id());
        assert!(identity.tgid.unwrap().start_ticks.is_some());
        drop(stop);
        thread.join().unwrap();
    }

    #[test]
    fn missing_identity_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let none = Identity::of_process(&ProcFs::at(dir.path()), 5, 1000);
        assert_eq!(none.pid, Some(KernelTask { id: 5, start_ticks: None }));
        assert_eq!((none.uid, none.exe_name(), none.tgid), (Some(1000), None, None));
        assert_eq!(Identity::of_process(&ProcFs::default(), 0, 3).pid, None);
        let hidden = PeerCred { pid: 0, uid: 1, gid: 2 };
        assert_eq!(Identity::of_peer(&ProcFs::default(), hidden).pid, None);
    }

    #[test]
    fn garbage_in_proc_is_missing_and_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("9");
        std::fs::create_dir(&folder).unwrap();
        let write = |file: &str, bytes: &[u8]| std::fs::write(folder.join(file), bytes).unwrap();
        for file in ["stat", "status", "cgroup", "comm"] {
            write(file, b"\xff\0)(\n\n:::Tgid:x");
        }
        let bare = Identity::of_process(&ProcFs::at(dir.path()), 9, 0);
        assert_eq!(bare.pid, Some(KernelTask { id: 9, start_ticks: None }));
        // A readable stat, and otherwise garbage.
        write("stat", b"9 (x) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 1 21 22 23");
        write("comm", b"shy\n");
        let some = Identity::of_process(&ProcFs::at(dir.path()), 9, 0);
        assert_eq!(some.pid, Some(KernelTask { id: 9, start_ticks: Some(22) }));
        assert_eq!((some.tgid, some.cgroup.as_deref()), (None, None));
        assert_eq!(some.exe_name(), Some(OsStr::new("shy")), "stands in for the path");
    }
}
