//! One NBD connection on the server side, as a state machine without I/O.
//!
//! Use
//! ```text
//! loop {
//!     match session.step(&mut input, exports) {
//!         NeedMore        => receive into a buffer, make a new Input over it
//!         Output          => session.take_output(&mut send_buffer); send it in order
//!         StartTls        => do the handshake of TLS on the socket; when it is done session.tls_established(), and from
//!                            then on input is the data that TLS has decrypted, and output is encrypted
//!         Established     => session.export() is now known: bind the connection to the volume
//!         Request(r)      => start it; reply later through session.replier()
//!         WritePayload(r) => find a buffer of r.request.length_bytes, or stop here and step again later;
//!                            n = session.take_payload(&mut input, &mut buffer), and while
//!                            session.payload_remaining() > 0 receive straight into the rest of the buffer
//!                            and report session.payload_received(n); then start the write
//!         Close(reason)   => complete the requests in flight, close
//!     }
//! }
//! ```
//!
//! Invariants
//! - `step` may be called at any time, with any input, also an empty one: stopping anywhere loses
//!   nothing.
//! - While output is pending, `step` only returns [`NbdStep::Output`]. So output never exceeds the
//!   reply to one option or one request, on any input.
//! - Bytes kept between calls are at most one request header, or one option of at most
//!   [`Limits::option_bytes_max`] bytes. Payload is never kept.
//! - Every request handed out passed [`request::validate`]. The session has replied to all others.
//! - Bytes from before TLS are never processed as bytes from within it: any input behind STARTTLS
//!   ends the connection.
//! - After `Close`, every further step returns the same `Close` and consumes no input.

use thiserror::Error;

use super::codec::{self, Errno, OptionHeader, RequestHeader, cmd, cmd_flag, opt};
use super::handshake::{Handshake, Outcome, SERVER_FLAGS, Tls};
use super::reply::Replier;
use crate::directory::{ExportInfo, Exports};
use crate::request::{self, Admission, Bounds, ClientRequest, Operation, Refusal};

/// Limits on the work and memory that a client can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest read or write; reported to clients that ask.
    pub payload_bytes_max: u32,
    /// The longest option that is read. Longer ones are skipped and refused.
    pub option_bytes_max: u32,
    /// The most options before transmission.
    pub options_max: u32,
    /// The longest refused option or write payload that is skipped. Anything longer ends the
    /// connection.
    pub skip_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            payload_bytes_max: 32 << 20,
            option_bytes_max: 32 << 10,
            options_max: 128,
            skip_bytes_max: 128 << 20,
        }
    }
}

/// A request with its cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdRequest {
    /// The client's id of the request, returned in the reply. Cookies in flight may be equal.
    pub cookie: u64,
    /// The request.
    pub request: ClientRequest,
}

/// The next action for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NbdStep {
    /// All input is consumed.
    NeedMore,
    /// Output is pending: see [`Session::take_output`].
    Output,
    /// All output was taken, and the next bytes in either direction are those of a TLS handshake.
    /// Repeated until [`Session::tls_established`].
    StartTls,
    /// The handshake is done and [`Session::export`] is known. Output comes next.
    Established,
    /// A request without payload, to be served.
    Request(NbdRequest),
    /// A write whose payload comes next. Repeated until payload is taken.
    WritePayload(NbdRequest),
    /// The connection has ended.
    Close(CloseReason),
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The client disconnected.
    #[error("the client disconnected")]
    Disconnected,
    /// The client aborted the handshake.
    #[error("the client gave up during the handshake")]
    Aborted,
    /// EXPORT_NAME for an export that does not exist; the protocol has no other reply.
    #[error("the client requested an unknown export with EXPORT_NAME, which can only be answered by closing")]
    UnknownExport,
    /// EXPORT_NAME for an export at its limit on connections; the protocol has no other reply.
    #[error("the export has as many connections as it may have (connections_max)")]
    ExportFull,
    /// EXPORT_NAME before TLS; the protocol has no other reply.
    #[error(
        "the client requested an export with EXPORT_NAME before TLS, which can only be answered by closing"
    )]
    TlsRequired,
    /// Plaintext bytes behind STARTTLS, which could be taken for encrypted ones.
    #[error("data followed STARTTLS before it was answered: it may have been injected")]
    DataBehindStartTls,
    /// Flags that this server did not offer.
    #[error("unknown client flags {0:#x}")]
    BadClientFlags(u32),
    /// An option with a reply, from a client that does not support replies.
    #[error("option {0} from a client without fixed newstyle")]
    OptionNeedsFixedNewstyle(u32),
    /// An option was due, and its magic number is wrong.
    #[error("bad magic number instead of an option")]
    BadOptionMagic,
    /// A request was due, and its magic number is wrong.
    #[error("bad magic number instead of a request")]
    BadRequestMagic,
    /// More options than the limit.
    #[error("too many options in one handshake")]
    TooManyOptions,
    /// An option too long to skip.
    #[error("an option of {0} bytes is too long to be skipped")]
    OptionTooLong(u32),
    /// A refused write too long to skip.
    #[error("a refused write of {0} bytes is too long to be skipped")]
    PayloadTooLong(u32),
}

