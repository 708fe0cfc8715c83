//! The set-user-ID helper `fusermount3`, for users other than root.
//!
//! It mounts, and sends the descriptor of the connection over a unix socket that it inherits; an
//! environment variable has the socket's number. The socket is passed as standard input. So no
//! other descriptor needs to be inherited, and no other child that is started at the same time can
//! get it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::MountError;
use crate::sys;

const HELPER: &str = "fusermount3";
/// Variable with the number of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts; `options` are separated by commas.
pub(super) fn mount(target: &Path, options: &str) -> Result<OwnedFd, MountError> {
    c_string(target)?;
    let (ours, theirs) =
        UnixStream::pair().map_err(|source| MountError::system(target, "making a socket", source))?;
    let mut command = Command::new(HELPER);
    command.args(["-o", options, "--"]).arg(target);
    command.env(SOCKET_VARIABLE, "0").stdin(OwnedFd::from(theirs));
    run(target, &mut command)?;
    // The command holds our copy of the helper's end: once it is dropped, a missing message is an
    // end of file.
    drop(command);
    receive_descriptor(&ours).map_err(|source| MountError::system(target, "receiving the connection", source))
}

/// Unmounts lazily.
pub(super) fn unmount(target: &Path) -> Result<(), MountError> {
    run(target, Command::new(HELPER).args(["-u", "-q", "-z", "--"]).arg(target).stdin(Stdio::null()))
}

fn run(target: &Path, command: &mut Command) -> Result<(), MountError> {
    let failed = |said: String| MountError::Helper { target: target.into(), helper: HELPER, said };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
}

/// Room for one control message with one descriptor, with the alignment that the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives the one descriptor that comes with the next byte.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: msghdr is a plain struct for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the message points to one byte and to 64 bytes of control data, both live.
    let received = sys::result_of(unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC)
    });
    if received < 0 {
        return Err(io::Error::from_raw_os_error(-received));
    }
    // SAFETY: the kernel has filled the message, including the length of the control data.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let header = header.filter(|h| h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS);
    let Some(header) = header else {
        return Err(io::Error::other("the helper sent no descriptor"));
    };
    // SAFETY: CMSG_LEN only computes.
    let wanted = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) };
    let wanted = u64::from(wanted);
    if (header.cmsg_len as u64) < wanted {
        return Err(io::Error::other("the helper sent a message without a descriptor"));
    }
    // SAFETY: the message holds at least one descriptor (just checked), which the kernel created
    // for us; an int can be unaligned there.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned()) })
}

/// Converts a path, or another text, for the kernel.
pub(super) fn c_string(text: impl AsRef<OsStr>) -> Result<CString, MountError> {
    let text = text.as_ref();
    CString::new(text.as_bytes()).map_err(|_| MountError::BadPlace {
        place: text.into(),
        problem: "a path has no zero byte".into(),
        hint: "choose another path",
    })
}
