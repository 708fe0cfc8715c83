//! Records as bytes, before packing.
//!
//! Each has a byte (bits 0-2 operation, 3-5 outcome, 6 a latency follows, 7 durable before the
//! reply) and numbers in LEB128: its time less that of the record before, its offset less the end
//! of the record before (both with the sign in the lowest bit), its length, and its latency. The
//! predecessor of a block's first record counts as one at time 0 that ends at byte 0. A flush has
//! no offset and no length.

use crate::error::{Place, TraceError};
use crate::record::{Operation, Outcome, Record};

/// The base of differences.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    at_ns: u64,
    end: u64,
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends the difference of two numbers, short if they are close; wraps around.
fn put_difference(bytes: &mut Vec<u8>, number: u64, before: u64) {
    let difference = number.wrapping_sub(before) as i64;
    put(bytes, (difference << 1 ^ difference >> 63) as u64);
}

/// Appends a record.
pub(super) fn encode(bytes: &mut Vec<u8>, record: &Record, before: &mut Before) {
    let operation = Operation::ALL.iter().position(|one| *one == record.operation).unwrap_or(0) as u8;
    let outcome = Outcome::ALL.iter().position(|one| *one == record.outcome).unwrap_or(0) as u8;
    let latency = u8::from(record.latency_ns.is_some());
    bytes.push(operation | outcome << 3 | latency << 6 | u8::from(record.fua) << 7);
    put_difference(bytes, record.at_ns, before.at_ns);
    before.at_ns = record.at_ns;
    if record.operation != Operation::Flush {
        put_difference(bytes, record.offset, before.end);
        put(bytes, record.len);
        before.end = record.end();
    }
    if let Some(latency) = record.latency_ns {
        put(bytes, latency);
    }
}

/// A decoder of numbers from a slice.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn difference(&mut self, before: u64) -> Option<u64> {
        let number = self.number()?;
        Some(before.wrapping_add(number >> 1 ^ (number & 1).wrapping_neg()))
    }

    fn record(&mut self, before: &mut Before) -> Option<Record> {
        let tag = self.byte()?;
        let operation = *Operation::ALL.get(usize::from(tag & 7))?;
        let outcome = *Outcome::ALL.get(usize::from(tag >> 3 & 7))?;
        let at_ns = self.difference(before.at_ns)?;
        let mut record = Record { outcome, fua: tag & 0x80 != 0, ..Record::new(at_ns, operation, 0, 0) };
        if operation != Operation::Flush {
            record.offset = self.difference(before.end)?;
            record.len = self.number()?;
        }
        if tag & 0x40 != 0 {
            record.latency_ns = Some(self.number()?);
        }
        Some(record)
    }
}

/// Appends all records of a block to `into`. `at`: place of the block in the file, in bytes.
pub(super) fn decode(bytes: &[u8], count: u32, at: u64, into: &mut Vec<Record>) -> Result<(), TraceError> {
    let (mut numbers, mut before) = (Numbers(bytes), Before::default());
    for _ in 0..count {
        let record = numbers.record(&mut before);
        let record = record.ok_or_else(|| TraceError::bad(Place::Byte(at), "a garbled record"))?;
        let record = record.checked(Place::Byte(at))?;
        before = Before {
            at_ns: record.at_ns,
            end: if record.operation == Operation::Flush { before.end } else { record.end() },
        };
        into.push(record);
    }
    if numbers.0.is_empty() {
        Ok(())
    } else {
        Err(TraceError::bad(Place::Byte(at), "a block has more bytes than records"))
    }
}
