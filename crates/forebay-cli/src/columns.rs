//! Lines of figures that a watcher prints periodically, below one heading.
//!
//! Invariants
//! - Columns do not move from line to line: their widths depend on the terminal alone.
//! - No line is wider than the terminal. The heading names the omitted columns, and no digit is
//!   cut: a number that is too long for its column is rounded.

use forebay_admin::size::parse_duration;
use std::time::Duration;

use crate::screen::{Width, bytes, count, nanos, wrapped};

/// A column: its name, its width including the blank before it, and its rank: the highest is
/// omitted first, 0 never.
pub(crate) type Column = (&'static str, usize, u8);

/// The columns of a watcher that fit.
pub(crate) struct Columns {
    all: &'static [Column],
    fit: Vec<bool>,
    width: Width,
}

impl Columns {
    /// Returns as many columns as fit, the most important first.
    pub(crate) fn fitting(all: &'static [Column], width: Width) -> Self {
        let mut fit = vec![true; all.len()];
        let wide = |fit: &[bool]| {
            all.iter().zip(fit).filter(|(_, fit)| **fit).map(|(column, _)| column.1).sum::<usize>()
        };
        while width.columns().is_some_and(|most| wide(&fit) > usize::from(most)) {
            let shown = (0..all.len()).filter(|at| fit[*at] && all[*at].2 > 0);
            let Some(out) = shown.max_by_key(|at| all[*at].2) else { break };
            fit[out] = false;
        }
        Self { all, fit, width }
    }

    /// Returns the names of the columns, after those omitted for lack of room.
    pub(crate) fn heading(&self) -> String {
        let out: Vec<&str> =
            self.all.iter().zip(&self.fit).filter(|(_, fit)| !**fit).map(|(column, _)| column.0).collect();
        let out = match out.as_slice() {
            [] => String::new(),
            out => format!("{}\n", wrapped(&format!("no room for: {}", out.join(", ")), self.width)),
        };
        out + &self.row(|at| self.all[at].0.to_owned())
    }

    /// Returns a line.
    pub(crate) fn line(&self, cells: &[Cell]) -> String {
        self.row(|at| cells[at].within(self.all[at].1 - 1))
    }

    fn row(&self, cell: impl Fn(usize) -> String) -> String {
        let cells = (0..self.all.len()).filter(|at| self.fit[*at]).map(|at| {
            let width = self.all[at].1;
            format!("{:>width$}", cell(at))
        });
        cells.collect::<String>() + "\n"
    }
}

/// A formatted number, and its shorter form.
pub(crate) struct Cell {
    text: String,
    rounded: String,
}

impl Cell {
    /// Formats a count.
    pub(crate) fn count(number: u64) -> Self {
        Self { text: count(number), rounded: format!("{:.2e}", number as f64) }
    }

    /// Formats bytes.
    pub(crate) fn bytes(number: u64) -> Self {
        Self::from(bytes(number))
    }

    /// Formats a mean time, if there is one.
    pub(crate) fn nanos(mean: Option<u64>) -> Self {
        mean.map_or_else(
            || Self::from("-".to_owned()),
            |time| Self { text: nanos(time), rounded: format!("{:.0e} s", time as f64 / 1e9) },
        )
    }

    fn within(&self, width: usize) -> String {
        if self.text.chars().count() <= width { self.text.clone() } else { self.rounded.clone() }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { rounded: text.clone(), text }
    }
}

/// Parses the time between two lines: `500ms`, or a bare number of seconds.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u32>() {
        Ok(seconds) => Duration::from_secs(seconds.into()),
        Err(_) => parse_duration(text).map_err(|error| error.to_string())?,
    };
    if duration < Duration::from_millis(10) { Err("at least 10ms".into()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_parse_with_and_without_a_unit() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(interval("0").is_err() && interval("often").is_err());
    }
}
