//! fio's I/O log, version 3 (written by fio 3.31 and later, replayed with `--read_iolog`): after a
//! first line, `TIME FILE ACTION [OFFSET LENGTH]`. Times are microseconds, as fio writes and
//! replays them.

use super::{Parsed, RecordWriter, TextFormat};
use crate::error::{Place, TraceError};
use crate::format::Kept;
use crate::lines::Line;
use crate::record::{Operation, Record};
use std::io::Write;

/// The first line.
const HEAD: &str = "fio version 3 iolog";
/// The file name in the log; fio's `--replay_redirect` substitutes another one.
const FILE: &str = "/dev/volume";

#[derive(Default)]
pub(crate) struct Iolog {
    headed: bool,
    last_us: u64,
}

impl TextFormat for Iolog {
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError> {
        if !self.headed {
            self.headed = true;
            if line.text.trim_end() == HEAD {
                return Ok(Parsed::Other);
            }
            let what = format!("this is no log of fio in version 3: it begins with \"{HEAD}\"");
            return Err(TraceError::bad(line.place(0), what));
        }
        let words = line.words();
        let at = line.field(&words, 0, "time")?.scaled(1000, "a time")?;
        let file = line.field(&words, 1, "file")?.text.to_owned();
        let action = line.field(&words, 2, "action")?;
        let operation = match action.text {
            "add" | "open" | "close" | "wait" => return Ok(Parsed::Other),
            "sync" | "datasync" => {
                return Ok(Parsed::Request(Record::new(at, Operation::Flush, 0, 0), Some(file)));
            }
            "read" => Operation::Read,
            "write" => Operation::Write,
            "trim" => Operation::Discard,
            _ => {
                return Err(
                    action.bad("an action is add, open, close, wait, read, write, sync, datasync or trim")
                );
            }
        };
        let offset = line.field(&words, 3, "offset")?.number("an offset")?;
        let length = line.field(&words, 4, "length")?;
        let len = length.number("a length")?;
        if len == 0 {
            return Ok(Parsed::Empty);
        }
        Ok(Parsed::Request(Record::new(at, operation, offset, len).checked(length.place())?, Some(file)))
    }
}

impl RecordWriter for Iolog {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        self.head(to)?;
        let (Record { at_ns, offset, len, .. }, us) = (record, record.at_ns / 1000);
        self.last_us = self.last_us.max(us);
        let mut kept = Kept { time: at_ns.is_multiple_of(1000), ..Kept::range() };
        match record.operation {
            Operation::Read => writeln!(to, "{us} {FILE} read {offset} {len}")?,
            Operation::Write => writeln!(to, "{us} {FILE} write {offset} {len}")?,
            Operation::Discard => writeln!(to, "{us} {FILE} trim {offset} {len}")?,
            Operation::Flush => writeln!(to, "{us} {FILE} sync 0 0")?,
            Operation::WriteZeroes => {
                writeln!(to, "{us} {FILE} trim {offset} {len}")?;
                kept.operation = false;
            }
        }
        Ok(kept)
    }

    fn finish(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        self.head(to)?;
        Ok(writeln!(to, "{} {FILE} close", self.last_us)?)
    }
}

impl Iolog {
    fn head(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        if !std::mem::replace(&mut self.headed, true) {
            writeln!(to, "{HEAD}\n0 {FILE} add\n0 {FILE} open")?;
        }
        Ok(())
    }
}

/// Returns the error for a log without a first line.
pub(crate) fn empty() -> TraceError {
    TraceError::bad(
        Place::Line { line: 1, column: 1 },
        format!("this is no log of fio: there is no \"{HEAD}\""),
    )
}
