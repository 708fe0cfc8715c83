//! Option negotiation: a client's options before transmission, and their replies. Pure: one option
//! in, reply bytes and an [`Outcome`] out.
//!
//! Invariants
//! - The reply to an option depends on the exports and the limits, not on the length of its data:
//!   each context is named once, each fact given once.
//! - A failed SET_META_CONTEXT leaves no context set; so does one for another export than that of
//!   GO.
//! - Only requested features are negotiated.
//! - Where TLS is required, nothing is disclosed or negotiated before it is active (FORCEDTLS of
//!   the protocol). When it becomes active, the negotiation starts again, except for the client's
//!   flags and the number of options.

use super::codec::{self, Fields, handshake_flag, info, opt, rep, transmission_flag};
use super::session::{CloseReason, Limits};
use crate::directory::{ExportInfo, Exports};

/// Handshake flags that this server offers.
pub const SERVER_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
/// Smallest request: single bytes.
pub const BLOCK_BYTES_MIN: u32 = 1;
/// Preferred divisor of offset and length of requests, in bytes.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// A metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `base:allocation`: holes and zeroes.
    Allocation,
    /// `forebay:cache`: cached and dirty.
    Cache,
}

impl Context {
    /// All contexts, in the order they are listed.
    pub const ALL: [Context; 2] = [Context::Allocation, Context::Cache];

    /// Returns the name that clients request.
    pub fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::Cache => "forebay:cache",
        }
    }

    /// Returns the number in chunks.
    pub fn id(self) -> u32 {
        match self {
            Context::Allocation => 1,
            Context::Cache => 2,
        }
    }

    /// Returns whether a query of LIST_META_CONTEXT requests this context: by its name, or by its
    /// namespace alone.
    fn listed_by(self, query: &[u8]) -> bool {
        let name = self.name().as_bytes();
        query == name || (query.ends_with(b":") && name.starts_with(query))
    }
}

/// A set of metadata contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contexts {
    /// `base:allocation` is in the set.
    pub allocation: bool,
    /// `forebay:cache` is in the set.
    pub cache: bool,
}

impl Contexts {
    /// Adds a context.
    pub fn insert(&mut self, context: Context) {
        match context {
            Context::Allocation => self.allocation = true,
            Context::Cache => self.cache = true,
        }
    }

    /// Returns whether the context is in the set.
    pub fn contains(self, context: Context) -> bool {
        match context {
            Context::Allocation => self.allocation,
            Context::Cache => self.cache,
        }
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        !self.allocation && !self.cache
    }

    /// Returns the contexts in the set, in order.
    pub fn iter(self) -> impl Iterator<Item = Context> {
        Context::ALL.into_iter().filter(move |context| self.contains(*context))
    }
}

/// TLS on a connection. There is no optional mode: an attacker on the network path could make the
/// choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// Plaintext; STARTTLS is refused.
    #[default]
    Off,
    /// Not active yet, and required for everything else.
    Required,
    /// All traffic goes through it.
    Active,
}

/// The next phase after an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// More options.
    Continue,
    /// Transmission, to this export.
    Enter(ExportInfo),
    /// A TLS handshake, once the reply has been sent.
    StartTls,
    /// The end of the connection, once the reply has been sent.
    Close(CloseReason),
}

/// Result of the negotiation so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handshake {
    tls: Tls,
    /// The client supports replies to options.
    fixed_newstyle: bool,
    /// The client wants no padding after EXPORT_NAME.
    no_zeroes: bool,
    structured: bool,
    /// The contexts set last, and their export.
    contexts: Option<(String, Contexts)>,
    options_seen: u32,
}

