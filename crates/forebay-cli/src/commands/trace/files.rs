//! Traces that are read and written by commands: names, formats, and what is said of them.
//!
//! Invariant: a file that was there is not replaced unless that was asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use forebay_trace::{Format, Options, Reading, Record, Source, TraceError};

use crate::failure::{Failure, system};
use crate::screen::{bytes, count, harmless};

/// Which trace is read, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Input {
    /// Format of the trace, if its name does not tell: forebay, csv (of libCacheSim),
    /// oracleGeneral, bin, iolog, blkparse, msr or alibaba
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<Format>,
    /// Only requests of this device of a trace of several
    #[arg(long, value_name = "DEVICE")]
    pub(crate) only: Option<String>,
    /// Bytes that numbers of objects count (csv, oracleGeneral)
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) id_bytes: u64,
}

impl Input {
    /// For the readers and writers.
    pub(crate) fn options(&self) -> Options {
        Options { id_bytes: self.id_bytes, only: self.only.clone() }
    }
}

/// A failure with a trace.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(TraceError) -> Failure {
    let said = format!("cannot {what} {}", shown(path));
    move |error| match error {
        TraceError::Io(error) => Failure::new(format!("{said}: {error}")),
        error => Failure::new(harmless(&format!("{said}: {error}"))),
    }
}

/// A path for people.
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

/// All of a trace, and what was noticed while reading it. Notes go to stderr.
pub(crate) fn read_all(path: &Path, input: &Input) -> Result<(Vec<Record>, Reading), Failure> {
    let mut source = open(path, input)?;
    let mut records = Vec::new();
    while let Some(record) = source.next_record().map_err(failed("read", path))? {
        records.push(record);
    }
    let reading = source.reading().clone();
    if records.is_empty() {
        let hint = "`forebay trace convert` says what is in the file";
        return Err(Failure::new(format!("{} has no requests", shown(path))).hint(hint));
    }
    notes(&reading).iter().for_each(|note| eprintln!("note: {note}"));
    Ok((records, reading))
}

/// What somebody has to know who reads a trace.
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
            if cut > 0 { format!("; {} at its end are of no use", bytes(cut)) } else { String::new() };
        notes.push(format!("the trace was cut off{unused}"));
    }
    notes
}

/// A file that is being written.
pub(super) struct Output {
    path: PathBuf,
    /// It is ours to remove.
    made: bool,
}

impl Output {
    /// Makes a file, or takes a pipe or device that is there; `-` is the standard output.
    pub(super) fn create(path: &Path, overwrite: bool) -> Result<(Self, Box<dyn Write>), Failure> {
        if is_stdio(path) {
            let output = Self { path: path.into(), made: false };
            return Ok((output, Box::new(BufWriter::new(io::stdout()))));
        }
        let cannot = || system(format!("cannot write {}", path.display()));
        let mut made = true;
        let file = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                made = fs::metadata(path).map_err(cannot())?.is_file();
                if made && !overwrite {
                    let what = format!("{} is there already", path.display());
                    return Err(Failure::new(what).hint("choose another name, or give --overwrite"));
                }
                OpenOptions::new().write(true).truncate(made).open(path)
            }
            opened => opened,
        };
        let file = file.map_err(cannot())?;
        Ok((Self { path: path.into(), made }, Box::new(BufWriter::with_capacity(1 << 20, file))))
    }

    /// Takes the file away again, after a failure.
    pub(super) fn remove(&self) {
        if self.made {
            let _ = fs::remove_file(&self.path); // what failed is told
        }
    }
}
