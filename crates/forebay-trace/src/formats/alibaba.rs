//! Block traces of Alibaba's cloud (<https://github.com/alibaba/block-traces>): lines of
//! `device_id,opcode,offset,length,timestamp`; opcode `R` or `W`, bytes, microseconds.

use super::{Parsed, RecordWriter, TextFormat};
use crate::error::TraceError;
use crate::format::Kept;
use crate::lines::Line;
use crate::record::{Operation, Record};
use std::io::Write;

pub(crate) struct Alibaba;

impl TextFormat for Alibaba {
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError> {
        let fields = line.by_commas();
        let device = line.field(&fields, 0, "device")?;
        if line.number == 1 && device.text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
            return Ok(Parsed::Other);
        }
        let opcode = line.field(&fields, 1, "opcode")?;
        let operation = match opcode.text {
            "R" | "r" => Operation::Read,
            "W" | "w" => Operation::Write,
            _ => return Err(opcode.bad("an opcode is R or W")),
        };
        let offset = line.field(&fields, 2, "offset")?.number("an offset")?;
        let length = line.field(&fields, 3, "length")?;
        let at = line.field(&fields, 4, "timestamp")?.scaled(1000, "a timestamp")?;
        let len = length.number("a length")?;
        if len == 0 {
            return Ok(Parsed::Empty);
        }
        let record = Record::new(at, operation, offset, len).checked(length.place())?;
        Ok(Parsed::Request(record, Some(device.text.to_owned())))
    }
}

impl RecordWriter for Alibaba {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        let opcode = match record.operation {
            Operation::Read => 'R',
            Operation::Write => 'W',
            _ => return Ok(Kept::nothing()),
        };
        let Record { at_ns, offset, len, .. } = record;
        writeln!(to, "0,{opcode},{offset},{len},{}", at_ns / 1000)?;
        Ok(Kept { time: at_ns.is_multiple_of(1000), ..Kept::range() })
    }
}
