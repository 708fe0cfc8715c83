//! Guest memory, as a list of segments and as bytes.

use vm_memory::{Bytes, GuestAddress, GuestMemory as _, Permissions};

/// The memory of a virtual machine, by guest-physical addresses.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// A piece of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Guest memory was unmapped or moved since its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("guest memory was taken away under a request")]
pub struct Gone;

/// Returns whether a whole range is guest memory.
pub fn is_there(memory: &GuestMemory, address: u64, len: u64) -> bool {
    let Ok(len) = usize::try_from(len) else { return false };
    address.checked_add(len as u64).is_some()
        && memory.check_range(GuestAddress(address), len, Permissions::ReadWrite)
}

/// Returns the bytes of all segments.
pub fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Removes bytes from the front.
pub fn drop_front(segments: &mut Vec<Segment>, mut bytes: u32) {
    let mut whole = 0;
    for segment in segments.iter_mut() {
        if segment.len > bytes {
            segment.address += u64::from(bytes);
            segment.len -= bytes;
            break;
        }
        bytes -= segment.len;
        whole += 1;
    }
    segments.drain(..whole);
}

/// Removes the last byte, and returns its address.
pub fn pop_last_byte(segments: &mut Vec<Segment>) -> Option<u64> {
    let last = segments.last_mut()?;
    last.len -= 1;
    let at = last.address + u64::from(last.len);
    if last.len == 0 {
        segments.pop();
    }
    Some(at)
}

/// Calls `f` with the pieces of memory that hold `len` bytes of the segments from `skip` on, and
/// the offset of each among those bytes.
fn pieces(
    segments: &[Segment],
    mut skip: u64,
    len: usize,
    mut f: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Result<(), Gone>,
) -> Result<(), Gone> {
    let mut done = 0;
    for segment in segments {
        if done == len {
            break;
        }
        let here = u64::from(segment.len);
        if skip >= here {
            skip -= here;
            continue;
        }
        let part = (len - done).min((here - skip) as usize);
        f(GuestAddress(segment.address + skip), done..done + part)?;
        (skip, done) = (0, done + part);
    }
    if done == len { Ok(()) } else { Err(Gone) }
}

/// Reads bytes of the segments, from `skip` on.
///
/// [`Gone`], also if the segments have fewer bytes.
pub fn read(memory: &GuestMemory, segments: &[Segment], skip: u64, into: &mut [u8]) -> Result<(), Gone> {
    pieces(segments, skip, into.len(), |address, part| {
        memory.read_slice(&mut into[part], address).map_err(|_| Gone)
    })
}

/// Writes bytes of the segments, from `skip` on.
///
/// [`Gone`], also if the segments have fewer bytes.
pub fn write(memory: &GuestMemory, segments: &[Segment], skip: u64, from: &[u8]) -> Result<(), Gone> {
    pieces(segments, skip, from.len(), |address, part| {
        memory.write_slice(&from[part], address).map_err(|_| Gone)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn segments() -> Vec<Segment> {
        vec![
            Segment { address: 0x100, len: 3 },
            Segment { address: 0x80, len: 1 },
            Segment { address: 0, len: 9 },
        ]
    }

    #[test]
    fn segments_are_one_stream_of_bytes() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        write(&memory, &segments(), 1, &[1, 2, 3, 4, 5]).unwrap();
        let mut got = [0; 6];
        read(&memory, &segments(), 0, &mut got).unwrap();
        assert_eq!(got, [0, 1, 2, 3, 4, 5]);
        assert_eq!(memory.read_obj::<u8>(GuestAddress(0x80)).unwrap(), 3);
        assert_eq!(read(&memory, &segments(), 8, &mut got), Err(Gone), "13 bytes are there");
        let outside = [Segment { address: 0xFFF, len: 2 }];
        assert_eq!(write(&memory, &outside, 0, &[0; 2]), Err(Gone));
        assert!(is_there(&memory, 0xFFF, 1) && !is_there(&memory, 0xFFF, 2));
        assert!(!is_there(&memory, u64::MAX, 1) && !is_there(&memory, 1, u64::MAX));
    }

    #[test]
    fn header_is_cut_in_front_and_status_at_end() {
        let mut taken = segments();
        drop_front(&mut taken, 4);
        assert_eq!(taken, segments()[2..]);
        drop_front(&mut taken, 2);
        assert_eq!((taken[0].address, taken[0].len, total(&taken)), (2, 7, 7));
        let mut taken = segments()[..2].to_vec();
        assert_eq!((pop_last_byte(&mut taken), taken.len()), (Some(0x80), 1));
        assert_eq!((pop_last_byte(&mut taken), taken[0].len), (Some(0x102), 2));
        assert_eq!(pop_last_byte(&mut Vec::new()), None);
    }
}
