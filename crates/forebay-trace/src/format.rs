//! All formats by name, with one interface to read and write any of them.
//!
//! Invariants
//! - Data that a format cannot hold is counted and reported ([`Loss`]), never dropped silently.
//! - Times begin at 0 with the first record of a foreign trace. An earlier one becomes 0 and is
//!   counted.

use crate::error::TraceError;
use crate::formats::alibaba::Alibaba;
use crate::formats::binary::{BinWriter, BinaryReader, Kind, OracleWriter};
use crate::formats::blkparse::Blkparse;
use crate::formats::csv::Csv;
use crate::formats::iolog::{self, Iolog};
use crate::formats::msr::Msr;
use crate::formats::{OneDevice, Parsed, RecordWriter, TextFormat, TextReader};
use crate::lines::Lines;
use crate::native::{self, EXTENSION, Ending, Header, MAGIC};
use crate::record::{Operation, Outcome, Record};
use crate::unpack::unpacked;
use std::fmt;
use std::io::{BufRead, Write};

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Forebay's own.
    Forebay,
    /// Text for libCacheSim.
    Csv,
    /// libCacheSim's records of 24 bytes.
    OracleGeneral,
    /// Records of 24 bytes with reads and writes, as in `bench/traces`.
    Bin,
    /// fio's I/O log, version 3.
    Iolog,
    /// The output of blkparse.
    Blkparse,
    /// Microsoft Research, Cambridge.
    Msr,
    /// Alibaba's cloud.
    Alibaba,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Forebay,
        Self::Csv,
        Self::OracleGeneral,
        Self::Bin,
        Self::Iolog,
        Self::Blkparse,
        Self::Msr,
        Self::Alibaba,
    ];

    /// Returns its name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Csv => "csv",
            Self::OracleGeneral => "oracleGeneral",
            Self::Bin => "bin",
            Self::Iolog => "iolog",
            Self::Blkparse => "blkparse",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
        }
    }

    /// Returns the format by the extension of a file name, ignoring a final `.zst`.
    #[must_use]
    pub fn of_name(file: &str) -> Option<Self> {
        let file = file.strip_suffix(".zst").unwrap_or(file);
        let end = file.rsplit_once('.')?.1;
        let by_end = |format: &Self| match format {
            Self::Forebay => end == EXTENSION,
            other => end.eq_ignore_ascii_case(other.name()),
        };
        Self::ALL.into_iter().find(by_end)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
        let found = Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("there is no such format; one of {}", names.join(", ")))
    }
}

/// Parameters of a format that are not in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes per object number (csv, oracleGeneral).
    pub id_bytes: u64,
    /// Only requests of this device, from a trace of several.
    pub only: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { id_bytes: 4096, only: None }
    }
}

/// Observations while reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The format.
    pub format: Format,
    /// The header of the trace; only Forebay's own format has one.
    pub header: Option<Header>,
    /// Records so far.
    pub records: u64,
    /// Requests without bytes, which are skipped.
    pub empty: u64,
    /// Lines that are not requests.
    pub other_lines: u64,
    /// Requests of devices other than the selected one.
    pub other_devices: u64,
    /// Records with a time before the first one's.
    pub before_start: u64,
    /// Records lost during the recording.
    pub lost: u64,
    /// If the file was truncated, the number of unusable bytes at its end.
    pub cut_bytes: Option<u64>,
}

enum Inside {
    Forebay(native::Reader<Box<dyn BufRead>>),
    Binary(BinaryReader),
    Text(TextReader, OneDevice),
}

/// A trace being read.
pub struct Source {
    inside: Inside,
    origin: Option<u64>,
    reading: Reading,
}