impl CloseReason {
    /// Returns whether the client ended the connection as the protocol requires.
    pub fn is_clean(self) -> bool {
        matches!(self, CloseReason::Disconnected | CloseReason::Aborted)
    }
}

/// A cursor over received bytes.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input { bytes, used: 0 }
    }

    /// Returns the number of bytes consumed.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.used..]
    }

    /// Returns whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Takes at most `count` bytes.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let rest = self.rest();
        let taken = &rest[..count.min(rest.len())];
        self.used += taken.len();
        taken
    }
}

/// Phase of a session: the structure that the next byte belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Option,
    OptionData(OptionHeader),
    /// Data of an option that was too long.
    OptionSkip {
        option: u32,
        left: u32,
    },
    StartingTls,
    Request,
    Payload {
        request: NbdRequest,
        left: u32,
    },
    /// Payload of a refused write; the reply follows its end.
    PayloadSkip {
        left: u32,
        refusal: Answer,
    },
    Closed(CloseReason),
}

/// A reply of the session itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    cookie: u64,
    offset_bytes: u64,
    verdict: Verdict,
}

/// Content of a reply; small, so that a session holds no text while it skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    EmptyRead,
    Refused { errno: Errno, refusal: Refusal },
    Unclear { errno: Errno, message: &'static str },
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    phase: Phase,
    handshake: Handshake,
    export: Option<ExportInfo>,
    replier: Replier,
    /// The start of an incomplete structure.
    held: Vec<u8>,
    out: Vec<u8>,
}

impl Session {
    /// Creates a session for a new connection. The greeting is already pending as output.
    pub fn new(limits: Limits) -> Self {
        Session::with_tls(limits, Tls::Off)
    }

    /// Creates a session for a new connection, with TLS off or required.
    pub fn with_tls(limits: Limits, tls: Tls) -> Self {
        Session {
            limits,
            phase: Phase::ClientFlags,
            handshake: Handshake::new(tls),
            export: None,
            replier: Replier::default(),
            held: Vec::with_capacity(codec::REQUEST_BYTES),
            out: codec::greeting(SERVER_FLAGS).to_vec(),
        }
    }

    /// Continues a connection of another server between two requests.
    pub fn resume(limits: Limits, export: ExportInfo, replier: Replier) -> Self {
        Session {
            limits,
            phase: Phase::Request,
            handshake: Handshake::new(Tls::Off),
            export: Some(export),
            replier,
            held: Vec::with_capacity(codec::REQUEST_BYTES),
            out: Vec::new(),
        }
    }

    /// Returns whether the next byte belongs to the header of a request and all output was taken.
    pub fn is_between_requests(&self) -> bool {
        self.phase == Phase::Request && self.out.is_empty()
    }

