//! Interface of the model: requests and completions in, actions out.
//!
//! The model makes no system call and never sees a payload byte. Its owner performs every
//! [`Action`] in the order in which it was returned, and reports each one that has an [`OpId`] with
//! exactly one completion; device operations may complete in any order.

/// Nanoseconds since an origin of the owner's choice; never goes back.
pub type Nanos = u64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;
/// Bytes of a block: FlashCache's default, and the only size here.
pub const BLOCK_BYTES: u32 = 4096;

/// An operation in flight, as numbered by the model. Reused after its completion.
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
    /// The buffer of a copy from the flash to the disk, by slot number. The owner allocates it for
    /// the read and may release it after the write, or after the read if that fails.
    Copy(u32),
}

/// A range of bytes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The memory.
    pub memory: Memory,
    /// Offset of its first byte.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// A client's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Fills the buffer.
    Read,
    /// Stores the buffer; `fua` requests durability before the reply.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Makes the range read as zeroes afterwards.
    Zero {
        /// Durable before the reply.
        fua: bool,
        /// The disk may deallocate the space.
        may_unmap: bool,
    },
    /// Makes all acknowledged writes durable.
    Flush,
}

/// A request. Byte `i` of its buffer stands for byte `offset - offset % 4096 + i` of the volume.
/// The owner keeps the buffer until the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Echoed in the reply.
    pub id: u64,
    /// The command.
    pub kind: CommandKind,
    /// Offset, in bytes; any value.
    pub offset: u64,
    /// Number of bytes; 0 only for a flush.
    pub len: u64,
    /// Buffer of a read or write; otherwise ignored.
    pub buffer: u32,
}

/// An action for the owner to perform, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads into a span.
    Read {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
        /// Offset on the device, in bytes.
        offset: u64,
        /// Destination.
        span: Span,
    },
    /// Writes a span.
    Write {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
        /// Offset on the device, in bytes.
        offset: u64,
        /// Source.
        span: Span,
    },
    /// Writes the bytes that [`crate::Model::render_meta`] returns for a metadata block *at this
    /// moment* to the flash.
    WriteMeta {
        /// Operation.
        op: OpId,
        /// Number of the metadata block.
        meta_block: u32,
        /// Offset on the flash, in bytes.
        offset: u64,
    },
    /// Makes a range of the disk read as zeroes.
    Zero {
        /// Operation.
        op: OpId,
        /// Offset on the disk, in bytes.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The disk may deallocate the space.
        may_unmap: bool,
    },
    /// Makes completed writes to a device durable.
    Flush {
        /// Operation.
        op: OpId,
        /// Device.
        device: Device,
    },
    /// Replies to a request; `Err` is an input/output error.
    Reply {
        /// The request's number.
        request: u64,
        /// The result.
        result: Result<(), Failed>,
    },
}

/// A device operation, or a request because of one, has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;
