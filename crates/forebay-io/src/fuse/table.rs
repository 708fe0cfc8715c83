//! The mount table of this process, `/proc/self/mountinfo` (proc(5)): what is mounted at a path, by whose file system.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{FILE_SYSTEM, MountError, system};

const TABLE: &str = "/proc/self/mountinfo";

/// Is the uppermost mount at this path one of Forebay's?
pub(super) fn is_ours(target: &Path) -> Result<bool, MountError> {
    let table = std::fs::read(TABLE).map_err(|source| system(Path::new(TABLE), "reading", source))?;
    Ok(top_type(&table, &resolve(target)).is_some_and(|kind| kind == FILE_SYSTEM.as_bytes()))
}

/// The path as the table has it: without symbolic links. The last component is not looked at, for it may be a mount
/// that nobody serves any more; so is its parent, for a path below such a mount.
fn resolve(target: &Path) -> PathBuf {
    match (target.parent().map(Path::canonicalize), target.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => target.into(),
    }
}

/// Type of the last mount on exactly this path: a later line lies above an earlier one.
fn top_type<'a>(table: &'a [u8], target: &Path) -> Option<&'a [u8]> {
    let lines = table.split(|byte| *byte == b'\n').rev();
    let mut found = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        // mount id, parent id, device, root, mount point, options, optional fields, "-", type, source, options.
        let point = fields.nth(4)?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        (unescape(point).as_os_str().as_bytes() == target.as_os_str().as_bytes()).then_some(kind)
    });
    found.next()
}

/// Undoes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = |byte: u8| matches!(byte, b'0'..=b'7').then(|| u32::from(byte - b'0'));
        let escaped = match (*first, tail) {
            (b'\\', [a, b, c, ..]) => octal(*a).zip(octal(*b)).zip(octal(*c)),
            _ => None,
        };
        match escaped.map(|((a, b), c)| a * 64 + b * 8 + c) {
            Some(value) => {
                out.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        40 22 0:45 / /mnt/a\\040b rw,nosuid shared:9 master:2 - fuse.forebay forebay rw,user_id=0\n\
        41 22 0:46 / /mnt/under rw - fuse.forebay forebay rw\n\
        42 41 0:47 / /mnt/under rw - tmpfs tmpfs rw\n";

    #[test]
    fn the_uppermost_mount_of_a_path_counts() {
        let kind = |path: &str| top_type(SAMPLE, Path::new(path));
        assert_eq!(kind("/mnt/a b"), Some(&b"fuse.forebay"[..]));
        assert_eq!(kind("/mnt/under"), Some(&b"tmpfs"[..]));
        assert_eq!(kind("/"), Some(&b"ext4"[..]));
        assert_eq!(kind("/mnt"), None);
    }

    #[test]
    fn strange_lines_are_passed_over() {
        for table in [&b""[..], b"\n\n", b"1 2 3", b"1 2 3 / /x rw shared:1", b"1 2 3 / /x rw -"] {
            assert_eq!(top_type(table, Path::new("/x")), None);
        }
        assert_eq!(unescape(b"a\\134b\\9\\04"), OsString::from("a\\b\\9\\04"));
    }
}
