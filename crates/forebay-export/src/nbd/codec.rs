//! The bytes of the NBD protocol: every constant and every structure, encoded and decoded, without
//! decisions about them.
//!
//! Invariants
//! - All integers are big-endian. Encoders append to a `Vec<u8>` or return a fixed array; decoders
//!   take exactly the bytes of one structure and never panic on their content.
//! - A decoder returns `None` if it gets too few bytes, or extra bytes where none are permitted.
//!
//! ```text
//! greeting        server  u64 NBDMAGIC   u64 IHAVEOPT   u16 handshake flags
//! client flags    client  u32
//! option          client  u64 IHAVEOPT   u32 option     u32 length   data
//! option reply    server  u64 magic      u32 option     u32 type     u32 length   data
//! request         client  u32 magic      u16 flags      u16 type     u64 cookie   u64 offset   u32 length   [payload]
//! simple reply    server  u32 magic      u32 error      u64 cookie   [payload]
//! reply chunk     server  u32 magic      u16 flags      u16 type     u64 cookie   u32 length   payload
//! ```

pub use crate::uri::{PORT, STRING_BYTES_MAX};

/// First word of the greeting.
pub const MAGIC_GREETING: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, first word of every option.
pub const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// First word of every option reply.
pub const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// First word of every simple reply.
pub const MAGIC_SIMPLE_REPLY: u32 = 0x6744_6698;
/// First word of every structured reply chunk.
pub const MAGIC_REPLY_CHUNK: u32 = 0x668e_33ef;

/// Length of the greeting.
pub const GREETING_BYTES: usize = 18;
/// Length of the client's flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Length of an option without its data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of an option reply without its data.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a reply chunk without its payload.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Bytes before the data in the payload of an [`chunk::OFFSET_DATA`] chunk.
pub const CHUNK_OFFSET_BYTES: usize = 8;
/// Zeroes after the reply to [`opt::EXPORT_NAME`], unless both sides agreed to omit them.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Handshake flags; the server's and the client's have the same bits.
pub mod handshake_flag {
    /// Unknown options get a reply instead of ending the connection.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The reply to EXPORT_NAME has no padding.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the negotiation.
pub mod opt {
    /// Choose an export and start, in the old form, which has no error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Request structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Request 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of option replies.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown or unsupported.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is forbidden by the administrator.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data are invalid.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// TLS is required before any option but STARTTLS.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: capabilities of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see each other's flushed writes.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types.
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; payload follows.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Trim.
    pub const TRIM: u16 = 4;
    /// Prefetch.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Query metadata contexts.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Request flags.
pub mod cmd_flag {
    /// Reply once the effect is durable. Legal on every command.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES: keep the range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: reply in one chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail unless it is fast.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of structured reply chunks, and their flag.
pub mod chunk {
    /// Flag: the last chunk of this reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of a range of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error type.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error and a message.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error, a message and the offset where it happened.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// Extent flags of the two metadata contexts.
pub mod extent_flag {
    /// `base:allocation`: not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// `base:allocation`: reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
    /// `forebay:cache`: on the cache device.
    pub const CACHED: u32 = 1 << 0;
    /// `forebay:cache`: dirty.
    pub const DIRTY: u32 = 1 << 1;
}

/// Defines the errors once: the numbers on the wire, and the names for people.
macro_rules! errors {
    ($($(#[$doc:meta])* $error:ident = $code:literal $name:literal,)*) => {
        /// Errors in a reply.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Errno { $($(#[$doc])* $error = $code,)* }

        impl Errno {
            /// Every error, for tables and tests.
            pub const ALL: &'static [Errno] = &[$(Errno::$error,)*];
        }

        impl std::fmt::Display for Errno {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Errno::$error => $name,)* })
            }
        }
    };
}

errors! {
    /// Not permitted (a change to a read-only export).
    NotPermitted = 1 "EPERM",
    /// The device failed.
    Io = 5 "EIO",
    /// Out of memory.
    NoMemory = 12 "ENOMEM",
    /// The request is invalid.
    Invalid = 22 "EINVAL",
    /// Beyond the end, or the device is full.
    NoSpace = 28 "ENOSPC",
    /// Too large for a reply in one chunk.
    Overflow = 75 "EOVERFLOW",
    /// Not supported (a fast zero that would not be fast).
    NotSupported = 95 "ENOTSUP",
    /// The server is shutting down.
    Shutdown = 108 "ESHUTDOWN",
}

impl Errno {
    /// Returns the number on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Returns the error of a number on the wire; [`Errno::Invalid`] for numbers outside the
    /// protocol.
    pub fn from_code(code: u32) -> Errno {
        Errno::ALL.iter().copied().find(|errno| errno.code() == code).unwrap_or(Errno::Invalid)
    }
}

/// Reads big-endian fields from the front of a byte string.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// Returns the next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Returns the next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Returns the next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Returns the bytes after a 32-bit length.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.bytes(usize::try_from(count).ok()?)
    }

