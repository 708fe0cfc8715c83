//! Severity of messages, and the threshold for logging (`log_level`).

use crate::RunEvent;
use forebay_admin::MessageId;
use forebay_admin::events::Severity;
use forebay_config::choices::LogLevel;
use forebay_pool::PoolEvent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The lowest severity that is logged. All clones share it: a reload changes it.
#[derive(Clone, Debug)]
pub(crate) struct LogThreshold(Arc<AtomicU8>);

impl Default for LogThreshold {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(rank(Severity::Info))))
    }
}

impl LogThreshold {
    /// Sets the threshold.
    pub(crate) fn set(&self, level: LogLevel) {
        let least = match level {
            LogLevel::Error => Severity::Error,
            LogLevel::Warn => Severity::Warning,
            LogLevel::Info => Severity::Info,
        };
        self.0.store(rank(least), Ordering::Relaxed);
    }

    /// Returns true if an event is logged. The start of service, with its addresses, always is.
    pub(crate) fn lets_through(&self, event: &RunEvent) -> bool {
        let is_readiness = matches!(event, RunEvent::Admin(_) | RunEvent::Serving);
        is_readiness || rank(event.severity()) >= self.0.load(Ordering::Relaxed)
    }
}

fn rank(severity: Severity) -> u8 {
    Severity::ALL.iter().position(|other| *other == severity).map_or(0, |at| at as u8)
}

impl RunEvent {
    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Pool { event, .. } => of_pool(event),
            Self::Problem(..) => Severity::Warning,
            Self::Note(..) | Self::Admin(_) | Self::Serving => Severity::Info,
        }
    }
}

impl RunEvent {
    /// Returns the message ID, for scripts.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Pool { event, .. } => event.id(),
            Self::Problem(id, _) | Self::Note(id, _) => *id,
            Self::Admin(_) => MessageId::ApiReady,
            Self::Serving => MessageId::DaemonServing,
        }
    }

    /// Returns the pool of the event, if it has a name.
    #[must_use]
    pub fn pool(&self) -> Option<&str> {
        match self {
            Self::Pool { pool, .. } => Some(pool.as_str()).filter(|pool| !pool.is_empty()),
            _ => None,
        }
    }

    /// Returns the volume of the event.
    #[must_use]
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::Pool { event, .. } => event.volume(),
            _ => None,
        }
    }

    /// Returns the message without the name of the pool.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Pool { event, .. } => event.to_string(),
            other => other.to_string(),
        }
    }
}

fn of_pool(event: &PoolEvent) -> Severity {
    match event {
        PoolEvent::Lost { .. }
        | PoolEvent::DeviceEnded { .. }
        | PoolEvent::StoreAway { .. }
        | PoolEvent::ExportLost { .. }
        | PoolEvent::PathLost { .. }
        | PoolEvent::CacheFenced
        | PoolEvent::RecordFailed { .. }
        | PoolEvent::CacheFailed { .. }
        | PoolEvent::OpenedWithoutCache { .. }
        | PoolEvent::BackingChanged { .. }
        | PoolEvent::GivenUp { .. }
        | PoolEvent::NotClosed { .. } => Severity::Error,
        PoolEvent::BlocksDamaged { .. }
        | PoolEvent::DestageFailed { .. }
        | PoolEvent::OperationFailed { .. }
        | PoolEvent::CacheWriteFailed { .. }
        | PoolEvent::DiscardsRefused
        | PoolEvent::Degraded { .. }
        | PoolEvent::RescueEnded { .. }
        | PoolEvent::OrderLost { .. }
        | PoolEvent::BackingUncertain { .. }
        | PoolEvent::BeforeStop { .. }
        | PoolEvent::ClientRefused { .. } => Severity::Warning,
        PoolEvent::Stopped { .. } if event.id() != MessageId::PoolClosed => Severity::Error,
        PoolEvent::Stopped { untold, .. } if !untold.is_empty() => Severity::Warning,
        PoolEvent::Note(..)
        | PoolEvent::Opened { .. }
        | PoolEvent::Ready { .. }
        | PoolEvent::Detached { .. }
        | PoolEvent::Stopping
        | PoolEvent::Stopped { .. }
        | PoolEvent::DeviceBack { .. }
        | PoolEvent::PathFound { .. }
        | PoolEvent::LossEnded { .. }
        | PoolEvent::DestageRecovered { .. }
        | PoolEvent::ExportsBack { .. }
        | PoolEvent::StoreBack { .. }
        | PoolEvent::MirrorWhole
        | PoolEvent::Resized { .. }
        | PoolEvent::Scrubbed(_) => Severity::Info,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_passes_every_log_level() {
        let threshold = LogThreshold::default();
        let told = |threshold: &LogThreshold| {
            let events = [
                RunEvent::Pool { pool: "p".into(), event: PoolEvent::CacheFenced },
                RunEvent::Problem(MessageId::DaemonProblem, "p".into()),
                RunEvent::Note(MessageId::DaemonNote, "n".into()),
                RunEvent::Serving,
            ];
            events.map(|event| threshold.lets_through(&event))
        };
        assert_eq!(told(&threshold), [true, true, true, true]);
        let shared = threshold.clone();
        threshold.set(LogLevel::Warn);
        assert_eq!(told(&shared), [true, true, false, true]);
        threshold.set(LogLevel::Error);
        assert_eq!(told(&shared), [true, false, false, true]);
    }
}
