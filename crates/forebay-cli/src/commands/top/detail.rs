//! The selected volume on the screen of `forebay top`: latencies of its paths, charts of the last
//! minutes, and, if there is room, heat maps of its latencies.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Sparkline, Table};
use std::collections::VecDeque;

use super::heat;
use super::state::{History, State, Volume};
use super::view::{BOLD, DIM, rate};
use super::volumes::dirty;
use crate::screen::{bytes, count, harmless, nanos};

/// Columns of the latencies, and the width from which the charts are to their right.
const LATENCIES: u16 = 43;
const BESIDE_FROM: u16 = 70;
/// Lines that heat maps need, and those reserved for the rest.
const HEAT_MIN: u16 = 8;
const UPPER_MIN: u16 = 9;
/// From this width on the two heat maps are side by side.
const MAPS_BESIDE_FROM: u16 = 100;

/// Draws the volume.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, volume: &Volume, area: Rect) {
    let block =
        Block::new().borders(Borders::TOP).title(Span::styled(format!(" {} ", harmless(&volume.name)), BOLD));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let heat = inner.height.saturating_sub(UPPER_MIN.max(inner.height * 2 / 5));
    let heat = if heat >= HEAT_MIN { heat } else { 0 };
    let [upper, maps] = Layout::vertical([Constraint::Fill(1), Constraint::Length(heat)]).areas(inner);
    let history = state.history.get(&volume.name);
    if inner.width >= BESIDE_FROM {
        let [left, _, right] =
            Layout::horizontal([Constraint::Length(LATENCIES), Constraint::Length(2), Constraint::Fill(1)])
                .areas(upper);
        draw_latencies(frame, volume, left);
        draw_history(frame, volume, history, right);
    } else {
        let lines = volume.latencies.len() as u16 + 1;
        let [first, rest] =
            Layout::vertical([Constraint::Length(lines.min(upper.height / 2)), Constraint::Fill(1)])
                .areas(upper);
        draw_latencies(frame, volume, first);
        draw_history(frame, volume, history, rest);
    }
    if let Some(history) = history {
        draw_maps(frame, history, maps);
    }
}

fn draw_latencies(frame: &mut Frame<'_>, volume: &Volume, area: Rect) {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let us = |us: Option<f64>| us.map_or("-".into(), |us| nanos((us * 1e3) as u64));
    let rows = volume.latencies.iter().map(|latency| {
        Row::new([
            Cell::from(latency.path.replace('_', " ")),
            right(rate(Some(latency.per_s))),
            right(us(latency.p50_us)),
            right(us(latency.p99_us)),
        ])
    });
    let widths =
        [Constraint::Length(14), Constraint::Length(9), Constraint::Length(9), Constraint::Length(8)];
    let names = ["last 10 s", "per s", "p50", "p99"].iter().enumerate();
    let header =
        names.map(|(index, name)| if index == 0 { Cell::from(*name) } else { right((*name).into()) });
    frame.render_widget(Table::new(rows, widths).header(Row::new(header).style(DIM)), area);
}

fn draw_history(frame: &mut Frame<'_>, volume: &Volume, history: Option<&History>, area: Rect) {
    let [gauge, limit, charts] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let ratio = volume.dirty_ratio.unwrap_or(0.0).clamp(0.0, 1.0);
    frame.render_widget(
        Gauge::default()
            .ratio(ratio)
            .label(dirty(volume, gauge.width))
            .gauge_style(Style::new().fg(Color::Yellow)),
        gauge,
    );
    let limited = if volume.limited_by.is_empty() { "nothing" } else { &volume.limited_by };
    frame.render_widget(Line::from(format!("limited by: {}", harmless(limited))), limit);
    let Some(history) = history else { return };
    let lines = [
        ("reads", &history.reads, Color::Green, count as fn(u64) -> String),
        ("writes", &history.writes, Color::Cyan, count),
        ("destage", &history.destage, Color::Magenta, bytes),
    ];
    // If there are too few lines, the last are left out.
    let shown = usize::from(charts.height).min(lines.len());
    let areas = Layout::vertical(vec![Constraint::Fill(1); shown]).split(charts);
    for ((name, values, colour, text), area) in lines.into_iter().zip(areas.iter().copied()) {
        draw_chart(frame, name, values, (colour, text), area);
    }
}

/// Draws past values as bars, with the maximum as a number.
fn draw_chart(
    frame: &mut Frame<'_>,
    name: &'static str,
    values: &VecDeque<u64>,
    (colour, text): (Color, fn(u64) -> String),
    area: Rect,
) {
    let [label, graph] = Layout::horizontal([Constraint::Length(11), Constraint::Fill(1)]).areas(area);
    let newest = values.len().saturating_sub(usize::from(graph.width));
    let shown: Vec<u64> = values.iter().copied().skip(newest).collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let words = vec![Line::styled(name, DIM), Line::styled(format!("{}/s", text(most)), DIM)];
    frame.render_widget(Paragraph::new(words), label);
    frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(colour)), graph);
}

fn draw_maps(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let areas: [Rect; 2] = if area.width >= MAPS_BESIDE_FROM {
        Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(area)
    } else if area.height >= 2 * HEAT_MIN {
        Layout::vertical([Constraint::Fill(1); 2]).areas(area)
    } else {
        [area, Rect::default()]
    };
    let maps = [("latency of reads", &history.read_spreads), ("latency of writes", &history.write_spreads)];
    for ((title, looks), area) in maps.into_iter().zip(areas) {
        heat::draw(frame, title, looks, area);
    }
}