    /// Returns `Some` when no bytes are left.
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Converts a length for the wire. Lengths here are bounded far below 4 GiB; a longer one is a bug
/// of ours and must not wrap around.
pub(crate) fn wire_len(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok(), "no structure is 4 GiB long");
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Cuts the text to at most [`STRING_BYTES_MAX`] bytes, at a character boundary.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Encodes the server's greeting.
pub fn greeting(flags: u16) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC_GREETING.to_be_bytes());
    bytes[8..16].copy_from_slice(&MAGIC_OPTION.to_be_bytes());
    bytes[16..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Decodes the flags of a greeting; returns `None` if it is not one of a newstyle server.
pub fn decode_greeting(bytes: &[u8]) -> Option<u16> {
    let mut fields = Fields(bytes);
    let known = fields.u64()? == MAGIC_GREETING && fields.u64()? == MAGIC_OPTION;
    let flags = fields.u16()?;
    fields.end()?;
    known.then_some(flags)
}

/// An option without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`opt`].
    pub option: u32,
    /// Length of the data that follow.
    pub length: u32,
}

impl OptionHeader {
    /// Returns `None` if the magic number is wrong or the length is not [`OPTION_HEADER_BYTES`].
    pub fn decode(bytes: &[u8]) -> Option<OptionHeader> {
        let mut fields = Fields(bytes);
        let magic = fields.u64()?;
        let header = OptionHeader { option: fields.u32()?, length: fields.u32()? };
        fields.end()?;
        (magic == MAGIC_OPTION).then_some(header)
    }
}

/// Appends an option and its data.
pub fn encode_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    encode_counted(out, data);
}

/// Appends a 32-bit length and the bytes.
pub fn encode_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&wire_len(bytes.len()).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// An option reply without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option of the reply.
    pub option: u32,
    /// One of [`rep`].
    pub kind: u32,
    /// Length of the data that follow.
    pub length: u32,
}

impl OptionReplyHeader {
    /// Returns `None` if the magic number is wrong or the length is not
    /// [`OPTION_REPLY_HEADER_BYTES`].
    pub fn decode(bytes: &[u8]) -> Option<OptionReplyHeader> {
        let mut fields = Fields(bytes);
        let magic = fields.u64()?;
        let header = OptionReplyHeader { option: fields.u32()?, kind: fields.u32()?, length: fields.u32()? };
        fields.end()?;
        (magic == MAGIC_OPTION_REPLY).then_some(header)
    }
}

/// Appends an option reply and its data.
pub fn encode_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&MAGIC_OPTION_REPLY.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    encode_counted(out, data);
}

/// A request without its payload, as on the wire: only the magic number is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Bits of [`cmd_flag`].
    pub flags: u16,
    /// One of [`cmd`].
    pub kind: u16,
    /// The client's id of the request, returned in every reply to it.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub length: u32,
}

impl RequestHeader {
    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC_REQUEST.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Returns `None` if the magic number is wrong or the length is not [`REQUEST_BYTES`].
    pub fn decode(bytes: &[u8]) -> Option<RequestHeader> {
        let mut fields = Fields(bytes);
        let magic = fields.u32()?;
        let header = RequestHeader {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        };
        fields.end()?;
        (magic == MAGIC_REQUEST).then_some(header)
    }
}

/// Encodes a simple reply without its payload.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&MAGIC_SIMPLE_REPLY.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The fields of a simple reply after its magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleReply {
    /// Zero, or a number of [`Errno`].
    pub error: u32,
    /// Cookie of the request.
    pub cookie: u64,
}

/// The header of a structured reply chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`chunk::FLAG_DONE`] or nothing.
    pub flags: u16,
    /// A type of [`chunk`].
    pub kind: u16,
    /// Cookie of the request.
    pub cookie: u64,
    /// Length of the payload that follows.
    pub length: u32,
}

impl ChunkHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC_REPLY_CHUNK.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Head of either kind of reply, distinguished by its magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHead {
    /// A simple reply: [`SIMPLE_REPLY_BYTES`] long.
    Simple(SimpleReply),
    /// A chunk: [`CHUNK_HEADER_BYTES`] long.
    Chunk(ChunkHeader),
}

impl ReplyHead {
    /// Decodes the head at the start of `bytes`; returns `None` if it is incomplete or of neither
    /// kind.
    pub fn decode(bytes: &[u8]) -> Option<ReplyHead> {
        let mut fields = Fields(bytes);
        match fields.u32()? {
            MAGIC_SIMPLE_REPLY => {
                Some(ReplyHead::Simple(SimpleReply { error: fields.u32()?, cookie: fields.u64()? }))
            }
            MAGIC_REPLY_CHUNK => Some(ReplyHead::Chunk(ChunkHeader {
                flags: fields.u16()?,
                kind: fields.u16()?,
                cookie: fields.u64()?,
                length: fields.u32()?,
            })),
            _ => None,
        }
    }

    /// Returns the length of the head, from its first four bytes.
    pub fn length_of(magic: [u8; 4]) -> Option<usize> {
        match u32::from_be_bytes(magic) {
            MAGIC_SIMPLE_REPLY => Some(SIMPLE_REPLY_BYTES),
            MAGIC_REPLY_CHUNK => Some(CHUNK_HEADER_BYTES),
            _ => None,
        }
    }
}

/// Appends the payload of an INFO reply about size and flags.
pub fn encode_info_export(out: &mut Vec<u8>, size_bytes: u64, flags: u16) {
    out.extend_from_slice(&info::EXPORT.to_be_bytes());
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
}

/// Appends the payload of an INFO reply that carries text.
pub fn encode_info_text(out: &mut Vec<u8>, kind: u16, text: &str) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(cut(text).as_bytes());
}

/// Appends the payload of an INFO reply about block sizes.
pub fn encode_info_block_size(out: &mut Vec<u8>, min: u32, preferred: u32, max: u32) {
    out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    for bytes in [min, preferred, max] {
        out.extend_from_slice(&bytes.to_be_bytes());
    }
}
