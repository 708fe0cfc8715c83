//! Messages between a daemon and its successor, in sequence over a socket that preserves their
//! boundaries.
//!
//! A message is JSON, to which later versions may add fields, then a line feed and, for a
//! connection, the unread bytes. Each socket is sent with the message about it, one per message.

use super::HandoverManifest;
use forebay_export::nbd::handshake::Contexts;
use forebay_export::nbd::reply::Replier;
use forebay_export::uri::Endpoint;
use forebay_pool::handover::{Guest, Listener};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Incremented when an older program would misunderstand a message.
pub(super) const PROTOCOL: u32 = 2;
/// Longest message: the maximum unread bytes of a connection, and some text.
const MESSAGE_BYTES_MAX: usize = 192 << 10;
/// Time limit for sending a message.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// Reason for a communication failure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum WireError {
    /// The peer has ended.
    #[error("the other process has ended")]
    Ended,
    /// The peer sends nothing.
    #[error("the other process did not respond for {0} s")]
    Late(u64),
    /// The peer sent an unexpected message.
    #[error("protocol error with the other process: {0}")]
    Unclear(String),
    /// A system call failed.
    #[error("cannot communicate with the other process: {0}")]
    System(Errno),
}

/// One message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The successor runs and has read the configuration.
    Hello { protocol: u32, version: String },
    /// A listening socket.
    Listener(Place),
    /// A connection.
    Guest {
        endpoint: Place,
        export: String,
        volume: String,
        size_bytes: u64,
        structured: bool,
        contexts: [bool; 2],
    },
    /// End of the sockets; the pools are closed.
    Open(HandoverManifest),
    /// The successor serves everything, and waits for `GoOn`.
    Ready,
    /// The successor cannot take over, and ends.
    Failed(String),
    /// The clients belong to the successor.
    GoOn,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    Unix(PathBuf),
    Tcp(String, u16),
}

impl From<&Endpoint> for Place {
    fn from(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Unix(path) => Self::Unix(path.clone()),
            Endpoint::Tcp { host, port } => Self::Tcp(host.clone(), *port),
        }
    }
}

impl From<Place> for Endpoint {
    fn from(place: Place) -> Self {
        match place {
            Place::Unix(path) => Self::Unix(path),
            Place::Tcp(host, port) => Self::Tcp { host, port },
        }
    }
}

/// A received message with its socket and bytes.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Message,
    unread: Vec<u8>,
    fd: Option<OwnedFd>,
}

/// One end of the socket pair.
#[derive(Debug)]
pub(super) struct Wire(OwnedFd);

impl Wire {
    /// Returns both ends; the second is for another process.
    pub(super) fn pair() -> Result<(Self, OwnedFd), WireError> {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(WireError::System)?;
        Ok((Self::over(ours)?, theirs))
    }

    /// Returns this end of a socket pair that another process has created.
    pub(super) fn over(fd: OwnedFd) -> Result<Self, WireError> {
        set_socket_timeout(&fd, Timeout::Send, Some(SEND_WITHIN)).map_err(WireError::System)?;
        Ok(Self(fd))
    }

    pub(super) fn send_message(&self, message: &Message) -> Result<(), WireError> {
        self.send(message, &[], None)
    }

    pub(super) fn pass_listener(&self, listener: &Listener) -> Result<(), WireError> {
        self.send(&Message::Listener(Place::from(&listener.endpoint)), &[], Some(&listener.fd))
    }

    pub(super) fn pass_guest(&self, guest: &Guest) -> Result<(), WireError> {
        let Replier { structured, contexts } = guest.replier;
        let message = Message::Guest {
            endpoint: Place::from(&guest.endpoint),
            export: guest.export.clone(),
            volume: guest.volume.clone(),
            size_bytes: guest.size_bytes,
            structured,
            contexts: [contexts.allocation, contexts.cache],
        };
        self.send(&message, &guest.unread, Some(&guest.fd))
    }

