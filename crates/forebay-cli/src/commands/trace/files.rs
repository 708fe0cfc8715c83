//! Traces that commands read and write: names, formats, and notes.
//!
//! Invariant: an existing file is replaced only on request, and not before there is something to
//! replace it with.

use crate::message;
use forebay_admin::MessageId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use forebay_trace::{Format, Options, Reading, Record, Source, TraceError};

use crate::failure::{Failure, system};
use crate::screen::{bytes, count, harmless};

/// Input trace and its format.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Input {
    /// Format of the trace, if its name does not tell it: forebay, csv (of libCacheSim),
    /// oracleGeneral, bin, iolog, blkparse, msr or alibaba
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<Format>,
    /// Of a trace of several devices, only requests of this one
    #[arg(long, value_name = "DEVICE")]
    pub(crate) only: Option<String>,
    /// Bytes per object number (csv, oracleGeneral)
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) id_bytes: u64,
}

impl Input {
    /// Options for the readers and writers.
    pub(crate) fn options(&self) -> Options {
        Options { id_bytes: self.id_bytes, only: self.only.clone() }
    }
}

/// Builds the failure of an operation on a trace.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(TraceError) -> Failure {
    let said = format!("cannot {what} {}", shown(path));
    move |error| match error {
        TraceError::Io(error) => Failure::new(MessageId::TraceUnreadable, format!("{said}: {error}")),
        error => Failure::new(MessageId::TraceUnreadable, harmless(&format!("{said}: {error}"))),
    }
}

/// Formats a path for display.
pub(crate) fn shown(path: &Path) -> String {
    if is_stdio(path) { "standard input or output".into() } else { path.display().to_string() }
}

pub(super) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a trace; `-` is the standard input.
pub(crate) fn open(path: &Path, input: &Input) -> Result<Source, Failure> {
    let format = input.from.or_else(|| Format::of_name(&path.to_string_lossy()));
    let from: Box<dyn io::BufRead> = if is_stdio(path) {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(path).map_err(system(format!("cannot read {}", path.display())))?;
        Box::new(BufReader::with_capacity(1 << 20, file))
    };
    forebay_trace::reader(from, format, &input.options()).map_err(failed("read", path))
}

/// Reads a whole trace; returns its records and statistics of the reading. Prints notes to stderr.
pub(crate) fn read_all(path: &Path, input: &Input) -> Result<(Vec<Record>, Reading), Failure> {
    let mut source = open(path, input)?;
    let mut records = Vec::new();
    while let Some(record) = source.next_record().map_err(failed("read", path))? {
        records.push(record);
    }
    let reading = source.reading().clone();
    if records.is_empty() {
        let hint = "`forebay trace convert` shows the content of the file";
        return Err(
            Failure::new(MessageId::TraceEmpty, format!("{} has no requests", shown(path))).hint(hint)
        );
    }
    notes(&reading).iter().for_each(|note| message::note(MessageId::TraceNote, note));
    Ok((records, reading))
}

/// Returns the notes for the reader of a trace.
pub(crate) fn notes(reading: &Reading) -> Vec<String> {
    let counted = [
        (reading.lost, "requests are not in the trace: they were lost while it was recorded"),
        (reading.empty, "requests without bytes are left out"),
        (reading.before_start, "requests are earlier than the first one; they count as if they came with it"),
        (reading.other_devices, "requests of other devices are left out"),
    ];
    let counted = counted.iter().filter(|(number, _)| *number > 0);
    let mut notes: Vec<String> = counted.map(|(number, what)| format!("{} {what}", count(*number))).collect();
    if let Some(cut) = reading.cut_bytes {
        let unused =
            if cut > 0 { format!("; {} at its end cannot be used", bytes(cut)) } else { String::new() };
        notes.push(format!("the trace was cut off{unused}"));
    }
    notes
}

/// Takes an advisory lock, so that two recordings do not write one file. It ends with the process.
fn lock(file: &File, path: &Path) -> Result<(), Failure> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let what = format!("another command writes {}", path.display());
            Err(Failure::new(MessageId::CliExists, what).hint("wait for it, or choose another name"))
        }
        _ => Ok(()), // pipes and some file systems have no locks
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    /// Path to remove on failure.
    made: Option<PathBuf>,
    /// The existing file, truncated when the first byte is written.
    before: Option<File>,
}

