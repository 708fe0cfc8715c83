//! `forebay events`: prints the daemon's events as they happen.
//!
//! Invariants
//! - An event is printed once: after a break the stream resumes after the last one.
//! - Missing events are reported at their position: on stderr, or with `--json` as a separate line.

use crate::message;
use clap_complete::engine::ArgValueCompleter;
use forebay_admin::size::{parse_duration, parse_time};
use forebay_admin::{EventHistory, MessageId};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{self, Admin, Received, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen::{self, Paint, harmless};

/// Time that reading the history waits for the next event before it counts as the end.
const HISTORY_WITHIN: Duration = Duration::from_millis(500);
/// Longest single wait.
const TURN: Duration = Duration::from_secs(3600);

/// Options of `forebay events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --follow, the history that the daemon still has is printed. Ctrl-C ends --follow, which is not a failure.
With --since, events of earlier runs of the daemon are printed too (STATE_DIR/events; about 10,000 events).
Examples:
  forebay events --since 7d --severity warning
  forebay events --follow --severity warning
  forebay events --follow --kind job,alarm --volume db --json | while read -r event; do ...; done")]
pub(crate) struct Options {
    /// Continue with new events
    #[arg(long)]
    follow: bool,
    /// Begin after this event, or with the whole history: `oldest`
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Begin at this age, including earlier runs: 2h, 7d, or a time such as 2026-11-29T06:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since, conflicts_with_all = ["follow", "after"])]
    since: Option<u64>,
    /// Only kinds of this name or group (job, alarm.raised), with commas
    #[arg(long, value_name = "PREFIX")]
    kind: Option<String>,
    /// Only about this volume
    #[arg(long, value_name = "VOLUME", add = ArgValueCompleter::new(complete::volumes))]
    volume: Option<String>,
    /// At least this severity: debug, info, warning or error
    #[arg(long, value_name = "SEVERITY")]
    severity: Option<String>,
    #[command(flatten)]
    admin: Admin,
}

/// Prints events.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if let Some(since_unix_s) = options.since {
        return history(options, since_unix_s);
    }
    let interrupt = Interrupt::listen()?;
    let client = options.admin.client().interruptible(&interrupt);
    let after = options.after.clone().or_else(|| (!options.follow).then(|| "oldest".to_owned()));
    // `oldest` is a position, not the ID of an event: it goes into the URL, and IDs replace it
    // later.
    let oldest = after.as_deref() == Some("oldest");
    let query = query(options, oldest);
    let mut events = client.events(query, after.filter(|_| !oldest));
    let mut out = Out { json: options.admin.json, paint: Paint::for_stdout() };
    loop {
        let within = if options.follow { TURN } else { HISTORY_WITHIN };
        match events.next(Instant::now() + within)? {
            Received::Event(kind, event) => out.print(&kind, &event)?,
            Received::Place => {}
            Received::Broken(why) if options.follow => {
                out.note("broken", &format!("{why}; connecting again"))?
            }
            Received::Broken(why) => {
                return Err(Failure::new(
                    MessageId::DaemonNoAnswer,
                    format!("the history was cut off: {why}"),
                ));
            }
            Received::Again => {
                let last = events.last_id().unwrap_or("now").to_owned();
                out.note("resumed", &format!("connected again, after {last}"))?;
            }
            Received::Nothing if interrupt.came() || !options.follow => return Ok(()),
            Received::Nothing => {}
        }
    }
}

/// Parses a time, relative or absolute; returns seconds since 1970.
fn since(text: &str) -> Result<u64, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(screen::now_unix_s().saturating_sub(ago.as_secs()));
    }
    let wrong = || format!("{text} is not a time: give how long ago, as 2h or 7d, or 2026-11-29T06:00:00Z");
    let time = parse_time(text).map_err(|_| wrong())?;
    Ok(time.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong())?.as_secs())
}

/// Prints the events in the daemon's files.
fn history(options: &Options, since_unix_s: u64) -> Result<(), Failure> {
    let conditions = query(options, false);
    let and = if conditions.is_empty() { "?" } else { "&" };
    let path = format!("/v1/events/history{conditions}{and}since_unix_s={since_unix_s}");
    let history: EventHistory = client::read(&options.admin.client().get(&path)?)?;
    let mut out = Out { json: options.admin.json, paint: Paint::for_stdout() };
    if history.more {
        out.note("cut", "there are older events, which are left out: give a later time, or --kind")?;
    }
    history.events.iter().try_for_each(|event| out.print("", event))
}

fn query(options: &Options, oldest: bool) -> String {
    let wanted = [("kind", &options.kind), ("volume", &options.volume), ("severity", &options.severity)];
    let wanted =
        wanted.iter().filter_map(|(name, value)| Some(format!("{name}={}", escaped(value.as_ref()?))));
    let all: Vec<String> = wanted.chain(oldest.then(|| "after=oldest".to_owned())).collect();
    if all.is_empty() { String::new() } else { format!("?{}", all.join("&")) }
}

struct Out {
    json: bool,
    paint: Paint,
}

impl Out {
    fn print(&mut self, kind: &str, event: &Value) -> Result<(), Failure> {
        if kind == "gap" {
            return self.gap(event);
        }
        if self.json {
            return screen::print_watched(&format!("{event}\n"));
        }
        screen::print_watched(&line(event, self.paint))
    }

    fn gap(&self, gap: &Value) -> Result<(), Failure> {
        if self.json {
            return screen::print_watched(&format!("{}\n", json!({ "gap": gap })));
        }
        let lost = gap["lost_max"].as_u64().map_or("an unknown number of".into(), |n| format!("up to {n}"));
        let why = harmless(gap["message"].as_str().unwrap_or("no reason given"));
        let what = format!("{lost} events were lost here: {why}");
        let text = || format!("{} {what}\n", Paint::for_stderr().yellow("forebay:"));
        message::say(MessageId::EventsLost, &what, text);
        Ok(())
    }

    /// Reports a change of the connection: on stderr, or with `--json` as an object on stdout.
    fn note(&self, what: &str, words: &str) -> Result<(), Failure> {
        if self.json {
            return screen::print_watched(&format!("{}\n", json!({ "connection": what, "message": words })));
        }
        let text = || format!("{} {words}\n", Paint::for_stderr().dim("forebay:"));
        message::say(MessageId::EventsConnection, words, text);
        Ok(())
    }
}

fn line(event: &Value, paint: Paint) -> String {
    let text = |name: &str| harmless(event[name].as_str().unwrap_or("-"));
    let severity = match event["severity"].as_str() {
        Some("error") => paint.red("error  "),
        Some("warning") => paint.yellow("warning"),
        Some("debug") => paint.dim("debug  "),
        _ => "info   ".into(),
    };
    let about =
        ["volume", "pool", "job"].iter().find_map(|name| event[*name].as_str()).map_or("-".into(), harmless);
    let time = text("time");
    // Display milliseconds only.
    let time = time.split_once('.').map_or(time.clone(), |(whole, part)| {
        format!("{whole}.{}Z", part.chars().take(3).collect::<String>())
    });
    format!("{} {severity} {:<20} {about:<12} {}\n", paint.dim(&time), text("kind"), text("message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = json!({ "time": "2023-11-14T22:13:20.123456789Z", "kind": "job.completed", "severity": "info",
            "volume": "db", "pool": "fast", "message": "flush of volume db: done\u{1b}" });
        assert_eq!(
            line(&event, Paint::none()),
            "2023-11-14T22:13:20.123Z info    job.completed        db           flush of volume db: done\\u{1b}\n"
        );
    }
}
