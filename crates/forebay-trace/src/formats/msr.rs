//! Block traces of Microsoft Research, Cambridge (SNIA IOTTA): lines of
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`; times in 100 ns (the timestamp
//! since 1601), offset and size in bytes.

use super::{Parsed, RecordWriter, TextFormat};
use crate::error::TraceError;
use crate::format::Kept;
use crate::lines::Line;
use crate::record::{Operation, Record};
use std::io::Write;

/// Nanoseconds of a tick.
const TICK_NS: u64 = 100;
/// Ticks from 1601 to 1970.
const TICKS_TO_1970: u64 = 116_444_736_000_000_000;

#[derive(Default)]
pub(crate) struct Msr {
    /// Time of the first request since 1970, for writing.
    started_unix_ns: u64,
    /// Ticks of the first request read: nanoseconds since 1601 would overflow.
    origin: Option<u64>,
}

impl Msr {
    /// Creates the format for a trace that began at this time.
    pub(crate) fn starting(started_unix_ns: u64) -> Self {
        Self { started_unix_ns, origin: None }
    }
}

impl TextFormat for Msr {
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError> {
        let fields = line.by_commas();
        let time = line.field(&fields, 0, "timestamp")?;
        if line.number == 1 && time.text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
            return Ok(Parsed::Other);
        }
        let host = line.field(&fields, 1, "hostname")?;
        let disk = line.field(&fields, 2, "disk number")?;
        let kind = line.field(&fields, 3, "type")?;
        let operation = if kind.text.eq_ignore_ascii_case("read") {
            Operation::Read
        } else if kind.text.eq_ignore_ascii_case("write") {
            Operation::Write
        } else {
            return Err(kind.bad("a type is Read or Write"));
        };
        let offset = line.field(&fields, 4, "offset")?.number("an offset")?;
        let size = line.field(&fields, 5, "size")?;
        let len = size.number("a size")?;
        let ticks: u64 = time.number("a timestamp")?;
        // Slightly earlier ones keep their distance to the first one.
        let origin = *self.origin.get_or_insert(ticks.saturating_sub(1 << 40));
        let at = ticks.saturating_sub(origin).checked_mul(TICK_NS);
        let at = at.ok_or_else(|| time.bad("a timestamp is 100 ns since 1601"))?;
        if len == 0 {
            return Ok(Parsed::Empty);
        }
        let mut record = Record::new(at, operation, offset, len).checked(size.place())?;
        if fields.len() > 6 {
            record.latency_ns =
                Some(line.field(&fields, 6, "response time")?.scaled(TICK_NS, "a response time")?);
        }
        Ok(Parsed::Request(record, Some(format!("{}.{}", host.text, disk.text))))
    }
}

impl RecordWriter for Msr {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        let kind = match record.operation {
            Operation::Read => "Read",
            Operation::Write => "Write",
            _ => return Ok(Kept::nothing()),
        };
        let Record { at_ns, offset, len, .. } = record;
        let ticks = (self.started_unix_ns / TICK_NS + at_ns / TICK_NS).saturating_add(TICKS_TO_1970);
        let latency = record.latency_ns.unwrap_or(0) / TICK_NS;
        writeln!(to, "{ticks},forebay,0,{kind},{offset},{len},{latency}")?;
        let whole = |ns: u64| ns.is_multiple_of(TICK_NS);
        let latency = record.latency_ns.is_none_or(whole);
        Ok(Kept { time: whole(*at_ns), latency, ..Kept::range() })
    }
}
