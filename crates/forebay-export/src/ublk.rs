//! Requests of a block device (the kernel's ublk driver): decodes descriptors into requests, and
//! encodes results.
//!
//! The caller receives descriptors from the kernel and returns results as integers: the number of
//! bytes done, or minus an error number.
//!
//! Invariants
//! - Every descriptor passes [`validate`] before any other code sees the request.
//! - A completed request returns all of its bytes: the kernel treats fewer as a failure, or
//!   retries.

use crate::fuse::Errno;
use crate::request::{Admission, Bounds, ClientRequest, Operation, validate};

/// Bytes of a descriptor (`ublksrv_io_desc`).
pub const DESCRIPTOR_BYTES: usize = 24;
/// Longest read or write, in bytes, that the kernel may send: as over FUSE, so a buffer of the same
/// size has room for it wherever it begins within a block of the cache.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;
/// Maximum of concurrent requests. The kernel merges beyond that, and a pool's thread has few more
/// in flight before its devices are busy; a tag costs 24 bytes and no buffer.
pub const DEPTH: u16 = 128;

/// Unit of descriptors, in bytes.
const SECTOR_BYTES: u64 = 512;
const FLAG_FUA: u32 = 1 << 13;
const FLAG_NO_UNMAP: u32 = 1 << 15;

/// Action for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pass the request to the volume.
    Serve(ClientRequest),
    /// Return this result at once.
    Answer(i32),
}

/// Decodes and checks a descriptor; returns the request to serve, or the result.
pub fn step(descriptor: &[u8; DESCRIPTOR_BYTES], bounds: &Bounds) -> Step {
    let Some(request) = decode(descriptor) else { return Step::Answer(failed(Errno::NotSupported)) };
    match validate(&request, bounds) {
        Ok(Admission::Serve) => Step::Serve(request),
        Ok(Admission::Nothing) => Step::Answer(0),
        Err(_) => Step::Answer(failed(Errno::Io)),
    }
}

/// Returns `None` for operations of zoned devices.
fn decode(descriptor: &[u8; DESCRIPTOR_BYTES]) -> Option<ClientRequest> {
    let u32_at = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| descriptor[at + byte]));
    let flags = u32_at(0);
    let mut sector = [0; 8];
    sector.copy_from_slice(&descriptor[8..16]);
    let offset_bytes = u64::from_ne_bytes(sector).saturating_mul(SECTOR_BYTES);
    let length_bytes = u64::from(u32_at(4)) * SECTOR_BYTES;
    let fua = flags & FLAG_FUA != 0;
    let operation = match flags as u8 {
        0 => Operation::Read,
        1 => Operation::Write { fua },
        2 => {
            let (offset_bytes, length_bytes) = (0, 0); // a flush has no range; ignore these fields
            return Some(ClientRequest { operation: Operation::Flush, offset_bytes, length_bytes });
        }
        3 => Operation::Trim { fua },
        5 => Operation::WriteZeroes { fua, no_hole: flags & FLAG_NO_UNMAP != 0, fast_only: false },
        _ => return None,
    };
    Some(ClientRequest { operation, offset_bytes, length_bytes })
}

/// Returns the result of a completed request.
pub fn done(request: &ClientRequest) -> i32 {
    i32::try_from(request.length_bytes).unwrap_or(i32::MAX)
}

/// Returns the result of a failed request.
pub fn failed(errno: Errno) -> i32 {
    -(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds =
        Bounds { size_bytes: 1 << 30, read_only: false, payload_bytes_max: PAYLOAD_BYTES_MAX };

    fn descriptor(flags: u32, sectors: u32, sector: u64) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0..4].copy_from_slice(&flags.to_ne_bytes());
        bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
        bytes[8..16].copy_from_slice(&sector.to_ne_bytes());
        bytes
    }

    fn served(flags: u32, sectors: u32, sector: u64) -> ClientRequest {
        match step(&descriptor(flags, sectors, sector), &BOUNDS) {
            Step::Serve(request) => request,
            answer => panic!("{answer:?}"),
        }
    }

    /// A descriptor as the kernel writes it on x86-64: a FUA write of 8 sectors at sector
    /// 0x123456789.
    #[test]
    #[cfg(target_endian = "little")]
    fn write_descriptor_is_decoded() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..16].copy_from_slice(&[0x01, 0x20, 0, 0, 8, 0, 0, 0, 0x89, 0x67, 0x45, 0x23, 0x01, 0, 0, 0]);
        let bounds = Bounds { size_bytes: u64::MAX, ..BOUNDS };
        let operation = Operation::Write { fua: true };
        let request = ClientRequest { operation, offset_bytes: 0x1_2345_6789 * 512, length_bytes: 4096 };
        assert_eq!(step(&bytes, &bounds), Step::Serve(request));
        assert_eq!(done(&request), 4096);
    }

    #[test]
    fn operations_and_flags() {
        assert_eq!(served(0, 1, 3).operation, Operation::Read);
        assert_eq!(served(1, 1, 3).operation, Operation::Write { fua: false });
        assert_eq!(served(3, 1, 3).operation, Operation::Trim { fua: false });
        let zeroes = |no_hole, fua| Operation::WriteZeroes { fua, no_hole, fast_only: false };
        assert_eq!(served(5, 1, 3).operation, zeroes(false, false));
        assert_eq!(served(5 | 1 << 15, 1, 3).operation, zeroes(true, false));
        assert_eq!(served(5 | 1 << 13, 1, 3).operation, zeroes(false, true));
        let hints = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16;
        assert_eq!(
            served(1 | hints, 1, 3).operation,
            Operation::Write { fua: false },
            "hints change nothing"
        );
        let flush = served(2, 99, u64::MAX);
        assert_eq!((flush.operation, flush.offset_bytes, flush.length_bytes), (Operation::Flush, 0, 0));
    }

    #[test]
    fn invalid_request_gets_an_error_answer() {
        let answer = |flags, sectors, sector| step(&descriptor(flags, sectors, sector), &BOUNDS);
        let end = (1 << 30) / 512;
        assert!(matches!(answer(0, 1, end - 1), Step::Serve(_)));
        assert_eq!(answer(0, 1, end), Step::Answer(-5), "past the end");
        assert_eq!(answer(1, 1, u64::MAX), Step::Answer(-5), "an offset that is none");
        assert_eq!(answer(0, PAYLOAD_BYTES_MAX / 512 + 1, 0), Step::Answer(-5), "too long");
        assert_eq!(answer(0, 0, 0), Step::Answer(0), "nothing");
        for operation in [4, 10, 15, 18, 255] {
            assert_eq!(answer(operation, 1, 0), Step::Answer(-95), "operation {operation}");
        }
        let read_only = Bounds { read_only: true, ..BOUNDS };
        assert_eq!(step(&descriptor(1, 1, 0), &read_only), Step::Answer(-5));
    }

    proptest! {
        #[test]
        fn served_request_is_inside_of_the_volume(bytes in any::<[u8; DESCRIPTOR_BYTES]>(), kind in 0..6_u8) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if let Step::Serve(request) = step(&bytes, &BOUNDS) {
                prop_assert!(request.end_bytes() <= BOUNDS.size_bytes);
            }
        }
    }
}