    /// Removes the part of an incomplete header, for [`Session::resume`] elsewhere: there it
    /// precedes all further input.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Runs to the next action for the caller.
    pub fn step(&mut self, input: &mut Input<'_>, exports: &dyn Exports) -> NbdStep {
        loop {
            if !self.out.is_empty() {
                return NbdStep::Output;
            }
            let step = match &self.phase {
                Phase::ClientFlags => self.step_client_flags(input),
                Phase::Option => self.step_option(input),
                Phase::OptionData(header) => {
                    let header = *header;
                    self.step_option_data(header, input, exports)
                }
                Phase::OptionSkip { option, left } => {
                    let (option, left) = (*option, *left);
                    self.step_option_skip(option, left, input)
                }
                Phase::StartingTls if input.is_empty() => Some(NbdStep::StartTls),
                Phase::StartingTls => self.close(CloseReason::DataBehindStartTls),
                Phase::Request => self.step_request(input),
                Phase::Payload { request, .. } => Some(NbdStep::WritePayload(*request)),
                Phase::PayloadSkip { left, refusal } => {
                    let (left, refusal) = (*left, *refusal);
                    self.step_payload_skip(left, refusal, input)
                }
                Phase::Closed(reason) => Some(NbdStep::Close(*reason)),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// Appends all pending output to `into`.
    pub fn take_output(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.out);
        if self.out.capacity() > OUT_BYTES_KEPT {
            self.out = Vec::new();
        }
    }

    /// Returns the pending output, without taking it.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// Records that the TLS handshake requested by [`NbdStep::StartTls`] is done. Otherwise does
    /// nothing.
    pub fn tls_established(&mut self) {
        if self.phase == Phase::StartingTls {
            self.handshake.tls_established();
            self.phase = Phase::Option;
        }
    }

    /// Returns the export of this connection, once established.
    pub fn export(&self) -> Option<&ExportInfo> {
        self.export.as_ref()
    }

    /// Sets a new size of the volume, against which requests are checked from now on. (The protocol
    /// has no message to inform clients.)
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        if let Some(export) = &mut self.export {
            export.size_bytes = size_bytes;
        }
    }

    /// Returns the encoder of replies, in the negotiated form. Final once established.
    pub fn replier(&self) -> Replier {
        self.replier
    }

    /// Returns how many bytes of the current write's payload are outstanding; zero without one.
    pub fn payload_remaining(&self) -> usize {
        match self.phase {
            Phase::Payload { left, .. } => left as usize,
            _ => 0,
        }
    }

    /// Moves available payload to the start of `into`; returns the number of bytes moved.
    pub fn take_payload(&mut self, input: &mut Input<'_>, into: &mut [u8]) -> usize {
        let taken = input.take(self.payload_remaining().min(into.len()));
        into[..taken.len()].copy_from_slice(taken);
        self.payload_received(taken.len());
        taken.len()
    }

    /// Records `count` bytes of payload that were received straight into their destination. More
    /// than [`Session::payload_remaining`] is a bug in the caller and counts as all of it.
    pub fn payload_received(&mut self, count: usize) {
        debug_assert!(count <= self.payload_remaining(), "received past the end of the payload");
        if let Phase::Payload { left, .. } = &mut self.phase {
            *left = left.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            if *left == 0 {
                self.phase = Phase::Request;
            }
        }
    }

    /// Returns the memory held for this connection beyond the session itself, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.held.capacity() + self.out.capacity()
    }

    /// Collects `wanted` bytes in `held`; returns whether they are complete.
    fn gather(&mut self, wanted: usize, input: &mut Input<'_>) -> bool {
        let missing = wanted.saturating_sub(self.held.len());
        self.held.extend_from_slice(input.take(missing));
        self.held.len() == wanted
    }

    fn close(&mut self, reason: CloseReason) -> Option<NbdStep> {
        self.phase = Phase::Closed(reason);
        self.held = Vec::new();
        None // once more round: output first, then Close
    }

    fn step_client_flags(&mut self, input: &mut Input<'_>) -> Option<NbdStep> {
        if !self.gather(codec::CLIENT_FLAGS_BYTES, input) {
            return Some(NbdStep::NeedMore);
        }
        let flags = codec::Fields(&self.held).u32().unwrap_or(u32::MAX);
        self.held.clear();
        match self.handshake.client_flags(flags) {
            Ok(()) => self.phase = Phase::Option,
            Err(reason) => return self.close(reason),
        }
        None
    }

