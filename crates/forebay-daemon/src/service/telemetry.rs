//! What the daemon reports: lines of the log, events and alarms, the wear of flash, and the result
//! of the last upgrade.
//!
//! Its methods are called on threads of pools too, so none of them waits for a pool.

use super::locking::lock;
use crate::wear::Wear;
use forebay_admin::events::{AlarmKey, EventKind, Hub, NewEvent, Severity};
use forebay_admin::{AdminError, MessageId, UpgradeInfo};
use forebay_pool::PoolEvent;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// A line for the log of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ServiceEvent {
    /// An event of a pool.
    Pool {
        /// Name of the pool.
        pool: String,
        /// The event.
        event: PoolEvent,
    },
    /// An operation failed; the rest continues.
    Problem(MessageId, String),
    /// An operation was completed.
    Note(MessageId, String),
}

/// See the top of this file.
pub(crate) struct Telemetry {
    hub: Hub,
    /// Receives lines for the log.
    on_event: Mutex<Box<dyn FnMut(ServiceEvent) + Send>>,
    /// Known wear of cache devices.
    wear: Mutex<Wear>,
    /// Result of the last upgrade.
    upgraded: Mutex<Option<UpgradeInfo>>,
    started_unix_s: u64,
}

/// Returns the key of the alarm that the program fails.
fn own_alarm() -> AlarmKey {
    AlarmKey { condition: EventKind::AlarmCommandFailed, pool: None, volume: None }
}

impl Telemetry {
    pub(super) fn new(hub: Hub, on_event: Box<dyn FnMut(ServiceEvent) + Send>, wear: Wear) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            hub,
            on_event: Mutex::new(on_event),
            wear: Mutex::new(wear),
            upgraded: Mutex::default(),
            started_unix_s: now.map_or(0, |since| since.as_secs()),
        }
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(super) fn wear(&self) -> MutexGuard<'_, Wear> {
        lock(&self.wear)
    }

    pub(super) fn started_unix_s(&self) -> u64 {
        self.started_unix_s
    }

    /// Writes a line to the log.
    pub(crate) fn emit(&self, what: ServiceEvent) {
        (lock(&self.on_event))(what);
    }

    /// Returns the message of an alarm if it is raised.
    pub(super) fn message_of(&self, key: &AlarmKey) -> Option<String> {
        self.hub.alarms().into_iter().find(|alarm| alarm.key == *key).map(|alarm| alarm.message)
    }

    pub(super) fn has_alarm(&self, key: &AlarmKey) -> bool {
        self.hub.alarms().iter().any(|alarm| alarm.key == *key)
    }

    /// Clears the alarms of a pool and its volumes, which were removed.
    pub(super) fn clear_alarms_of(&self, pool: &str, volumes: &[String]) {
        for alarm in self.hub.alarms() {
            let is_volume = alarm.key.volume.as_ref().is_some_and(|volume| volumes.contains(volume));
            if is_volume || alarm.key.volume.is_none() && alarm.key.pool.as_deref() == Some(pool) {
                self.hub.clear(&alarm.key);
            }
        }
    }

    /// Raises the alarm of a pool whose records are behind, with the reasons, or clears it.
    pub(super) fn note_unrecorded(&self, name: &str, behind: &[String]) {
        let key = AlarmKey::pool(EventKind::StateUnwritable, name);
        let before = self.has_alarm(&key);
        match (behind.is_empty(), before) {
            (true, false) => {}
            (true, true) => {
                self.hub.clear(&key);
                self.emit(ServiceEvent::Problem(
                    MessageId::Event(EventKind::AlarmCleared),
                    format!("{name}: the records in state_dir are up to date again"),
                ));
            }
            (false, _) => {
                let message = format!(
                    "pool {name}: {}; free space, or give the daemon write permission",
                    behind.join("; ")
                );
                self.hub.raise(key, Severity::Warning, &message);
                if !before {
                    self.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), message));
                }
            }
        }
    }

    /// Notes the result of the program for the newest alarm.
    pub(crate) fn note_alarm_command(&self, command: &str, done: &Result<(), String>) {
        let Err(why) = done else {
            self.hub.clear(&own_alarm());
            return;
        };
        let id = MessageId::Event(EventKind::AlarmCommandFailed);
        let what = format!("{command}: {why}; once that is fixed: forebay alarms --test");
        self.emit(ServiceEvent::Problem(id, what.clone()));
        self.hub.raise(own_alarm(), Severity::Warning, &what);
    }

    /// Reports that there is no thread for a reload requested by a signal.
    pub(crate) fn tell_reload_failed(&self, error: &std::io::Error) {
        let message =
            format!("not reloaded, the old configuration stays in force: cannot create a thread: {error}");
        let id = MessageId::Event(EventKind::ConfigRefused);
        self.emit(ServiceEvent::Problem(id, message.clone()));
        self.hub.publish(NewEvent::new(EventKind::ConfigRefused, message));
    }

    /// Reports an upgrade that did not begin. Nothing has changed.
    pub(crate) fn tell_no_upgrade(&self, error: &AdminError) {
        let text = error.to_string();
        let id = MessageId::Event(EventKind::DaemonUpgradeFailed);
        self.emit(ServiceEvent::Problem(id, text.clone()));
        self.hub.publish(NewEvent::new(EventKind::DaemonUpgradeFailed, text));
    }

    /// Notes and reports the result of an upgrade.
    pub(crate) fn note_upgrade(&self, info: UpgradeInfo) {
        let UpgradeInfo { from_pid, from_version, to_pid, paused_ms, error } = &info;
        let (kind, text) = match error {
            None => {
                let text = format!(
                    "process {to_pid} has taken over from {from_pid} (version {from_version}); clients waited {paused_ms} ms"
                );
                (EventKind::DaemonUpgraded, text)
            }
            Some(why) => (
                EventKind::DaemonUpgradeFailed,
                format!("no successor: {why}; clients waited {paused_ms} ms"),
            ),
        };
        self.emit(match error {
            None => ServiceEvent::Note(MessageId::Event(EventKind::DaemonUpgraded), text.clone()),
            Some(_) => ServiceEvent::Problem(MessageId::Event(EventKind::DaemonUpgradeFailed), text.clone()),
        });
        self.hub.publish(NewEvent::new(kind, text));
        *lock(&self.upgraded) = Some(info);
    }

    /// Returns the result of the last upgrade.
    pub(super) fn last_upgrade(&self) -> Option<UpgradeInfo> {
        lock(&self.upgraded).clone()
    }
}
