//! The miss-ratio curve of the selected volume, over the screen of `forebay top`: `m`. It shows the
//! output of `forebay advise` at the time of the request: it changes by the hour.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use super::super::advise;
use super::feed::Advice;
use crate::screen::{Width, harmless, wrapped};

/// Maximum width of the window, including its frame.
const WIDTH_MAX: u16 = 78;

/// Draws the curve over everything else; `None` means that the response has not arrived yet.
pub(super) fn draw(frame: &mut Frame<'_>, advice: Option<&Advice>, area: Rect) {
    let width = area.width.min(WIDTH_MAX);
    let room = Width::of(width.saturating_sub(2));
    let text = match advice {
        None => "the daemon is asked".to_owned(),
        Some(Ok(advice)) => advise::words(advice, room),
        Some(Err(trouble)) => wrapped(&harmless(trouble), room),
    };
    let lines: Vec<Line<'_>> = text.lines().map(Line::raw).collect();
    let height = area.height.min(lines.len() as u16 + 2);
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" miss-ratio curve ").title_bottom(" any key leaves it ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
