//! Recognises the content of a device that is not a cache device: a file system, a partition table,
//! a member of a volume group, an image of a virtual machine.
//!
//! Swapped cache device and backing store are refused in any case. With the name of the content,
//! the message can point to its right place, instead of to erasing it.
//!
//! Offsets and magic numbers: the headers of each format, as libblkid(3) and file(1) know them.
//! They decide nothing: unrecognised content is refused as well.

use forebay_io::Device;

/// Bytes checked at the beginning.
const START_BYTES: usize = 256 << 10;
/// Bytes checked at the end.
const END_BYTES: u64 = 256 << 10;

/// A magic number at a place.
struct Mark {
    offset: usize,
    magic: &'static [u8],
    what: &'static str,
}

const fn mark(offset: usize, magic: &'static [u8], what: &'static str) -> Mark {
    Mark { offset, magic, what }
}

const RAID: &str = "a member of a RAID (md)";
const GPT: &str = "a partition table (GPT)";

/// The more specific ones first: a boot sector of FAT has the end of an MBR.
const MARKS: [Mark; 34] = [
    mark(0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    mark(0, b"XFSB", "an XFS file system"),
    mark(0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    mark(0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    mark(0x406, b"\x34\x34", "a NILFS2 file system"),
    mark(0x8000, b"JFS1", "a JFS file system"),
    mark(0x1_0034, b"ReIsEr", "a ReiserFS file system"),
    mark(0x2000, b"OCFSV2", "an OCFS2 file system"),
    mark(0x1_0000, b"\x01\x16\x19\x70", "a GFS2 file system"),
    mark(3, b"NTFS    ", "an NTFS file system"),
    mark(3, b"EXFAT   ", "an exFAT file system"),
    mark(0x52, b"FAT32   ", "a FAT file system"),
    mark(0x36, b"FAT1", "a FAT file system"),
    mark(0x8001, b"CD001", "an ISO 9660 file system"),
    mark(0, b"hsqs", "a squashfs file system"),
    mark(0x400, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    mark(0x20, b"NXSB", "an APFS file system"),
    mark(0x400, b"H+", "an HFS+ file system"),
    mark(0xff6, b"SWAPSPACE2", "swap space"),
    mark(0, b"LUKS\xba\xbe", "an encrypted device (LUKS)"),
    mark(0x200, b"LABELONE", "a physical volume of LVM"),
    mark(0x1000, b"\xfc\x4e\x2b\xa9", RAID),
    mark(0, b"\xfc\x4e\x2b\xa9", RAID),
    mark(0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a device of bcache"),
    mark(
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "a bcachefs file system",
    ),
    mark(0, b"bluestore block device", "a device of Ceph (BlueStore)"),
    mark(0x204, b"!Stra0tis\x86\xff\x02^", "a device of Stratis"),
    mark(0, b"dmvdo001", "a device of VDO"),
    mark(0, b"QFI\xfb", "an image of a virtual machine (qcow2)"),
    mark(0, b"KDMV", "an image of a virtual machine (VMDK)"),
    mark(0x40, b"\x7f\x10\xda\xbe", "an image of a virtual machine (VDI)"),
    mark(0, b"vhdxfile", "an image of a virtual machine (VHDX)"),
    mark(0x200, b"EFI PART", GPT),
    mark(0x1000, b"EFI PART", GPT),
];

/// Returns the content of a device, in words that follow "it has". `None` if it is not recognised,
/// or cannot be read.
#[must_use]
pub fn recognise(device: &Device) -> Option<&'static str> {
    let size_bytes = device.size_bytes();
    let mut start = vec![0; START_BYTES.min(usize::try_from(size_bytes).unwrap_or(START_BYTES))];
    device.read_at(0, &mut start).ok()?;
    of_start(&start).or_else(|| {
        let length = END_BYTES.min(size_bytes) / 512 * 512;
        let mut end = vec![0; length as usize];
        device.read_at(size_bytes / 512 * 512 - length, &mut end).ok()?;
        of_end(&end)
    })
}

fn of_start(start: &[u8]) -> Option<&'static str> {
    let has = |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let known = MARKS.iter().find(|mark| has(mark.offset, mark.magic)).map(|mark| mark.what);
    known.or_else(|| of_zfs(start)).or_else(|| of_mbr(start))
}

/// Recognises ZFS: a label has 128 uberblocks of at least 1 KiB in its second half, in either byte
/// order.
fn of_zfs(start: &[u8]) -> Option<&'static str> {
    const UBERBLOCK: u64 = 0x00ba_b10c;
    let label = start.get(128 << 10..256 << 10)?;
    let is_one = |block: &[u8]| {
        let (little, big) = (UBERBLOCK.to_le_bytes(), UBERBLOCK.to_be_bytes());
        block.starts_with(&little) || block.starts_with(&big)
    };
    label.chunks(1024).any(is_one).then_some("a device of ZFS")
}

/// Recognises an MBR. Its only mark is two bytes at its end, so one of its four entries must be
/// used, and each must be possible.
fn of_mbr(start: &[u8]) -> Option<&'static str> {
    let sector = start.get(..512).filter(|sector| sector.ends_with(&[0x55, 0xaa]))?;
    let entries: Vec<&[u8]> = sector[446..510].chunks(16).collect();
    let is_possible = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    (is_possible && entries.iter().any(|entry| entry[4] != 0)).then_some("a partition table (MBR)")
}

/// Recognises marks at the end, with offsets from there: old RAID versions, and the backup of a
/// partition table.
fn of_end(end: &[u8]) -> Option<&'static str> {
    let at = |from_end: usize| end.len().checked_sub(from_end).map(|at| &end[at..]);
    let has = |from_end: usize, magic: &[u8]| at(from_end).is_some_and(|rest| rest.starts_with(magic));
    let gpt = has(512, b"EFI PART") || has(4096, b"EFI PART");
    // Version 1.0 lies 8 to 12 KiB before the end, version 0.90 64 to 128 KiB, both aligned.
    let raid =
        |from: usize, to: usize| (from..=to).step_by(512).any(|before| has(before, b"\xfc\x4e\x2b\xa9"));
    if gpt {
        return Some(GPT);
    }
    (raid(8 << 10, 12 << 10) || raid(64 << 10, 128 << 10)).then_some(RAID)
}

