//! Interface of the model: requests and completions in, actions out.
//!
//! The model makes no system call and never sees a payload byte. Its owner carries out every
//! [`Action`] in the order in which it was handed out, and reports each one that has an [`OpId`]
//! with exactly one completion; device operations may complete in any order.

/// Nanoseconds since an origin of the owner's choice; never goes back.
pub type Nanos = u64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;
/// Bytes of a block: FlashCache's default, and the only size here.
pub const BLOCK_BYTES: u32 = 4096;

/// An operation under way, as numbered by the model. Used again after its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u32);

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Device {
    /// The flash.
    Cache,
    /// The disk behind it.
    Disk,
}

/// Memory of the owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Memory {
    /// The buffer of a request.
    Request(u32),
    /// A block that a copy from the flash to the disk goes through, by the number of its slot. The
    /// owner makes it for the read and may forget it after the write, or after the read if that
    /// fails.
    Copy(u32),
}

/// A range of bytes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The memory.
    pub memory: Memory,
    /// First byte.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Fill the buffer.
    Read,
    /// Store the buffer; `fua` asks for durability before the reply.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// The range reads as zeroes afterwards.
    Zero {
        /// Durable before the reply.
        fua: bool,
        /// Space may be given back.
        may_unmap: bool,
    },
    /// Everything acknowledged before becomes durable.
    Flush,
}

/// A request. Byte `i` of its buffer stands for byte `offset - offset % 4096 + i` of the volume.
/// The owner keeps the buffer until the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Echoed in the reply.
    pub id: u64,
    /// What to do.
    pub kind: CommandKind,
    /// First byte; any value.
    pub offset: u64,
    /// Number of bytes; 0 only for a flush.
    pub len: u64,
    /// Buffer of a read or write; not looked at otherwise.
    pub buffer: u32,
}

/// Something for the owner to do, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read into a span.
    Read {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
        /// First byte on the device.
        offset: u64,
        /// Where the bytes go.
        span: Span,
    },
    /// Write a span.
    Write {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
        /// First byte on the device.
        offset: u64,
        /// Where the bytes come from.
        span: Span,
    },
    /// Write what [`crate::Model::render_meta`] gives for a metadata block *at this moment* to the
    /// flash.
    WriteMeta {
        /// Operation.
        op: OpId,
        /// Number of the metadata block.
        meta_block: u32,
        /// First byte on the flash.
        offset: u64,
    },
    /// Make a range of the disk read as zeroes.
    Zero {
        /// Operation.
        op: OpId,
        /// First byte on the disk.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Space may be given back.
        may_unmap: bool,
    },
    /// Make durable what was reported as written to a device.
    Flush {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
    },
    /// A request is done; `Err` is an input/output error.
    Reply {
        /// The request's number.
        request: u64,
        /// How it ended.
        result: Result<(), Failed>,
    },
}

/// A device operation, or a request because of one, has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;