impl Output {
    /// Creates a file, or opens an existing pipe or device; `-` is the standard output. An existing
    /// file stays as it is until [`Output::begin`].
    pub(super) fn create(path: &Path, overwrite: bool) -> Result<(Self, Box<dyn Write>), Failure> {
        let mut output = Self { path: path.into(), made: None, before: None };
        if is_stdio(path) {
            return Ok((output, Box::new(BufWriter::new(io::stdout()))));
        }
        let cannot = || system(format!("cannot write {}", path.display()));
        let file = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let is_file = fs::metadata(path).map_err(cannot())?.is_file();
                if is_file && !overwrite {
                    let what = format!("{} exists already", path.display());
                    return Err(Failure::new(MessageId::CliExists, what)
                        .hint("choose another name, or give --overwrite"));
                }
                let file = OpenOptions::new().write(true).open(path).map_err(cannot())?;
                output.before = is_file.then(|| file.try_clone()).transpose().map_err(cannot())?;
                file
            }
            opened => {
                output.made = Some(path.into());
                opened.map_err(cannot())?
            }
        };
        lock(&file, path)?;
        Ok((output, Box::new(BufWriter::with_capacity(1 << 20, file))))
    }

    /// As [`Output::create`], but an existing file stays until [`Output::finish`]: its replacement
    /// is written next to it.
    pub(super) fn create_beside(path: &Path, overwrite: bool) -> Result<(Self, Box<dyn Write>), Failure> {
        let real = match fs::canonicalize(path) {
            Ok(real) if overwrite && !is_stdio(path) && real.is_file() => real,
            _ => {
                let created = Self::create(path, overwrite)?;
                return created.0.begin().map(|()| created);
            }
        };
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        let beside = real.with_file_name(format!(".{name}.{}", std::process::id()));
        let cannot = || system(format!("cannot write {}", beside.display()));
        let file = OpenOptions::new().write(true).create_new(true).open(&beside).map_err(cannot())?;
        let allowed = fs::metadata(&real).and_then(|old| file.set_permissions(old.permissions()));
        let output = Self { path: real, made: Some(beside.clone()), before: None };
        allowed.map_err(cannot()).inspect_err(|_| output.remove())?;
        Ok((output, Box::new(BufWriter::with_capacity(1 << 20, file))))
    }

    /// Truncates the existing file, because there is something to write.
    pub(super) fn begin(&self) -> Result<(), Failure> {
        let emptied = self.before.as_ref().map_or(Ok(()), |file| file.set_len(0));
        emptied.map_err(system(format!("cannot write {}", self.path.display())))
    }

    /// Renames the complete file to its final name.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        match &self.made {
            Some(made) if *made != self.path => fs::rename(made, &self.path)
                .map_err(system(format!("cannot write {}", self.path.display())))
                .inspect_err(|_| self.remove()),
            _ => Ok(()),
        }
    }

    /// Removes the created file after a failure.
    pub(super) fn remove(&self) {
        if let Some(made) = &self.made {
            let _ = fs::remove_file(made); // the original failure is reported
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_complete_output_replaces_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("old"), folder.path().join("link"));
        fs::write(&path, "what was there").unwrap();
        std::os::unix::fs::symlink("old", &link).unwrap();
        assert!(Output::create(&path, false).is_err() && Output::create_beside(&link, false).is_err());

        // As when the daemon does not answer.
        let (output, file) = Output::create(&path, true).unwrap();
        drop(file);
        output.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
        assert!(Output::create(&path, true).is_err(), "two write one file");
        drop(output);
        let (output, mut file) = Output::create(&path, true).unwrap();
        output.begin().unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");

        // As when the input trace is damaged.
        let (output, mut file) = Output::create_beside(&link, true).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        output.remove();
        assert_eq!(
            (names(folder.path()), fs::read_to_string(&path).unwrap()),
            (vec!["link".to_owned(), "old".to_owned()], "new".to_owned())
        );
        let (output, mut file) = Output::create_beside(&link, true).unwrap();
        file.write_all(b"newer").unwrap();
        drop(file);
        output.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((names(folder.path()).len(), fs::read_to_string(&path).unwrap()), (2, "newer".to_owned()));
    }

    #[test]
    fn an_incomplete_output_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        for create in [Output::create, Output::create_beside] {
            let (output, file) = create(&path, true).unwrap();
            drop(file);
            assert!(path.exists());
            output.remove();
            assert!(!path.exists());
        }
    }
}
