//! Option haggling: what a client asks for before transmission, and what it is told. Pure: one
//! option in, reply bytes and an [`Outcome`] out.
//!
//! Invariants
//! - Whatever an option holds, its answer is a function of the exports and the limits, not of the
//!   data's length: each context is named once, each fact given once.
//! - A failed SET_META_CONTEXT leaves no context set; so does one that named another export than GO
//!   does.
//! - Nothing is agreed on that was not asked for.
//! - Where TLS is required nothing is told and nothing agreed on before it is there (FORCEDTLS of
//!   the protocol), and nothing that was said before it counts after it, but for the client's flags
//!   and the number of options.

use super::codec::{self, Fields, handshake_flag, info, opt, rep, transmission_flag};
use super::session::{CloseReason, Limits};
use crate::directory::{ExportInfo, Exports};

/// Handshake flags this server offers.
pub const SERVER_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
/// Smallest request: single bytes.
pub const BLOCK_BYTES_MIN: u32 = 1;
/// What requests should be a multiple of.
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

    /// The name clients ask for.
    pub fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::Cache => "forebay:cache",
        }
    }

    /// The number chunks carry.
    pub fn id(self) -> u32 {
        match self {
            Context::Allocation => 1,
            Context::Cache => 2,
        }
    }

    /// Whether a query of LIST_META_CONTEXT asks for this context: by its name, or by its namespace
    /// alone.
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
    /// Puts a context into the set.
    pub fn insert(&mut self, context: Context) {
        match context {
            Context::Allocation => self.allocation = true,
            Context::Cache => self.cache = true,
        }
    }

    /// Whether the context is in the set.
    pub fn contains(self, context: Context) -> bool {
        match context {
            Context::Allocation => self.allocation,
            Context::Cache => self.cache,
        }
    }

    /// Whether no context is in the set.
    pub fn is_empty(self) -> bool {
        !self.allocation && !self.cache
    }

    /// The contexts in the set, in order.
    pub fn iter(self) -> impl Iterator<Item = Context> {
        Context::ALL.into_iter().filter(move |context| self.contains(*context))
    }
}

/// TLS on a connection. There is no mode in which a client may choose: who is on the way could
/// choose for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// Plaintext; STARTTLS is refused.
    #[default]
    Off,
    /// Not there yet, and nothing goes without it.
    Required,
    /// Everything goes through it.
    Active,
}

/// What comes after an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// More options.
    Continue,
    /// Transmission, to this export.
    Enter(ExportInfo),
    /// A TLS handshake, once the reply has been sent.
    StartTls,
    /// The end, once the reply has been sent.
    Close(CloseReason),
}

/// What has been agreed so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handshake {
    tls: Tls,
    /// The client understands replies to options.
    fixed_newstyle: bool,
    /// The client wants no padding after EXPORT_NAME.
    no_zeroes: bool,
    structured: bool,
    /// The contexts set last, and the export they were set for.
    contexts: Option<(String, Contexts)>,
    options_seen: u32,
}

/// An option's data were not what they should be.
struct Malformed(&'static str);

type Parsed<T> = Result<T, Malformed>;

impl Handshake {
    /// Nothing is agreed on yet.
    pub fn new(tls: Tls) -> Self {
        Handshake { tls, ..Handshake::default() }
    }

    /// TLS is there now: what was said in plaintext may have been said by anybody, and is
    /// forgotten.
    pub fn tls_established(&mut self) {
        self.tls = Tls::Active;
        self.structured = false;
        self.contexts = None;
    }

    /// The refusal of an option whose data are too long to be looked at.
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

    /// Structured replies were agreed on.
    pub fn structured(&self) -> bool {
        self.structured
    }

    /// The contexts that hold for an export.
    pub fn contexts_for(&self, export: &ExportInfo) -> Contexts {
        match &self.contexts {
            Some((name, contexts)) if *name == export.name => *contexts,
            _ => Contexts::default(),
        }
    }

    /// Counts an option and says whether its data should be read, given their length.
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

    /// Answers one option.
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
            opt::STARTTLS if self.tls == Tls::Active => Err(Malformed("TLS is there already")),
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

    /// EXPORT_NAME: the old way in, which has no way to say no.
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

    /// INFO and GO: facts about one export. `None` if the client was told that there is no such
    /// export.
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

    /// LIST_META_CONTEXT and SET_META_CONTEXT.
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
            // The number means nothing in a list; the protocol asks for zero there.
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

/// An option before the TLS that is required: STARTTLS, or one that ends it all; everything else
/// has to wait.
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

/// LIST: the name and description of each export.
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

/// What an export can do, as the client is told.
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

/// The facts a client asked for beyond size and flags.
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

/// The export and the contexts asked for. Setting takes exact names; listing also takes a namespace
/// (`base:`), or nothing for everything.
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