    fn step_option(&mut self, input: &mut Input<'_>) -> Option<NbdStep> {
        if !self.gather(codec::OPTION_HEADER_BYTES, input) {
            return Some(NbdStep::NeedMore);
        }
        let Some(header) = OptionHeader::decode(&self.held) else {
            return self.close(CloseReason::BadOptionMagic);
        };
        self.held.clear();
        if let Err(reason) = self.handshake.admit(header, &self.limits) {
            return self.close(reason);
        }
        let OptionHeader { option, length } = header;
        if length <= self.limits.option_bytes_max {
            self.phase = Phase::OptionData(header);
        } else if option == opt::EXPORT_NAME || length > self.limits.skip_bytes_max {
            return self.close(CloseReason::OptionTooLong(length));
        } else {
            self.phase = Phase::OptionSkip { option, left: length };
        }
        None
    }

    fn step_option_data(
        &mut self,
        header: OptionHeader,
        input: &mut Input<'_>,
        exports: &dyn Exports,
    ) -> Option<NbdStep> {
        if !self.gather(header.length as usize, input) {
            return Some(NbdStep::NeedMore);
        }
        let Session { handshake, held, limits, out, .. } = self;
        let outcome = handshake.option(header.option, held, exports, limits, out);
        self.held.clear();
        match outcome {
            Outcome::Continue => self.phase = Phase::Option,
            Outcome::StartTls if input.is_empty() => self.phase = Phase::StartingTls,
            Outcome::StartTls => {
                self.out.clear(); // drops only this reply: there was no output when the option came
                return self.close(CloseReason::DataBehindStartTls);
            }
            Outcome::Close(reason) => return self.close(reason),
            Outcome::Enter(export) => {
                self.replier = Replier {
                    structured: self.handshake.structured(),
                    contexts: self.handshake.contexts_for(&export),
                };
                self.export = Some(export);
                self.held = Vec::with_capacity(codec::REQUEST_BYTES);
                self.phase = Phase::Request;
                return Some(NbdStep::Established);
            }
        }
        None
    }

    fn step_option_skip(&mut self, option: u32, left: u32, input: &mut Input<'_>) -> Option<NbdStep> {
        let left = skip(left, input);
        if left > 0 {
            self.phase = Phase::OptionSkip { option, left };
            return Some(NbdStep::NeedMore);
        }
        self.handshake.too_long(option, &self.limits, &mut self.out);
        self.phase = Phase::Option;
        None
    }

    fn step_request(&mut self, input: &mut Input<'_>) -> Option<NbdStep> {
        if !self.gather(codec::REQUEST_BYTES, input) {
            return Some(NbdStep::NeedMore);
        }
        let Some(header) = RequestHeader::decode(&self.held) else {
            return self.close(CloseReason::BadRequestMagic);
        };
        self.held.clear();
        if header.kind == cmd::DISC {
            return self.close(CloseReason::Disconnected);
        }
        let RequestHeader { cookie, offset: offset_bytes, length, .. } = header;
        match self.judge(&header) {
            Ok(request) => {
                let request = NbdRequest { cookie, request };
                if header.kind == cmd::WRITE {
                    self.phase = Phase::Payload { request, left: length };
                    return None;
                }
                Some(NbdStep::Request(request))
            }
            Err(verdict) => {
                let answer = Answer { cookie, offset_bytes, verdict };
                if header.kind != cmd::WRITE {
                    self.answer(answer);
                } else if length > self.limits.skip_bytes_max {
                    return self.close(CloseReason::PayloadTooLong(length));
                } else {
                    self.phase = Phase::PayloadSkip { left: length, refusal: answer };
                }
                None
            }
        }
    }

    fn step_payload_skip(&mut self, left: u32, refusal: Answer, input: &mut Input<'_>) -> Option<NbdStep> {
        let left = skip(left, input);
        if left > 0 {
            self.phase = Phase::PayloadSkip { left, refusal };
            return Some(NbdStep::NeedMore);
        }
        self.answer(refusal);
        self.phase = Phase::Request;
        None
    }

