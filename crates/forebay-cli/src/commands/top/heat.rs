//! Latency heat maps of `forebay top`: time to the right, latency upwards, and the darker a cell,
//! the more of the requests of that sample had this latency.
//!
//! The daemon reports quantiles, not every request. Between two quantiles, requests are distributed
//! evenly over the logarithm of their latency. Latencies below the median are assumed to be at
//! least half of it.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use serde_json::Value;

use super::view::DIM;
use crate::screen::nanos;

/// Quantiles that the daemon reports, and the fraction of the requests between each and the one
/// before.
const QUANTILES: [(&str, f64); 5] =
    [("p50_us", 0.5), ("p95_us", 0.45), ("p99_us", 0.04), ("p999_us", 0.009), ("max_us", 0.001)];
/// Shades, and the fraction of a sample's requests from which each is used.
const SHADES: [(f64, char, Color); 4] = [
    (0.4, '█', Color::LightRed),
    (0.1, '▓', Color::Yellow),
    (0.02, '▒', Color::Cyan),
    (0.0005, '░', Color::Blue),
];
/// Width of the labels at the left, in columns.
const LABEL: usize = 8;
/// Least and greatest latency of a map, in microseconds, so that it has a scale even with few
/// requests.
const RANGE_US: [f64; 2] = [10.0, 1e8];

/// Latency distribution of a path in one sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spread {
    per_s: f64,
    us: [f64; QUANTILES.len()],
}

impl Spread {
    /// Returns the distribution in the summary of a path; `None` if it had no requests.
    pub(super) fn of(summary: &Value) -> Option<Self> {
        summary["count"].as_u64().filter(|count| *count > 0)?;
        let mut us = [0.0; QUANTILES.len()];
        let mut least = summary[QUANTILES[0].0].as_f64()?;
        for (slot, (name, _)) in us.iter_mut().zip(QUANTILES) {
            least = summary[name].as_f64().unwrap_or(least).max(least);
            *slot = least;
        }
        let per_s = summary["per_s"].as_f64().filter(|rate| *rate > 0.0)?;
        us.iter().all(|us| us.is_finite() && *us > 0.0).then_some(Self { per_s, us })
    }

    /// Adds its requests to the rows of a map.
    fn add_to(&self, rows: &mut [f64], scale: Scale) {
        let mut low = self.us[0] / 2.0;
        for (high, (_, part)) in self.us.into_iter().zip(QUANTILES) {
            let (from, to) = (scale.row(low), scale.row(high));
            let each = self.per_s * part / (to - from + 1) as f64;
            rows[from..=to].iter_mut().for_each(|row| *row += each);
            low = high;
        }
    }
}

/// Range of latencies of a map's rows, upwards.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low_us: f64,
    high_us: f64,
    rows: usize,
}

impl Scale {
    fn of<'a>(spreads: impl Iterator<Item = &'a Spread> + Clone, rows: usize) -> Option<Self> {
        let low = spreads.clone().map(|spread| spread.us[0] / 2.0).reduce(f64::min)?;
        let high = spreads.map(|spread| spread.us[QUANTILES.len() - 1]).reduce(f64::max)?;
        let [least, most] = RANGE_US;
        let low_us = low.clamp(least, most / 10.0);
        Some(Self { low_us, high_us: high.clamp(low_us * 10.0, most), rows })
    }

    fn row(self, us: f64) -> usize {
        let at = (us / self.low_us).ln() / (self.high_us / self.low_us).ln();
        ((at * self.rows as f64).max(0.0) as usize).min(self.rows - 1)
    }

    /// Returns the latency at the upper end of a row.
    fn upper_us(self, row: usize) -> f64 {
        self.low_us * (self.high_us / self.low_us).powf((row + 1) as f64 / self.rows as f64)
    }
}

/// Draws a map of the newest samples.
pub(super) fn draw(frame: &mut Frame<'_>, title: &str, looks: &VecDeque<Vec<Spread>>, area: Rect) {
    let width = usize::from(area.width).saturating_sub(LABEL + 1);
    let rows = usize::from(area.height).saturating_sub(1);
    if width == 0 || rows < 2 {
        return;
    }
    let shown: Vec<&Vec<Spread>> = looks.iter().skip(looks.len().saturating_sub(width)).collect();
    let mut lines = vec![Line::styled(title.to_owned(), DIM)];
    match Scale::of(shown.iter().flat_map(|look| look.iter()), rows) {
        Some(scale) => lines.extend(map(&shown, scale)),
        None => lines.push(Line::raw("no requests yet")),
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the rows of a map, the slowest first, each with the latency at its upper end.
fn map(looks: &[&Vec<Spread>], scale: Scale) -> Vec<Line<'static>> {
    let columns: Vec<Vec<f64>> = looks
        .iter()
        .map(|look| {
            let mut rows = vec![0.0; scale.rows];
            look.iter().for_each(|spread| spread.add_to(&mut rows, scale));
            let all: f64 = rows.iter().sum();
            rows.iter().map(|row| if all > 0.0 { row / all } else { 0.0 }).collect()
        })
        .collect();
    let line = |row: usize| {
        let label = nanos((scale.upper_us(row) * 1e3) as u64);
        let label = Span::styled(format!("{label:>LABEL$} "), DIM);
        let cells = columns.iter().map(|column| cell(column[row]));
        Line::from(std::iter::once(label).chain(cells).collect::<Vec<_>>())
    };
    (0..scale.rows).rev().map(line).collect()
}

fn cell(part: f64) -> Span<'static> {
    match SHADES.iter().find(|(from, ..)| part >= *from) {
        Some((_, shade, colour)) => Span::styled(shade.to_string(), Style::new().fg(*colour)),
        None => Span::raw(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_spread_over_latency_rows() {
        let summary = json!({ "count": 9, "per_s": 100.0, "p50_us": 100.0, "p95_us": 200.0, "p99_us": 1000.0,
            "p999_us": 5000.0, "max_us": 50_000.0 });
        let spread = Spread::of(&summary).unwrap();
        let scale = Scale::of([spread].iter(), 10).unwrap();
        let mut rows = vec![0.0; 10];
        spread.add_to(&mut rows, scale);
        assert!((rows.iter().sum::<f64>() - 100.0).abs() < 1e-9, "{rows:?}");
        assert_eq!((scale.row(50.0), scale.row(50_000.0)), (0, 9));
        assert!(rows[0] + rows[1] > 50.0 && rows[9] > 0.0, "{rows:?}");
    }

    #[test]
    fn invalid_histograms_give_no_spread() {
        for summary in [
            json!({}),
            json!({ "count": 0, "per_s": 1.0, "p50_us": 1.0 }),
            json!({ "count": 1, "per_s": 1.0, "p50_us": -1.0 }),
            json!({ "count": 1, "p50_us": 1.0 }),
        ] {
            assert_eq!(Spread::of(&summary), None, "{summary}");
        }
        let falling = json!({ "count": 1, "per_s": 1.0, "p50_us": 9.0, "p95_us": 3.0 });
        assert_eq!(Spread::of(&falling).unwrap().us, [9.0; 5]);
    }
}
