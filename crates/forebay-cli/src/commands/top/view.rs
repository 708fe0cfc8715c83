//! The screen of `forebay top`: a line about the daemon, its pools, volumes, the selected one in
//! detail, jobs, alarms, keys.
//!
//! If there are too few lines, the least important are omitted first, from below. Nothing is drawn
//! outside the screen, however small it is. The remaining space of a large screen goes to the
//! details.

use std::time::Instant;

use forebay_admin::PoolInfo;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::state::State;
use super::{curve, detail, help, volumes};
use crate::screen::{self, Width, bytes, count, harmless, wrapped};

/// Minimum number of detail lines of a volume on a screen of 24 lines.
const DETAIL_MIN: u16 = 9;
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, now: Instant) {
    let area = frame.area();
    let most = usize::from(area.height / 6).clamp(3, 12);
    let pools = pool_lines(state, usize::from(area.height / 12).max(1));
    let jobs = listed("job", job_lines(state), most, area.width);
    let alarms = listed("alarm", alarm_lines(state), most, area.width);
    let fixed = 2 + pools.len() + jobs.len() + alarms.len();
    let left = area.height.saturating_sub(fixed as u16);
    let detail_min = if area.height < 24 { DETAIL_MIN - 2 } else { DETAIL_MIN };
    let rows =
        (state.volumes.len() as u16).saturating_add(1).max(2).min(left.saturating_sub(detail_min).max(3));
    let [head, pools_at, volumes_at, detail_at, jobs_at, alarms_at, keys_at] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(pools.len() as u16),
        Constraint::Length(rows),
        Constraint::Fill(1),
        Constraint::Length(jobs.len() as u16),
        Constraint::Length(alarms.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(headline(state, now), head);
    frame.render_widget(Paragraph::new(pools), pools_at);
    volumes::draw(frame, state, volumes_at);
    if let Some(volume) = state.position().and_then(|at| state.volumes.get(at)) {
        detail::draw(frame, state, volume, detail_at);
    }
    frame.render_widget(Paragraph::new(jobs), jobs_at);
    frame.render_widget(Paragraph::new(alarms), alarms_at);
    frame.render_widget(key_line(state, keys_at), keys_at);
    if let Some(advice) = &state.advice {
        curve::draw(frame, advice.as_ref(), area);
    }
    if state.help {
        help::draw(frame, area);
    }
}

fn headline(state: &State, now: Instant) -> Line<'static> {
    let mut spans = vec![Span::styled("forebay", BOLD)];
    if let Some(daemon) = &state.snapshot.daemon {
        let memory = bytes(daemon.resident_bytes);
        spans.push(Span::raw(format!(" {}, {memory} of memory", harmless(&daemon.version))));
    }
    if let Some(trouble) = &state.trouble {
        spans = vec![Span::styled(format!("no answer: {}", harmless(trouble)), BOLD.fg(Color::Red))];
    }
    if state.paused {
        spans.insert(0, Span::styled("paused  ", BOLD.fg(Color::Yellow)));
    } else if let Some(age) = state.age(now) {
        let text = format!("{} old  ", screen::uptime(age.as_secs()));
        spans.insert(0, Span::styled(text, BOLD.fg(Color::Yellow)));
    }
    Line::from(spans)
}

/// Returns the pools, those with problems first; at most `most` lines.
fn pool_lines(state: &State, most: usize) -> Vec<Line<'static>> {
    let mut pools: Vec<(&PoolInfo, Option<Span<'static>>)> =
        state.snapshot.pools.iter().map(|pool| (pool, pool_trouble(pool))).collect();
    pools.sort_by_key(|(_, trouble)| trouble.is_none());
    let hidden = pools.len().saturating_sub(most);
    let mut lines: Vec<Line<'static>> = pools
        .into_iter()
        .take(most)
        .map(|(pool, trouble)| {
            let mut spans = vec![Span::raw(format!("pool {}: ", harmless(&pool.name)))];
            spans.extend(trouble);
            if !pool.is_unknown() {
                let share = screen::percent(pool.cached_bytes, pool.capacity_bytes);
                let (capacity, dirty) = (bytes(pool.capacity_bytes), bytes(pool.dirty_bytes));
                spans.push(Span::raw(format!("{share} of {capacity} used, {dirty} dirty")));
            }
            Line::from(spans)
        })
        .collect();
    if let Some(last) = lines.last_mut().filter(|_| hidden > 0) {
        last.push_span(Span::styled(format!("; {hidden} more"), DIM));
    }
    lines
}

