//! `forebay top`: volumes, jobs and alarms, live on a terminal.
//!
//! `feed` queries the daemon on its own thread, `state` is the displayed state and the effect of
//! keys on it (no terminal, no daemon), `view` draws it, with `volumes`, `detail`, `heat`, `curve`
//! and `help`.
//!
//! Invariants
//! - Keys take effect at once, however slow the daemon is.
//! - The terminal is restored, whether the command ends by key, signal, error or panic.
//! - Outdated data on the screen is marked.

mod curve;
mod detail;
mod feed;
mod heat;
mod help;
mod state;
mod view;
mod volumes;

use forebay_admin::MessageId;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_admin::size::parse_duration;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::client::{Client, DEFAULT_SOCKET};
use crate::failure::{Failure, system};
use crate::interrupt::Interrupt;
use feed::{Feed, FeedRequest};
use state::{Action, State};

/// Longest time between a signal and its effect.
const TURN: Duration = Duration::from_millis(100);

/// Options of `forebay top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: ? shows all of them, arrows or j k select a volume, s changes the order (r reverses it), a acknowledges the
first new alarm, m shows the miss-ratio curve, p pauses, q quits. Details, charts and latency heat maps grow with the terminal. Also shows the volume of a `forebay run ... --admin SOCKET`.")]
pub(crate) struct Options {
    /// Admin socket of the daemon
    #[arg(long, value_name = "SOCKET", env = "FOREBAY_ADMIN", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    admin: PathBuf,
    /// Interval of samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if (100..=60_000).contains(&interval.as_millis()) {
        Ok(interval)
    } else {
        Err("from 100ms to 60s".into())
    }
}

/// Runs the display until the user quits.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(MessageId::CliTerminal, "forebay top needs a terminal")
            .hint("for scripts: forebay status --json"));
    }
    let interrupt = Interrupt::listen()?;
    let client = Client::new(&options.admin);
    let first = feed::look(&client)?; // report an error before the terminal is changed
    let feed = Feed::start(client, options.interval).map_err(system("cannot start a thread"))?;
    let mut state = State::new(options.interval);
    state.take(Ok(first), Instant::now());
    let mut terminal = ratatui::try_init().map_err(system("cannot use the terminal"))?;
    let _restored = Restored;
    run(&mut terminal, &mut state, &feed, &interrupt).map_err(system("terminal"))
}

/// Restores the terminal when dropped. (`try_init` has handled panics.)
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    feed: &Feed,
    interrupt: &Interrupt,
) -> std::io::Result<()> {
    let mut changed = true;
    while !interrupt.came() {
        if changed {
            terminal.draw(|frame| view::draw(frame, state, Instant::now()))?;
        }
        changed = false;
        while let Some(news) = feed.news() {
            state.take(news, Instant::now());
            changed = true;
        }
        while let Some(advice) = feed.advice() {
            state.take_advice(advice);
            changed = true;
        }
        if !event::poll(TURN)? {
            changed |= state.is_stale(Instant::now());
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                Action::Quit => return Ok(()),
                Action::Acknowledge(alarm) => feed.request(FeedRequest::Acknowledge(alarm)),
                Action::Advise(volume) => feed.request(FeedRequest::Advice(volume)),
                Action::None => {}
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        changed = true;
    }
    Ok(())
}

/// Returns an example screen, for golden files and the documentation.
#[cfg(test)]
pub(super) fn example(width: u16, height: u16) -> String {
    view::tests::example(width, height)
}
