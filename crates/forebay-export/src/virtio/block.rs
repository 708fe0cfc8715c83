//! The block device: features, configuration, requests.
//!
//! Invariants
//! - Every request for a volume passed [`request::validate`].
//! - Every request with room for a status gets one, even if other parts are invalid. Only a request
//!   without room for a status breaks its ring.
//! - The device's limits are such that a compliant driver requests at most [`PAYLOAD_BYTES_MAX`] at
//!   once: [`SEGMENTS_MAX`] segments of [`SEGMENT_BYTES_MAX`].

use super::memory::{self, Gone, GuestMemory, Segment};
use super::ring::Chain;
use crate::request::{self, Admission, Bounds, ClientRequest, Operation};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress};

/// Unit of the protocol's addresses and lengths, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// A write of less than a block of the cache costs a read of the rest.
const PHYSICAL_BYTES: u32 = 4096;
/// The longest read or write.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Most segments of data in a request of a compliant driver ...
pub const SEGMENTS_MAX: u32 = 126;
/// ... and most bytes of each.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;
const _: () = assert!(SEGMENTS_MAX as u64 * SEGMENT_BYTES_MAX as u64 <= PAYLOAD_BYTES_MAX as u64);
/// Most ranges in a request to discard, or to write zeroes.
pub const RANGES_MAX: u32 = 32;
/// Most sectors of each range, so that its bytes are a 32-bit number.
pub const RANGE_SECTORS_MAX: u32 = (u32::MAX as u64 / SECTOR_BYTES) as u32;
/// Bytes of a name that a guest can see.
pub const ID_BYTES: usize = 20;
/// Bytes of the configuration space: the most that a vhost-user message can request.
pub const CONFIG_BYTES: usize = 256;

/// Features (bits) of a block device, and of its rings.
pub mod feature {
    /// The device has a longest segment.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The device has a highest number of segments.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device reports the size of a logical block.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Writes are durable after a flush; without this feature, every write is durable.
    pub const FLUSH: u64 = 1 << 9;
    /// The device reports the size of a physical block.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// Several rings.
    pub const MQ: u64 = 1 << 12;
    /// Discards.
    pub const DISCARD: u64 = 1 << 13;
    /// Writes of zeroes without payload.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor may refer to a table of others.
    pub const INDIRECT: u64 = 1 << 28;
    /// Kicks and signals are suppressed by ring position.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
    /// All that this device supports.
    pub const ALL: u64 = SIZE_MAX
        | SEG_MAX
        | BLK_SIZE
        | FLUSH
        | TOPOLOGY
        | MQ
        | DISCARD
        | WRITE_ZEROES
        | INDIRECT
        | EVENT_IDX
        | VERSION_1;
}

/// Bytes of the header of a request.
const HEADER_BYTES: u32 = 16;
/// Bytes of a range.
const RANGE_BYTES: u64 = 16;
/// Kinds of requests.
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
/// Flag of a range: it may become a hole.
const UNMAP: u32 = 1;

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed, or invalid.
    IoError = 1,
    /// Unknown to the device.
    Unsupported = 2,
}

/// The chain has no byte that the device may write, so the device cannot report a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a request has no place for its status")]
pub struct NoStatus;

/// Properties of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Bytes of the volume; a partial sector at the end is not accessible.
    pub size_bytes: u64,
    /// Its logical block: the sector of the backing store, 512 or 4096 bytes. Partition tables use
    /// it as their unit, so a guest must see the one with which the disk was partitioned.
    pub block_bytes: u32,
    /// Rings that it serves.
    pub rings: u16,
    /// Its name for guests.
    pub id: [u8; ID_BYTES],
}

/// The work of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Data between a range of the volume and guest memory.
    Transfer {
        /// A read or a write.
        request: ClientRequest,
        /// Exactly the bytes of the range.
        data: Vec<Segment>,
    },
    /// Ranges without data, or a flush.
    Plain(Vec<ClientRequest>),
    /// No work; the device wrote this many bytes to guest memory.
    Answered(Status, u32),
}

/// A request of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRequest {
    /// Its work.
    pub work: Work,
    /// Address of the status.
    status_at: u64,
}

impl BlockRequest {
    /// Writes the status; returns the bytes that the device has written, for the ring.
    ///
    /// # Errors
    /// [`Gone`]
    pub fn answer(&self, memory: &GuestMemory, status: Status) -> Result<u32, Gone> {
        memory.write_obj(status as u8, GuestAddress(self.status_at)).map_err(|_| Gone)?;
        let data = match (&self.work, status) {
            (Work::Transfer { request, .. }, Status::Ok) if request.operation == Operation::Read => {
                request.length_bytes as u32 // at most PAYLOAD_BYTES_MAX
            }
            (Work::Answered(_, written), _) => *written,
            _ => 0,
        };
        Ok(data + 1)
    }
}

