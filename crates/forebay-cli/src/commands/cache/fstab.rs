//! Edits a single line of `/etc/fstab` (fstab(5)) as text.
//!
//! A volume's line replaces the line of the disk, as `docs/operate/boot.md` describes. The old line
//! stays above it as a comment ([`MARK`]), so that taking the cache away later can restore it,
//! regardless of edits elsewhere in the file.
//!
//! Invariants
//! - Every byte outside of the changed line stays, including other encodings, line endings of other
//!   systems, and a last line without a line ending.
//! - The file is replaced as a whole: at every instant it is the old or the new one.

use forebay_admin::MessageId;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use forebay_io::fuse::unescape;
use rustix::fs::{Access, IFlags, OFlags, XattrFlags, access, fgetxattr, fsetxattr, ioctl_getflags};
use serde::{Deserialize, Serialize};

use super::mounts::Mounts;
use crate::failure::{Failure, system};

/// Path of the file.
pub(super) const FSTAB: &str = "/etc/fstab";
/// Directory of the block devices of volumes.
pub(super) const DEVICES: &str = "/dev/forebay";
/// Prefix of the comment that keeps the line of the disk.
const MARK: &str = "# before forebay: ";
/// Attribute with the SELinux context of a file.
const CONTEXT: &str = "security.selinux";
/// Longest context that is preserved, in bytes.
const CONTEXT_BYTES_MAX: usize = 4096;
/// Maximum growth of the file assumed by the free-space check, in bytes.
const LINE_BYTES: u64 = 4096;

/// A line that mounts a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// Line number, from 1.
    pub(super) number: usize,
    /// The line without its line ending.
    pub(super) text: &'a [u8],
    /// Offset of the line in the file.
    start: usize,
    /// Ranges of its fields in `text`: source, mount point, type, options, and two numbers.
    fields: Vec<Range<usize>>,
}

impl Entry<'_> {
    fn field(&self, at: usize) -> Option<OsString> {
        self.fields.get(at).map(|range| unescape(&self.text[range.clone()]))
    }

    /// Returns the source: a path, or `UUID=...` and the like, without quotation marks.
    pub(super) fn source(&self) -> OsString {
        let mut bytes = self.field(0).unwrap_or_default().into_vec();
        bytes.retain(|byte| *byte != b'"');
        OsString::from_vec(bytes)
    }

    /// Returns the mount point without trailing slashes.
    pub(super) fn point(&self) -> PathBuf {
        PathBuf::from(self.field(1).unwrap_or_default()).components().collect()
    }

    /// Returns true if the line mounts at `point`, perhaps through a symbolic link. Resolves links,
    /// so it must only be called for lines whose paths cannot hang.
    pub(super) fn leads_to(&self, point: &Path) -> bool {
        self.point() == point || std::fs::canonicalize(self.point()).is_ok_and(|real| real == point)
    }

    /// Returns its options; the list may be empty.
    pub(super) fn options(&self) -> Vec<String> {
        let field = self.field(3).map(|field| field.to_string_lossy().into_owned()).unwrap_or_default();
        field.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
    }
}

/// Returns all lines that are neither empty nor a comment.
pub(super) fn entries(table: &[u8]) -> Vec<Entry<'_>> {
    let mut start = 0;
    let mut entries = Vec::new();
    for (index, line) in table.split(|byte| *byte == b'\n').enumerate() {
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        let fields = fields(text);
        let is_comment = fields.first().is_some_and(|field| text[field.start] == b'#');
        if fields.len() >= 2 && !is_comment {
            entries.push(Entry { number: index + 1, text, start, fields });
        }
        start += line.len() + 1;
    }
    entries
}

/// Returns the ranges of the fields of a line, separated by spaces and tabs.
fn fields(text: &[u8]) -> Vec<Range<usize>> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut fields = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = at + text[at..].iter().position(is_blank).unwrap_or(text.len() - at);
        if end > at {
            fields.push(at..end);
        }
        at = end + 1;
    }
    fields
}

