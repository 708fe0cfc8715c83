//! Data about a process from `/proc`, in bounded reads.
//!
//! Invariants
//! - The content of these files is untrusted: a process chooses its own name, and that name is
//!   unescaped in `stat`. The parsers accept any bytes and return a value or nothing.
//! - No read takes more than [`READ_BYTES_MAX`].
//!
//! The formats are those of proc_pid_stat(5), proc_pid_status(5) and proc_pid_cgroup(5).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Most bytes read from one file: a line of `cgroup` for each old hierarchy, each with a long path.
const READ_BYTES_MAX: u64 = 64 << 10;
/// `ESRCH`: the error of reads of `/proc` files when the process ended after the file was opened.
const NO_SUCH_PROCESS: i32 = 3;

/// The fields of `/proc/PID/stat` in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// State letter: `Z` is a zombie, `X` is dead.
    pub(super) state: u8,
    /// Threads in the process.
    pub(super) threads: u64,
    /// Start time, in clock ticks since boot. Together with the number it identifies a process
    /// until the machine stops.
    pub(super) start_ticks: u64,
}

impl Stat {
    /// Returns whether it will never run again. A zombie with more than one thread is a process
    /// whose first thread has ended while the others continue.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

/// The process file system, or a folder that looks like it.
#[derive(Debug, Clone)]
pub struct ProcFs {
    root: PathBuf,
}

impl Default for ProcFs {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl ProcFs {
    /// Creates a reader of the process file system mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns state and start of a process or thread; `None` if there is none.
    pub(super) fn stat(&self, pid: u32) -> io::Result<Option<Stat>> {
        let Some(text) = self.read(pid, "stat")? else { return Ok(None) };
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "its stat file is malformed");
        parse_stat(&text).map(Some).ok_or_else(malformed)
    }

    /// Returns the thread group of a process or thread.
    pub(super) fn tgid(&self, pid: u32) -> Option<u32> {
        parse_tgid(&self.read(pid, "status").ok()??)
    }

    /// Returns the executable. Requires the permission to trace the process: the same user, or
    /// root.
    pub(super) fn exe(&self, pid: u32) -> Option<PathBuf> {
        Some(without_deleted(std::fs::read_link(self.path(pid, "exe")).ok()?))
    }

    /// Returns the name that the process gave itself: at most 15 bytes, readable by every user.
    pub(super) fn comm(&self, pid: u32) -> Option<OsString> {
        let text = self.read(pid, "comm").ok()??;
        let name = text.strip_suffix(b"\n").unwrap_or(&text);
        (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()))
    }

    /// Returns the control group.
    pub(super) fn cgroup(&self, pid: u32) -> Option<OsString> {
        parse_cgroup(&self.read(pid, "cgroup").ok()??).map(|path| OsString::from_vec(path.to_vec()))
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }

    fn read(&self, pid: u32, file: &str) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read =
            File::open(self.path(pid, file)).and_then(|f| f.take(READ_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(NO_SUCH_PROCESS) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Parses `PID (NAME) STATE ...`. The name may contain anything, even `) Z 0`, but no `)` follows
/// it.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&text[name_end + 1..]).ok()?;
    // Field 3 of the manual page is the first here.
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next().filter(|state| state.len() == 1)?.as_bytes()[0];
    let threads = fields.nth(20 - 4)?.parse().ok()?;
    let start_ticks = fields.nth(22 - 21)?.parse().ok()?;
    Some(Stat { state, threads, start_ticks })
}

/// Parses the `Tgid:` line. Names are escaped in this file, so no name can imitate it.
fn parse_tgid(text: &[u8]) -> Option<u32> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Returns the group of the unified hierarchy, else of systemd's, else the first one. The kernel
/// permits no line feed in the name of a group, so line breaks are reliable.
fn parse_cgroup(text: &[u8]) -> Option<&[u8]> {
    // A last line without a line feed was truncated.
    let whole = &text[..text.iter().rposition(|byte| *byte == b'\n')?];
    let groups = whole.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let rank = match controllers {
            b"" => 0,
            b"name=systemd" => 1,
            _ => 2,
        };
        path.starts_with(b"/").then_some((rank, path))
    });
    groups.min_by_key(|(rank, _)| *rank).map(|(_, path)| path)
}

/// Removes the kernel's mark of an executable that was replaced or removed since its start; it is
/// still the same program.
fn without_deleted(path: PathBuf) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(kept) => Path::new(std::ffi::OsStr::from_bytes(kept)).to_owned(),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAIL: &str = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 18 4242 20 21";

    #[test]
    fn a_hostile_name_does_not_fool_stat() {
        let expected = Some(Stat { state: b'S', threads: 7, start_ticks: 4242 });
        for name in
            ["sh", "a b", ") Z 1 1", ")", "((", "x) Z 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "\n"]
        {
            assert_eq!(parse_stat(format!("77 ({name}) {TAIL}").as_bytes()), expected, "{name:?}");
        }
        let raw = [b"77 (\xff\xfe) ".as_slice(), TAIL.as_bytes()].concat();
        assert_eq!(parse_stat(&raw), expected);
        for text in ["", "77", "77 (sh", "77 (sh) ", "77 (sh) S 1 2", "77 (sh) SS 1", "77 (sh) S a b c"] {
            assert_eq!(parse_stat(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_zombie_with_threads_goes_on() {
        let stat = |state, threads| Stat { state, threads, start_ticks: 1 };
        assert!(stat(b'Z', 1).has_ended() && stat(b'X', 0).has_ended());
        assert!(!stat(b'Z', 2).has_ended() && !stat(b'S', 1).has_ended());
    }

    #[test]
    fn the_unified_group_goes_first() {
        let group =
            |text: &str| parse_cgroup(text.as_bytes()).map(|path| String::from_utf8_lossy(path).into_owned());
        assert_eq!(group("4:cpu:/c\n1:name=systemd:/s\n0::/u\n").as_deref(), Some("/u"));
        assert_eq!(group("4:cpu:/c\n1:name=systemd:/s\n").as_deref(), Some("/s"));
        assert_eq!(group("4:cpu,io:/c:d\n").as_deref(), Some("/c:d"));
        for text in ["", "\n", "0::/cut", "0:/x\n", "::\n", "0::relative\n"] {
            assert_eq!(group(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_process_is_read() {
        let proc = ProcFs::default();
        let me = std::process::id();
        let stat = proc.stat(me).unwrap().unwrap();
        assert!(!stat.has_ended() && stat.start_ticks > 0);
        assert_eq!(proc.tgid(me), Some(me));
        assert_eq!(proc.exe(me), std::env::current_exe().ok());
        assert!(proc.comm(me).is_some());
        assert_eq!(proc.stat(u32::MAX).unwrap(), None);
    }

    #[test]
    fn an_endless_file_is_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("1")).unwrap();
        std::fs::write(dir.path().join("1/comm"), vec![b'x'; 1 << 20]).unwrap();
        let name = ProcFs::at(dir.path()).comm(1).unwrap();
        assert_eq!(name.len() as u64, READ_BYTES_MAX);
        assert_eq!(without_deleted("/usr/bin/x (deleted)".into()), PathBuf::from("/usr/bin/x"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value_or_nothing(bytes: Vec<u8>, text in "[0-9() :/\nSZTgid]{0,200}") {
            for input in [bytes.as_slice(), text.as_bytes()] {
                let _ = (parse_stat(input), parse_tgid(input), parse_cgroup(input));
            }
        }
    }
}