    fn send(&self, message: &Message, unread: &[u8], fd: Option<&OwnedFd>) -> Result<(), WireError> {
        let mut text = serde_json::to_vec(message).map_err(|error| WireError::Unclear(error.to_string()))?;
        text.push(b'\n');
        if text.len() + unread.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::Unclear("a message would be too long".into()));
        }
        let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let parts = [IoSlice::new(&text), IoSlice::new(unread)];
        match rustix::io::retry_on_intr(|| sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(WireError::Ended),
            Err(Errno::AGAIN) => Err(WireError::Late(SEND_WITHIN.as_secs())),
            Err(error) => Err(WireError::System(error)),
        }
    }

    /// Waits for the next message, at most `timeout`.
    pub(super) fn receive(&self, timeout: Duration) -> Result<Received, WireError> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(timeout)).map_err(WireError::System)?;
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received =
            rustix::io::retry_on_intr(|| recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC));
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Err(WireError::Late(timeout.as_secs())),
            Err(Errno::CONNRESET) => return Err(WireError::Ended),
            Err(error) => return Err(WireError::System(error)),
        };
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.last();
            }
        }
        if received.bytes == 0 {
            return Err(WireError::Ended);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(WireError::Unclear("a message is too long".into()));
        }
        bytes.truncate(received.bytes);
        let text = bytes.iter().position(|byte| *byte == b'\n');
        let (text, unread) = bytes.split_at(text.unwrap_or(bytes.len()));
        let message = serde_json::from_slice(text).map_err(|error| WireError::Unclear(error.to_string()))?;
        Ok(Received { message, unread: unread.get(1..).unwrap_or_default().to_vec(), fd })
    }
}

impl Received {
    /// Converts it into a listener or a guest, if it is one.
    pub(super) fn into_socket(self) -> Result<Socket, WireError> {
        let Self { message, unread, fd } = self;
        let no_socket = || WireError::Unclear("a socket is missing".into());
        match message {
            Message::Listener(place) => {
                let fd = fd.ok_or_else(no_socket)?;
                Ok(Socket::Listener(Listener { endpoint: place.into(), fd }))
            }
            Message::Guest {
                endpoint,
                export,
                volume,
                size_bytes,
                structured,
                contexts: [allocation, cache],
            } => {
                let replier = Replier { structured, contexts: Contexts { allocation, cache } };
                let fd = fd.ok_or_else(no_socket)?;
                let endpoint = endpoint.into();
                Ok(Socket::Guest(Guest { endpoint, export, volume, size_bytes, replier, unread, fd }))
            }
            message => Ok(Socket::None(message)),
        }
    }
}

/// A message with its socket, or another message.
#[derive(Debug)]
pub(super) enum Socket {
    Listener(Listener),
    Guest(Guest),
    None(Message),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn connection_arrives_with_unread_bytes() {
        let (ours, theirs) = Wire::pair().unwrap();
        let theirs = Wire::over(theirs).unwrap();
        let (mut client, served) = UnixStream::pair().unwrap();
        let unread: Vec<u8> = (0..128 << 10).map(|byte| byte as u8).collect();
        let guest = Guest {
            endpoint: Endpoint::Tcp { host: "::1".into(), port: 10809 },
            export: "a \"name\"\n".into(),
            volume: "07 v file:/a".into(),
            size_bytes: 1 << 40,
            replier: Replier { structured: true, contexts: Contexts { allocation: false, cache: true } },
            unread: unread.clone(),
            fd: served.into(),
        };
        ours.pass_guest(&guest).unwrap();
        let Socket::Guest(came) = theirs.receive(SOON).unwrap().into_socket().unwrap() else { panic!() };
        assert_eq!((&came.endpoint, &came.export), (&guest.endpoint, &guest.export));
        assert_eq!((&came.volume, came.size_bytes), (&guest.volume, guest.size_bytes));
        assert_eq!((came.replier, came.unread), (guest.replier, unread));
        drop(guest);
        let mut served = UnixStream::from(came.fd);
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn end_silence_and_garbage_differ() {
        let (ours, theirs) = Wire::pair().unwrap();
        let theirs = Wire::over(theirs).unwrap();
        assert_eq!(ours.receive(Duration::from_millis(1)).unwrap_err(), WireError::Late(0));
        rustix::net::send(&theirs.0, b"{}", SendFlags::empty()).unwrap();
        assert!(matches!(ours.receive(SOON), Err(WireError::Unclear(_))));
        theirs.send_message(&Message::Listener(Place::Unix("/a".into()))).unwrap();
        assert!(matches!(ours.receive(SOON).unwrap().into_socket(), Err(WireError::Unclear(_))));
        theirs.send_message(&Message::Ready).unwrap();
        drop(theirs);
        assert!(matches!(ours.receive(SOON).unwrap().message, Message::Ready));
        assert_eq!(ours.receive(SOON).unwrap_err(), WireError::Ended);
        assert_eq!(ours.send_message(&Message::GoOn).unwrap_err(), WireError::Ended);
    }
}
