//! TLS between a socket and the session of a connection: records in, plaintext out, and the
//! reverse, without I/O.
//!
//! Invariants
//! - Input is kept only if it is less than one record, or an incomplete handshake message: at most
//!   [`LEFTOVER_BYTES_MAX`]. Only protocol messages are kept for sending: at most
//!   [`SPEECH_BYTES_MAX`].
//! - Protocol messages (of the handshake, a change of keys, or an alert) are sent before anything
//!   that is encrypted later.
//! - After an error nothing is decrypted or encrypted; the alert with the reason can still be sent.

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::fmt;
use std::sync::Arc;

/// Bytes of plaintext in one record.
pub(super) const RECORD_BYTES: usize = 16 << 10;
/// Space that a record takes in addition to its plaintext, generously: header, type, nonce, tag;
/// and a change of keys before it.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 512;
/// Maximum of incomplete input that is kept: rustls takes handshake messages of at most 64 KiB.
pub(super) const LEFTOVER_BYTES_MAX: usize = 96 << 10;
/// Maximum of protocol messages that wait to be sent.
const SPEECH_BYTES_MAX: usize = 256 << 10;
/// Initial room for a handshake message; grows on demand.
const MESSAGE_BYTES: usize = 4 << 10;

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlsFailure {
    /// The client violated the protocol, or presented no valid certificate.
    Refused(String),
    /// It needs more memory than a connection may have.
    TooMuch,
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "TLS: {why}"),
            Self::TooMuch => f.write_str("TLS: too much unprocessed data of one connection"),
        }
    }
}

impl From<rustls::Error> for TlsFailure {
    fn from(error: rustls::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The TLS state of one connection.
pub(super) struct TlsLink {
    connection: UnbufferedServerConnection,
    /// Start of an incomplete record or message.
    leftover: Vec<u8>,
    /// Protocol messages to send as they are, before anything else.
    speech: Vec<u8>,
    state: State,
    said_goodbye: bool,
    /// Bytes of replies that wait for encryption.
    pub(super) waiting_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Handshake,
    Established,
    /// The client has ended its side (close_notify).
    Ended,
    Failed,
}

impl fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLink").field("state", &self.state).finish_non_exhaustive() // it holds secrets
    }
}

/// Result of one turn of the protocol.
enum Turn {
    /// All input was used as far as possible.
    Idle,
    /// More input can be processed.
    Again,
}

impl TlsLink {
    /// The server's end of a new connection.
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Self, TlsFailure> {
        Ok(Self {
            connection: UnbufferedServerConnection::new(config)?,
            leftover: Vec::new(),
            speech: Vec::new(),
            state: State::Handshake,
            said_goodbye: false,
            waiting_bytes: 0,
        })
    }

    /// Bytes of incomplete input.
    pub(super) fn leftover_bytes(&self) -> usize {
        self.leftover.len()
    }

    pub(super) fn is_shaking_hands(&self) -> bool {
        self.state == State::Handshake
    }

    pub(super) fn is_established(&self) -> bool {
        matches!(self.state, State::Established | State::Ended)
    }

