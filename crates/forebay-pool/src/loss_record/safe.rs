//! Ranges of a record that have become safe: a file that grows by one line each time.
//!
//! A line is the CRC-32C of the rest in eight hexadecimal digits, a space, and a JSON list of
//! ranges. A torn or corrupt line is ignored, and damages no other: each append begins on a new
//! line, even after a torn one. An ignored line makes the record list too many ranges,
//! never too few.

use super::Range;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

pub(super) const EXTENSION: &str = "safe";

/// A safe range of a volume, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SafeRange {
    /// Number in the volume table of the cache.
    pub(crate) volume: u16,
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Number of bytes.
    pub(crate) bytes: u64,
}

/// Appends a line and makes it durable, with the name of the file. Returns the length of the file
/// in bytes.
pub(super) fn append(path: &Path, ranges: &[SafeRange]) -> io::Result<u64> {
    let text = serde_json::to_string(ranges).map_err(io::Error::other)?;
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("\n{:08x} {text}\n", forebay_format::checksum(text.as_bytes())).as_bytes())?;
    file.sync_all()?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(file.metadata()?.len())
}

/// The safe ranges of a file; none if there is no file.
pub(super) fn read(path: &Path) -> io::Result<Vec<SafeRange>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => Ok(decode(&other?)),
    }
}

/// The ranges of all valid lines.
pub(super) fn decode(bytes: &[u8]) -> Vec<SafeRange> {
    let line = |line: &[u8]| -> Option<Vec<SafeRange>> {
        let (crc, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let right = u32::from_str_radix(crc, 16).ok()? == forebay_format::checksum(text.as_bytes());
        let ranges: Vec<SafeRange> = serde_json::from_str(text).ok().filter(|_| right)?;
        ranges.iter().all(|range| range.offset_bytes.checked_add(range.bytes).is_some()).then_some(ranges)
    };
    bytes.split(|byte| *byte == b'\n').filter_map(line).flatten().collect()
}

/// Ranges of volume `number` without the safe parts.
pub(super) fn without(lost: &[Range], safe: &[SafeRange], number: u16) -> Vec<Range> {
    let mut safe: Vec<(u64, u64)> = safe
        .iter()
        .filter(|range| range.volume == number)
        .map(|range| (range.offset_bytes, range.offset_bytes + range.bytes))
        .collect();
    safe.sort_unstable();
    let mut lost = lost.to_vec();
    lost.sort_unstable_by_key(|range| range.offset_bytes);
    let (mut left, mut next) = (Vec::new(), 0);
    for range in lost {
        let (mut from, end) = (range.offset_bytes, range.offset_bytes.saturating_add(range.bytes));
        // Ranges of the record do not overlap, so safe ranges that end before this one concern no
        // later one.
        while next < safe.len() && safe[next].1 <= from {
            next += 1;
        }
        for (start, stop) in safe[next..].iter().take_while(|(start, _)| *start < end) {
            if *start > from {
                left.push(Range { offset_bytes: from, bytes: start - from, ..range });
            }
            from = from.max(*stop);
        }
        if from < end {
            left.push(Range { offset_bytes: from, bytes: end - from, ..range });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn safe(offset: u64, bytes: u64) -> SafeRange {
        SafeRange { volume: 3, offset_bytes: offset, bytes }
    }

    fn range(offset: u64, bytes: u64) -> Range {
        Range { offset_bytes: offset, bytes, written_unix_s: 7 }
    }

    #[test]
    fn damaged_lines_affect_no_other_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safe");
        assert_eq!(read(&path).unwrap(), []);
        append(&path, &[safe(0, 512), safe(4096, 512)]).unwrap();
        let whole = fs::read(&path).unwrap();
        // A crash in the middle of an append, at any byte of it, and the next daemon appends.
        append(&path, &[safe(8192, 512)]).unwrap();
        let torn = fs::read(&path).unwrap();
        for end in whole.len()..torn.len() {
            fs::write(&path, &torn[..end]).unwrap();
            append(&path, &[safe(512, 1024)]).unwrap();
            let found = read(&path).unwrap();
            assert_eq!(found[..2], [safe(0, 512), safe(4096, 512)], "{end}");
            assert_eq!(found.last(), Some(&safe(512, 1024)), "{end}");
        }
        // A bit flips.
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 1 << (at % 7);
            let found = decode(&wrong);
            assert!(found.is_empty() || found == decode(&whole), "byte {at}: {found:?}");
        }
        assert_eq!(decode(b"ffffffff [{\"volume\":1}]\n\xff\n 1"), []);
    }

    #[test]
    fn safe_ranges_are_subtracted_exactly() {
        let lost = [range(0, 4096), range(8192, 4096), range(1 << 20, 512)];
        assert_eq!(without(&lost, &[], 3), lost);
        assert_eq!(without(&lost, &[safe(0, 1 << 30)], 4), lost, "another volume");
        assert_eq!(without(&lost, &[safe(0, 1 << 30)], 3), []);
        let left =
            without(&lost, &[safe(8192, 512), safe(512, 1024), safe(1024, 1024), safe(11776, 99999)], 3);
        assert_eq!(left, [range(0, 512), range(2048, 2048), range(8704, 3072), range(1 << 20, 512)]);
        assert_eq!(without(&lost, &[safe(4096, 4096)], 3), lost, "between them");
    }

    #[test]
    fn range_subtraction_agrees_with_bytes() {
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2_000 {
            let mut lost = Vec::new();
            let mut at = 0;
            for _ in 0..draw(6) {
                at += draw(5);
                let bytes = 1 + draw(6);
                lost.push(range(at, bytes));
                at += bytes;
            }
            let ranges: Vec<SafeRange> = (0..draw(6)).map(|_| safe(draw(40), draw(8))).collect();
            let covered = |at: u64, ranges: &[(u64, u64)]| {
                ranges.iter().any(|(from, bytes)| (*from..from + bytes).contains(&at))
            };
            let of_lost: Vec<_> = lost.iter().map(|range| (range.offset_bytes, range.bytes)).collect();
            let of_safe: Vec<_> = ranges.iter().map(|range| (range.offset_bytes, range.bytes)).collect();
            let left = without(&lost, &ranges, 3);
            let of_left: Vec<_> = left.iter().map(|range| (range.offset_bytes, range.bytes)).collect();
            for at in 0..80 {
                let expected = covered(at, &of_lost) && !covered(at, &of_safe);
                assert_eq!(covered(at, &of_left), expected, "{at}: {lost:?} without {ranges:?} is {left:?}");
            }
            assert!(left.iter().all(|range| range.bytes > 0));
        }
    }
}
