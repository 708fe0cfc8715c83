//! Metrics for Prometheus: families of samples, and the two texts in which they are written, the
//! text format 0.0.4 and OpenMetrics 1.0 (both according to their specifications).
//!
//! Invariants
//! - A series has the same name and labels in both texts, down to the bounds of its buckets.
//! - All characters of a volume's name are escaped: a label cannot end early.
//! - A family without samples is not written.

use forebay_admin::MetricsForm;
use std::fmt::Write;

/// Names and values of labels, in the order of output.
pub type Labels = Vec<(&'static str, String)>;

/// How a value of a family behaves over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self(Number::Whole(value))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self(Number::Real(value))
    }
}

/// The value of a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Value(Number);

#[derive(Clone, PartialEq, Debug)]
struct Sample {
    suffix: &'static str,
    labels: Labels,
    value: Value,
}

/// A metric: all series of one name.
#[derive(Clone, PartialEq, Debug)]
pub struct Family {
    /// Without the suffixes of counters, infos and histograms.
    name: String,
    help: String,
    kind: Kind,
    samples: Vec<Sample>,
}

impl Family {
    fn new(kind: Kind, name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { name: name.into(), help: help.into(), kind, samples: Vec::new() }
    }

    /// A number that only grows; its series end in `_total`.
    pub fn counter(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Kind::Counter, name, help)
    }

    /// A current value.
    pub fn gauge(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Kind::Gauge, name, help)
    }

    /// Counts by upper bound.
    pub fn histogram(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Kind::Histogram, name, help)
    }

    /// Words, as labels of the value 1; its series end in `_info`.
    pub fn info(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Kind::Info, name, help)
    }

    /// True if its name is this one, without the suffixes of counters, infos and histograms.
    pub fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Names of its series, without labels.
    #[must_use]
    pub fn series(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind {
            Kind::Counter => &["_total"],
            Kind::Info => &["_info"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }

    /// Returns how its name breaks the conventions of Prometheus; `None` if it keeps them: words in
    /// lower case, base units alone and last, suffixes of kinds left to the kind.
    #[must_use]
    pub fn unconventional(&self) -> Option<String> {
        const SUFFIXES: [&str; 5] = ["total", "info", "bucket", "sum", "count"];
        const OTHER_UNITS: [&str; 23] = [
            "block",
            "blocks",
            "sector",
            "sectors",
            "page",
            "pages",
            "kib",
            "mib",
            "gib",
            "kb",
            "mb",
            "gb",
            "ns",
            "us",
            "ms",
            "minutes",
            "hours",
            "days",
            "pct",
            "percent",
            "nanoseconds",
            "microseconds",
            "milliseconds",
        ];
        let words: Vec<&str> = self.name.split('_').collect();
        let (last, before) = words.split_last()?;
        let spelled = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let of_blocks = self.name.ends_with("_block_bytes");
        let base = |word: &&str| matches!(*word, "bytes" | "seconds" | "ratio");
        let rate = self.name.ends_with("_bytes_per_second") && self.kind == Kind::Gauge;
        let wrong = |what: &str| Some(format!("{}: {what}", self.name));
        if words.len() < 2 || !words.iter().all(|word| spelled(word)) {
            return wrong("words in lower case with _ between them");
        }
        if SUFFIXES.contains(last) {
            return wrong("the kind adds this suffix");
        }
        if words.iter().any(|word| OTHER_UNITS.contains(word)) && !of_blocks {
            return wrong("a unit other than bytes, seconds and ratio");
        }
        if self.kind == Kind::Histogram && !base(last) {
            return wrong("a histogram without a unit");
        }
        (before.iter().any(base) && !rate).then(|| format!("{}: the unit is not last", self.name))
    }

    /// Adds a series.
    pub fn add(&mut self, labels: Labels, value: impl Into<Value>) {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.samples.push(Sample { suffix, labels, value: value.into() });
    }

    /// Adds a series, as the last step of building a family.
    #[must_use]
    pub fn with(mut self, labels: Labels, value: impl Into<Value>) -> Self {
        self.add(labels, value);
        self
    }

    /// Adds a histogram: how many values are in each bucket, by its upper bound in seconds, the
    /// last one infinite; and the sum of all values.
    pub fn add_histogram(&mut self, labels: &Labels, buckets: &[(f64, u64)], sum: f64) {
        let mut count = 0_u64;
        for (bound, within) in buckets {
            count = count.saturating_add(*within);
            let mut labels = labels.clone();
            labels.push(("le", real(*bound)));
            self.samples.push(Sample { suffix: "_bucket", labels, value: count.into() });
        }
        self.samples.push(Sample { suffix: "_sum", labels: labels.clone(), value: sum.into() });
        self.samples.push(Sample { suffix: "_count", labels: labels.clone(), value: count.into() });
    }

    fn write(&self, out: &mut String, form: MetricsForm) {
        let kind = match (self.kind, form) {
            (Kind::Counter, _) => "counter",
            (Kind::Info, MetricsForm::OpenMetrics) => "info",
            (Kind::Gauge, _) | (Kind::Info, MetricsForm::Text) => "gauge",
            (Kind::Histogram, _) => "histogram",
        };
        let of_series = match (self.kind, form) {
            (Kind::Counter, MetricsForm::Text) => "_total",
            (Kind::Info, MetricsForm::Text) => "_info",
            _ => "",
        };
        let name = format!("{}{of_series}", self.name);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {}", escaped(&self.help, form == MetricsForm::OpenMetrics));
        let _ = writeln!(out, "# TYPE {name} {kind}");
        if let (MetricsForm::OpenMetrics, Some(unit)) = (form, self.unit()) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        for sample in &self.samples {
            sample.write(out, &self.name);
        }
    }

    fn unit(&self) -> Option<&'static str> {
        ["bytes", "seconds", "ratio"].into_iter().find(|unit| {
            self.kind != Kind::Info && self.name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_'))
        })
    }
}

