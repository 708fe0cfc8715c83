//! Tables and lists that fit the terminal.
//!
//! All tables have one style at every width, that of `lsblk` and `zpool list`: a header in lower
//! case, no ruling lines, two blanks between columns, text to the left, numbers with their units to
//! the right.
//!
//! Invariants
//! - No line is wider than the requested width, if that is [`NARROWEST`] or more.
//! - A number is never truncated or broken. Text is broken between words, and inside a word only if
//!   that is longer than its column.
//! - The names of omitted columns are printed below the table.

use std::fmt;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table as Drawn, Width as ColumnWidth, presets,
};

/// Narrowest supported width.
const NARROWEST: u16 = 40;
/// Width of a terminal that does not report one, such as a serial line.
const UNKNOWN_TERMINAL: u16 = 80;
/// A column of text is at least as wide as its longest word, if that has at most this many
/// characters.
const WORD_MAX: u16 = 20;
/// A column of sentences is at least as wide as this, or as half of the width.
const SENTENCE_MIN: u16 = 40;
/// Blanks between two columns.
const GAP: u16 = 2;
/// Units kept on the line of their number.
const UNITS: [&str; 12] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ns", "µs", "ms", "s", "%"];
/// Non-breaking space.
const FIRM: char = '\u{a0}';

/// Width of a line in columns; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Width(Option<u16>);

impl Width {
    /// Returns the width of the standard output: that of a terminal, else `$COLUMNS` (which `watch`
    /// sets), else no limit, so that a reader of a pipe gets whole lines.
    pub(crate) fn of_stdout() -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        match rustix::termios::tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col == 0 => Self::of(columns.unwrap_or(UNKNOWN_TERMINAL)),
            Ok(size) => Self::of(size.ws_col),
            Err(_) => columns.filter(|columns| *columns > 0).map_or(Self::unlimited(), Self::of),
        }
    }

    /// Returns this width, or [`NARROWEST`] if that is larger.
    pub(crate) fn of(columns: u16) -> Self {
        Self(Some(columns.max(NARROWEST)))
    }

    /// Returns this width, which may be less than [`NARROWEST`], for output next to something else.
    pub(crate) fn exactly(columns: u16) -> Self {
        Self(Some(columns))
    }

    /// Returns no limit.
    pub(crate) fn unlimited() -> Self {
        Self(None)
    }

    /// Returns the columns, if there is a limit.
    pub(crate) fn columns(self) -> Option<u16> {
        self.0
    }
}

/// Content of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Words,
    Sentences,
    Numbers,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    kind: Kind,
    /// The highest rank is omitted first; rank 0 never is.
    rank: u8,
}

impl Column {
    /// A column of words, aligned to the left. It is narrowed if needed.
    pub(crate) const fn text(name: &'static str, rank: u8) -> Self {
        Self { name, kind: Kind::Words, rank }
    }

    /// A column of sentences: other columns are omitted before it becomes too narrow to read.
    pub(crate) const fn sentences(name: &'static str, rank: u8) -> Self {
        Self { name, kind: Kind::Sentences, rank }
    }

    /// A column of numbers, aligned to the right.
    pub(crate) const fn number(name: &'static str, rank: u8) -> Self {
        Self { name, kind: Kind::Numbers, rank }
    }
}

