//! The mount table of this process, `/proc/self/mountinfo` (proc(5)): the mounts at each path, and
//! their file systems.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::error::MountError;

/// Type of our mounts in the mount table: file system `fuse`, subtype `forebay`.
pub(super) const FILE_SYSTEM: &str = "fuse.forebay";
pub(super) const TABLE: &str = "/proc/self/mountinfo";
/// Most symbolic links followed on one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Major and minor number of the device that its files are on.
    pub(super) device: (u32, u32),
    pub(super) point: PathBuf,
    kind: OsString,
    pub(super) source: PathBuf,
}

impl Mount {
    /// Returns whether it is a mount of Forebay.
    pub(super) fn is_forebay(&self) -> bool {
        self.kind.as_bytes() == FILE_SYSTEM.as_bytes()
    }

    /// Returns whether even accessing a file of it waits for another process or machine, forever if
    /// that does not respond.
    pub(super) fn is_served_elsewhere(&self) -> bool {
        const SERVED: [&[u8]; 6] = [b"nfs", b"cifs", b"smb", b"ceph", b"fuse", b"autofs"];
        SERVED.iter().any(|kind| self.kind.as_bytes().starts_with(kind))
    }
}

/// The existing mounts; later ones lie above earlier ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the current table.
    pub(super) fn read() -> Result<Self, MountError> {
        let table =
            std::fs::read(TABLE).map_err(|source| MountError::system(Path::new(TABLE), "reading", source))?;
        Ok(Self::parse(&table))
    }

    fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// The uppermost mount on exactly this path, which must be resolved.
    pub(super) fn at(&self, target: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.point == target)
    }

    /// The mount that a resolved path lies on.
    pub(super) fn covering(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|above| self.at(above))
    }

    /// Finds a mount of a device at this path (`None` if there is none), and the uppermost mount
    /// that hides a file of it: a later one at the path of the file or above.
    pub(super) fn standing(&self, point: &Path, device: (u32, u32), file: &Path) -> Option<Option<&Mount>> {
        let at = self.0.iter().rposition(|mount| mount.point == point && mount.device == device)?;
        Some(self.0[at + 1..].iter().rev().find(|mount| file.starts_with(&mount.point)))
    }

    /// Resolves a path as in the table: absolute, without symbolic links. Does not query servers
    /// that might not respond: a path on the mount of a server is taken as it is.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let parts =
            |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
        let (mut rest, mut clean, mut links) = (VecDeque::from(parts(&path)), PathBuf::from("/"), 0);
        while let Some(part) = rest.pop_front() {
            match Path::new(&part).components().next() {
                None | Some(Component::CurDir) => continue,
                Some(Component::ParentDir) => {
                    clean.pop();
                    continue;
                }
                Some(_) => {}
            }
            let next = clean.join(&part);
            let served = self.covering(&next).is_some_and(Mount::is_served_elsewhere);
            let may_look = !served && links < LINKS_MAX;
            // A path that another process or machine serves is not read.
            let link = if may_look { std::fs::read_link(&next).ok() } else { None };
            match link {
                Some(target) => {
                    links += 1;
                    parts(&target).into_iter().rev().for_each(|part| rest.push_front(part));
                }
                None => clean = next,
            }
        }
        clean
    }
}

/// Returns whether the uppermost mount at this path is one of Forebay's.
pub(super) fn is_ours(target: &Path) -> Result<bool, MountError> {
    let mounts = Mounts::read()?;
    Ok(mounts.at(&mounts.resolve(target)).is_some_and(Mount::is_forebay))
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    // mount id, parent id, device, root, mount point, options, optional fields, "-", type, source,
    // options.
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let point = unescape(fields.nth(1)?).into();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (unescape(rest.next()?), unescape(rest.next()?).into());
    Some(Mount { device: (major.parse().ok()?, minor.parse().ok()?), point, kind, source })
}

/// Undoes the octal escapes of spaces, tabs, newlines and backslashes in a field of a mount table.
pub fn unescape(field: &[u8]) -> OsString {
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
        let mounts = Mounts::parse(SAMPLE);
        let device = |path: &str| mounts.at(Path::new(path)).map(|mount| mount.device);
        assert_eq!(device("/mnt/a b"), Some((0, 45)));
        assert_eq!(device("/mnt/under"), Some((0, 47)));
        assert_eq!((device("/"), device("/mnt")), (Some((254, 0)), None));
        assert!(mounts.at(Path::new("/mnt/a b")).unwrap().is_forebay());
        let covering = |path: &str| mounts.covering(Path::new(path)).map(|mount| mount.device);
        assert_eq!((covering("/mnt/a b/c/d"), covering("/mnt/a")), (Some((0, 45)), Some((254, 0))));
    }

    #[test]
    fn later_mounts_hide_a_mount_at_their_path() {
        let more = b"43 22 0:48 / /mnt rw - tmpfs above rw\n";
        let (mounts, covered) = (Mounts::parse(SAMPLE), Mounts::parse(&[SAMPLE, more].concat()));
        let of = |mounts: &Mounts, path: &str, minor| {
            let path = Path::new(path);
            mounts.standing(path, (0, minor), path).map(|above| above.map(|mount| mount.device.1))
        };
        let inside = b"44 40 0:49 / /mnt/a\\040b/file rw - tmpfs inside rw\n";
        let inside = Mounts::parse(&[SAMPLE, inside].concat());
        let hides = |file: &str| inside.standing(Path::new("/mnt/a b"), (0, 45), Path::new(file)).unwrap();
        assert!(hides("/mnt/a b/file").is_some() && hides("/mnt/a b/other").is_none());
        assert_eq!(of(&mounts, "/mnt/a b", 45), Some(None));
        assert_eq!(of(&mounts, "/mnt/a b", 44), None);
        assert_eq!(of(&mounts, "/mnt/under", 46), Some(Some(47)));
        assert_eq!(of(&mounts, "/mnt/under", 47), Some(None));
        assert_eq!(of(&covered, "/mnt/a b", 45), Some(Some(48)));
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for table in [&b""[..], b"\n\n", b"1 2 3", b"1 2 3 / /x rw shared:1", b"1 2 3 / /x rw -"] {
            assert_eq!(Mounts::parse(table).at(Path::new("/x")), None);
        }
        assert_eq!(unescape(b"a\\134b\\9\\04"), OsString::from("a\\b\\9\\04"));
    }

    #[test]
    fn paths_are_resolved_as_the_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/deep")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, base.join(name)).unwrap();
        link("real", "relative");
        link(base.join("real/deep").to_str().unwrap(), "absolute");
        link("circle", "circle");
        let mounts = Mounts::read().unwrap();
        let resolved = |path: &str| mounts.resolve(&base.join(path)).strip_prefix(&base).unwrap().to_owned();
        for (path, expected) in [
            ("relative/./deep//x/", "real/deep/x"),
            ("absolute/../y", "real/y"),
            ("relative/../absolute", "real/deep"),
            ("not/there/../z", "not/z"),
            ("circle/x", "circle/x"),
        ] {
            assert_eq!(resolved(path), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn content_of_a_server_is_not_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/elsewhere", base.join("link")).unwrap();
        let line = format!("1 2 0:9 / {} rw - fuse.forebay forebay rw\n", base.display());
        let mounts = Mounts::parse(line.as_bytes());
        assert_eq!(mounts.resolve(&base.join("link/x")), base.join("link/x"));
        assert_eq!(Mounts::default().resolve(&base.join("link/x")), Path::new("/elsewhere/x"));
    }
}
