//! One NBD connection on the server side, as a state machine without I/O.
//!
//! Use
//! ```text
//! loop {
//!     match session.step(&mut input, exports) {
//!         NeedMore        => receive into a buffer, make a new Input over it
//!         Output          => session.take_output(&mut send_buffer); send it in order
//!         StartTls        => do the handshake of TLS on the socket; when it is done session.tls_established(), and from
//!                            then on input is what TLS has decrypted, and output is encrypted
//!         Established     => session.export() is now known: bind the connection to the volume
//!         Request(r)      => start it; answer later through session.replier()
//!         WritePayload(r) => find a buffer of r.request.length_bytes, or stop here and step again later;
//!                            n = session.take_payload(&mut input, &mut buffer), and while
//!                            session.payload_remaining() > 0 receive straight into the rest of the buffer
//!                            and report session.payload_received(n); then start the write
//!         Close(reason)   => finish what is in flight, close
//!     }
//! }
//! ```
//!
//! Invariants
//! - `step` can be called at any time, with any input, also an empty one: stopping anywhere loses
//!   nothing.
//! - While there is output to take, `step` does nothing but say so. So output never grows beyond
//!   the answer to one option or one request, whatever the client does.
//! - Bytes kept between calls are at most one request header, or one option of at most
//!   [`Limits::option_bytes_max`] bytes. Payload is never kept.
//! - Every request handed out passed [`request::validate`]. What did not pass was already answered.
//! - Not a byte that came before TLS was there is taken as one that came through it: whatever is in
//!   the input behind STARTTLS ends the connection.
//! - After `Close`, every further step is the same `Close` and no input is used up.

use thiserror::Error;

use super::codec::{self, Errno, OptionHeader, RequestHeader, cmd, cmd_flag, opt};
use super::handshake::{Handshake, Outcome, SERVER_FLAGS, Tls};
use super::reply::Replier;
use crate::directory::{ExportInfo, Exports};
use crate::request::{self, Admission, Bounds, ClientRequest, Operation, Refusal};

/// How much a client may make the server do or hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest read or write; told to clients that ask.
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

/// A request and the client's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdRequest {
    /// To be given back with the answer. Nothing says that cookies in flight differ from each
    /// other.
    pub cookie: u64,
    /// What to do.
    pub request: ClientRequest,
}

/// What the session wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NbdStep {
    /// All input is used up.
    NeedMore,
    /// There is output: see [`Session::take_output`].
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
    /// The connection is over.
    Close(CloseReason),
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The client said goodbye.
    #[error("the client disconnected")]
    Disconnected,
    /// The client gave up during the handshake.
    #[error("the client gave up during the handshake")]
    Aborted,
    /// EXPORT_NAME for an export that does not exist; the protocol has no other answer.
    #[error("the client asked for an unknown export in the old way, which can only be answered by closing")]
    UnknownExport,
    /// EXPORT_NAME for an export that takes no more connections; the protocol has no other answer.
    #[error("the export has as many connections as it may have (connections_max)")]
    ExportFull,
    /// EXPORT_NAME before TLS; the protocol has no other answer.
    #[error(
        "the client asked for an export in the old way before TLS, which can only be answered by closing"
    )]
    TlsRequired,
    /// Bytes that would have come in plaintext and been taken for encrypted ones.
    #[error("data followed STARTTLS before it was answered: somebody may have injected it")]
    DataBehindStartTls,
    /// Flags that this server did not offer.
    #[error("unknown client flags {0:#x}")]
    BadClientFlags(u32),
    /// An option that has a reply, from a client that does not understand replies.
    #[error("option {0} from a client without fixed newstyle")]
    OptionNeedsFixedNewstyle(u32),
    /// Not an option where one was due.
    #[error("bad magic number instead of an option")]
    BadOptionMagic,
    /// Not a request where one was due.
    #[error("bad magic number instead of a request")]
    BadRequestMagic,
    /// More options than the limit.
    #[error("too many options in one handshake")]
    TooManyOptions,
    /// An option too long even to be skipped.
    #[error("an option of {0} bytes is too long to be skipped")]
    OptionTooLong(u32),
    /// A refused write too long to be skipped.
    #[error("a refused write of {0} bytes is too long to be skipped")]
    PayloadTooLong(u32),
}

impl CloseReason {
    /// The client ended the connection as the protocol asks.
    pub fn is_clean(self) -> bool {
        matches!(self, CloseReason::Disconnected | CloseReason::Aborted)
    }
}

/// A cursor over bytes that were received.
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

    /// How many bytes the session has used up.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The bytes not yet used.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.used..]
    }

    /// All bytes are used up.
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

