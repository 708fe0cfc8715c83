//! All formats by name, and one way to read and to write any of them.
//!
//! Invariants
//! - What a format has no place for is counted and told ([`Loss`]), never dropped in silence.
//! - Times begin at 0 with the first record of a foreign trace. One that is before it counts as 0
//!   and is counted.

use crate::error::TraceError;
use crate::foreign::alibaba::Alibaba;
use crate::foreign::binary::{BinWriter, BinaryReader, Kind, OracleWriter};
use crate::foreign::blkparse::Blkparse;
use crate::foreign::csv::Csv;
use crate::foreign::iolog::{self, Iolog};
use crate::foreign::msr::Msr;
use crate::foreign::{OneDevice, Parsed, RecordWriter, TextFormat, TextReader};
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
    /// What blkparse prints.
    Blkparse,
    /// Microsoft Research, Cambridge.
    Msr,
    /// Alibaba's cloud.
    Alibaba,
}

impl Format {
    /// All of them.
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

    /// Its name in commands.
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

    /// By the end of a file's name, `.zst` behind it left out.
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

/// What a format is to know beyond the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes that the number of an object counts (csv, oracleGeneral).
    pub id_bytes: u64,
    /// Only requests of this device, of a trace of several.
    pub only: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { id_bytes: 4096, only: None }
    }
}

/// What was noticed while reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The format.
    pub format: Format,
    /// What the trace says of itself; only Forebay's own does.
    pub header: Option<Header>,
    /// Records so far.
    pub records: u64,
    /// Requests without bytes, which are left out.
    pub empty: u64,
    /// Lines that are no requests.
    pub other_lines: u64,
    /// Requests of other devices than the one that was asked for.
    pub other_devices: u64,
    /// Records with a time before that of the first one.
    pub before_start: u64,
    /// Records that were lost while the trace was recorded.
    pub lost: u64,
    /// The file was cut off, and so many bytes at its end are of no use.
    pub cut_bytes: Option<u64>,
}

enum Inside {
    Forebay(native::Reader<Box<dyn BufRead>>),
    Binary(BinaryReader),
    Text(TextReader, OneDevice),
}

/// A trace that is read.
pub struct Source {
    inside: Inside,
    origin: Option<u64>,
    reading: Reading,
}

/// Begins to read a trace, packed with zstd or not. Without a format it has to be Forebay's own.
///
/// # Errors
/// It cannot be read, or begins as no trace of this format does.
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
    /// The next record.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged; the text says where.
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

    /// What was noticed so far.
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

/// What a format has kept of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// It was written at all.
    pub(crate) anything: bool,
    pub(crate) time: bool,
    pub(crate) operation: bool,
    pub(crate) range: bool,
    pub(crate) fua: bool,
    pub(crate) outcome: bool,
    pub(crate) latency: bool,
}

impl Kept {
    /// It has no place in the format.
    pub(crate) fn nothing() -> Self {
        Self { anything: false, time: false, operation: false, range: false, ..Self::range() }
    }

    /// Time, operation and range.
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

/// Something that a format has no place for, and of how many requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Requests of this kind are left out.
    LeftOut(Operation),
    /// Times are rounded down.
    Time,
    /// Another operation stands for it.
    Operation,
    /// Ranges are rounded to blocks or sectors, or cut into blocks.
    Range,
    /// That it was to be durable before its answer.
    Fua,
    /// Which way it went.
    Outcome,
    /// How long it took, or a part of that below the unit of the format.
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

/// What became of the records that were written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Records that are in the new trace, at least in part.
    pub records: u64,
    /// What was lost, and of how many requests.
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

/// A trace to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTrace {
    /// In this format,
    pub format: Format,
    /// with these options,
    pub options: Options,
    /// which says this of itself, if the format has a place for it.
    pub header: Header,
}

enum Output {
    Forebay(native::Writer<Box<dyn Write>>),
    Other(Box<dyn RecordWriter>, Box<dyn Write>),
}

/// A trace that is written.
pub struct Sink {
    output: Output,
    tally: Tally,
}

/// Begins to write a trace.
///
/// # Errors
/// It cannot be written.
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
    /// It cannot be written.
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

    /// Notes that so many records were lost before.
    pub fn lose(&mut self, records: u64) {
        if let Output::Forebay(writer) = &mut self.output {
            writer.lose(records);
        }
    }

    /// Ends the trace; what became of the records.
    ///
    /// # Errors
    /// It cannot be written.
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
