//! Formatted output: colours (only on a terminal), and numbers; tables are in `table`.

use forebay_admin::MessageId;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::failure::Failure;
pub(crate) use crate::paint::Paint;
pub(crate) use crate::table::{Column, List, Table, Width, wrapped};

/// Writes to stdout and flushes it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    printed(io::stdout().write_all(text.as_bytes()))
}

/// Writes to stdout for a command that prints until it is stopped. If the reader closed the pipe,
/// the process ends with success.
pub(crate) fn print_watched(text: &str) -> Result<(), Failure> {
    let written = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
    printed(written)
}

/// Converts the result of writing to stdout. A reader that closed the pipe early is no failure.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(MessageId::CliOutput, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a JSON document to stdout.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Returns a table with a header. The columns in `right` are numbers, of which the last one is
/// omitted first if there is no room; the others are text.
pub(crate) fn table(header: &[&'static str], right: &[usize]) -> Table {
    let column = |(at, name): (usize, &&'static str)| match right.contains(&at) {
        true => Column::number(name, u8::try_from(at).unwrap_or(u8::MAX)),
        false => Column::text(name, 0),
    };
    Table::new(header.iter().enumerate().map(column).collect::<Vec<_>>())
}

/// Formats `1234567` as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats bytes in the largest binary unit, with one decimal.
pub(crate) fn bytes(number: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// Formats nanoseconds in a suitable unit.
pub(crate) fn nanos(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => format!("{number} ns"),
        1_000..1_000_000 => format!("{:.0} µs", value / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", value / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

/// Returns the present time in seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats seconds as `1h 02m 03s`, from a day on as `1d 02h 03m`.
pub(crate) fn uptime(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (24.., _) => format!("{}d {:02}h {minutes:02}m", hours / 24, hours % 24),
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {:02}s", seconds % 60),
        _ => format!("{hours}h {minutes:02}m {:02}s", seconds % 60),
    }
}

/// Formats a share as a percentage; a dash if `of` is 0.
pub(crate) fn percent(part: u64, of: u64) -> String {
    if of == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / of as f64) }
}

/// Sanitizes external text for a terminal: control characters are escaped.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// As [`harmless`], for several lines: configuration errors are shown with their place.
pub(crate) fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_people_read_them() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([bytes(0), bytes(1023), bytes(1024)], ["0 B", "1023 B", "1.0 KiB"]);
        assert_eq!(
            [bytes((1 << 20) - 1), bytes(3 << 29), bytes(u64::MAX)],
            ["1.0 MiB", "1.5 GiB", "16.0 EiB"]
        );
        assert_eq!(
            [nanos(5), nanos(15_000), nanos(1_500_000), nanos(180_000_000)],
            ["5 ns", "15 µs", "1.50 ms", "180 ms"]
        );
        assert_eq!([uptime(59), uptime(61), uptime(3723)], ["59s", "1m 01s", "1h 02m 03s"]);
        assert_eq!(uptime(90_061), "1d 01h 01m");
        assert_eq!([percent(1, 3), percent(1, 0)], ["33.3 %", "-"]);
    }

    #[test]
    fn text_from_outside_is_escaped() {
        assert_eq!(harmless("db\x1b[31m\n"), "db\\u{1b}[31m\\n");
    }
}