/// Lines that replace others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    /// Number of the first replaced line, from 1.
    number: usize,
    /// Present text, without the ending of its last line.
    from: Vec<u8>,
    /// New text.
    to: Vec<u8>,
}

impl Change {
    /// Replaces the line of a disk with that of a volume, whose block device is `device`.
    pub(super) fn to_volume(table: &[u8], entry: &Entry<'_>, device: &Path) -> Self {
        let options = for_volume(&entry.options(), device).join(",");
        let line = with_fields(entry, device.as_os_str().as_encoded_bytes(), options.as_bytes());
        let to = [MARK.as_bytes(), entry.text, end_of_line(table, entry), &line].concat();
        Self { number: entry.number, from: entry.text.to_owned(), to }
    }

    /// Replaces the line of a volume with that of its disk: the original line, or, if that is
    /// unknown, one for the path `disk`.
    pub(super) fn to_disk(table: &[u8], entry: &Entry<'_>, disk: &Path) -> Self {
        let above = table[..entry.start].strip_suffix(b"\n").unwrap_or_default();
        let above = above.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let kept = above.strip_suffix(b"\r").unwrap_or(above).strip_prefix(MARK.as_bytes());
        // A kept line with another mount point belongs to something else.
        let kept = kept.filter(|kept| entries(kept).first().is_some_and(|was| was.point() == entry.point()));
        match kept {
            Some(kept) => {
                let from = [above, b"\n", entry.text].concat();
                Self { number: entry.number - 1, from, to: kept.to_owned() }
            }
            None => {
                let options = for_disk(&entry.options()).join(",");
                let to = with_fields(entry, disk.as_os_str().as_encoded_bytes(), options.as_bytes());
                Self { number: entry.number, from: entry.text.to_owned(), to }
            }
        }
    }

    /// Returns the inverse change.
    pub(super) fn reversed(&self) -> Self {
        Self { number: self.number, from: self.to.clone(), to: self.from.clone() }
    }

    /// Returns the text with the change applied; `None` if the lines to be replaced are missing.
    pub(super) fn applied(&self, table: &[u8]) -> Option<Vec<u8>> {
        let at = find_lines(table, &self.from)?;
        Some([&table[..at], &self.to, &table[at + self.from.len()..]].concat())
    }

    /// Returns true if the new text is present and the old one is not, or if the change removes a
    /// volume's line and the operator has already done that differently.
    pub(super) fn is_made(&self, table: &[u8]) -> bool {
        let is_there = |lines: &[u8]| find_lines(table, lines).is_some();
        let is_of_volume = entries(&self.from).iter().any(|entry| is_volume(&entry.source()));
        is_there(&self.to) && !is_there(&self.from) || is_of_volume && self.has_nothing_to_change(table)
    }

    /// Returns true if no line mounts the source of the line to be replaced at its mount point: the
    /// operator has edited that line, so there is nothing to change.
    pub(super) fn has_nothing_to_change(&self, table: &[u8]) -> bool {
        let what = |entry: &Entry<'_>| (entry.source(), entry.point());
        let changed = entries(&self.from);
        !entries(table).iter().any(|entry| changed.iter().any(|changed| what(changed) == what(entry)))
    }

    /// Returns the replaced line as text.
    pub(super) fn line(&self) -> String {
        let last = self.from.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(last).into_owned()
    }

    /// Returns the equivalent shell command.
    pub(super) fn command(&self) -> String {
        let count = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
        let mut script = Vec::new();
        let last = self.number + count(&self.from);
        if last > self.number {
            script.push(format!("{}d", self.number));
        }
        let lines: Vec<&[u8]> = self.to.split(|byte| *byte == b'\n').collect();
        for (index, line) in lines.iter().enumerate() {
            let what = if index + 1 == lines.len() { 'c' } else { 'i' };
            let text = String::from_utf8_lossy(line).replace('\\', "\\\\").replace('\r', "\\r");
            script.push(format!("{last}{what}\\{text}"));
        }
        let script: Vec<String> =
            script.iter().map(|part| format!("-e {}", super::shell::quoted(part))).collect();
        // sed would replace a symbolic link with a file.
        let file = std::fs::canonicalize(FSTAB).unwrap_or_else(|_| FSTAB.into());
        format!("sed -i {} {}", script.join(" "), super::shell::quoted(file.display().to_string()))
    }
}