impl Device {
    /// Returns the name for guests: as much of `name` as fits.
    pub fn id_of(name: &str) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        id
    }

    /// Returns the configuration space (`struct virtio_blk_config`, then zeroes).
    pub fn config(&self) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        // A physical block has a power of two of logical ones, and is the smallest efficient
        // request.
        let blocks = (PHYSICAL_BYTES / self.block_bytes).max(1);
        put(24, &[blocks.ilog2() as u8, 0]);
        put(26, &(blocks as u16).to_le_bytes());
        put(34, &self.rings.to_le_bytes());
        put(36, &RANGE_SECTORS_MAX.to_le_bytes());
        put(40, &RANGES_MAX.to_le_bytes());
        put(44, &8u32.to_le_bytes());
        put(48, &RANGE_SECTORS_MAX.to_le_bytes());
        put(52, &RANGES_MAX.to_le_bytes());
        put(56, &[1]);
        config
    }

    /// Parses a request. `features` are those that the driver has accepted.
    ///
    /// # Errors
    /// [`NoStatus`]
    pub fn parse(&self, memory: &GuestMemory, chain: Chain, features: u64) -> Result<BlockRequest, NoStatus> {
        let Chain { mut readable, mut writable } = chain;
        let status_at = memory::pop_last_byte(&mut writable).ok_or(NoStatus)?;
        let mut header = [0; HEADER_BYTES as usize];
        let work = match memory::read(memory, &readable, 0, &mut header) {
            Err(Gone) => Work::Answered(Status::IoError, 0),
            Ok(()) => {
                memory::drop_front(&mut readable, HEADER_BYTES);
                let [a, b, c, d, _, _, _, _, sector @ ..] = header;
                let kind = u32::from_le_bytes([a, b, c, d]);
                self.work(memory, (kind, u64::from_le_bytes(sector)), (readable, writable), features)
                    .unwrap_or_else(|status| Work::Answered(status, 0))
            }
        };
        Ok(BlockRequest { work, status_at })
    }

    fn work(
        &self,
        memory: &GuestMemory,
        (kind, sector): (u32, u64),
        (readable, writable): (Vec<Segment>, Vec<Segment>),
        features: u64,
    ) -> Result<Work, Status> {
        let has = |feature| features & feature != 0;
        let fua = !has(feature::FLUSH);
        match kind {
            IN => self.transfer(Operation::Read, sector, writable),
            OUT => self.transfer(Operation::Write { fua }, sector, readable),
            FLUSH => {
                let flush = ClientRequest { operation: Operation::Flush, offset_bytes: 0, length_bytes: 0 };
                Ok(Work::Plain(vec![flush]))
            }
            DISCARD if has(feature::DISCARD) => self.ranges(memory, readable, |flags| {
                // Only zeroes may unmap.
                (flags == 0).then_some(Operation::Trim { fua })
            }),
            WRITE_ZEROES if has(feature::WRITE_ZEROES) => self.ranges(memory, readable, |flags| {
                let no_hole = flags & UNMAP == 0;
                let zeroes = Operation::WriteZeroes { fua, no_hole, fast_only: false };
                (flags & !UNMAP == 0).then_some(zeroes)
            }),
            GET_ID => {
                let bytes = memory::total(&writable).min(ID_BYTES as u64) as usize;
                memory::write(memory, &writable, 0, &self.id[..bytes]).map_err(|Gone| Status::IoError)?;
                Ok(Work::Answered(Status::Ok, bytes as u32))
            }
            _ => Err(Status::Unsupported),
        }
    }

    fn transfer(&self, operation: Operation, sector: u64, data: Vec<Segment>) -> Result<Work, Status> {
        let request = self.admit(operation, sector, memory::total(&data))?;
        Ok(request.map_or(Work::Answered(Status::Ok, 0), |request| Work::Transfer { request, data }))
    }

    /// Parses a list of ranges, each with flags.
    fn ranges(
        &self,
        memory: &GuestMemory,
        list: Vec<Segment>,
        operation: impl Fn(u32) -> Option<Operation>,
    ) -> Result<Work, Status> {
        let bytes = memory::total(&list);
        let count = bytes / RANGE_BYTES;
        if !bytes.is_multiple_of(RANGE_BYTES) || !(1..=u64::from(RANGES_MAX)).contains(&count) {
            return Err(Status::IoError);
        }
        let mut requests = Vec::new();
        for number in 0..count {
            let mut range = [0; RANGE_BYTES as usize];
            memory::read(memory, &list, number * RANGE_BYTES, &mut range).map_err(|Gone| Status::IoError)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l, flags @ ..] = range;
            let sectors = u32::from_le_bytes([i, j, k, l]);
            let operation = operation(u32::from_le_bytes(flags)).ok_or(Status::Unsupported)?;
            if sectors > RANGE_SECTORS_MAX {
                return Err(Status::IoError);
            }
            let sector = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            requests.extend(self.admit(operation, sector, u64::from(sectors) * SECTOR_BYTES)?);
        }
        Ok(if requests.is_empty() { Work::Answered(Status::Ok, 0) } else { Work::Plain(requests) })
    }

    /// Checks a request; returns `None` if it has no effect.
    fn admit(
        &self,
        operation: Operation,
        sector: u64,
        length_bytes: u64,
    ) -> Result<Option<ClientRequest>, Status> {
        let offset_bytes = sector.checked_mul(SECTOR_BYTES).ok_or(Status::IoError)?;
        if !length_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Status::IoError);
        }
        let size_bytes = self.size_bytes / SECTOR_BYTES * SECTOR_BYTES;
        let bounds = Bounds { size_bytes, read_only: false, payload_bytes_max: PAYLOAD_BYTES_MAX };
        let request = ClientRequest { operation, offset_bytes, length_bytes };
        match request::validate(&request, &bounds) {
            Ok(Admission::Serve) => Ok(Some(request)),
            Ok(Admission::Nothing) => Ok(None),
            Err(_) => Err(Status::IoError),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const DATA: u64 = 0x1000;
    const STATUS: u64 = 0x8000;

    fn device() -> Device {
        Device {
            size_bytes: (1 << 20) + 700,
            block_bytes: 512,
            rings: 4,
            id: Device::id_of("a-volume-with-a-long-name"),
        }
    }

    /// Parses a header with this many bytes to read after it, and this many to write before the
    /// status.
    fn parsed(kind: u32, sector: u64, out: &[u8], into: u32, features: u64) -> (GuestMemory, BlockRequest) {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        memory.write_obj(kind, GuestAddress(0)).unwrap();
        memory.write_obj(sector, GuestAddress(8)).unwrap();
        memory.write_slice(out, GuestAddress(DATA)).unwrap();
        let segment = |address, len| Segment { address, len };
        let readable = vec![segment(0, 16), segment(DATA, out.len() as u32)];
        let writable = vec![segment(STATUS - u64::from(into), into + 1)];
        let request = device().parse(&memory, Chain { readable, writable }, features).unwrap();
        (memory, request)
    }

    fn work(kind: u32, sector: u64, out: &[u8], into: u32) -> Work {
        parsed(kind, sector, out, into, feature::ALL).1.work
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    const FAILED: Work = Work::Answered(Status::IoError, 0);
    const UNKNOWN: Work = Work::Answered(Status::Unsupported, 0);
    const NOTHING: Work = Work::Answered(Status::Ok, 0);

    #[test]
    fn transfers_have_their_range_and_its_bytes() {
        let Work::Transfer { request, data } = work(IN, 3, &[], 1024) else { panic!() };
        let read = ClientRequest { operation: Operation::Read, offset_bytes: 1536, length_bytes: 1024 };
        assert_eq!((request, memory::total(&data)), (read, 1024));
        let Work::Transfer { request, data } = work(OUT, 2047, &[7; 512], 0) else { panic!() };
        assert_eq!((request.operation, request.offset_bytes), (Operation::Write { fua: false }, 2047 * 512));
        assert_eq!(data, [Segment { address: DATA, len: 512 }]);
        let (_, plain) = parsed(OUT, 0, &[7; 512], 0, feature::VERSION_1);
        let Work::Transfer { request, .. } = plain.work else { panic!() };
        assert_eq!(request.operation, Operation::Write { fua: true }, "no flush can be asked for");
        assert_eq!(work(IN, 0, &[], 0), NOTHING);
    }

    #[test]
    fn requests_outside_or_cut_fail() {
        for (kind, sector, out, into) in [
            (IN, 2049, 0, 512),
            (OUT, 2048, 1024, 0),
            (OUT, 2049, 512, 0),
            (IN, u64::MAX, 0, 512),
            (OUT, u64::MAX / 512, 1024, 0),
            (IN, 0, 0, 511),
            (OUT, 0, 513, 0),
        ] {
            assert_eq!(work(kind, sector, &vec![0; out], into), FAILED, "{kind} {sector} {out} {into}");
        }
        let long = Segment { address: 0, len: 1 << 20 };
        let data = vec![long; 33];
        assert_eq!(device().transfer(Operation::Read, 0, data), Err(Status::IoError));
    }

    #[test]
    fn ranges_are_checked_one_by_one() {
        let trim = |offset_bytes, length_bytes| ClientRequest {
            operation: Operation::Trim { fua: false },
            offset_bytes,
            length_bytes,
        };
        let two = [range(8, 16, 0), range(0, 1, 0)].concat();
        assert_eq!(work(DISCARD, 0, &two, 0), Work::Plain(vec![trim(4096, 8192), trim(0, 512)]));
        let Work::Plain(zeroes) = work(WRITE_ZEROES, 0, &range(1, 1, UNMAP), 0) else { panic!() };
        let operation = Operation::WriteZeroes { fua: false, no_hole: false, fast_only: false };
        assert_eq!(zeroes[0].operation, operation);
        assert_eq!(work(DISCARD, 0, &range(0, 0, 0), 0), NOTHING);
        assert_eq!(work(DISCARD, 0, &range(0, 1, UNMAP), 0), UNKNOWN);
        assert_eq!(work(WRITE_ZEROES, 0, &range(0, 1, 2), 0), UNKNOWN);
        for bad in [
            vec![],
            vec![0; 15],
            vec![0; 17],
            range(2049, 1, 0),
            range(u64::MAX, 1, 0),
            range(0, u32::MAX, 0),
            range(0, RANGE_SECTORS_MAX, 0),
            range(0, 1, 0).repeat(33),
        ] {
            assert_eq!(work(DISCARD, 0, &bad, 0), FAILED, "{bad:?}");
        }
        let (_, request) = parsed(DISCARD, 0, &range(0, 1, 0), 0, feature::VERSION_1);
        assert_eq!(request.work, UNKNOWN, "it was not agreed on");
    }

    #[test]
    fn guest_sees_the_name_as_device_id() {
        let (memory, request) = parsed(GET_ID, 0, &[], 20, feature::ALL);
        assert_eq!(request.work, Work::Answered(Status::Ok, 20));
        let mut name = [0; 20];
        memory.read_slice(&mut name, GuestAddress(STATUS - 20)).unwrap();
        assert_eq!(&name, b"a-volume-with-a-long");
        assert_eq!(work(GET_ID, 0, &[], 3), Work::Answered(Status::Ok, 3));
        for kind in [2, 3, 5, 10, 14, 16, u32::MAX] {
            assert_eq!(work(kind, 0, &[0; 512], 512), UNKNOWN, "{kind}");
        }
        assert_eq!(work(FLUSH, 77, &[], 0), work(FLUSH, 0, &[], 0), "its sector means nothing");
    }

    #[test]
    fn status_is_written_whatever_else_is_wrong() {
        let (memory, request) = parsed(IN, 0, &[], 512, feature::ALL);
        assert_eq!(request.answer(&memory, Status::Ok), Ok(513));
        assert_eq!(memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap(), 0);
        assert_eq!(request.answer(&memory, Status::IoError), Ok(1));
        assert_eq!(memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap(), 1);
        let writable = vec![Segment { address: STATUS, len: 1 }];
        let short = Chain { readable: vec![Segment { address: 0, len: 15 }], writable };
        assert_eq!(device().parse(&memory, short, feature::ALL).unwrap().work, FAILED);
        let none = Chain { readable: vec![Segment { address: 0, len: 16 }], writable: Vec::new() };
        assert_eq!(device().parse(&memory, none, feature::ALL), Err(NoStatus));
    }

    #[test]
    fn configuration_satisfies_drivers() {
        let config = device().config();
        let number = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!((number(0), number(4)), (2049, 0));
        assert_eq!((number(8), number(12), number(20)), (SEGMENT_BYTES_MAX, SEGMENTS_MAX, 512));
        assert_eq!((config[24], config[26]), (3, 8));
        assert_eq!((config[34], number(40), number(52), config[56]), (4, RANGES_MAX, RANGES_MAX, 1));

        let of_4kn = Device { block_bytes: 4096, ..device() }.config();
        assert_eq!(of_4kn[20..24], 4096u32.to_le_bytes());
        assert_eq!((of_4kn[24], of_4kn[26]), (0, 1));
    }
}