/// Begins to read a trace, packed with zstd or not. Without a format it must be Forebay's own.
///
/// # Errors
/// Returns an error if the trace cannot be read, or does not begin like this format.
pub fn reader(
    from: Box<dyn BufRead>,
    format: Option<Format>,
    options: &Options,
) -> Result<Source, TraceError> {
    let mut from = unpacked(from)?;
    let begins = from.fill_buf()?;
    let format = match format {
        Some(format) => format,
        None if begins.starts_with(&MAGIC) => Format::Forebay,
        None => {
            let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
            let what =
                format!("neither name nor content tell its format: say it, one of {}", names.join(", "));
            return Err(TraceError::Useless(what));
        }
    };
    if format == Format::Iolog && begins.is_empty() {
        return Err(iolog::empty());
    }
    let text = |format: Box<dyn TextFormat>, from| {
        Inside::Text(TextReader { lines: Lines::new(from), format }, OneDevice::new(options))
    };
    let id_bytes = options.id_bytes.max(1);
    let inside = match format {
        Format::Forebay => Inside::Forebay(native::Reader::new(from)?),
        Format::OracleGeneral => Inside::Binary(BinaryReader::new(from, Kind::OracleGeneral { id_bytes })),
        Format::Bin => Inside::Binary(BinaryReader::new(from, Kind::Bin)),
        Format::Csv => text(Box::new(Csv::new(options)), from),
        Format::Iolog => text(Box::<Iolog>::default(), from),
        Format::Blkparse => text(Box::<Blkparse>::default(), from),
        Format::Msr => text(Box::<Msr>::default(), from),
        Format::Alibaba => text(Box::new(Alibaba), from),
    };
    let header = if let Inside::Forebay(reader) = &inside { Some(reader.header().clone()) } else { None };
    let reading = Reading {
        format,
        header,
        records: 0,
        empty: 0,
        other_lines: 0,
        other_devices: 0,
        before_start: 0,
        lost: 0,
        cut_bytes: None,
    };
    Ok(Source { inside, origin: None, reading })
}

impl Source {
    /// Returns the next record.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is damaged; the text names the place.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        let record = match &mut self.inside {
            Inside::Forebay(reader) => {
                let record = reader.next_record()?;
                self.reading.lost = reader.lost();
                if let Some(Ending::Cut { bytes }) = reader.ending() {
                    self.reading.cut_bytes = Some(bytes);
                }
                self.reading.records += u64::from(record.is_some());
                return Ok(record);
            }
            Inside::Binary(reader) => loop {
                match reader.next_record()? {
                    Some(None) => self.reading.empty += 1,
                    Some(record) => break record,
                    None => break None,
                }
            },
            Inside::Text(reader, devices) => next_of_text(reader, devices, &mut self.reading)?,
        };
        let Some(mut record) = record else { return Ok(None) };
        let origin = *self.origin.get_or_insert(record.at_ns);
        self.reading.before_start += u64::from(record.at_ns < origin);
        record.at_ns = record.at_ns.saturating_sub(origin);
        self.reading.records += 1;
        Ok(Some(record))
    }

    /// Returns the observations so far.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }
}

fn next_of_text(
    reader: &mut TextReader,
    devices: &mut OneDevice,
    reading: &mut Reading,
) -> Result<Option<Record>, TraceError> {
    while let Some(line) = reader.lines.next_line()? {
        match reader.format.parse(line)? {
            Parsed::Other => reading.other_lines += 1,
            Parsed::Empty => reading.empty += 1,
            Parsed::Request(record, None) => return Ok(Some(record)),
            Parsed::Request(record, Some(device)) => {
                if devices.wants(&device, line.number)? {
                    return Ok(Some(record));
                }
                reading.other_devices += 1;
            }
        }
    }
    Ok(None)
}

/// The parts of a record that a format has kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// The record was written at all.
    pub(crate) anything: bool,
    pub(crate) time: bool,
    pub(crate) operation: bool,
    pub(crate) range: bool,
    pub(crate) fua: bool,
    pub(crate) outcome: bool,
    pub(crate) latency: bool,
}

impl Kept {
    /// The format cannot hold the record.
    pub(crate) fn nothing() -> Self {
        Self { anything: false, time: false, operation: false, range: false, ..Self::range() }
    }

    /// Time, operation and range are kept.
    pub(crate) fn range() -> Self {
        Self {
            anything: true,
            time: true,
            operation: true,
            range: true,
            fua: false,
            outcome: false,
            latency: false,
        }
    }
}

