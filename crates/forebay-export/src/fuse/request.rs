//! Requests of the kernel, decoded, without decisions about them.
//!
//! Invariants
//! - All integers are in the host's byte order, which must be little-endian.
//! - Decoding neither panics on any bytes nor reads beyond them. An invalid request still yields
//!   its number, if it has one, so that it gets a reply.
//! - Names are not empty, not longer than 255 bytes, and have neither a slash nor a zero byte.
//!
//! ```text
//! every request   u32 length  u32 opcode  u64 unique  u64 node  u32 uid  u32 gid  u32 pid  u16 extensions  u16 0   body
//! WRITE           u64 handle  u64 offset  u32 size  u32 flags  u64 lock owner  u32 open flags  u32 0   payload
//! READ            the same as WRITE, without payload
//! LOOKUP          name, ended by a zero byte
//! ```

use thiserror::Error;

use super::wire::{self, IN_HEADER_BYTES, NAME_BYTES_MAX, WRITE_HEAD_BYTES, WRITE_IN_BYTES, opcode};

/// Fields of all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request.
    pub length_bytes: u32,
    /// Operation; see [`opcode`].
    pub opcode: u32,
    /// The kernel's id of the request, returned in the reply. Zero where no reply is expected.
    pub unique: u64,
    /// The node that the request is about.
    pub node: u64,
    /// The requesting user.
    pub uid: u32,
    /// Group of that user.
    pub gid: u32,
    /// The requesting process; 0 for requests of the kernel itself.
    pub pid: u32,
}

/// A decoded request. Only supported operations have their fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// Negotiate version and features.
    Init(InitIn),
    /// Find a name in a directory.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// Drop `count` lookups of the node. No reply.
    Forget {
        /// Number of lookups.
        count: u64,
    },
    /// The same for many nodes: pairs of node and count. No reply.
    BatchForget(Forgets<'a>),
    /// Attributes of the node.
    GetAttributes,
    /// Change attributes of the node.
    SetAttributes(SetAttributesIn),
    /// Open the node, a file.
    Open {
        /// Flags of `open(2)`.
        flags: u32,
    },
    /// Read an open file.
    Read(TransferIn),
    /// Write an open file. The payload is the rest of the request.
    Write(TransferIn),
    /// Size of the file system.
    StatFs,
    /// The last user has closed an open file.
    Release {
        /// The open file.
        handle: u64,
    },
    /// Make the file's data durable.
    Fsync {
        /// The open file.
        handle: u64,
    },
    /// One user closes an open file.
    Flush,
    /// Open the node, a directory.
    OpenDirectory,
    /// List an open directory.
    ReadDirectory(TransferIn),
    /// The last user has closed an open directory.
    ReleaseDirectory {
        /// The open directory.
        handle: u64,
    },
    /// Make a directory durable.
    FsyncDirectory,
    /// Check a user's access.
    Access,
    /// The user of a request was interrupted. No reply.
    Interrupt {
        /// The request.
        unique: u64,
    },
    /// The file system is unmounted.
    Destroy,
    /// A control request on an open file.
    Ioctl,
    /// Reserve, zero or punch a range.
    Allocate {
        /// The open file.
        handle: u64,
        /// First byte.
        offset_bytes: u64,
        /// Length of the range.
        length_bytes: u64,
        /// Mode of `fallocate(2)`; see [`super::wire::falloc`].
        mode: u32,
    },
    /// Anything else.
    Other,
}

/// Features that the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitIn {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Read-ahead in bytes.
    pub readahead_bytes: u32,
    /// Feature flags; see [`super::wire::init`].
    pub flags: u32,
    /// More feature flags; 0 if the kernel has none.
    pub flags2: u32,
}

/// A range of an open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferIn {
    /// The open file.
    pub handle: u64,
    /// First byte; for a directory, the position from the last entry.
    pub offset_bytes: u64,
    /// Length; for a directory, the maximum length of the reply.
    pub length_bytes: u32,
    /// Flags of `open(2)`, with `O_DSYNC` also if only this write requests it.
    pub open_flags: u32,
}

/// Attributes to change; only the fields in `valid` count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAttributesIn {
    /// See [`super::wire::setattr`].
    pub valid: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Mode, type included.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
}

/// Nodes to forget, with the number of their lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Iterates over pairs of node and count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.chunks_exact(FORGET_ONE_BYTES).filter_map(|pair| {
            let mut fields = Fields(pair);
            Some((fields.u64()?, fields.u64()?))
        })
    }
}

const FORGET_ONE_BYTES: usize = 16;

/// Why a request is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// It is shorter than its header, or its length differs from the one in the header.
    #[error("a FUSE request of {received_bytes} bytes gives its length as {said_bytes}")]
    Length {
        /// Bytes received.
        received_bytes: usize,
        /// Length in the header, 0 if there is none.
        said_bytes: u32,
    },
    /// Its body is too short, or has an impossible value.
    #[error("FUSE request {unique} (operation {opcode}) has an invalid body")]
    Body {
        /// Operation.
        opcode: u32,
        /// Number of the request.
        unique: u64,
    },
}

