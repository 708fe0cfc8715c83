//! The output of blkparse for the kernel's block traces, in its default format: `DEVICE CPU
//! SEQUENCE SECONDS PID ACTION FLAGS SECTOR + COUNT [PROCESS]`. Requests are the events `Q`
//! (queued); other lines are skipped. Sectors have 512 bytes.

use super::{Parsed, RecordWriter, TextFormat};
use crate::error::TraceError;
use crate::format::Kept;
use crate::lines::{Field, Line};
use crate::record::{Operation, Record};
use std::io::Write;

const SECTOR: u64 = 512;

#[derive(Default)]
pub(crate) struct Blkparse {
    written: u64,
}

/// Returns true for a device as at the start of an event line: `8,0`.
fn is_device(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| digits(major) && digits(minor))
}

/// Parses the flags. Returns the operation, and whether the request is durable before the reply;
/// `None` if the flags are not those of a request.
fn operation(flags: &Field<'_>) -> Result<Option<(Operation, bool)>, TraceError> {
    let text = flags.text;
    // An F before the kind is a preceding flush; one after it requests durability.
    let kind = text.strip_prefix('F').unwrap_or(text);
    let fua = kind.get(1..).is_some_and(|rest| rest.contains('F'));
    Ok(match kind.bytes().next() {
        Some(b'R') => Some((Operation::Read, false)),
        Some(b'W') => Some((Operation::Write, fua)),
        Some(b'D') => Some((Operation::Discard, false)),
        Some(b'N') if text.starts_with('F') => Some((Operation::Flush, false)),
        Some(b'F') | None if !text.is_empty() => Some((Operation::Flush, false)),
        Some(b'N') => None,
        _ => return Err(flags.bad("flags begin with R, W, D, F or N")),
    })
}

impl TextFormat for Blkparse {
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError> {
        let words = line.words();
        let device = words[0].text;
        if !is_device(device) {
            return Ok(Parsed::Other);
        }
        let time = line.field(&words, 3, "time")?.seconds("a time")?;
        if line.field(&words, 5, "action")?.text != "Q" {
            return Ok(Parsed::Other);
        }
        let Some((operation, fua)) = operation(&line.field(&words, 6, "flags")?)? else {
            return Ok(Parsed::Other);
        };
        let device = Some(device.to_owned());
        if operation == Operation::Flush {
            return Ok(Parsed::Request(Record::new(time, operation, 0, 0), device));
        }
        let offset = line.field(&words, 7, "sector")?.scaled(SECTOR, "a sector")?;
        let plus = line.field(&words, 8, "\"+\"")?;
        if plus.text != "+" {
            return Err(plus.bad("a + stands between sector and count"));
        }
        let count = line.field(&words, 9, "count")?;
        let len = count.scaled(SECTOR, "a count")?;
        if len == 0 {
            return Ok(Parsed::Empty);
        }
        let record = Record { fua, ..Record::new(time, operation, offset, len) };
        Ok(Parsed::Request(record.checked(count.place())?, device))
    }
}

impl RecordWriter for Blkparse {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        let flags = match record.operation {
            Operation::Read => "R",
            Operation::Write if record.fua => "WFS",
            Operation::Write => "W",
            Operation::Flush => "FN",
            Operation::Discard | Operation::WriteZeroes => "D",
        };
        self.written += 1;
        let first = record.offset / SECTOR;
        let count = (record.offset + record.len).div_ceil(SECTOR) - first;
        let (seconds, ns) = (record.at_ns / 1_000_000_000, record.at_ns % 1_000_000_000);
        let number = self.written;
        write!(to, "  8,0    0 {number:8} {seconds:5}.{ns:09} {:5}  Q {flags:>3} ", 1)?;
        if record.operation != Operation::Flush {
            write!(to, "{first} + {count} ")?;
        }
        writeln!(to, "[forebay]")?;
        let range = record.offset.is_multiple_of(SECTOR) && record.len.is_multiple_of(SECTOR);
        let operation = record.operation != Operation::WriteZeroes;
        let fua = !record.fua || record.operation == Operation::Write;
        Ok(Kept { range, operation, fua, ..Kept::range() })
    }
}
