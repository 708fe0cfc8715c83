//! `forebay advise`: would a larger cache help?

use forebay_admin::{AdviceInfo, AdviceSize};

use super::answers::print;
use crate::client::{Admin, escaped};
use crate::failure::Failure;
use crate::screen::{self, harmless};
use crate::table::{Column, Table, Width, wrapped};

/// Minimum sample: with a hundred blocks, one is a percent, and with fewer a figure is not worth
/// printing.
const SAMPLE_MIN_BYTES: u64 = 100 * 4096;
/// Length of the longest bar, in characters.
const BAR: f64 = 20.0;

/// Options of `forebay advise`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon models caches of other sizes in miniature. They see a sample of the blocks that clients use, under the
present settings, and hold no data. The advice covers the time that they have seen, which restarts with the daemon.
Examples:
  forebay advise db
  forebay advise --pool fast --hours 1
  forebay advise db --json")]
pub(crate) struct Options {
    /// Volume
    #[arg(required_unless_present = "pool", conflicts_with = "pool")]
    volume: Option<String>,
    /// The whole pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Only the current hour and this many before it
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u64).range(..24))]
    hours: Option<u64>,
    #[command(flatten)]
    admin: Admin,
}

/// Prints the predicted effect of other sizes.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let target = match (&options.pool, &options.volume) {
        (Some(pool), _) => format!("pools/{}", escaped(pool)),
        (None, volume) => format!("volumes/{}", escaped(volume.as_deref().unwrap_or_default())),
    };
    let time = options.hours.map_or_else(String::new, |hours| format!("?hours={hours}"));
    let answer = options.admin.client().get(&format!("/v1/{target}/advice{time}"))?;
    print(&options.admin, &answer, |advice| words(advice, Width::of_stdout()))
}

/// Describes the advice, in lines of at most this width.
pub(super) fn words(advice: &AdviceInfo, width: Width) -> String {
    let whose = match advice.volume.as_str() {
        "" => format!("pool {}", harmless(&advice.pool)),
        volume => format!("volume {} of pool {}", harmless(volume), harmless(&advice.pool)),
    };
    let seen = format!("{} read in {}", screen::bytes(advice.read_bytes), screen::uptime(advice.seen_s));
    let mut text = wrapped(&format!("{whose}: {seen}"), width) + "\n";
    text += &(wrapped(&format!("{}{}", harmless(&advice.verdict), confidence(advice)), width) + "\n");
    if advice.error_points.is_none() {
        return text;
    }
    let known: Vec<&AdviceSize> =
        advice.sizes.iter().filter(|size| size.sampled_bytes >= SAMPLE_MIN_BYTES).collect();
    text += &(table(&known).within(width) + "\n");
    if known.iter().any(|size| size.is_lower_bound) {
        let bound = "+: at least; a cache of this size is not full yet";
        text += &(wrapped(bound, width) + "\n");
    }
    text
}

/// Describes the error of the figures, and when to ask again.
fn confidence(advice: &AdviceInfo) -> String {
    let again = advice.ask_again_s.map(|seconds| match seconds.div_ceil(3600) {
        1 => "Ask again in an hour.".to_owned(),
        hours => format!("Ask again in {hours} hours."),
    });
    match (advice.error_points, again) {
        (None, _) => " Ask again when the load has run for an hour.".into(),
        (Some(error), again) => {
            let again = again.map_or_else(String::new, |again| format!(" {again}"));
            format!(" The error is about {} points.{again}", (error * 10.0).ceil().max(1.0) / 10.0)
        }
    }
}

fn microseconds(us: f64) -> String {
    screen::nanos((us * 1000.0) as u64)
}

fn table(sizes: &[&AdviceSize]) -> Table {
    let mut table = Table::new([
        Column::number("size", 0),
        Column::number("cache", 0),
        Column::number("hits", 0),
        Column::number("mean read", 1),
        Column::text("of all reads", 2),
    ]);
    for size in sizes {
        let bound = if size.is_lower_bound { "+" } else { " " };
        let mark = if size.times == 1.0 { "now" } else { "" };
        table.add_row([
            format!("{mark} x{}", size.times),
            screen::bytes(size.capacity_bytes),
            format!("{:.1} %{bound}", size.hit_pct),
            size.read_mean_us.map_or_else(|| "-".into(), microseconds),
            "#".repeat((size.hit_pct / 100.0 * BAR).round() as usize),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(sampled_bytes: u64) -> AdviceInfo {
        let size = |times: f64| AdviceSize {
            times,
            capacity_bytes: (times * 1e9) as u64,
            hit_pct: 100.0 - 10.0 / times.max(0.2),
            is_lower_bound: times > 4.0,
            sampled_bytes,
            read_mean_us: Some(80.0 + 600.0 / times),
        };
        let sizes = [0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0].map(size).into();
        let (pool, volume) = ("fast".into(), "db".into());
        let (hit, miss) = (Some(80.0), Some(6000.0));
        let is_enough = sampled_bytes >= SAMPLE_MIN_BYTES;
        AdviceInfo {
            verdict: "A larger cache would help.".into(),
            error_points: is_enough.then_some(1.41),
            ask_again_s: is_enough.then_some(3700),
            pool,
            volume,
            seen_s: 7980,
            read_bytes: 15 << 30,
            capacity_bytes: 1_000_000_000,
            read_hit_mean_us: hit,
            read_miss_mean_us: miss,
            sizes,
        }
    }

    #[test]
    fn the_verdict_is_first_and_the_table_fits() {
        let text = words(&advice(1 << 30), Width::of(80));
        assert!(text.starts_with("volume db of pool fast: 15.0 GiB read in 2h 13m 00s\n"), "{text}");
        let verdict = "A larger cache would help. The error is about 1.5 points. Ask again in 2 hours.\n";
        assert!(text.contains(verdict), "{text}");
        assert!(text.contains("98.8 %+") && text.contains("\n+: at least"), "{text}");
        for columns in 40..200_usize {
            let text = words(&advice(1 << 30), Width::of(columns as u16));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        }
    }

    #[test]
    fn a_small_sample_has_no_table() {
        let text = words(&advice(4096), Width::unlimited());
        assert!(text.contains("Ask again when") && !text.contains("x2"), "{text}");
    }
}