/// A kind of data that a format cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Requests with this operation are left out.
    LeftOut(Operation),
    /// Times are rounded down.
    Time,
    /// Another operation replaces it.
    Operation,
    /// Ranges are rounded to blocks or sectors, or cut into blocks.
    Range,
    /// The request to be durable before the reply.
    Fua,
    /// The path of the request.
    Outcome,
    /// The latency, or the part of it below the unit of the format.
    Latency,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut(operation) => write!(f, "left out: {}", operation.name()),
            Self::Time => f.write_str("time rounded to the unit of the format"),
            Self::Operation => f.write_str("another operation stands for it"),
            Self::Range => f.write_str("range rounded to the unit of the format, or cut into blocks"),
            Self::Fua => f.write_str("not kept: that it is durable before its answer"),
            Self::Outcome => f.write_str("not kept: which way it went"),
            Self::Latency => f.write_str("not kept, or rounded: how long it took"),
        }
    }
}

/// The result of writing a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Records that are in the new trace, at least in part.
    pub records: u64,
    /// The losses, each with its number of requests.
    pub losses: Vec<(Loss, u64)>,
}

impl Tally {
    fn add(&mut self, record: &Record, kept: Kept) {
        if !kept.anything {
            return self.count(Loss::LeftOut(record.operation));
        }
        self.records += 1;
        let lost = [
            (!kept.time, Loss::Time),
            (!kept.operation, Loss::Operation),
            (!kept.range, Loss::Range),
            (!kept.fua && record.fua, Loss::Fua),
            (!kept.outcome && record.outcome != Outcome::Unknown, Loss::Outcome),
            (!kept.latency && record.latency_ns.is_some(), Loss::Latency),
        ];
        for (_, loss) in lost.into_iter().filter(|(is_lost, _)| *is_lost) {
            self.count(loss);
        }
    }

    fn count(&mut self, loss: Loss) {
        match self.losses.iter_mut().find(|(known, _)| *known == loss) {
            Some((_, count)) => *count += 1,
            None => self.losses.push((loss, 1)),
        }
    }
}

/// The parameters of a new trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTrace {
    /// Its format.
    pub format: Format,
    /// Its options.
    pub options: Options,
    /// Its header, if the format has one.
    pub header: Header,
}

enum Output {
    Forebay(native::Writer<Box<dyn Write>>),
    Other(Box<dyn RecordWriter>, Box<dyn Write>),
}

/// A trace being written.
pub struct Sink {
    output: Output,
    tally: Tally,
}

/// Begins to write a trace.
///
/// # Errors
/// Returns an error if the trace cannot be written.
pub fn writer(to: Box<dyn Write>, new: &NewTrace) -> Result<Sink, TraceError> {
    let options = &new.options;
    let other: Box<dyn RecordWriter> = match new.format {
        Format::Forebay => {
            let output = Output::Forebay(native::Writer::new(to, &new.header)?);
            return Ok(Sink { output, tally: Tally::default() });
        }
        Format::Csv => Box::new(Csv::new(options)),
        Format::OracleGeneral => Box::new(OracleWriter::new(options)),
        Format::Bin => Box::new(BinWriter),
        Format::Iolog => Box::new(Iolog::default()),
        Format::Blkparse => Box::new(Blkparse::default()),
        Format::Msr => Box::new(Msr::starting(new.header.started_unix_ns)),
        Format::Alibaba => Box::new(Alibaba),
    };
    Ok(Sink { output: Output::Other(other, to), tally: Tally::default() })
}

impl Sink {
    /// Writes a record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub fn push(&mut self, record: &Record) -> Result<(), TraceError> {
        let kept = match &mut self.output {
            Output::Forebay(writer) => {
                writer.push(record)?;
                Kept { fua: true, outcome: true, latency: true, ..Kept::range() }
            }
            Output::Other(writer, to) => writer.put(to, record)?,
        };
        self.tally.add(record, kept);
        Ok(())
    }

    /// Notes that this many records were lost at this point.
    pub fn lose(&mut self, records: u64) {
        if let Output::Forebay(writer) = &mut self.output {
            writer.lose(records);
        }
    }

    /// Ends the trace. Returns the result for its records.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be written.
    pub fn finish(self) -> Result<Tally, TraceError> {
        match self.output {
            Output::Forebay(writer) => writer.finish()?.flush()?,
            Output::Other(mut writer, mut to) => {
                writer.finish(&mut to)?;
                to.flush()?;
            }
        }
        Ok(self.tally)
    }
}