    /// Returns the request to serve, or the immediate reply.
    fn judge(&self, header: &RequestHeader) -> Result<ClientRequest, Verdict> {
        let unclear = |message| Verdict::Unclear { errno: Errno::Invalid, message };
        let Some(export) = &self.export else {
            return Err(unclear("no export was chosen")); // unreachable: requests come after the handshake
        };
        let operation = operation(header, self.replier, export)?;
        let request =
            ClientRequest { operation, offset_bytes: header.offset, length_bytes: u64::from(header.length) };
        let bounds = Bounds {
            size_bytes: export.size_bytes,
            read_only: export.read_only,
            payload_bytes_max: self.limits.payload_bytes_max,
        };
        match request::validate(&request, &bounds) {
            Ok(Admission::Serve) => Ok(request),
            Ok(Admission::Nothing) if operation == Operation::Read => Err(Verdict::EmptyRead),
            Ok(Admission::Nothing) => Err(Verdict::Done),
            Err(refusal) => Err(Verdict::Refused { errno: errno_of(header, refusal), refusal }),
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { cookie, offset_bytes, verdict } = answer;
        let (replier, out) = (self.replier, &mut self.out);
        match verdict {
            Verdict::Done => replier.ok(out, cookie),
            Verdict::EmptyRead => {
                out.extend_from_slice(replier.read_header(cookie, offset_bytes, 0).as_bytes());
            }
            Verdict::Refused { errno, refusal } => replier.error(out, cookie, errno, &refusal.to_string()),
            Verdict::Unclear { errno, message } => replier.error(out, cookie, errno, message),
        }
    }
}

/// Larger output buffers are freed after use.
const OUT_BYTES_KEPT: usize = 4096;

/// Skips at most `left` bytes of input; returns how many of them are outstanding.
fn skip(left: u32, input: &mut Input<'_>) -> u32 {
    let skipped = input.take(left as usize).len();
    left - u32::try_from(skipped).unwrap_or(left)
}

/// Decodes a command and its flags.
fn operation(header: &RequestHeader, replier: Replier, export: &ExportInfo) -> Result<Operation, Verdict> {
    let unclear = |message| Err(Verdict::Unclear { errno: Errno::Invalid, message });
    let has = |flag: u16| header.flags & flag != 0;
    let fua = has(cmd_flag::FUA);
    // FUA is legal on every command, and has no effect on those that change nothing.
    let (operation, own_flags) = match header.kind {
        cmd::READ => (Operation::Read, if replier.structured { cmd_flag::DF } else { 0 }),
        cmd::WRITE => (Operation::Write { fua }, 0),
        cmd::FLUSH => (Operation::Flush, 0),
        cmd::TRIM => (Operation::Trim { fua }, 0),
        cmd::CACHE => (Operation::Cache, 0),
        cmd::WRITE_ZEROES => {
            let (no_hole, fast_only) = (has(cmd_flag::NO_HOLE), has(cmd_flag::FAST_ZERO));
            let operation = Operation::WriteZeroes { fua, no_hole, fast_only };
            (operation, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO)
        }
        cmd::BLOCK_STATUS => {
            (Operation::BlockStatus { one_extent: has(cmd_flag::REQ_ONE) }, cmd_flag::REQ_ONE)
        }
        _ => return unclear("unknown command"),
    };
    if header.flags & !(own_flags | cmd_flag::FUA) != 0 {
        return unclear("a flag that this command does not take");
    }
    if header.kind == cmd::BLOCK_STATUS && replier.contexts.is_empty() {
        return unclear("block status was not agreed on: no metadata context was set");
    }
    if has(cmd_flag::FAST_ZERO) && !export.fast_zero {
        return Err(Verdict::Unclear { errno: Errno::NotSupported, message: "fast zeroing is not offered" });
    }
    Ok(operation)
}

/// Returns the error number that the protocol requires for a refusal.
fn errno_of(header: &RequestHeader, refusal: Refusal) -> Errno {
    match refusal {
        Refusal::ReadOnly => Errno::NotPermitted,
        Refusal::PastEnd { .. } if matches!(header.kind, cmd::WRITE | cmd::WRITE_ZEROES) => Errno::NoSpace,
        Refusal::TooLong { .. } if header.flags & cmd_flag::DF != 0 => Errno::Overflow,
        Refusal::PastEnd { .. }
        | Refusal::TooLong { .. }
        | Refusal::FlushWithRange
        | Refusal::EmptyStatus => Errno::Invalid,
    }
}