/// Returns true if a line's first field is a volume's block device.
pub(super) fn is_volume(source: &OsStr) -> bool {
    Path::new(source).starts_with(DEVICES)
}

/// Returns the line ending of `entry`, for a line inserted above it.
fn end_of_line<'a>(table: &[u8], entry: &Entry<'_>) -> &'a [u8] {
    let is_of_dos = table[entry.start + entry.text.len()..].starts_with(b"\r\n");
    if is_of_dos { b"\r\n" } else { b"\n" }
}

/// Returns the line with another source and other options. The fields after the options, and the
/// separators, stay.
fn with_fields(entry: &Entry<'_>, source: &[u8], options: &[u8]) -> Vec<u8> {
    let text = entry.text;
    let options = if options.is_empty() { b"defaults" } else { options };
    let (Some(first), Some(second)) = (entry.fields.first(), entry.fields.get(1)) else {
        return text.to_owned();
    };
    let head = [&text[..first.start], &escaped(source), &text[first.end..second.end]].concat();
    let kind = entry.fields.get(2).map_or(&b" auto"[..], |kind| &text[second.end..kind.end]);
    let rest = match (entry.fields.get(2), entry.fields.get(3)) {
        (Some(kind), Some(old)) => [&text[kind.end..old.start], options, &text[old.end..]].concat(),
        _ => [b" ", options].concat(),
    };
    [&head, kind, &rest].concat()
}

/// Returns a field with its blanks escaped.
fn escaped(field: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    field.iter().flat_map(escape).collect()
}

/// Returns the present options followed by those that the mount of a volume needs (see
/// `docs/operate/boot.md`). Options that the operator has set stay.
fn for_volume(options: &[String], device: &Path) -> Vec<String> {
    let has = |wanted: &str| options.iter().any(|option| option.starts_with(wanted));
    let mut all: Vec<String> = options.iter().filter(|option| *option != "defaults").cloned().collect();
    let mut add = |option: String, unless: &str| {
        if !has(unless) {
            all.push(option);
        }
    };
    add("_netdev".into(), "_netdev");
    add("nofail".into(), "nofail");
    add("x-systemd.after=forebay.service".into(), "x-systemd.after=forebay.service");
    add("x-systemd.device-timeout=60s".into(), "x-systemd.device-timeout=");
    // A file system that is not mounted at boot is not mounted when its device appears either.
    if !has("noauto") {
        add("x-systemd.wanted-by=remote-fs.target".into(), "x-systemd.wanted-by=remote-fs.target");
        let unit = unit_name(device);
        add(format!("x-systemd.wanted-by={unit}"), &format!("x-systemd.wanted-by={unit}"));
    }
    all
}

/// Returns the options without those of a volume. `nofail` stays: it does no harm, and may be
/// intended.
fn for_disk(options: &[String]) -> Vec<String> {
    let is_ours = |option: &String| {
        option == "_netdev"
            || option.starts_with("x-systemd.wanted-by=")
            || ["after", "requires"].iter().any(|key| *option == format!("x-systemd.{key}=forebay.service"))
            || option == "x-systemd.device-timeout=60s"
    };
    options.iter().filter(|option| !is_ours(option)).cloned().collect()
}

/// Returns systemd's unit name of a device, as `systemd-escape --path --suffix=device` prints it.
pub(super) fn unit_name(device: &Path) -> String {
    format!("{}.device", escaped_path(device))
}

/// Escapes a path for a unit name (systemd.unit(5)).
pub(super) fn escaped_path(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    let bytes: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == b'/').collect();
    let escape = |(at, byte): (usize, &u8)| match byte {
        b'/' => "-".into(),
        b'.' if at == 0 => "\\x2e".into(),
        byte if byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'.') => {
            char::from(*byte).to_string()
        }
        byte => format!("\\x{byte:02x}"),
    };
    if bytes.is_empty() { "-".into() } else { bytes.iter().enumerate().map(escape).collect() }
}