impl Sample {
    fn write(&self, out: &mut String, name: &str) {
        let _ = write!(out, "{name}{}", self.suffix);
        for (at, (label, value)) in self.labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let _ = write!(out, "{open}{label}=\"{}\"", escaped(value, true));
        }
        out.push_str(if self.labels.is_empty() { " " } else { "} " });
        match self.value.0 {
            Number::Whole(value) => drop(writeln!(out, "{value}")),
            Number::Real(value) => drop(writeln!(out, "{}", real(value))),
        }
    }
}

/// A number with a decimal point, as both texts accept it.
fn real(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let text = value.to_string();
    if value.is_finite() && !text.contains('.') { text + ".0" } else { text }
}

fn escaped(text: &str, quotes: bool) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, character| {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
        out
    })
}

/// The text of one scrape.
#[must_use]
pub fn text(families: &[Family], form: MetricsForm) -> String {
    let mut out = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        family.write(&mut out, form);
    }
    if form == MetricsForm::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_texts_have_the_same_series() {
        let mut latency = Family::histogram("f_latency_seconds", "Time");
        let path = vec![("path", "read".to_owned())];
        latency.add_histogram(&path, &[(0.000_01, 2), (1.0, 1), (f64::INFINITY, 0)], 0.5);
        let families = [
            Family::counter("f_read_bytes", "Of \"reads\"\nand \\").with(Labels::new(), 3_u64),
            Family::gauge("f_age_seconds", "Age").with(vec![("volume", "a\"\\\n} 1".into())], 0.0),
            Family::info("f_build", "Build").with(vec![("version", "1".into())], 1_u64),
            Family::gauge("f_nothing", "Not written"),
            latency,
        ];
        let plain = text(&families, MetricsForm::Text);
        let open = text(&families, MetricsForm::OpenMetrics);
        let series = |text: &str| {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(series(&plain), series(&open));
        assert_eq!(
            plain,
            "# HELP f_read_bytes_total Of \"reads\"\\nand \\\\\n# TYPE f_read_bytes_total counter\n\
             f_read_bytes_total 3\n\
             # HELP f_age_seconds Age\n# TYPE f_age_seconds gauge\nf_age_seconds{volume=\"a\\\"\\\\\\n} 1\"} 0.0\n\
             # HELP f_build_info Build\n# TYPE f_build_info gauge\nf_build_info{version=\"1\"} 1\n\
             # HELP f_latency_seconds Time\n# TYPE f_latency_seconds histogram\n\
             f_latency_seconds_bucket{path=\"read\",le=\"0.00001\"} 2\n\
             f_latency_seconds_bucket{path=\"read\",le=\"1.0\"} 3\n\
             f_latency_seconds_bucket{path=\"read\",le=\"+Inf\"} 3\n\
             f_latency_seconds_sum{path=\"read\"} 0.5\nf_latency_seconds_count{path=\"read\"} 3\n"
        );
        assert!(open.starts_with(
            "# HELP f_read_bytes Of \\\"reads\\\"\\nand \\\\\n# TYPE f_read_bytes counter\n# UNIT f_read_bytes bytes\n"
        ));
        assert!(open.contains("# TYPE f_build info\n") && open.ends_with("# EOF\n"));
    }
}
