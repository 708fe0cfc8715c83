//! Going through the steps, and back.
//!
//! Invariants
//! - A step that fails is followed by the way back: what was begun is undone in reverse order, also
//!   what an earlier process has begun that was killed. Then everything is as before, or the
//!   message says what is not.
//! - Past a detach there is no way back, and none is needed: the disk has everything. The note
//!   stays, and the same command goes on.
//! - Nobody has to see a step for it to be done or undone: what is printed may get lost.

use forebay_admin::MessageId;
use std::time::{Duration, Instant};

use super::note::{Begun, Note, Way};
use super::shell;
use super::steps::Step;
use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

/// What somebody else may have begun, a process that was killed, shows within this time.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// Prints the commands of all steps that are not so yet.
///
/// # Errors
/// Nobody listens.
pub(super) fn show(client: &Client, plan: &[Step]) -> Result<(), Failure> {
    for step in plan {
        // Who cannot be asked yet is started by a step before.
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

/// Takes all steps that are not so yet.
///
/// # Errors
/// One failed: everything is as before then, or it is said what is not.
pub(super) fn run(client: &Client, note: &Note, mut begun: Begun) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let interrupted_at = begun.begun.last().copied();
    let is_resumed = interrupted_at.is_some();
    note.write(&begun)?;
    for at in 0..begun.plan.len() {
        let step = begun.plan[at].clone();
        // Its second half may be missing, and does not show.
        let is_half = interrupted_at == Some(at) && step.has_two_halves();
        let done = match step.is_so(client) {
            Ok(true) if !is_half => continue,
            _ if interrupt.came() => Err(Failure::new(MessageId::CliInterrupted, "interrupted")),
            Err(failure) => Err(failure),
            Ok(_) => begin(note, &mut begun, at).and_then(|()| {
                let _ = print(&step);
                step.act(client).or_else(|failure| came_true(client, &step, is_resumed, failure))
            }),
        };
        if let Err(failure) = done {
            return Err(give_up(client, note, &begun, failure));
        }
    }
    note.remove()?;
    screen::print(&begun.ending)
}

/// Notes a step, which is not begun otherwise.
fn begin(note: &Note, begun: &mut Begun, at: usize) -> Result<(), Failure> {
    let is_new = !begun.begun.contains(&at);
    if is_new {
        begun.begun.push(at);
    }
    let noted = note.write(begun);
    if noted.is_err() && is_new {
        begun.begun.pop();
    }
    noted
}

/// A step that failed may be so all the same: systemd was quicker, or what a killed process has
/// begun has come to its end.
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

/// Goes back, and says how things are.
fn give_up(client: &Client, note: &Note, begun: &Begun, failure: Failure) -> Failure {
    let is_past = |at: &usize| matches!(begun.plan[*at], Step::Detach { .. });
    let is_detached = begun
        .begun
        .iter()
        .find(|at| is_past(at))
        .is_some_and(|at| begun.plan[*at].is_so(client).unwrap_or(true));
    if begun.way == Way::Take && is_detached {
        return failure
            .but("the volume is detached and the disk has everything: the same command again goes on");
    }
    match undo(client, note, begun) {
        Ok(()) => failure.but("everything is as before"),
        Err(second) => {
            let again = shell::line(["forebay", "uncache", &note.point().display().to_string()]);
            failure.but(&format!("and the way back failed as well: {second}; `{again}` goes on with it"))
        }
    }
}

/// Undoes what was begun, and forgets it.
///
/// # Errors
/// A step back fails; the note stays.
pub(super) fn undo(client: &Client, note: &Note, begun: &Begun) -> Result<(), Failure> {
    for step in way_back(begun) {
        if step.is_undone(client)? {
            continue;
        }
        let _ = print(&step);
        step.act(client).or_else(|failure| came_true(client, &step, true, failure))?;
    }
    note.remove()
}

/// What leads back from where it was interrupted.
pub(super) fn way_back(begun: &Begun) -> Vec<Step> {
    let mut order = begun.begun.clone();
    order.sort_unstable();
    order.into_iter().rev().filter_map(|at| begun.plan.get(at)?.opposite()).collect()
}