    /// True if no more input follows, because of a close_notify or an error.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended | State::Failed)
    }

    /// The client's own certificate (DER), verified, if it has presented one.
    pub(super) fn client_certificate(&self) -> Option<&[u8]> {
        let certificates = self.connection.peer_certificates().filter(|_| self.is_established())?;
        certificates.first().map(AsRef::as_ref)
    }

    /// Begins `work` with the incomplete input so far; the caller appends new input.
    pub(super) fn begin(&self, work: &mut Vec<u8>) {
        work.clear();
        work.extend_from_slice(&self.leftover);
    }

    /// Processes new input behind the start that [`TlsLink::begin`] put before it; hands plaintext
    /// to `sink`, piece by piece, no more of it than `work` is long.
    pub(super) fn received(
        &mut self,
        work: &mut [u8],
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TlsFailure> {
        if self.state == State::Failed {
            return Ok(());
        }
        let mut used = 0;
        let result = loop {
            match self.turn(work, &mut used, sink) {
                Ok(Turn::Again) => {}
                Ok(Turn::Idle) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        let rest = &mut work[used..];
        self.leftover.clear();
        let Err(failure) = result else {
            if rest.len() <= LEFTOVER_BYTES_MAX {
                self.leftover.extend_from_slice(rest);
                return Ok(());
            }
            self.state = State::Failed;
            return Err(TlsFailure::TooMuch);
        };
        self.state = State::Failed;
        self.say_alert(rest);
        Err(failure)
    }

    fn turn(
        &mut self,
        work: &mut [u8],
        used: &mut usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<Turn, TlsFailure> {
        let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(&mut work[*used..]);
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                *used += discard;
                return Err(error.into());
            }
        };
        let turn = match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    sink(record.payload);
                }
                Turn::Again
            }
            ConnectionState::EncodeTlsData(mut data) => {
                encode(&mut data, &mut self.speech)?;
                Turn::Again
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done(); // it is in `speech`, from where it goes out in order
                Turn::Again
            }
            ConnectionState::PeerClosed => {
                self.state = State::Ended;
                Turn::Again
            }
            ConnectionState::WriteTraffic(_) => {
                if self.state == State::Handshake {
                    self.state = State::Established;
                }
                Turn::Idle
            }
            ConnectionState::BlockedHandshake | ConnectionState::Closed => Turn::Idle,
            // The server never offers early data.
            _ => return Err(TlsFailure::Refused("an unexpected state".into())),
        };
        *used += discard;
        Ok(turn)
    }

    /// Takes the alert with the reason out of the library, which has it ready after an error. The
    /// library must see the same bytes as before, as it keeps positions in them.
    fn say_alert(&mut self, rest: &mut [u8]) {
        let status = self.connection.process_tls_records(rest);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state {
            let _ = encode(&mut data, &mut self.speech); // without the alert the client sees the end of the connection
        }
    }

    /// True if there are protocol messages to send.
    pub(super) fn wants_to_speak(&self) -> bool {
        !self.speech.is_empty()
    }

    /// Moves protocol messages to the start of `out`; returns their length in bytes.
    pub(super) fn speak(&mut self, out: &mut [u8]) -> usize {
        let count = self.speech.len().min(out.len());
        out[..count].copy_from_slice(&self.speech[..count]);
        self.speech.drain(..count);
        if self.speech.is_empty() {
            self.speech = Vec::new(); // hardly ever needed again
        }
        count
    }

    /// Encrypts at most [`RECORD_BYTES`] into `out`, which has room for them; returns the length of
    /// the output in bytes.
    pub(super) fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, TlsFailure> {
        self.write(out, |traffic, out| traffic.encrypt(plain, out))
    }

    /// Appends a close_notify, once; returns how many bytes of `out` that takes.
    pub(super) fn say_goodbye(&mut self, out: &mut [u8]) -> usize {
        if !self.may_say_goodbye() {
            return 0;
        }
        self.said_goodbye = true;
        self.write(out, |traffic, out| traffic.queue_close_notify(out)).unwrap_or(0)
    }

    pub(super) fn may_say_goodbye(&self) -> bool {
        self.is_established() && !self.said_goodbye
    }

    fn write(
        &mut self,
        out: &mut [u8],
        with: impl FnOnce(&mut Traffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<usize, TlsFailure> {
        let cannot = |why: &dyn fmt::Display| TlsFailure::Refused(format!("cannot send: {why}"));
        if !self.is_established() {
            return Err(cannot(&"the handshake is not done"));
        }
        let mut written = 0;
        for _ in 0..8 {
            // The library must see the incomplete input again, as it keeps positions in it.
            let UnbufferedStatus { state, .. } = self.connection.process_tls_records(&mut self.leftover);
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let more = with(&mut traffic, &mut out[written..]).map_err(|error| cannot(&error))?;
                    return Ok(written + more);
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    written += data.encode(&mut out[written..]).map_err(|error| cannot(&error))?;
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.state = State::Ended,
                _ => break,
            }
        }
        Err(cannot(&"the protocol does not allow it now"))
    }
}

type Traffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

/// Appends a protocol message to the data to send.
fn encode(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, rustls::server::ServerConnectionData>,
    speech: &mut Vec<u8>,
) -> Result<(), TlsFailure> {
    let start = speech.len();
    let mut room = MESSAGE_BYTES;
    loop {
        if start + room > SPEECH_BYTES_MAX {
            speech.truncate(start);
            return Err(TlsFailure::TooMuch);
        }
        speech.resize(start + room, 0);
        match data.encode(&mut speech[start..]) {
            Ok(written) => {
                speech.truncate(start + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(wanted)) if wanted.required_size > room => {
                room = wanted.required_size
            }
            Err(error) => {
                speech.truncate(start);
                return Err(TlsFailure::Refused(error.to_string()));
            }
        }
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
