//! Help on keys and columns: `?` in `forebay top`.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::view::BOLD;

const KEYS: [(&str, &str); 11] = [
    ("q Esc", "quit"),
    ("? h", "show or leave this help"),
    ("up down j k", "select a volume; its details are shown below"),
    ("PgUp PgDn", "ten volumes up or down"),
    ("Home End", "first or last volume"),
    ("s", "next order: name, requests, dirty, hits, latency"),
    ("r", "reverse the order"),
    ("p space", "pause and resume; a paused screen does not change"),
    ("m", "miss-ratio curve of the volume: what other sizes would hit"),
    ("a", "acknowledge the first new alarm"),
    ("Ctrl-C", "quit"),
];
const WORDS: [(&str, &str); 7] = [
    ("hits", "reads that the cache answered"),
    ("dirty", "bytes that only the cache has"),
    ("oldest", "how long the oldest of them has waited"),
    ("destage/s", "bytes written back to the backing store"),
    ("limited by", "what limits the speed of destage"),
    ("p50, p99", "half, and 99 of 100, of the requests took no longer"),
    ("heat maps", "time to the right, latency upwards; darker is more"),
];

/// Draws the help over everything else.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    let line = |(name, words): (&str, &str)| Line::raw(format!("{name:<12} {words}"));
    let mut lines = vec![Line::styled("keys", BOLD)];
    lines.extend(KEYS.map(line));
    lines.push(Line::styled("words", BOLD));
    lines.extend(WORDS.map(line));
    let (width, height) = (area.width.min(72), area.height.min(lines.len() as u16 + 2));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" forebay top ");
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), place);
}