/// Returns the position at which these lines stand in the text as whole lines.
fn find_lines(table: &[u8], lines: &[u8]) -> Option<usize> {
    let starts = std::iter::once(0)
        .chain(table.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1));
    let is_end = |rest: &[u8]| rest.is_empty() || rest.starts_with(b"\n") || rest.starts_with(b"\r\n");
    starts.into_iter().find(|at| table[*at..].strip_prefix(lines).is_some_and(is_end))
}

/// Returns the content of the file; empty if it does not exist.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// Checks in advance whether [`replace`] can succeed, before anything else is changed.
///
/// # Errors
/// The directory takes no files, or has no space, the file is immutable, or a container has it
/// bind-mounted by itself.
pub(super) fn check_replaceable(mounts: &Mounts, path: &Path) -> Result<(), Failure> {
    let shown = &path.display().to_string();
    let path = std::fs::canonicalize(path).map_err(system(shown))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    if mounts.at(&path).next().is_some() {
        return Err(Failure::new(
            MessageId::AttachFstab,
            format!("{shown}: it is a mount of its own, and cannot be replaced"),
        )
        .hint("edit it where it comes from, or unmount it"));
    }
    for path in [&path, folder] {
        let flags = File::open(path).ok().and_then(|file| ioctl_getflags(file).ok());
        if flags.is_some_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)) {
            let word = super::shell::quoted(path.display().to_string());
            return Err(Failure::new(
                MessageId::AttachFstab,
                format!("{word} is protected from changes (chattr)"),
            )
            .hint(format!("allow them: chattr -ia {word}; then the same command again")));
        }
    }
    access(folder, Access::WRITE_OK).map_err(|error| system(shown)(error.into()))?;
    let room = try_room(folder, std::fs::metadata(&path).map_or(0, |meta| meta.len())).map_err(system(shown));
    room.map_err(|failure| {
        let folder = super::shell::quoted(folder.display().to_string());
        failure.hint(format!("make room (df {folder} shows it), then the same command again"))
    })
}

/// Checks that a directory has space for `bytes` and a longer line, using an unnamed file.
fn try_room(folder: &Path, bytes: u64) -> io::Result<()> {
    let options = OFlags::TMPFILE.bits() as i32;
    let Ok(mut file) = File::options().write(true).custom_flags(options).open(folder) else {
        return Ok(()); // some file systems have no unnamed files
    };
    io::copy(&mut io::repeat(b'#').take(bytes + LINE_BYTES), &mut file)?;
    file.sync_all()
}

/// Replaces the file as a whole if its content is `old`; owner, permissions and context stay.
///
/// # Errors
/// Any step fails, or the file has changed meanwhile. The file then stays as it was.
pub(super) fn replace(path: &Path, old: &[u8], new: &[u8]) -> io::Result<()> {
    // Preserve a symbolic link.
    let path = std::fs::canonicalize(path)?;
    let now = File::open(&path)?;
    let fresh_path = path.with_extension("forebay-new");
    let mut fresh = File::create(&fresh_path)?;
    let mut write = || {
        let meta = now.metadata()?;
        fchown(&fresh, Some(meta.uid()), Some(meta.gid()))?;
        fresh.set_permissions(PermissionsExt::from_mode(meta.mode() & 0o7777))?;
        let mut context = [0; CONTEXT_BYTES_MAX];
        if let Ok(length) = fgetxattr(&now, CONTEXT, &mut context) {
            fsetxattr(&fresh, CONTEXT, &context[..length], XattrFlags::empty())?;
        }
        fresh.write_all(new)?;
        fresh.sync_all()?;
        if std::fs::read(&path)? != old {
            return Err(io::Error::other("another program has changed it meanwhile"));
        }
        std::fs::rename(&fresh_path, &path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh_path);
    }
    written
}

#[cfg(test)]
#[path = "fstab_tests.rs"]
mod tests;