/// A table with a header.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table.
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn add_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| firm(&cell.into())).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Returns the table in lines of at most this width, without a line ending after the last one.
    pub(crate) fn within(&self, width: Width) -> String {
        let sizes = self.sizes(width);
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        while width.columns().is_some_and(|most| !fits(kept.iter().map(|at| sizes[*at].least), most)) {
            let Some(out) = self.least_important(&kept) else { break };
            kept.retain(|at| *at != out);
        }
        let kept_sizes: Vec<Size> = kept.iter().map(|at| sizes[*at]).collect();
        let widths = match width.columns() {
            Some(most) => share(most.saturating_sub(overhead(kept.len()) as u16), &kept_sizes),
            None => kept_sizes.iter().map(|size| size.natural).collect(),
        };
        let mut drawn = self.drawn();
        drawn.set_content_arrangement(ContentArrangement::Dynamic);
        for (at, column) in drawn.column_iter_mut().enumerate() {
            let position = kept.iter().position(|kept| *kept == at);
            let gap = if position == Some(0) { 0 } else { GAP };
            column.set_padding((gap, 0));
            column.set_constraint(match position {
                Some(position) => ColumnConstraint::Absolute(ColumnWidth::Fixed(widths[position] + gap)),
                None => ColumnConstraint::Hidden,
            });
        }
        let table = soft(&drawn.trim_fmt());
        let out: Vec<&str> =
            (0..self.columns.len()).filter(|at| !kept.contains(at)).map(|at| self.columns[at].name).collect();
        match out.as_slice() {
            [] => table,
            out => format!("{table}\n{}", wrapped(&format!("no room for: {}", out.join(", ")), width)),
        }
    }

    fn least_important(&self, kept: &[usize]) -> Option<usize> {
        let out = kept.iter().copied().max_by_key(|at| self.columns[*at].rank)?;
        (self.columns[out].rank > 0).then_some(out)
    }

    fn drawn(&self) -> Drawn {
        let mut drawn = Drawn::new();
        drawn.load_style(presets::NOTHING).set_header(self.columns.iter().map(|column| column.name));
        drawn.add_rows(&self.rows);
        for at in (0..self.columns.len()).filter(|at| self.columns[*at].kind == Kind::Numbers) {
            if let Some(column) = drawn.column_mut(at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        drawn
    }

    /// Returns the preferred and minimum width of each column.
    fn sizes(&self, width: Width) -> Vec<Size> {
        let half = width.columns().unwrap_or(u16::MAX) / 2;
        let natural = self.drawn().column_max_content_widths();
        let words = |text: &str| text.split(' ').map(widest).max().unwrap_or(0);
        let size = |(at, column): (usize, &Column)| {
            let header = words(column.name);
            let cells = self.rows.iter().map(|row| &row[at]);
            let least = match column.kind {
                Kind::Words => cells.map(|cell| words(cell)).max().unwrap_or(0).min(WORD_MAX),
                Kind::Sentences => natural[at].min(SENTENCE_MIN).min(half),
                Kind::Numbers => cells.map(|cell| widest(cell)).max().unwrap_or(0),
            };
            Size { natural: natural[at], least: least.max(header).max(1) }
        };
        self.columns.iter().enumerate().map(size).collect()
    }
}

/// Fits the standard output.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.within(Width::of_stdout()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Size {
    natural: u16,
    least: u16,
}

/// Returns the number of blanks between so many columns.
fn overhead(columns: usize) -> u32 {
    u32::from(GAP) * (columns as u32).saturating_sub(1)
}

fn fits(least: impl ExactSizeIterator<Item = u16>, most: u16) -> bool {
    let between = overhead(least.len());
    least.map(u32::from).sum::<u32>() + between <= u32::from(most)
}

/// Distributes width: each column gets its minimum, then the narrowest that prefer more get it.
fn share(room: u16, sizes: &[Size]) -> Vec<u16> {
    let mut widths: Vec<u16> = sizes.iter().map(|size| size.least.min(size.natural)).collect();
    let mut left = room.saturating_sub(widths.iter().sum());
    while left > 0 {
        let narrow = widths.iter_mut().zip(sizes).filter(|(width, size)| **width < size.natural);
        let Some((width, _)) = narrow.min_by_key(|(width, _)| **width) else { break };
        *width += 1;
        left -= 1;
    }
    widths
}

/// Returns the width of the widest line in terminal columns.
pub(crate) fn widest(text: &str) -> u16 {
    let mut cell = Drawn::new();
    cell.add_row([text]);
    if text.is_empty() { 0 } else { cell.column_max_content_widths().first().copied().unwrap_or(0) }
}

/// Keeps numbers and their units, and the parts of a duration, on one line.
fn firm(text: &str) -> String {
    let mut firm = String::with_capacity(text.len());
    for (index, word) in text.split(' ').enumerate() {
        let digit = |c: char| c.is_ascii_digit();
        let unit = word.split(|c: char| !c.is_alphanumeric() && c != '%').next().unwrap_or_default();
        let before = firm.rsplit([' ', FIRM]).next().unwrap_or_default();
        let is_part = |word: &str| {
            let word = word.trim_end_matches([',', ';', '.', ')']);
            word.starts_with(digit)
                && word.trim_start_matches(digit).len() == 1
                && word.ends_with(['d', 'h', 'm', 's'])
        };
        let joins = before.ends_with(digit) && UNITS.contains(&unit) || is_part(before) && is_part(word);
        if index > 0 {
            firm.push(if joins { FIRM } else { ' ' });
        }
        firm += word;
    }
    firm
}