/// Returns the problem of a pool.
fn pool_trouble(pool: &PoolInfo) -> Option<Span<'static>> {
    let (words, colour) = if pool.not_open {
        ("NOT OPEN".into(), Color::Red)
    } else if pool.not_answering {
        ("NOT ANSWERING".into(), Color::Red)
    } else if pool.cache_failed {
        ("CACHE FAILED, ".into(), Color::Red)
    } else if pool.fenced {
        ("FENCED, ".into(), Color::Red)
    } else if pool.lost_bytes > 0 {
        (format!("LOST {}, ", bytes(pool.lost_bytes)), Color::Red)
    } else if pool.mirror == "degraded" {
        ("DEGRADED, ".into(), Color::Yellow)
    } else if pool.mirror.starts_with("rebuilding") {
        (format!("{}, ", harmless(&pool.mirror)), Color::Yellow)
    } else {
        return None;
    };
    Some(Span::styled(words, BOLD.fg(colour)))
}

pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| count(rate.round().max(0.0) as u64))
}

/// Formats bytes without the space, for narrow columns.
pub(super) fn tight(number: u64) -> String {
    bytes(number).replace(' ', "")
}

fn job_lines(state: &State) -> Vec<(String, Style)> {
    let line = |job: &crate::job::Job| {
        let colour = if job.deadline_at_risk || job.errors > 0 {
            Style::new().fg(Color::Yellow)
        } else {
            Style::new()
        };
        (format!("{:<5} {}: {}", harmless(&job.id), job.title(), job.progress()), colour)
    };
    state.snapshot.jobs.iter().map(line).collect()
}

fn alarm_lines(state: &State) -> Vec<(String, Style)> {
    let line = |alarm: &serde_json::Value| {
        let text = |name: &str| harmless(alarm[name].as_str().unwrap_or("-"));
        let known = alarm["acknowledged"]["by"].as_str().map(|by| format!(" (known to {})", harmless(by)));
        let style = match (known.is_some(), alarm["severity"].as_str()) {
            (true, _) => DIM,
            (_, Some("error")) => BOLD.fg(Color::Red),
            _ => Style::new().fg(Color::Yellow),
        };
        (format!("{:<5} {}{}", text("id"), text("message"), known.unwrap_or_default()), style)
    };
    state.snapshot.alarms.iter().map(line).collect()
}

/// Returns a heading with the number of `items`, and as many of them as fit into `most` lines.
/// Longer items wrap.
fn listed(what: &str, items: Vec<(String, Style)>, most: usize, width: u16) -> Vec<Line<'static>> {
    let number = items.len();
    if number == 0 {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let mut shown = 0;
    for (text, style) in items {
        let room = most - 1 - lines.len();
        let item: Vec<String> = wrapped(&text, Width::of(width)).lines().map(str::to_owned).collect();
        if room == 0 || (shown > 0 && item.len() > room) {
            break;
        }
        shown += 1;
        lines.extend(item.into_iter().take(room).map(|line| Line::styled(line, style)));
    }
    let plural = if number == 1 { "" } else { "s" };
    let more = if number > shown { format!(", {} not shown", number - shown) } else { String::new() };
    lines.insert(0, Line::styled(format!("{number} {what}{plural}{more}"), DIM));
    lines
}

/// Returns the longest text that fits.
fn key_line(state: &State, area: Rect) -> Line<'static> {
    let order = format!("{}{}", state.order.name(), if state.reversed { " reversed" } else { "" });
    let texts = [
        format!(
            "q quit  ? help  ↑↓ volume  s order: {order}  r reverse  p {}  a acknowledge",
            if state.paused { "resume" } else { "pause" }
        ),
        format!("q quit  ? help  ↑↓ volume  s order: {order}  p pause"),
        "q quit  ? help  ↑↓  s  r  p  a".to_owned(),
    ];
    let fits = texts.iter().find(|text| text.chars().count() <= usize::from(area.width));
    Line::styled(fits.unwrap_or(&texts[2]).clone(), DIM)
}

#[cfg(test)]
#[path = "tests.rs"]
pub(super) mod tests;
