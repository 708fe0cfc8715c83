//! Runs the steps, and rolls them back.
//!
//! Invariants
//! - After a failed step comes the rollback: it undoes all steps that were begun in reverse order,
//!   including those of an earlier process that was killed. Then everything is as before, or the
//!   message lists the differences.
//! - After a detach there is no rollback, and none is needed: the disk has all data. The journal
//!   stays, and the same command continues.
//! - Steps do not depend on their output: printing may fail.

use forebay_admin::MessageId;
use std::time::{Duration, Instant};

use super::journal::{Begun, Direction, Journal};
use super::shell;
use super::steps::Step;
use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

/// Time within which the effect of an operation begun by another process, for example one that was
/// killed, becomes visible.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// Prints the commands of all steps whose effects are not present yet.
///
/// # Errors
/// The output is closed.
pub(super) fn show(client: &Client, plan: &[Step]) -> Result<(), Failure> {
    for step in plan {
        // A daemon that does not run yet is started by an earlier step.
        if !step.is_so(client).unwrap_or(false) {
            print(step)?;
        }
    }
    Ok(())
}

fn print(step: &Step) -> Result<(), Failure> {
    let lines: String = step.commands().iter().map(|command| format!("{command}\n")).collect();
    screen::print(&lines)
}

/// Executes all steps whose effects are not present yet.
///
/// # Errors
/// A step failed: then everything is as before, or the message lists the differences.
pub(super) fn run(client: &Client, journal: &Journal, mut begun: Begun) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let interrupted_at = begun.begun.last().copied();
    let is_resumed = interrupted_at.is_some();
    journal.write(&begun)?;
    let mut downtime = Downtime::default();
    for at in 0..begun.plan.len() {
        let step = begun.plan[at].clone();
        downtime.begins(&step);
        // The notification of systemd may be missing, which is not visible.
        let is_half = interrupted_at == Some(at) && step.has_two_halves();
        let done = match step.is_so(client) {
            Ok(true) if !is_half => continue,
            _ if interrupt.came() => Err(Failure::new(MessageId::CliInterrupted, "interrupted")),
            Err(failure) => Err(failure),
            Ok(_) => begin(journal, &mut begun, at).and_then(|()| {
                let _ = print(&step);
                step.act(client).or_else(|failure| came_true(client, &step, is_resumed, failure))
            }),
        };
        if let Err(failure) = done {
            return Err(give_up(client, journal, &begun, failure));
        }
        downtime.ends(&step);
    }
    journal.remove()?;
    screen::print(&format!("{}{}", begun.ending, downtime.words()))
}

/// How long the file system was unmounted.
#[derive(Default)]
struct Downtime {
    since: Option<Instant>,
    took: Option<Duration>,
}

impl Downtime {
    fn begins(&mut self, step: &Step) {
        if matches!(step, Step::Unmount(_)) {
            self.since = Some(Instant::now());
        }
    }

    fn ends(&mut self, step: &Step) {
        if matches!(step, Step::Mount(_)) {
            self.took = self.since.map(|since| since.elapsed());
        }
    }

    /// Empty if this process did not do both: an earlier one was interrupted.
    fn words(&self) -> String {
        self.took.map_or_else(String::new, |took| {
            format!("the file system was unmounted for {:.2} s\n", took.as_secs_f64())
        })
    }
}

/// Records a step before it begins; if that fails, the step does not begin.
fn begin(journal: &Journal, begun: &mut Begun, at: usize) -> Result<(), Failure> {
    let is_new = !begun.begun.contains(&at);
    if is_new {
        begun.begun.push(at);
    }
    let recorded = journal.write(begun);
    if recorded.is_err() && is_new {
        begun.begun.pop();
    }
    recorded
}

/// Checks whether a failed step took effect nevertheless: systemd was faster, or an operation that
/// a killed process began has completed.
fn came_true(client: &Client, step: &Step, is_resumed: bool, failure: Failure) -> Result<(), Failure> {
    let until = Instant::now() + if is_resumed { OTHERS_WITHIN } else { Duration::ZERO };
    loop {
        if step.is_so(client).unwrap_or(false) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(failure);
        }
        std::thread::sleep(LOOK);
    }
}

/// Rolls back, and describes the resulting state.
fn give_up(client: &Client, journal: &Journal, begun: &Begun, failure: Failure) -> Failure {
    let is_past = |at: &usize| matches!(begun.plan[*at], Step::Detach { .. });
    let is_detached = begun
        .begun
        .iter()
        .find(|at| is_past(at))
        .is_some_and(|at| begun.plan[*at].is_so(client).unwrap_or(true));
    if begun.direction == Direction::Detach && is_detached {
        return failure
            .but("the volume is detached and the disk has all data: the same command again continues");
    }
    match undo(client, journal, begun) {
        Ok(()) => failure.but("everything is as before"),
        Err(second) => {
            let again = shell::line(["forebay", "uncache", &journal.point().display().to_string()]);
            failure.but(&format!("and the rollback failed as well: {second}; `{again}` continues it"))
        }
    }
}

/// Undoes the steps that were begun, and removes the journal.
///
/// # Errors
/// A step of the rollback fails; the journal stays.
pub(super) fn undo(client: &Client, journal: &Journal, begun: &Begun) -> Result<(), Failure> {
    for step in way_back(begun) {
        if step.is_undone(client)? {
            continue;
        }
        let _ = print(&step);
        step.act(client).or_else(|failure| came_true(client, &step, true, failure))?;
    }
    journal.remove()
}

/// Returns the rollback steps from the point of interruption.
pub(super) fn way_back(begun: &Begun) -> Vec<Step> {
    let mut order = begun.begun.clone();
    order.sort_unstable();
    order.into_iter().rev().filter_map(|at| begun.plan.get(at)?.opposite()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::steps::Mounted;
    use super::*;

    #[test]
    fn downtime_spans_unmount_to_mount() {
        let mounted =
            Mounted { source: "/dev/sdb".into(), point: "/srv/db".into(), kind: None, options: Vec::new() };
        let [unmount, mount] = [Step::Unmount(mounted.clone()), Step::Mount(mounted)];
        let mut downtime = Downtime::default();
        // An earlier process unmounted it: the time is not known.
        downtime.ends(&mount);
        assert_eq!(downtime.words(), "");
        downtime.begins(&unmount);
        downtime.ends(&unmount);
        assert_eq!(downtime.words(), "");
        downtime.ends(&mount);
        assert_eq!(downtime.words(), "the file system was unmounted for 0.00 s\n");
    }
}
