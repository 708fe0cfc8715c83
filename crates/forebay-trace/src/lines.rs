//! Lines of text and their fields, with the places for errors.

use crate::error::{Place, TraceError};
use std::fmt::Display;
use std::io::{BufRead, Read};
use std::str::FromStr;

/// Longest accepted line, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// The lines of a text.
pub(crate) struct Lines {
    from: Box<dyn BufRead>,
    number: u64,
    bytes: Vec<u8>,
}

/// One line, without its line end.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) number: u64,
}

/// A part of a line.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) text: &'a str,
    place: Place,
}

impl Lines {
    pub(crate) fn new(from: Box<dyn BufRead>) -> Self {
        Self { from, number: 0, bytes: Vec::new() }
    }

    /// Returns the next non-empty line.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>, TraceError> {
        loop {
            self.number += 1;
            self.bytes.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            if self.from.by_ref().take(limit).read_until(b'\n', &mut self.bytes)? == 0 {
                return Ok(None);
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                let place = Place::Line { line: self.number, column: LINE_BYTES_MAX as u64 };
                return Err(TraceError::bad(place, format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            if self.bytes.iter().any(|byte| !byte.is_ascii_whitespace()) {
                break;
            }
        }
        let text = std::str::from_utf8(&self.bytes).map_err(|error| {
            let column = error.valid_up_to() as u64 + 1;
            TraceError::bad(Place::Line { line: self.number, column }, "this is no text")
        })?;
        Ok(Some(Line { text: text.trim_end_matches(['\n', '\r']), number: self.number }))
    }
}

impl<'a> Line<'a> {
    pub(crate) fn place(&self, column: usize) -> Place {
        Place::Line { line: self.number, column: column as u64 + 1 }
    }

    /// Returns its comma-separated fields.
    pub(crate) fn by_commas(self) -> Vec<Field<'a>> {
        let begin = self.text.as_ptr() as usize;
        let field = |text: &'a str| {
            let text = text.trim();
            Field { text, place: self.place(text.as_ptr() as usize - begin) }
        };
        self.text.split(',').map(field).collect()
    }

    /// Returns its words.
    pub(crate) fn words(self) -> Vec<Field<'a>> {
        let begin = self.text.as_ptr() as usize;
        let field = |text: &'a str| Field { text, place: self.place(text.as_ptr() as usize - begin) };
        self.text.split_ascii_whitespace().map(field).collect()
    }

    /// Returns a mandatory field.
    pub(crate) fn field(self, fields: &[Field<'a>], at: usize, name: &str) -> Result<Field<'a>, TraceError> {
        let missing = || TraceError::bad(self.place(self.text.len()), format!("there is no {name}"));
        fields.get(at).copied().filter(|field| !field.text.is_empty()).ok_or_else(missing)
    }
}

impl Field<'_> {
    /// Returns an error at this place.
    pub(crate) fn bad(&self, what: impl Display) -> TraceError {
        TraceError::bad(self.place, format!("\"{}\": {what}", self.text.escape_debug()))
    }

    /// Parses a number.
    pub(crate) fn number<T: FromStr>(&self, what: &str) -> Result<T, TraceError> {
        let digits = !self.text.starts_with('+');
        let number = if digits { self.text.parse().ok() } else { None };
        number.ok_or_else(|| self.bad(format!("{what} is a number")))
    }

    /// Parses seconds with at most nine decimals, as nanoseconds.
    pub(crate) fn seconds(&self, what: &str) -> Result<u64, TraceError> {
        let (whole, part) = self.text.split_once('.').unwrap_or((self.text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let wrong = || self.bad(format!("{what} is seconds, like 1.5"));
        if whole.is_empty() || !digits(whole) || !digits(part) {
            return Err(wrong());
        }
        let part: u64 = format!("{:0<9}", &part[..part.len().min(9)]).parse().map_err(|_| wrong())?;
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        whole.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(part)).ok_or_else(wrong)
    }

    /// Parses a number and multiplies it by a unit.
    pub(crate) fn scaled(&self, unit: u64, what: &str) -> Result<u64, TraceError> {
        let number: u64 = self.number(what)?;
        number.checked_mul(unit).ok_or_else(|| self.bad(format!("{what} is too large")))
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }
}
