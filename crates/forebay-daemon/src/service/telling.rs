//! Notifications of operators: the program run for alarms, and the events of earlier runs.

use super::Service;
use crate::alarm_command::AlarmCommand;
use crate::event_files;
use forebay_admin::events::{EventKind, Filter};
use forebay_admin::{AdminError, AlarmTested, ErrorKind, EventHistory, MessageId};
use std::time::{Duration, Instant};

/// Most events of one response.
const EVENTS_MAX: usize = 10_000;
/// Time limit for reading them: the API gives up after 5 s.
const READ_WITHIN: Duration = Duration::from_secs(4);

impl Service {
    /// Returns the program to run for alarms now, if there is one.
    pub(crate) fn alarm_command(&self) -> Option<AlarmCommand> {
        let config = self.catalog.config();
        let daemon = &config.daemon;
        let words = Some(daemon.alarm_command.clone()).filter(|words| !words.is_empty())?;
        Some(AlarmCommand { words, admin_socket: daemon.admin_socket.clone() })
    }

    /// Returns the newest events of the files in the state directory. A separate thread reads them:
    /// the disk may hang.
    pub(super) fn events_of_files(
        &self,
        since_unix_ns: u64,
        filter: Filter,
    ) -> Result<EventHistory, AdminError> {
        if self.catalog.path().is_none() {
            let what = "`forebay run` keeps no events in files";
            return Err(AdminError::new(MessageId::EventsNotKept, what, "forebay events"));
        }
        let state_dir = self.catalog.state_dir();
        let (place, folder) = (state_dir.join("events"), state_dir.clone());
        let failed = |why: String| {
            let what = format!("the events in {} cannot be read: {why}", place.display());
            AdminError::new(MessageId::StateUnreadable, what, "").of_kind(ErrorKind::Failed)
        };
        let late = || failed(format!("no answer within {} s", READ_WITHIN.as_secs()));
        let read = self.places.within(&place, READ_WITHIN, move |_| {
            event_files::read(&folder, since_unix_ns, &filter, EVENTS_MAX)
        });
        let read = read.map_err(|undone| undone.or(late))?;
        read.map(|(events, more)| EventHistory { events, more }).map_err(|error| failed(error.to_string()))
    }

    pub(super) fn run_test_alarm(&self) -> Result<AlarmTested, AdminError> {
        let Some(command) = self.alarm_command() else {
            let what = "no alarm_command is configured";
            let hint = "set it in [daemon] of the configuration, then: forebay reload";
            return Err(AdminError::new(MessageId::AlarmNoCommand, what, hint));
        };
        let begun = Instant::now();
        let done = command.test();
        self.telemetry.note_alarm_command(&command.what(), &done);
        done.map_err(|why| {
            let id = MessageId::Event(EventKind::AlarmCommandFailed);
            AdminError::new(id, format!("{}: {why}", command.what()), "").of_kind(ErrorKind::Failed)
        })?;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(AlarmTested { command: command.words, took_ms })
    }
}
