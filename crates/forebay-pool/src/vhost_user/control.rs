//! The thread of an export: it listens, and handles the messages of a frontend.
//!
//! It ends when the pool closes its end of `stop`. A frontend that sends half of a message keeps
//! this thread for [`MESSAGE_WITHIN`] and is disconnected then; the pool does not notice.

use super::session::{Answer, RequestSender, Session};
use super::{Arrival, ControlRequest, Shared};
use crate::may_wait::MayWait;
use forebay_export::vhost_user::{BODY_BYTES_MAX, DESCRIPTORS_MAX, HEADER_BYTES, Header, Message};
use forebay_io::peer_cred;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Time for a message, once its first byte has arrived, and for the client to take an answer.
const MESSAGE_WITHIN: Duration = Duration::from_secs(5);
/// Pause after accepting has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An export with a listener.
pub(crate) struct Control {
    /// Where frontends connect.
    pub(crate) listener: UnixListener,
    /// The other side closes it to end the export.
    pub(crate) stop: UnixStream,
    /// The device.
    pub(crate) shared: Arc<Shared>,
    /// Sends control requests to the pool.
    pub(crate) send: RequestSender,
}

/// Sources that are ready.
struct Ready {
    stop: bool,
    listener: bool,
    frontend: bool,
}

impl Control {
    /// Serves one frontend after another until the end of the export.
    pub(crate) fn run(self, may_wait: &MayWait) {
        let _ = self.listener.set_nonblocking(true); // it was polled before, so it rarely matters
        loop {
            match self.ready(None) {
                Some(ready) if !ready.stop => {}
                _ => return,
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if !self.serve(may_wait, stream) {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Waits for input; `None` if that fails.
    fn ready(&self, frontend: Option<&UnixStream>) -> Option<Ready> {
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut watched = vec![watch(self.stop.as_fd()), watch(self.listener.as_fd())];
        watched.extend(frontend.map(|stream| watch(stream.as_fd())));
        loop {
            match poll(&mut watched, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        let is = |at: usize| watched.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Some(Ready { stop: is(0), listener: is(1), frontend: is(2) })
    }

    /// Serves a frontend until either side ends the connection; false if the export ends.
    fn serve(&self, may_wait: &MayWait, stream: UnixStream) -> bool {
        let prepared = prepare(&stream);
        let came = prepared.map(|arrival| (self.send)(ControlRequest::Came(arrival)));
        match came {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => return (self.send)(ControlRequest::TurnedAway(format!("a frontend: {error}"))),
        }
        let mut session = Session::new(may_wait, Arc::clone(&self.shared), &self.send);
        let why = loop {
            let Some(ready) = self.ready(Some(&stream)) else { break None };
            if ready.stop {
                break None;
            }
            if ready.frontend {
                match exchange(&mut session, &stream) {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(why) => break Some(why),
                }
            }
            if ready.listener
                && let Ok((second, _)) = self.listener.accept()
            {
                let who = peer_cred(second.as_fd()).map_or_else(|error| error.to_string(), |cred| who(&cred));
                let what = format!("{who} is refused: the volume has a vhost-user frontend already");
                (self.send)(ControlRequest::TurnedAway(what));
            }
        };
        let (done, all_ended) = sync_channel(1);
        // An error means that the pool has ended.
        (self.send)(ControlRequest::Went(why, done)) && all_ended.recv().is_ok()
    }
}

/// Describes a peer.
pub(super) fn who(cred: &forebay_io::PeerCred) -> String {
    format!("uid {} (process {})", cred.uid, cred.pid)
}

fn prepare(stream: &UnixStream) -> std::io::Result<Arrival> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(MESSAGE_WITHIN))?;
    stream.set_write_timeout(Some(MESSAGE_WITHIN))?;
    Ok(Arrival { stream: stream.try_clone()?, cred: peer_cred(stream.as_fd())? })
}

/// Receives a message and answers it; false if the frontend has gone.
fn exchange(session: &mut Session<'_>, stream: &UnixStream) -> Result<bool, String> {
    let Some((header, descriptors)) = receive_header(stream)? else { return Ok(false) };
    let header = Header::decode(&header).map_err(|error| error.to_string())?;
    let mut body = [0; BODY_BYTES_MAX];
    let body = &mut body[..header.body_bytes];
    let mut reader = stream;
    reader.read_exact(body).map_err(|error| format!("cannot receive a message: {error}"))?;
    let message = Message::decode(&header, body, descriptors.len()).map_err(|error| error.to_string())?;
    if let Some(answer) = session.follow(&header, message, descriptors)? {
        send(stream, answer).map_err(|error| format!("cannot send a reply: {error}"))?;
    }
    Ok(true)
}

/// The bytes of a header, and the descriptors with it.
type RawHeader = ([u8; HEADER_BYTES], Vec<OwnedFd>);

/// Receives a header; `None` at the end.
fn receive_header(stream: &UnixStream) -> Result<Option<RawHeader>, String> {
    let mut header = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = {
        let mut parts = [IoSliceMut::new(&mut header)];
        recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    };
    let bytes = match received {
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(format!("its connection failed: {error}")),
    };
    if bytes == 0 {
        return Ok(None);
    }
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    let mut reader = stream;
    reader.read_exact(&mut header[bytes..]).map_err(|error| format!("cannot receive a message: {error}"))?;
    Ok(Some((header, descriptors)))
}

fn send(stream: &UnixStream, (bytes, descriptor): Answer) -> std::io::Result<()> {
    let Some(descriptor) = descriptor else {
        let mut writer = stream;
        return writer.write_all(&bytes);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut writer = stream;
    writer.write_all(&bytes[sent..])
}