/// Returns advice, in words, for a device that was given as a cache device.
#[must_use]
pub fn where_it_belongs(path: &str) -> String {
    format!(
        "the device holds data, and nothing was changed. To cache that data, give it as the backing store \
         (--backing {path}, or forebay cache MOUNTPOINT), and another device as the cache; lsblk -f shows \
         the content of each"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(bytes: usize, marks: &[(usize, &[u8])]) -> Vec<u8> {
        let mut start = vec![0; bytes];
        marks.iter().for_each(|(at, magic)| start[*at..*at + magic.len()].copy_from_slice(magic));
        start
    }

    #[test]
    fn each_mark_is_found_at_its_place_only() {
        for mark in &MARKS {
            let found = of_start(&with(START_BYTES, &[(mark.offset, mark.magic)]));
            assert!(found.is_some(), "{}", mark.what);
            assert_eq!(of_start(&with(START_BYTES, &[(mark.offset + 8 + 0x2_0000, mark.magic)])), None);
        }
        assert_eq!(of_start(&[]), None);
        assert_eq!(of_start(&vec![0; START_BYTES]), None);
        assert_eq!(of_start(&with(4096, &[(0x438, b"\x53\xef")])), Some("an ext2, ext3 or ext4 file system"));
    }

    #[test]
    fn a_partition_table_needs_a_partition() {
        let end: (usize, &[u8]) = (510, b"\x55\xaa");
        assert_eq!(of_start(&with(512, &[end])), None);
        assert_eq!(of_start(&with(512, &[end, (446 + 4, b"\x83")])), Some("a partition table (MBR)"));
        assert_eq!(
            of_start(&with(512, &[end, (446 + 4, b"\x83"), (446, b"\x17")])),
            None,
            "text of a boot sector"
        );
        let fat = with(512, &[end, (446 + 4, b"\x83"), (0x36, b"FAT16")]);
        assert_eq!(of_start(&fat), Some("a FAT file system"));
    }

    #[test]
    fn signatures_at_other_offsets_are_found() {
        let magic = 0x00ba_b10c_u64.to_le_bytes();
        assert_eq!(
            of_start(&with(START_BYTES, &[((128 << 10) + 5 * 1024, &magic)])),
            Some("a device of ZFS")
        );
        let end = |from_end: usize, magic: &[u8]| {
            of_end(&with(END_BYTES as usize, &[(END_BYTES as usize - from_end, magic)]))
        };
        assert_eq!(end(512, b"EFI PART"), Some(GPT));
        assert_eq!(end(8 << 10, b"\xfc\x4e\x2b\xa9"), Some(RAID));
        assert_eq!(end(64 << 10, b"\xfc\x4e\x2b\xa9"), Some(RAID));
        assert_eq!(end(32 << 10, b"\xfc\x4e\x2b\xa9"), None);
        assert_eq!((of_end(&[]), of_end(&[0; 512])), (None, None));
    }
}