/// Returns the text as printed.
fn soft(text: &str) -> String {
    text.replace(FIRM, " ")
}

/// Wraps text between words into lines of at most this width, without a line ending after the last
/// one.
pub(crate) fn wrapped(text: &str, width: Width) -> String {
    let mut cell = Drawn::new();
    cell.load_style(presets::NOTHING).add_row([firm(text)]);
    if let Some(most) = width.columns() {
        cell.set_content_arrangement(ContentArrangement::Dynamic).set_width(most);
    }
    if let Some(column) = cell.column_mut(0) {
        column.set_padding((0, 0));
    }
    soft(&cell.trim_fmt())
}

/// A list of names and values without ruling lines.
#[derive(Debug, Default)]
pub(crate) struct List(Vec<[String; 2]>);

impl List {
    /// Returns an empty list.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, name: &str, value: String) {
        self.0.push([name.to_owned(), firm(&value)]);
    }

    /// Returns the list in lines of at most this width, each with its line ending.
    pub(crate) fn within(&self, width: Width) -> String {
        let names = self.0.iter().map(|[name, _]| widest(name)).max().unwrap_or(0);
        let mut drawn = Drawn::new();
        drawn.load_style(presets::NOTHING);
        drawn.add_rows(&self.0);
        if let Some(most) = width.columns() {
            drawn.set_content_arrangement(ContentArrangement::Dynamic).set_width(most);
            if let Some(column) = drawn.column_mut(0) {
                column.set_constraint(ColumnConstraint::Absolute(ColumnWidth::Fixed(names + 2)));
            }
        }
        format!("{}\n", soft(&drawn.trim_fmt()))
    }
}

/// Fits the standard output.
impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.within(Width::of_stdout()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rich() -> Table {
        let mut table = Table::new([
            Column::text("volume", 0),
            Column::number("dirty", 0),
            Column::number("oldest dirty", 1),
            Column::text("what", 2),
        ]);
        table.add_row(["database", "1,234.5 GiB", "1h 02m 03s", "a sentence of many words that goes on"]);
        table.add_row(["a-name-that-is-longer-than-any-name-should-be", "0 B", "-", ""]);
        table
    }

    #[test]
    fn tables_fit_and_numbers_stay_whole() {
        for width in NARROWEST..220 {
            let text = rich().within(Width::of(width));
            assert!(text.lines().all(|line| widest(line) <= width), "{width}:\n{text}");
            assert!(text.contains("1,234.5 GiB"), "{width}:\n{text}");
        }
    }

    #[test]
    fn the_least_important_column_goes_first() {
        let text = rich().within(Width::of(50));
        assert!(text.ends_with("no room for: what") && text.contains("1h 02m 03s"), "{text}");
        assert!(!rich().within(Width::unlimited()).contains("no room"));
    }

    #[test]
    fn tables_have_one_style_at_every_width() {
        let mut table = Table::new([Column::text("name", 0), Column::number("size", 0)]);
        table.add_row(["a", "1.0 GiB"]);
        table.add_row(["bcdef", "0 B"]);
        let text = "name      size\na      1.0 GiB\nbcdef      0 B";
        for width in [Width::of(40), Width::of(200), Width::unlimited()] {
            assert_eq!(table.within(width), text, "{width:?}");
        }
    }

    #[test]
    fn a_number_and_its_unit_stay_together() {
        for text in ["  bytes", "a 1 B/s b", "(0 B/s), 5 µs; 1h 02m 03s", "", "x  y", "p99 s3"] {
            assert_eq!(soft(&firm(text)), text);
        }
        assert_eq!(
            firm("was 1.0 GiB, for 1m 02s (99 %) in 3 ranges"),
            "was 1.0\u{a0}GiB, for 1m\u{a0}02s (99\u{a0}%) in 3 ranges"
        );
    }

    #[test]
    fn a_list_keeps_its_values_in_their_column() {
        let mut list = List::new();
        list.add("state", "one two three four five six seven eight nine ten".into());
        assert_eq!(
            list.within(Width::of(40)),
            " state  one two three four five six\n        seven eight nine ten\n"
        );
    }

    #[test]
    fn text_is_broken_between_words() {
        let text = wrapped("one two three four five six seven eight nine", Width::of(40));
        assert_eq!(text, "one two three four five six seven eight\nnine");
    }
}
