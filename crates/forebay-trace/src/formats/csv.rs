//! Text for libCacheSim's csv reader: `time,obj_id,obj_size,op` with a heading. An object is a
//! block, so a request of several blocks is several lines; its time is whole seconds, the unit of
//! libCacheSim.
//!
//! Its parameters are `time-col=1,obj-id-col=2,obj-size-col=3,delimiter=,,has-header=true`.

use super::{Parsed, RecordWriter, TextFormat};
use crate::error::TraceError;
use crate::format::{Kept, Options};
use crate::lines::Line;
use crate::record::{Operation, Record};
use std::io::Write;

pub(crate) struct Csv {
    pub(crate) id_bytes: u64,
    headed: bool,
}

impl Csv {
    pub(crate) fn new(options: &Options) -> Self {
        Self { id_bytes: options.id_bytes, headed: false }
    }
}

impl TextFormat for Csv {
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError> {
        let fields = line.by_commas();
        let time = line.field(&fields, 0, "time")?;
        if line.number == 1 && time.text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
            return Ok(Parsed::Other);
        }
        let at = time.seconds("a time")?;
        let offset = line.field(&fields, 1, "object")?.scaled(self.id_bytes, "an object's number")?;
        let size = line.field(&fields, 2, "size")?;
        let len = size.number("a size")?;
        let operation = match fields.get(3).map(|field| field.text) {
            None | Some("" | "read" | "get" | "gets" | "r" | "R") => Operation::Read,
            Some("write" | "set" | "w" | "W") => Operation::Write,
            Some(_) => return Err(fields[3].bad("an operation is read or write")),
        };
        if len == 0 {
            return Ok(Parsed::Empty);
        }
        Ok(Parsed::Request(Record::new(at, operation, offset, len).checked(size.place())?, None))
    }
}

impl RecordWriter for Csv {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        self.head(to)?;
        let operation = match record.operation {
            Operation::Read => "read",
            Operation::Write => "write",
            _ => return Ok(Kept::nothing()),
        };
        let (seconds, unit) = (record.at_ns / 1_000_000_000, self.id_bytes);
        let blocks = blocks_of(record, unit);
        for block in blocks.clone() {
            writeln!(to, "{seconds},{block},{unit},{operation}")?;
        }
        Ok(kept_as_blocks(record, unit))
    }

    fn finish(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        self.head(to)
    }
}

impl Csv {
    fn head(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        if !std::mem::replace(&mut self.headed, true) {
            writeln!(to, "time,obj_id,obj_size,op")?;
        }
        Ok(())
    }
}

/// Returns the blocks that a request touches.
pub(super) fn blocks_of(record: &Record, unit: u64) -> std::ops::Range<u64> {
    record.offset / unit..(record.offset + record.len).div_ceil(unit)
}

/// Returns the parts kept of a request that becomes one object per block.
pub(super) fn kept_as_blocks(record: &Record, unit: u64) -> Kept {
    let range = record.offset.is_multiple_of(unit) && record.len == unit;
    Kept { range, time: record.at_ns.is_multiple_of(1_000_000_000), ..Kept::range() }
}