impl Header {
    /// Decodes the header of a request of `received_bytes`; `bytes` begins with the header.
    ///
    /// # Errors
    /// [`Malformed::Length`].
    pub fn decode(bytes: &[u8], received_bytes: usize) -> Result<Header, Malformed> {
        let header = Self::fields(bytes);
        match header {
            Some(header) if header.length_bytes as usize == received_bytes => Ok(header),
            _ => Err(Malformed::Length {
                received_bytes,
                said_bytes: header.map_or(0, |header| header.length_bytes),
            }),
        }
    }

    fn fields(bytes: &[u8]) -> Option<Header> {
        let mut fields = Fields(bytes.get(..IN_HEADER_BYTES)?);
        Some(Header {
            length_bytes: fields.u32()?,
            opcode: fields.u32()?,
            unique: fields.u64()?,
            node: fields.u64()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
            pid: fields.u32()?,
        })
    }

    /// Decodes the part after the header. For a WRITE, only the part before the payload is decoded,
    /// so `body` may end there.
    ///
    /// # Errors
    /// [`Malformed::Body`].
    pub fn decode_body<'a>(&self, body: &'a [u8]) -> Result<Body<'a>, Malformed> {
        self.body(body).ok_or(Malformed::Body { opcode: self.opcode, unique: self.unique })
    }

    fn body<'a>(&self, body: &'a [u8]) -> Option<Body<'a>> {
        let mut fields = Fields(body);
        Some(match self.opcode {
            opcode::INIT => Body::Init(init(fields)?),
            opcode::LOOKUP => Body::Lookup { name: name(body)? },
            opcode::FORGET => Body::Forget { count: fields.u64()? },
            opcode::BATCH_FORGET => Body::BatchForget(forgets(fields)?),
            opcode::GETATTR => Body::GetAttributes,
            opcode::SETATTR => Body::SetAttributes(set_attributes(fields)?),
            opcode::OPEN => Body::Open { flags: fields.u32()? },
            opcode::READ => Body::Read(transfer(fields)?),
            opcode::WRITE => Body::Write(self.write(fields)?),
            opcode::STATFS => Body::StatFs,
            opcode::RELEASE => Body::Release { handle: fields.u64()? },
            opcode::FSYNC => Body::Fsync { handle: fields.u64()? },
            opcode::FLUSH => Body::Flush,
            opcode::OPENDIR => Body::OpenDirectory,
            opcode::READDIR => Body::ReadDirectory(transfer(fields)?),
            opcode::RELEASEDIR => Body::ReleaseDirectory { handle: fields.u64()? },
            opcode::FSYNCDIR => Body::FsyncDirectory,
            opcode::ACCESS => Body::Access,
            opcode::INTERRUPT => Body::Interrupt { unique: fields.u64()? },
            opcode::DESTROY => Body::Destroy,
            opcode::IOCTL => Body::Ioctl,
            opcode::FALLOCATE => {
                let (handle, offset_bytes, length_bytes) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Body::Allocate { handle, offset_bytes, length_bytes, mode: fields.u32()? }
            }
            _ => Body::Other,
        })
    }

    /// Decodes a write, if its payload has the stated length.
    fn write(&self, fields: Fields<'_>) -> Option<TransferIn> {
        let write = (fields.0.len() >= WRITE_IN_BYTES).then(|| transfer(fields)).flatten()?;
        let payload = (self.length_bytes as usize).checked_sub(WRITE_HEAD_BYTES)?;
        (payload == write.length_bytes as usize).then_some(write)
    }
}

fn init(mut fields: Fields<'_>) -> Option<InitIn> {
    let (major, minor, readahead_bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let flags = fields.u32()?;
    let extended = flags & wire::init::EXTENDED != 0;
    let flags2 = fields.u32().filter(|_| extended).unwrap_or(0);
    Some(InitIn { major, minor, readahead_bytes, flags, flags2 })
}

fn transfer(mut fields: Fields<'_>) -> Option<TransferIn> {
    let (handle, offset_bytes, length_bytes) = (fields.u64()?, fields.u64()?, fields.u32()?);
    fields.skip(4 + 8)?; // flags of the transfer, lock owner
    Some(TransferIn { handle, offset_bytes, length_bytes, open_flags: fields.u32()? })
}

fn set_attributes(mut fields: Fields<'_>) -> Option<SetAttributesIn> {
    let valid = fields.u32()?;
    fields.skip(4 + 8)?; // padding, handle
    let size_bytes = fields.u64()?;
    fields.skip(8 + 3 * 8 + 3 * 4)?; // lock owner, times, their nanoseconds
    let mode = fields.u32()?;
    fields.skip(4)?;
    Some(SetAttributesIn { valid, size_bytes, mode, uid: fields.u32()?, gid: fields.u32()? })
}

fn forgets(mut fields: Fields<'_>) -> Option<Forgets<'_>> {
    let count = fields.u32()? as usize;
    fields.skip(4)?;
    Some(Forgets(fields.0.get(..count.checked_mul(FORGET_ONE_BYTES)?)?))
}

fn name(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|byte| *byte == 0)?;
    let name = &body[..end];
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/')).then_some(name)
}

/// Reads integers from the front of a slice.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}

/// The protocol is in the host's byte order; this decoder and the encoder in `reply` are written
/// for little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "FUSE is served on little-endian hosts only");
