//! The kinds of events. Their names are part of the interface: scripts filter by them, so they are
//! never renamed.

use std::fmt;

/// Severity of an event. Ordered: `Debug` is least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Useful for diagnosis.
    Debug,
    /// Normal operation.
    Info,
    /// An operator should look at it, without urgency.
    Warning,
    /// Data or service is affected.
    Error,
}

impl Severity {
    /// All severities, least first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warning, Self::Error];

    /// Returns the name in JSON, filters and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// Returns the severity of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|severity| severity.name() == name)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Generates the enum and its tables from one list, so that none can miss an entry.
macro_rules! kinds {
    ($($variant:ident, $name:literal, $severity:ident, $help:literal;)*) => {
        /// Kind of an event.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum EventKind {
            $(#[doc = $help] $variant,)*
        }

        impl EventKind {
            /// All kinds, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the stable name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the default severity of an event of this kind.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),* }
            }

            /// Returns the description, in one line.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),* }
            }
        }
    };
}

kinds! {
    VolumeAttached, "volume.attached", Info, "A volume was attached and can be used.";
    VolumeFailed, "volume.failed", Error, "A volume that is configured could not be attached.";
    VolumeAbsent, "volume.absent", Warning, "The cache has dirty data of a volume that is not attached.";
    PoolFailed, "pool.failed", Error, "A pool that is configured could not be opened.";
    PoolNotAnswering, "pool.not-answering", Error, "A pool does not answer: its thread hangs, or has no processor.";
    VolumeDetached, "volume.detached", Info, "A volume was detached, and the backing store has all of it.";
    VolumeModeChanged, "volume.mode-changed", Info, "The mode of a volume changed.";
    VolumeSettingChanged, "volume.setting-changed", Info, "A setting of a volume changed.";
    VolumeResized, "volume.resized", Info, "The size of a volume changed.";
    PoolCreated, "pool.created", Info, "A new pool exists.";
    PoolGrown, "pool.grown", Info, "A pool has more space.";
    PoolShrunk, "pool.shrunk", Info, "A pool has less space.";
    PoolExported, "pool.exported", Info, "A pool was closed, and its settings are on its cache for another host.";
    PoolImported, "pool.imported", Info, "A pool that was exported was opened, with its settings.";
    PoolDeviceReplaced, "pool.device-replaced", Info, "A cache device was replaced by another one.";
    PoolScrubbed, "pool.scrubbed", Info, "A scrub of a cache has ended; a warning if something was damaged.";
    JobStarted, "job.started", Info, "A job began to run.";
    JobProgress, "job.progress", Info, "Progress of a job; a newer event replaces an older one.";
    JobDeadlineAtRisk, "job.deadline-at-risk", Warning, "At its present rate a job will miss its deadline.";
    JobCompleted, "job.completed", Info, "A job succeeded.";
    JobFailed, "job.failed", Error, "A job failed.";
    JobCancelled, "job.cancelled", Info, "A job was cancelled.";
    AlarmRaised, "alarm.raised", Warning, "A condition that needs attention began or got worse.";
    AlarmCleared, "alarm.cleared", Info, "The condition of an alarm ended.";
    AlarmAcknowledged, "alarm.acknowledged", Info, "An alarm was acknowledged, for all operators.";
    AlarmCommandFailed, "alarm.command-failed", Warning, "The program for alarms (alarm_command) failed, so some notifications may be missing.";
    DeviceFailed, "device.failed", Warning, "An operation on a cache device or backing store failed: which, where, and the error number. Repetitions are counted.";
    DeviceEnded, "device.ended", Error, "A cache device or backing store is shorter than the part in use: it was truncated, or is missing.";
    StoreAway, "store.away", Error, "The server of a network store does not answer, or its export cannot be used: dirty data stays in the cache, and reads of uncached blocks wait or fail.";
    ExportLost, "export.lost", Error, "An export of a volume was lost: another program unmounted its file, mounted over it, or removed its block device.";
    DevicePathLost, "device.path-lost", Error, "The path of a cache file or backing file no longer leads to it: it was deleted, replaced or renamed while in use.";
    DestageFailed, "destage.failed", Warning, "The backing store refused dirty data, which stays in the cache.";
    BlockDamaged, "block.damaged", Warning, "Clean blocks of the cache were damaged; they are read from the backing store again.";
    BlockLost, "block.lost", Error, "Dirty data can no longer be read from the cache; reads of it return errors until it is rewritten. Has totals, at most once a second.";
    CacheWriteFailed, "cache.write-failed", Warning, "A write to the cache device failed, and is repeated elsewhere on it.";
    DiscardsRefused, "cache.discards-refused", Warning, "A cache device does not support discards, so discard_freed has no effect.";
    CacheFenced, "cache.fenced", Error, "The cache device failed, and that is not recorded yet: writes wait or are refused.";
    CacheFailed, "cache.failed", Error, "The cache device failed; its volumes are served without it. Has the amount of lost data.";
    CacheDegraded, "cache.degraded", Warning, "One of the two devices of a mirrored cache failed or is missing. Nothing is lost.";
    MirrorWhole, "cache.whole", Info, "Both devices of a mirrored cache have all dirty data.";
    CacheWear, "cache.wear", Warning, "A disk of a cache is nearly worn out, short of spare blocks, or reports a warning.";
    StateUnwritable, "state.unwritable", Warning, "The records of a cache or its backing stores cannot be written to the state directory.";
    OrderLost, "order.lost", Warning, "A backing store alone is not a crash-consistent image until all dirty data is written back.";
    BackingChanged, "backing.changed", Error, "The backing store was changed while the cache was away.";
    BackingUncertain, "backing.uncertain", Warning, "After a crash it cannot be proved that the backing store is unchanged; clean blocks were dropped.";
    ClientRefused, "client.refused", Warning, "A client was refused for its certificate, user, address or data sent. Repetitions are counted.";
    ConfigRefused, "config.refused", Warning, "A reload did not apply the configuration file, or a part of it; the previous settings stay in effect.";
    DaemonUpgraded, "daemon.upgraded", Info, "A successor has taken over pools and clients.";
    DaemonUpgradeFailed, "daemon.upgrade-failed", Warning, "No successor has taken over; the daemon \
        continues.";
    ClientConnected, "client.connected", Debug, "A client connected to an export.";
    ClientDisconnected, "client.disconnected", Debug, "A client left an export.";
}

impl EventKind {
    /// Returns the kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_of_one_form() {
        let names: BTreeSet<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), EventKind::ALL.len());
        for kind in EventKind::ALL {
            let (group, what) = kind.name().split_once('.').expect("group.what");
            assert!(
                [group, what].iter().all(|part| !part.is_empty()
                    && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
            );
            assert_eq!(EventKind::from_name(kind.name()), Some(*kind));
        }
        assert_eq!(EventKind::from_name("volume"), None);
    }

    #[test]
    fn document_lists_every_event_kind() {
        let document = include_str!("../../../../docs/operate/events.md");
        for kind in EventKind::ALL {
            let row = format!(
                "| `{}` | {} | {} |",
                kind.name(),
                kind.severity(),
                kind.help().trim_end_matches('.')
            );
            assert!(document.contains(&row), "docs/operate/events.md must have the line\n{row}");
        }
    }
}
