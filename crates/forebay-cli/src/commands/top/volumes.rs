//! The volumes on the screen of `forebay top`: as many columns as fit, the most important first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::state::{Order, State, Volume};
use super::view::{DIM, rate, tight};
use crate::screen::{bytes, harmless, nanos};

/// Maximum width of the column of names.
const NAME_MAX: usize = 20;

/// A column.
struct Column {
    name: &'static str,
    width: u16,
    /// The highest rank is omitted first; rank 0 never is.
    rank: u8,
    /// The sort order by this column.
    order: Option<Order>,
    text: fn(&Volume) -> String,
}

/// After the name, from left to right.
const COLUMNS: [Column; 13] = [
    column("pool", 10, 10, None, |volume| harmless(&volume.pool)),
    column("size", 9, 12, None, |volume| volume.size_bytes.map_or("-".into(), tight)),
    column("mode", 12, 6, None, |volume| harmless(&volume.mode)),
    column("hits", 7, 1, Some(Order::Hits), |volume| {
        volume.hit_ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0))
    }),
    column("reads/s", 8, 2, Some(Order::Requests), |volume| rate(volume.reads_per_s)),
    column("writes/s", 8, 3, None, |volume| rate(volume.writes_per_s)),
    column("read p99", 8, 8, None, |volume| us(volume.read_p99_us)),
    column("write p99", 9, 9, Some(Order::Latency), |volume| us(volume.write_p99_us)),
    column("dirty", 9, 0, Some(Order::Dirty), |volume| tight(volume.dirty_bytes)),
    column("oldest", 7, 4, None, age),
    column("destage/s", 9, 5, None, |volume| {
        volume.destage_per_s.map_or("-".into(), |rate| tight(rate as u64))
    }),
    column("clients", 7, 11, None, |volume| volume.clients.map_or("-".into(), |clients| clients.to_string())),
    column("limited by", 30, 7, None, |volume| harmless(&volume.limited_by)),
];

const fn column(
    name: &'static str,
    width: u16,
    rank: u8,
    order: Option<Order>,
    text: fn(&Volume) -> String,
) -> Column {
    Column { name, width, rank, order, text }
}

impl Column {
    fn is_words(&self) -> bool {
        matches!(self.name, "pool" | "mode" | "limited by")
    }
}

/// Draws as many volumes as there are lines, including the selected one.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, area: Rect) {
    if state.volumes.is_empty() {
        let text = "there are no volumes yet: forebay volume attach NAME --backing URI --export URI";
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let names: Vec<String> = state.volumes.iter().map(name).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(NAME_MAX) as u16;
    let longest = longest.max(8);
    let columns = fitting(area.width, longest);
    let mark = if state.reversed { "▲" } else { "▼" };
    let title = |name: &str, order: Option<Order>| match order == Some(state.order) {
        true => format!("{name}{mark}"),
        false => name.to_owned(),
    };
    let aligned = |column: &Column, text: String| {
        let line = Line::from(text);
        Cell::from(if column.is_words() { line } else { line.right_aligned() })
    };
    let header = std::iter::once(Cell::from(title("volume", Some(Order::Name))))
        .chain(columns.iter().map(|column| aligned(column, title(column.name, column.order))));
    let rows = state.volumes.iter().zip(&names).map(|(volume, name)| {
        let cells = columns.iter().map(|column| aligned(column, (column.text)(volume)));
        let row = Row::new(std::iter::once(Cell::from(name.clone())).chain(cells));
        if volume.state == "serving" { row } else { row.style(Style::new().fg(Color::Red)) }
    });
    let widths = std::iter::once(Constraint::Length(longest))
        .chain(columns.iter().map(|column| Constraint::Length(column.width)));
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::default().with_selected(state.position());
    frame.render_stateful_widget(table, area, &mut selected);
}

/// Returns the columns that fit after a name of this width.
fn fitting(width: u16, name: u16) -> Vec<&'static Column> {
    let mut kept: Vec<&Column> = COLUMNS.iter().collect();
    let needs = |kept: &[&Column]| name + kept.iter().map(|column| column.width + 1).sum::<u16>();
    while needs(&kept) > width {
        let Some(rank) = kept.iter().map(|column| column.rank).max().filter(|rank| *rank > 0) else { break };
        kept.retain(|column| column.rank != rank);
    }
    kept
}

/// Returns the name, marked if the volume is not served, because the name is always visible.
fn name(volume: &Volume) -> String {
    match volume.state.as_str() {
        "serving" => harmless(&volume.name),
        state => format!("{}: {}", harmless(&volume.name), harmless(state)),
    }
}

fn us(us: Option<f64>) -> String {
    us.map_or("-".into(), |us| nanos((us * 1e3) as u64))
}

/// Formats the age with its two largest units.
fn age(volume: &Volume) -> String {
    let Some(seconds) = volume.oldest_s.filter(|_| volume.dirty_bytes > 0).map(|age| age as u64) else {
        return "-".into();
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Describes amount and age of dirty data, as far as it fits.
pub(super) fn dirty(volume: &Volume, width: u16) -> String {
    if volume.dirty_bytes == 0 {
        return "nothing dirty".into();
    }
    let share = volume.dirty_ratio.map_or(String::new(), |ratio| format!(" ({:.1} %)", ratio * 100.0));
    let short = format!("{} dirty{share}", bytes(volume.dirty_bytes));
    let long = format!("{short}, oldest {}", age(volume));
    if long.len() <= usize::from(width) { long } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn important_columns_stay_when_narrow() {
        let names = |width| fitting(width, 7).iter().map(|column| column.name).collect::<Vec<_>>();
        assert_eq!(names(20), ["dirty"]);
        assert_eq!(names(50), ["hits", "reads/s", "writes/s", "dirty"]);
        assert_eq!(names(51), ["hits", "reads/s", "writes/s", "dirty", "oldest"]);
        assert_eq!(names(200).len(), COLUMNS.len());
    }
}