/// Where in the conversation a session is: what the next byte belongs to.
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
    /// Payload of a write that was refused; the answer goes out when it is over.
    PayloadSkip {
        left: u32,
        refusal: Answer,
    },
    Closed(CloseReason),
}

/// An answer the session gives itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    cookie: u64,
    offset_bytes: u64,
    verdict: Verdict,
}

/// What an answer says; kept small, so that a session does not hold text while it skips.
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
    /// The start of a structure of which the rest has not come yet.
    held: Vec<u8>,
    out: Vec<u8>,
}

impl Session {
    /// A new connection. The greeting is already there to be sent.
    pub fn new(limits: Limits) -> Self {
        Session::with_tls(limits, Tls::Off)
    }

    /// A new connection on which TLS is off or required.
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

    /// Goes on with a connection between two requests that another server has had until now.
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

    /// The next byte belongs to the header of a request, and everything that the session itself has
    /// answered was taken.
    pub fn is_between_requests(&self) -> bool {
        self.phase == Phase::Request && self.out.is_empty()
    }

    /// Takes out what there is of a header that is not complete, for [`Session::resume`] elsewhere:
    /// it comes first there.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Goes on to the next thing that somebody else must do.
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

    /// Appends everything there is to send to `into`.
    pub fn take_output(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.out);
        if self.out.capacity() > OUT_BYTES_KEPT {
            self.out = Vec::new();
        }
    }

    /// What there is to send, for looking only.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// The handshake of TLS that [`NbdStep::StartTls`] asked for is done. Without having been
    /// asked, it changes nothing.
    pub fn tls_established(&mut self) {
        if self.phase == Phase::StartingTls {
            self.handshake.tls_established();
            self.phase = Phase::Option;
        }
    }

    /// The export this connection is for, once established.
    pub fn export(&self) -> Option<&ExportInfo> {
        self.export.as_ref()
    }

    /// The volume has a new size: requests are checked against it from now on. (Clients are not
    /// told: the protocol has no message for it.)
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        if let Some(export) = &mut self.export {
            export.size_bytes = size_bytes;
        }
    }

    /// The encoder of answers, in the form agreed on. Final once established.
    pub fn replier(&self) -> Replier {
        self.replier
    }

    /// How much of the current write's payload has not come yet; zero when there is none to come.
    pub fn payload_remaining(&self) -> usize {
        match self.phase {
            Phase::Payload { left, .. } => left as usize,
            _ => 0,
        }
    }

    /// Moves what there is of the payload to the start of `into`; returns how many bytes were
    /// moved.
    pub fn take_payload(&mut self, input: &mut Input<'_>, into: &mut [u8]) -> usize {
        let taken = input.take(self.payload_remaining().min(into.len()));
        into[..taken.len()].copy_from_slice(taken);
        self.payload_received(taken.len());
        taken.len()
    }

    /// Payload came by another way: `count` bytes, received straight into their destination. More
    /// than [`Session::payload_remaining`] is the caller's mistake and counts as all of it.
    pub fn payload_received(&mut self, count: usize) {
        debug_assert!(count <= self.payload_remaining(), "received past the end of the payload");
        if let Phase::Payload { left, .. } = &mut self.phase {
            *left = left.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            if *left == 0 {
                self.phase = Phase::Request;
            }
        }
    }

    /// Memory held for this connection beyond the session itself.
    pub fn memory_bytes(&self) -> usize {
        self.held.capacity() + self.out.capacity()
    }

    /// Collects `wanted` bytes in `held`; true when they are there.
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
                self.out.clear(); // the answer, and only that: there was no output when the option came
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

    /// The request to be served, or what to answer at once.
    fn judge(&self, header: &RequestHeader) -> Result<ClientRequest, Verdict> {
        let unclear = |message| Verdict::Unclear { errno: Errno::Invalid, message };
        let Some(export) = &self.export else {
            return Err(unclear("no export was chosen")); // cannot be: requests come after the handshake
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

/// Output buffers above this size are given back after use.
const OUT_BYTES_KEPT: usize = 4096;

/// Uses up at most `left` bytes of input; returns how many of them are still to come.
fn skip(left: u32, input: &mut Input<'_>) -> u32 {
    let skipped = input.take(left as usize).len();
    left - u32::try_from(skipped).unwrap_or(left)
}

/// What the command and its flags ask for.
fn operation(header: &RequestHeader, replier: Replier, export: &ExportInfo) -> Result<Operation, Verdict> {
    let unclear = |message| Err(Verdict::Unclear { errno: Errno::Invalid, message });
    let has = |flag: u16| header.flags & flag != 0;
    let fua = has(cmd_flag::FUA);
    // FUA is legal on every command, and means nothing on those that change nothing.
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

/// The error number the protocol wants for a refusal.
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