/// The data of an option are invalid.
struct Malformed(&'static str);

type Parsed<T> = Result<T, Malformed>;

impl Handshake {
    /// Creates a negotiation without results.
    pub fn new(tls: Tls) -> Self {
        Handshake { tls, ..Handshake::default() }
    }

    /// Records that TLS is active. Drops the results of the plaintext negotiation, which an
    /// attacker may have forged.
    pub fn tls_established(&mut self) {
        self.tls = Tls::Active;
        self.structured = false;
        self.contexts = None;
    }

    /// Appends the refusal of an option whose data are too long to read.
    pub fn too_long(&self, option: u32, limits: &Limits, out: &mut Vec<u8>) {
        if self.tls == Tls::Required && option != opt::STARTTLS {
            return tls_required(out, option);
        }
        let message = format!("at most {} bytes of option data are accepted", limits.option_bytes_max);
        codec::encode_option_reply(out, option, rep::ERR_TOO_BIG, message.as_bytes());
    }

    /// Takes the client's flags.
    pub fn client_flags(&mut self, flags: u32) -> Result<(), CloseReason> {
        if flags & !u32::from(SERVER_FLAGS) != 0 {
            return Err(CloseReason::BadClientFlags(flags));
        }
        self.fixed_newstyle = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        Ok(())
    }

    /// Returns whether structured replies were negotiated.
    pub fn structured(&self) -> bool {
        self.structured
    }

    /// Returns the contexts in effect for an export.
    pub fn contexts_for(&self, export: &ExportInfo) -> Contexts {
        match &self.contexts {
            Some((name, contexts)) if *name == export.name => *contexts,
            _ => Contexts::default(),
        }
    }

    /// Counts an option and checks whether it is permitted.
    pub fn admit(&mut self, header: codec::OptionHeader, limits: &Limits) -> Result<(), CloseReason> {
        self.options_seen = self.options_seen.saturating_add(1);
        if self.options_seen > limits.options_max {
            return Err(CloseReason::TooManyOptions);
        }
        if !self.fixed_newstyle && header.option != opt::EXPORT_NAME {
            return Err(CloseReason::OptionNeedsFixedNewstyle(header.option));
        }
        Ok(())
    }

    /// Handles one option.
    pub fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Outcome {
        if self.tls == Tls::Required {
            return before_tls(option, data, out);
        }
        let answer = match option {
            opt::EXPORT_NAME => return self.export_name(data, exports, out),
            opt::ABORT => {
                codec::encode_option_reply(out, option, rep::ACK, &[]);
                return Outcome::Close(CloseReason::Aborted);
            }
            opt::LIST => list(data, exports, out),
            opt::INFO | opt::GO => match self.info(option, data, exports, limits, out) {
                Ok(Some(export)) if option == opt::GO => return Outcome::Enter(export),
                Ok(_) => Ok(()),
                Err(malformed) => Err(malformed),
            },
            opt::STRUCTURED_REPLY => self.structured_reply(data, out),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data, exports, out),
            opt::STARTTLS if self.tls == Tls::Active => Err(Malformed("TLS is already active")),
            opt::STARTTLS => {
                codec::encode_option_reply(out, option, rep::ERR_POLICY, b"TLS is not offered here");
                Ok(())
            }
            opt::EXTENDED_HEADERS => unsupported(out, option, "extended headers are not supported"),
            _ => unsupported(out, option, "unknown option"),
        };
        if let Err(Malformed(what)) = answer {
            codec::encode_option_reply(out, option, rep::ERR_INVALID, what.as_bytes());
        }
        Outcome::Continue
    }

    /// Handles EXPORT_NAME, the old form, which has no error reply.
    fn export_name(&mut self, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Outcome {
        let found = std::str::from_utf8(data).ok().and_then(|name| exports.resolve(name));
        let Some(export) = found else {
            return Outcome::Close(CloseReason::UnknownExport);
        };
        if exports.is_full(&export.name) {
            return Outcome::Close(CloseReason::ExportFull);
        }
        out.extend_from_slice(&export.size_bytes.to_be_bytes());
        out.extend_from_slice(&transmission_flags(&export, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; codec::EXPORT_NAME_PADDING_BYTES]);
        }
        Outcome::Enter(export)
    }

    /// Handles INFO and GO: appends facts about one export. Returns `None` if the reply is an
    /// error.
    fn info(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Parsed<Option<ExportInfo>> {
        let (name, wanted) = parse_info(data)?;
        let Some(export) = exports.resolve(name) else {
            unknown_export(out, option, name);
            return Ok(None);
        };
        if option == opt::GO && exports.is_full(&export.name) {
            let message = b"the export has as many connections as it may have (connections_max)";
            codec::encode_option_reply(out, option, rep::ERR_POLICY, message);
            return Ok(None);
        }
        let mut fact = Vec::new();
        let mut send = |fact: &mut Vec<u8>| {
            codec::encode_option_reply(out, option, rep::INFO, fact);
            fact.clear();
        };
        codec::encode_info_export(&mut fact, export.size_bytes, transmission_flags(&export, self.structured));
        send(&mut fact);
        if wanted.name {
            codec::encode_info_text(&mut fact, info::NAME, &export.name);
            send(&mut fact);
        }
        if wanted.description && !export.description.is_empty() {
            codec::encode_info_text(&mut fact, info::DESCRIPTION, &export.description);
            send(&mut fact);
        }
        if wanted.block_size {
            let max = limits.payload_bytes_max;
            codec::encode_info_block_size(&mut fact, BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, max);
            send(&mut fact);
        }
        codec::encode_option_reply(out, option, rep::ACK, &[]);
        Ok(Some(export))
    }

    fn structured_reply(&mut self, data: &[u8], out: &mut Vec<u8>) -> Parsed<()> {
        Fields(data).end().ok_or(Malformed("this option takes no data"))?;
        self.structured = true;
        codec::encode_option_reply(out, opt::STRUCTURED_REPLY, rep::ACK, &[]);
        Ok(())
    }

    /// Handles LIST_META_CONTEXT and SET_META_CONTEXT.
    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Parsed<()> {
        let setting = option == opt::SET_META_CONTEXT;
        if setting {
            self.contexts = None;
        }
        if !self.structured {
            return Err(Malformed("structured replies must be agreed on first"));
        }
        let (name, matched) = parse_meta_context(data, setting)?;
        let Some(export) = exports.resolve(name) else {
            unknown_export(out, option, name);
            return Ok(());
        };
        let mut reply = Vec::new();
        for context in matched.iter() {
            reply.clear();
            // The number has no meaning in a list; the protocol requires zero there.
            let id = if setting { context.id() } else { 0 };
            reply.extend_from_slice(&id.to_be_bytes());
            reply.extend_from_slice(context.name().as_bytes());
            codec::encode_option_reply(out, option, rep::META_CONTEXT, &reply);
        }
        if setting {
            self.contexts = Some((export.name, matched));
        }
        codec::encode_option_reply(out, option, rep::ACK, &[]);
        Ok(())
    }
}

/// Handles an option before the required TLS: STARTTLS, or one that ends the connection; refuses
/// all others.
fn before_tls(option: u32, data: &[u8], out: &mut Vec<u8>) -> Outcome {
    match option {
        opt::STARTTLS if data.is_empty() => {
            codec::encode_option_reply(out, option, rep::ACK, &[]);
            return Outcome::StartTls;
        }
        opt::STARTTLS => {
            codec::encode_option_reply(out, option, rep::ERR_INVALID, b"this option takes no data");
        }
        opt::EXPORT_NAME => return Outcome::Close(CloseReason::TlsRequired),
        opt::ABORT => {
            codec::encode_option_reply(out, option, rep::ACK, &[]);
            return Outcome::Close(CloseReason::Aborted);
        }
        _ => tls_required(out, option),
    }
    Outcome::Continue
}

fn tls_required(out: &mut Vec<u8>, option: u32) {
    codec::encode_option_reply(
        out,
        option,
        rep::ERR_TLS_REQD,
        b"this server speaks TLS only: start it first",
    );
}

fn unsupported(out: &mut Vec<u8>, option: u32, message: &str) -> Parsed<()> {
    codec::encode_option_reply(out, option, rep::ERR_UNSUP, message.as_bytes());
    Ok(())
}

fn unknown_export(out: &mut Vec<u8>, option: u32, name: &str) {
    let message = format!("there is no export named \"{}\"", name.escape_default());
    codec::encode_option_reply(out, option, rep::ERR_UNKNOWN, codec::cut(&message).as_bytes());
}

/// Handles LIST: appends the name and description of each export.
fn list(data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Parsed<()> {
    Fields(data).end().ok_or(Malformed("this option takes no data"))?;
    let mut entry = Vec::new();
    for export in exports.list() {
        entry.clear();
        codec::encode_counted(&mut entry, codec::cut(&export.name).as_bytes());
        entry.extend_from_slice(codec::cut(&export.description).as_bytes());
        codec::encode_option_reply(out, opt::LIST, rep::SERVER, &entry);
    }
    codec::encode_option_reply(out, opt::LIST, rep::ACK, &[]);
    Ok(())
}

/// Returns the transmission flags of an export.
pub fn transmission_flags(export: &ExportInfo, structured: bool) -> u16 {
    use transmission_flag as flag;
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
    if export.read_only {
        flags |= flag::READ_ONLY;
    } else {
        flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES;
        if export.fast_zero {
            flags |= flag::SEND_FAST_ZERO;
        }
    }
    if structured {
        flags |= flag::SEND_DF;
    }
    if export.multi_conn {
        flags |= flag::CAN_MULTI_CONN;
    }
    flags
}

/// The facts that a client requested besides size and flags.
#[derive(Default)]
struct Wanted {
    name: bool,
    description: bool,
    block_size: bool,
}

fn parse_name<'a>(fields: &mut Fields<'a>) -> Parsed<&'a str> {
    let name = fields.counted().ok_or(Malformed("the export name is longer than the option"))?;
    if name.len() > codec::STRING_BYTES_MAX {
        return Err(Malformed("the export name is longer than 4096 bytes"));
    }
    std::str::from_utf8(name).map_err(|_| Malformed("the export name is not UTF-8"))
}

