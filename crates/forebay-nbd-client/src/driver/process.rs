//! The process of a server behind a unix socket: whether it has ended.
//!
//! The kernel reports the process that listened. It proves the end of a session only together with
//! the end of the socket on its side: a server that serves a connection in another process keeps
//! that socket open there.

use std::os::fd::BorrowedFd;

/// A process of this machine, in this namespace.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    /// When it started, in the kernel's unit: its number may be given to another process.
    started: String,
}

impl Process {
    /// The process on the other side of a connected unix socket, if it runs and is visible.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Option<Process> {
        let pid = u32::try_from(forebay_io::peer_cred(socket).ok()?.pid).ok().filter(|pid| *pid != 0)?;
        Some(Process { pid, started: start_of(pid)? })
    }

    pub(super) fn has_ended(&self) -> bool {
        start_of(self.pid).is_none_or(|started| started != self.started)
    }
}

/// The start of a process, the 22nd field of proc(5); `None` if there is no such process.
fn start_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which can contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn end_of_a_process_is_seen_and_a_reused_number_is_not_it() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let own = Process::of(socket.as_fd()).unwrap();
        assert!(!own.has_ended());
        assert!(Process { started: "1".into(), ..own }.has_ended());
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = Process { pid: child.id(), started: start_of(child.id()).unwrap() };
        assert!(!process.has_ended());
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
    }
}