fn parse_info(data: &[u8]) -> Parsed<(&str, Wanted)> {
    let mut fields = Fields(data);
    let name = parse_name(&mut fields)?;
    let short = Malformed("fewer information requests than announced");
    let Some(count) = fields.u16() else { return Err(short) };
    let mut wanted = Wanted::default();
    for _ in 0..count {
        match fields.u16() {
            Some(info::NAME) => wanted.name = true,
            Some(info::DESCRIPTION) => wanted.description = true,
            Some(info::BLOCK_SIZE) => wanted.block_size = true,
            Some(_) => {}
            None => return Err(short),
        }
    }
    fields.end().ok_or(Malformed("data left over at the end"))?;
    Ok((name, wanted))
}

/// Parses the export and the requested contexts. SET_META_CONTEXT takes exact names;
/// LIST_META_CONTEXT also takes a namespace (`base:`), or nothing for everything.
fn parse_meta_context(data: &[u8], setting: bool) -> Parsed<(&str, Contexts)> {
    let mut fields = Fields(data);
    let name = parse_name(&mut fields)?;
    let short = Malformed("fewer queries than announced");
    let Some(count) = fields.u32() else { return Err(short) };
    let mut matched = Contexts::default();
    for _ in 0..count {
        let Some(query) = fields.counted() else { return Err(short) };
        if query.len() > codec::STRING_BYTES_MAX {
            return Err(Malformed("a query is longer than 4096 bytes"));
        }
        for context in Context::ALL {
            let exact = query == context.name().as_bytes();
            if exact || (!setting && context.listed_by(query)) {
                matched.insert(context);
            }
        }
    }
    fields.end().ok_or(Malformed("data left over at the end"))?;
    if count == 0 && !setting {
        matched = Contexts { allocation: true, cache: true };
    }
    Ok((name, matched))
}
