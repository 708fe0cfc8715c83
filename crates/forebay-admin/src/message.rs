//! Ids of messages: one for each situation that a reader may look up. Scripts and tests compare the
//! ids; the words may change. An id is never renamed.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::ErrorKind;
use crate::events::{EventKind, Severity};

/// Class of a message in the table: the kind of an error, or the severity of a line that is no
/// error.
#[derive(Clone, Copy)]
enum Class {
    NotFound,
    Invalid,
    Conflict,
    Failed,
    Unavailable,
    Denied,
    Error,
    Warning,
    Info,
}

impl Class {
    fn kind(self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Invalid => ErrorKind::Invalid,
            Self::Conflict => ErrorKind::Conflict,
            Self::Unavailable => ErrorKind::Unavailable,
            Self::Denied => ErrorKind::Denied,
            Self::Failed | Self::Error | Self::Warning | Self::Info => ErrorKind::Failed,
        }
    }

    fn severity(self) -> Severity {
        match self {
            Self::Warning => Severity::Warning,
            Self::Info => Severity::Info,
            _ => Severity::Error,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Generates the enum and its tables from one list, so that none can miss an entry.
macro_rules! messages {
    ($($variant:ident, $name:literal, $class:ident, $help:literal;)*) => {
        /// Id of a message.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum MessageId {
            $(#[doc = $help] $variant,)*
            /// A message about an event of this kind: the name of the event is the id.
            Event(EventKind),
        }

        impl MessageId {
            /// All ids that are not names of events, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the stable name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* Self::Event(kind) => kind.name() }
            }

            /// Returns the description, in one line.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* Self::Event(kind) => kind.help() }
            }

            fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* Self::Event(kind) => class_of(kind) }
            }
        }
    };
}

messages! {
    // Volumes.
    VolumeUnknown, "volume.unknown", NotFound, "There is no volume of this name.";
    VolumeExists, "volume.exists", Conflict, "A volume of this name is configured already.";
    VolumeAttachedAlready, "volume.attached-already", Conflict, "The volume is attached already.";
    VolumeNotAttached, "volume.not-attached", Conflict, "The volume is configured, or known, but not attached.";
    VolumeBusy, "volume.busy", Conflict, "The volume is being attached, detached, resized or given other exports.";
    VolumeInUse, "volume.in-use", Conflict, "A client, a mount or another device uses the volume.";
    VolumeDirty, "volume.dirty", Conflict, "The cache has dirty data of the volume, which must be drained, kept or discarded first.";
    VolumeTooDirty, "volume.too-dirty", Conflict, "More dirty data would stay in the cache than the limit \
        allows.";
    VolumeLostData, "volume.lost-data", Conflict, "Blocks of the volume are lost, and must be written again or discarded first.";
    VolumeSize, "volume.size", Invalid, "The volume cannot have this size.";
    VolumeResizeUnsupported, "volume.resize-unsupported", Conflict, "The kernel cannot change the size of the block device while it is served.";
    VolumeNotInPool, "volume.not-in-pool", Invalid, "The pool that is imported has no volume of this name.";
    VolumeDefinition, "volume.definition", Conflict, "The definition of the volume contradicts another part of the configuration.";
    VolumeMoved, "volume.moved", Info, "The volume has another backing store.";
    VolumeLossEnded, "volume.loss-ended", Info, "The volume no longer has lost data.";
    VolumeDestageRecovered, "volume.destage-recovered", Info, "The daemon can write the volume back again.";
    // Exports.
    ExportSyntax, "export.syntax", Invalid, "The URI of the export is wrong.";
    ExportMissing, "export.missing", Invalid, "The volume has no export of the kind that is needed, or none is given.";
    ExportFailed, "export.failed", Conflict, "The daemon cannot serve the export: its address is taken, or a mount or device cannot be made.";
    ExportRemoval, "export.removal", Conflict, "The daemon cannot remove an export while the volume is served.";
    ExportUnsupported, "export.unsupported", Invalid, "This program does not serve exports of this kind.";
    ExportReady, "export.ready", Info, "An export accepts clients.";
    ExportBack, "export.back", Info, "The volume no longer has lost exports.";
    ExportNote, "export.note", Info, "The daemon reports a change of an export, a mount or a block device.";
    // Backing stores.
    BackingMissing, "backing.missing", Invalid, "No backing store is given, and none is known.";
    BackingSyntax, "backing.syntax", Invalid, "The URI of the backing store is wrong.";
    BackingInUse, "backing.in-use", Conflict, "The backing store belongs to another volume, or is a device of a cache.";
    BackingDirtyElsewhere, "backing.dirty-elsewhere", Conflict, "A pool holds dirty data for this backing store under another volume.";
    BackingEmpty, "backing.empty", Failed, "The backing store has no bytes.";
    BackingSectorSize, "backing.sector-size", Failed, "The sectors of the backing store have a size that Forebay does not serve.";
    BackingNotAnswering, "backing.not-answering", Unavailable, "The backing store does not answer in time.";
    BackingShrunk, "backing.shrunk", Conflict, "The backing store is shorter than the volume.";
    BackingTooSmall, "backing.too-small", Conflict, "The backing store is too small for the requested size.";
    BackingUnreadable, "backing.unreadable", Failed, "The daemon cannot read or flush the backing store.";
    BackingNotTheOne, "backing.not-the-one", Conflict, "Nothing proves that this is the backing store of the volume.";
    // Pools.
    PoolUnknown, "pool.unknown", NotFound, "There is no pool of this name.";
    PoolExists, "pool.exists", Conflict, "A pool of this name exists already.";
    PoolOpen, "pool.open", Conflict, "The pool is open.";
    PoolNotOpen, "pool.not-open", Conflict, "The pool is configured, but not open.";
    PoolNotConfigured, "pool.not-configured", Conflict, "The pool is no longer in the configuration file.";
    PoolInUse, "pool.in-use", Conflict, "Volumes use the pool.";
    PoolFull, "pool.full", Conflict, "The pool already has the maximum number of volumes.";
    PoolBusy, "pool.busy", Conflict, "Another change of the pool is in progress.";
    PoolStopped, "pool.stopped", Unavailable, "The pool was closed while the request was carried out.";
    PoolNotServing, "pool.not-serving", Unavailable, "The cache is not open, or is being closed.";
    PoolNoDevice, "pool.no-device", Invalid, "The pool has no device, or none is given.";
    PoolDeviceUnknown, "pool.device-unknown", Invalid, "The pool has no such device.";
    PoolDeviceChoice, "pool.device-choice", Invalid, "The pool has several devices, and the request does not name one.";
    PoolDeviceCount, "pool.device-count", Invalid, "The number of devices is wrong for this pool.";
    PoolDeviceInUse, "pool.device-in-use", Conflict, "The device belongs to a pool or a volume already.";
    PoolSize, "pool.size", Invalid, "The pool cannot have this size.";
    PoolResizeFailed, "pool.resize-failed", Failed, "The daemon cannot grow or shrink the pool.";
    PoolNotCut, "pool.not-cut", Failed, "The pool is smaller, but the daemon cannot truncate its device.";
    PoolMirrored, "pool.mirrored", Conflict, "The operation does not work with a mirrored pool.";
    PoolNotMirrored, "pool.not-mirrored", Invalid, "The operation needs a mirrored pool.";
    PoolMirrorIncomplete, "pool.mirror-incomplete", Unavailable, "The daemon cannot open both devices of a mirrored pool yet.";
    PoolBothFailed, "pool.both-failed", Invalid, "Both devices of a mirrored pool have failed.";
    PoolReplacement, "pool.replacement", Conflict, "The device cannot be replaced in the present state of the pool.";
    PoolReplacementNotFinished, "pool.replacement-not-finished", Failed, "The next start may take a replaced device for the current one.";
    PoolNotClosed, "pool.not-closed", Failed, "The pool was not closed: a device does not answer.";
    PoolNotStopped, "pool.not-stopped", Failed, "A system call of the pool hangs, so the pool was not closed in time.";
    PoolNotErased, "pool.not-erased", Failed, "The pool was removed, but its devices are not erased.";
    PoolDirtyData, "pool.dirty-data", Conflict, "The pool holds dirty data that no backing store has.";
    PoolLostData, "pool.lost-data", Conflict, "Data of a failed cache is lost, and reads would return older data.";
    PoolRescuePending, "pool.rescue-pending", Conflict, "Dirty data of the failed cache is still being recorded or written back.";
    PoolMemory, "pool.memory", Failed, "The daemon has no memory for buffers of the pool.";
    PoolThread, "pool.thread", Failed, "The thread of the pool ended, or cannot be started.";
    PoolPartlyImported, "pool.partly-imported", Failed, "The pool is imported, but some of its volumes are not attached.";
    PoolImportUnconfirmed, "pool.import-unconfirmed", Conflict, "The settings on the cache name devices, files, exports or a key that the command does not name.";
    PoolScrubRate, "pool.scrub-rate", Invalid, "A scrub at this rate would not end.";
    PoolRemovalKept, "pool.removal-kept", Failed, "The daemon cannot record whether the pool is removed or \
        stays.";
    PoolSettingsTooLong, "pool.settings-too-long", Failed, "The settings of the pool do not fit into the space for them on its cache.";
    PoolNote, "pool.note", Info, "A pool reports something about its work or its devices.";
    PoolOpened, "pool.opened", Info, "A pool was opened.";
    PoolClosed, "pool.closed", Info, "A pool was closed.";
    PoolStopping, "pool.stopping", Info, "A pool is being closed.";
    // Caches and their devices.
    CacheMissing, "cache.missing", Failed, "There is no cache file of this name.";
    CacheInUse, "cache.in-use", Failed, "Another device with the same cache is in use.";
    CacheForeignData, "cache.foreign-data", Failed, "The device has data, but no Forebay cache.";
    CacheExists, "cache.exists", Failed, "The device holds a cache already.";
    CacheZeroed, "cache.zeroed", Failed, "The device begins with zeroes, but a cache is recorded there or other data may follow.";
    CacheSameDevice, "cache.same-device", Failed, "The same device is given twice, or as cache and as backing store.";
    CacheGeometry, "cache.geometry", Failed, "The cache cannot be laid out in this space.";
    CacheNoSpace, "cache.no-space", Failed, "The file system would have too little free space.";
    CacheNotACache, "cache.not-a-cache", Failed, "The device has no superblock of a cache.";
    CacheVersion, "cache.version", Failed, "Another version of Forebay made the cache.";
    CacheDamaged, "cache.damaged", Failed, "The structures of the cache are damaged.";
    CacheTruncated, "cache.truncated", Failed, "The cache device is shorter than the cache.";
    CacheUnreadable, "cache.unreadable", Failed, "The cache device cannot be read or written.";
    CacheLostWrites, "cache.lost-writes", Failed, "The cache device lost writes that it had flushed.";
    CacheOlderCopy, "cache.older-copy", Failed, "The device has an older copy of the cache.";
    CacheUnmarked, "cache.unmarked", Warning, "A failed cache cannot be marked on its device.";
    CacheGivenUp, "cache.given-up", Failed, "The cache was given up, and its volumes continued without it.";
    CacheNotTheOne, "cache.not-the-one", Failed, "The device holds a different cache than the recorded one.";
    CacheVanished, "cache.vanished", Failed, "The device does not hold the cache that is recorded for it.";
    CacheUsedSince, "cache.used-since", Failed, "The cache was used after it was given up.";
    CacheNotAnswering, "cache.not-answering", Unavailable, "The cache device does not answer in time.";
    CacheNotClean, "cache.not-clean", Failed, "The cache was not closed in an orderly way.";
    CacheKeyMissing, "cache.key-missing", Failed, "The cache is encrypted, and no key is given.";
    CacheKeyWrong, "cache.key-wrong", Failed, "The key does not belong to the cache.";
    CacheKeyUnused, "cache.key-unused", Invalid, "A key is given, but the cache is not encrypted.";
    CacheMemberMissing, "cache.member-missing", Failed, "A device of the cache is missing.";
    CacheMemberOrder, "cache.member-order", Failed, "A device of the cache is given in the wrong place.";
    CacheMemberForeign, "cache.member-foreign", Failed, "A device belongs to no cache, or to another one.";
    CacheMemberRemoved, "cache.member-removed", Failed, "A device was taken out of the cache, or replaced.";
    CacheMemberTwice, "cache.member-twice", Failed, "Two devices claim to be the same member of the cache.";
    CacheMembersDiverged, "cache.members-diverged", Failed, "The devices of a mirrored cache do not show which of them is current.";
    CacheMemberStale, "cache.member-stale", Failed, "The device is stale: the mirrored cache continued \
        without it.";
    CacheTooManyDevices, "cache.too-many-devices", Invalid, "More devices are given than a cache can have.";
    CacheNotMirrored, "cache.not-mirrored", Failed, "The cache is not mirrored.";
    CacheHalfOfMirror, "cache.half-of-mirror", Failed, "The device is one of the two devices of a mirrored cache.";
    CacheNotExported, "cache.not-exported", Failed, "The cache was not exported, or was used since.";
    CacheExportUnreadable, "cache.export-unreadable", Failed, "The settings that the export wrote to the cache cannot be read.";
    CacheExportForged, "cache.export-forged", Failed, "The settings on the encrypted cache were not written with its key.";
    CacheReplaced, "cache.replaced", Failed, "The device was replaced by another one.";
    CacheReplacementIncomplete, "cache.replacement-incomplete", Failed, "The device was meant to replace another one, but does not have all of its data.";
    CacheReplacedSilent, "cache.replaced-silent", Failed, "A device that was replaced does not answer.";
    CacheFaultsFound, "cache.faults-found", Failed, "The check found that the cache is damaged, or not the recorded one.";
    // Keys.
    KeyUnreadable, "key.unreadable", Failed, "The key file cannot be read, or all users may read it.";
    KeyCredential, "key.credential", Failed, "The service has no credential of this name.";
    // Devices and files.
    DeviceMissing, "device.missing", Failed, "There is no such device or file.";
    DeviceUnusable, "device.unusable", Failed, "The device or file cannot be opened or used.";
    DeviceInUse, "device.in-use", Failed, "Another program, a mount or another device uses the device.";
    DeviceWriteProtected, "device.write-protected", Failed, "The device or file is write-protected.";
    DeviceOwnMount, "device.own-mount", Failed, "The path lies on a mount of this daemon.";
    DeviceNotADevice, "device.not-a-device", Failed, "The path is neither a regular file nor a block device.";
    DeviceNoSpace, "device.no-space", Failed, "The file system has too little space for the file.";
    DeviceExists, "device.exists", Failed, "The file exists already.";
    DeviceEmulation, "device.emulation", Failed, "The device cannot be used with an emulated device in front of it.";
    DevicePreallocation, "device.preallocation", Failed, "The file system cannot reserve space for the file.";
    DeviceTooSmall, "device.too-small", Invalid, "The device is too small.";
    DeviceTwice, "device.twice", Invalid, "A device is given twice.";
    DeviceSyntax, "device.syntax", Invalid, "The syntax of a device is wrong.";
    DeviceIo, "device.io", Failed, "An operation on a device or file failed.";
    DeviceBack, "device.back", Info, "A device has its length again, or is no longer used.";
    DevicePathFound, "device.path-found", Info, "The path of a file leads to it again, or the file is no longer used.";
    // Records in the state directory.
    StateUnreadable, "state.unreadable", Failed, "A record in the state directory cannot be read.";
    StateNotAnswering, "state.not-answering", Unavailable, "The state directory does not answer in time.";
    // Settings.
    SettingUnknown, "setting.unknown", Invalid, "There is no setting of this name.";
    SettingValue, "setting.value", Invalid, "The setting does not take this value.";
    SettingConflict, "setting.conflict", Invalid, "Two settings contradict each other.";
    SettingFixed, "setting.fixed", Invalid, "The setting cannot be changed while the pool or volume is open.";
    SettingMissing, "setting.missing", Invalid, "No setting is given.";
    SettingTwice, "setting.twice", Invalid, "A setting is given twice.";
    SettingSyntax, "setting.syntax", Invalid, "A setting is not written as KEY=VALUE.";
    SettingUnsupported, "setting.unsupported", Invalid, "This daemon has no settings of its own.";
    NameSyntax, "name.syntax", Invalid, "A name of a pool or volume is too long or has characters that are not allowed.";
    SizeSyntax, "size.syntax", Invalid, "The syntax of a size or duration is wrong.";
    // Caching rules.
    RuleUnknown, "rule.unknown", NotFound, "There is no rule of this number.";
    RuleSyntax, "rule.syntax", Invalid, "The syntax of the rule is wrong.";
    RuleValue, "rule.value", Invalid, "A key of the rule does not take this value.";
    RuleMatchesNothing, "rule.matches-nothing", Invalid, "No request can match the rule.";
    RuleNameTaken, "rule.name-taken", Conflict, "Another rule of the volume has this name.";
    RuleTooMany, "rule.too-many", Conflict, "The volume already has the maximum number of rules.";
    RulePlace, "rule.place", Invalid, "The list of rules has no such place.";
    RuleProcess, "rule.process", Failed, "The daemon cannot find out whether the process of the rule exists.";
    RuleNote, "rule.note", Warning, "A rule never applies, or needs attention for another reason.";
    // Jobs, recordings, alarms.
    JobUnknown, "job.unknown", NotFound, "There is no such job, or it ended too long ago.";
    JobConflict, "job.conflict", Conflict, "Another job is in the way.";
    JobTarget, "job.target", Invalid, "A job of this kind needs a pool, or a volume.";
    JobTooMany, "job.too-many", Unavailable, "The maximum number of unfinished jobs is reached.";
    JobEnded, "job.ended", Conflict, "The job has ended.";
    JobTooLate, "job.too-late", Conflict, "The job is about to complete and cannot be cancelled.";
    JobOutOfSight, "job.out-of-sight", Failed, "The daemon stopped answering, so the result of the job is \
        unknown.";
    JobGoesOn, "job.goes-on", Info, "The command ends, and the job continues in the daemon.";
    JobStopped, "job.stopped", Failed, "The daemon was stopped before the job ended.";
    JobDeadlineMissed, "job.deadline-missed", Failed, "The job did not end before its deadline.";
    RecordingTooMany, "recording.too-many", Conflict, "The maximum number of recordings is in progress.";
    RecordingLimit, "recording.limit", Invalid, "A recording cannot be this long or this small.";
    RecordingEndedEarly, "recording.ended-early", Failed, "The recording ended before its time.";
    EventsNotKept, "events.not-kept", NotFound, "The daemon keeps no history of events in files.";
    AlarmNoCommand, "alarm.no-command", Conflict, "No program for alarms is configured (alarm_command).";
    AlarmUnknown, "alarm.unknown", NotFound, "There is no such alarm.";
    AdviceHours, "advice.hours", Invalid, "The daemon does not keep figures for this period.";
    EventsLost, "events.lost", Warning, "Events were lost before the command could show them.";
    EventsConnection, "events.connection", Info, "The command lost its connection to the daemon, or has it again.";
    ScrubDamage, "scrub.damage", Failed, "A scrub found damage.";
    // The API and the control files.
    ApiPath, "api.path", NotFound, "The API has no such path.";
    ApiMethod, "api.method", Invalid, "The path does not take this method.";
    ApiContentType, "api.content-type", Invalid, "The body is not marked as JSON.";
    ApiBody, "api.body", Invalid, "The body is not JSON, or not the expected JSON.";
    ApiBodySize, "api.body-size", Invalid, "The body is too large.";
    ApiBodyLate, "api.body-late", Invalid, "The body did not come in time.";
    ApiParameter, "api.parameter", Invalid, "A parameter of the request is wrong.";
    ApiToken, "api.token", Denied, "The request has no token, or a wrong one.";
    ApiLevel, "api.level", Denied, "The user or token may not do this.";
    ApiPathNotAllowed, "api.path-not-allowed", Denied, "The request names a path that users of the API may not name.";
    ApiOrigin, "api.origin", Denied, "A page of another site, or under another name, makes the request.";
    ApiNotAnswered, "api.not-answered", Unavailable, "The daemon did not answer the request in time.";
    ApiTooMany, "api.too-many", Unavailable, "The daemon has reached its limit of requests or readers.";
    ApiInternal, "api.internal", Failed, "The daemon failed while it carried out the request.";
    ApiListen, "api.listen", Failed, "The daemon cannot listen on an address of the API.";
    ApiReady, "api.ready", Info, "The API accepts requests.";
    ControlPath, "control.path", NotFound, "There is no such control file or directory.";
    ControlSyntax, "control.syntax", Invalid, "The text written to a control file is not valid.";
    ControlTooMany, "control.too-many", Conflict, "Too many writers wait for flushes.";
    ControlFailed, "control.failed", Failed, "The control files cannot be served.";
    // The daemon.
    DaemonServing, "daemon.serving", Info, "The daemon serves.";
    DaemonStopping, "daemon.stopping", Unavailable, "The daemon is being stopped.";
    DaemonPassedOn, "daemon.passed-on", Unavailable, "A successor takes over from this daemon.";
    DaemonBusy, "daemon.busy", Unavailable, "The daemon is too busy to take the request.";
    DaemonNoConfigFile, "daemon.no-config-file", Conflict, "The daemon runs without a configuration file, so it cannot do this.";
    DaemonRunsAlready, "daemon.runs-already", Failed, "A daemon runs already with this socket or state directory.";
    DaemonNotRunning, "daemon.not-running", Failed, "No daemon answers on the admin socket.";
    DaemonNoAnswer, "daemon.no-answer", Failed, "The daemon did not answer.";
    DaemonNotHttp, "daemon.not-http", Failed, "The program behind the socket does not speak HTTP.";
    DaemonAnswer, "daemon.answer", Failed, "The answer of the daemon cannot be parsed.";
    DaemonMemoryLock, "daemon.memory-lock", Failed, "The daemon may not lock its memory.";
    DaemonSystem, "daemon.system", Failed, "The system refused something that the daemon needs.";
    DaemonNoThread, "daemon.no-thread", Unavailable, "The system gives the daemon no further thread or process; the request was not started.";
    DaemonIoEngine, "daemon.io-engine", Failed, "The I/O engine of the daemon failed.";
    DaemonStopForced, "daemon.stop-forced", Failed, "A second stop signal ended the daemon before everything was done.";
    DaemonStopFailed, "daemon.stop-failed", Failed, "The daemon did not stop as it should.";
    DaemonNotReady, "daemon.not-ready", Failed, "The daemon ended, or did not become ready.";
    DaemonNoService, "daemon.no-service", Failed, "There is no service to start, or it lacks a required permission.";
    LogLost, "log.lost", Warning, "Messages could not be written to the log.";
    DaemonNote, "daemon.note", Info, "The daemon reports on its work.";
    DaemonProblem, "daemon.problem", Error, "The daemon reports a problem.";
    UpgradeUnsupported, "upgrade.unsupported", Conflict, "This daemon cannot hand over to a successor.";
    UpgradeBlocked, "upgrade.blocked", Conflict, "Work in progress cannot be handed over to a successor.";
    UpgradeRequests, "upgrade.requests", Conflict, "Requests were not answered in time for the upgrade.";
    UpgradeLost, "upgrade.lost", Failed, "Neither the daemon nor its successor answers.";
    // The configuration file.
    ConfigSyntax, "config.syntax", Invalid, "The configuration file is not TOML, or not text.";
    ConfigUnreadable, "config.unreadable", Failed, "The configuration file cannot be read or written.";
    ConfigWrong, "config.wrong", Invalid, "The configuration file has errors.";
    ConfigUnknownKey, "config.unknown-key", Invalid, "The configuration file has a key or section that does not exist.";
    ConfigType, "config.type", Invalid, "A value in the configuration file has the wrong type.";
    ConfigValue, "config.value", Invalid, "A key of the configuration file does not take this value.";
    ConfigMissing, "config.missing", Invalid, "A key or section is missing in the configuration file.";
    ConfigTwice, "config.twice", Invalid, "The configuration file sets something twice.";
    ConfigReference, "config.reference", Invalid, "The configuration file names something that it does not define.";
    ConfigConflict, "config.conflict", Invalid, "Two parts of the configuration file contradict each other.";
    ConfigUnused, "config.unused", Warning, "A part of the configuration file has no effect, or probably not the one that was meant.";
    ConfigName, "config.name", Invalid, "A name in the configuration file is not a valid one.";
    ConfigLimit, "config.limit", Invalid, "A part of the configuration file is longer or larger than it may be.";
    ConfigInsecure, "config.insecure", Warning, "The configuration lets others read or change data.";
    ConfigDataLoss, "config.data-loss", Warning, "With this setting the daemon discards dirty data.";
    ConfigSameDevice, "config.same-device", Warning, "Two names in the configuration file lead to the same device.";
    ConfigReloaded, "config.reloaded", Info, "The daemon has applied a change of the configuration file.";
    ConfigEdit, "config.edit", Invalid, "The change cannot be written into the configuration file.";
    ConfigChangeRefused, "config.change-refused", Invalid, "The change would make the configuration wrong.";
    ConfigWrongMeanwhile, "config.wrong-meanwhile", Conflict, "The configuration file was changed meanwhile, and is wrong now.";
    ConfigNotRead, "config.not-read", Conflict, "The configuration file was edited, and the daemon has not read the change yet.";
    ConfigBusy, "config.busy", Conflict, "Another program keeps changing the configuration file.";
    // The command line.
    CliUsage, "cli.usage", Invalid, "The command line is wrong.";
    CliArgument, "cli.argument", Invalid, "An option of the command does not take this value.";
    CliInterrupted, "cli.interrupted", Failed, "The user interrupted the command.";
    CliOutput, "cli.output", Failed, "The command cannot write its output.";
    CliSystem, "cli.system", Failed, "The system refused an operation on a file, a socket or a process.";
    CliExists, "cli.exists", Failed, "The output file or folder exists already.";
    CliTerminal, "cli.terminal", Invalid, "The command needs a terminal.";
    CliRoot, "cli.root", Failed, "The command needs root.";
    CliUnsupported, "cli.unsupported", Failed, "This build, kernel or system does not support the requested operation.";
    CliInternal, "cli.internal", Failed, "A thread of the command ended early; this is a bug.";
    CliNoVolume, "cli.no-volume", Failed, "There is no volume that the command could show.";
    CliPipeChild, "cli.pipe-child", Failed, "A program that the command runs failed.";
    CliNote, "cli.note", Info, "A note about how the command works.";
    CliProgress, "cli.progress", Info, "Progress of a long command.";
    CliReloadIncomplete, "cli.reload-incomplete", Failed, "Parts of the configuration need more than a reload.";
    // cache and uncache.
    AttachInterruptedBefore, "attach.interrupted-before", Failed, "An earlier cache or uncache command was interrupted and is unfinished.";
    AttachBusy, "attach.busy", Failed, "Another cache or uncache command is in progress.";
    AttachNote, "attach.note", Failed, "The note of an interrupted command cannot be parsed.";
    AttachNotAMount, "attach.not-a-mount", Failed, "The path is not a mount point of a disk, or of a volume.";
    AttachMount, "attach.mount", Failed, "The mount is of a kind that the command does not handle.";
    AttachMountedElsewhere, "attach.mounted-elsewhere", Failed, "The file system is mounted in another place as well.";
    AttachNeededEarly, "attach.needed-early", Failed, "The mount is needed before the daemon runs, or by the daemon itself.";
    AttachFstab, "attach.fstab", Failed, "The file /etc/fstab cannot be changed as needed.";
    AttachUnit, "attach.unit", Failed, "A mount unit mounts the disk itself, without the cache.";
    AttachDisk, "attach.disk", Failed, "The disk below the mount cannot be cached.";
    AttachFlash, "attach.flash", Invalid, "The flash device cannot be the cache of this disk.";
    AttachDaemon, "attach.daemon", Failed, "The running daemon, or its configuration, does not suit the command.";
    AttachBlockDevices, "attach.block-devices", Failed, "The daemon or the kernel cannot make block devices.";
    AttachChoice, "attach.choice", Invalid, "The command cannot determine which pool or flash device to use.";
    AttachExisting, "attach.existing", Failed, "The disk is the backing store of a volume already.";
    // Salvage.
    SalvageIncomplete, "salvage.incomplete", Failed, "Not everything could be extracted from the cache.";
    SalvageTarget, "salvage.target", Failed, "The copy of the backing store cannot take the extracted data.";
    SalvageNothing, "salvage.nothing", Failed, "The layout of the cache is unknown, so its data cannot be found.";
    SalvageRecord, "salvage.record", Failed, "There is no record of the cache that was given up.";
    SalvageVolume, "salvage.volume", Invalid, "The cache has no such volume.";
    InspectSegment, "inspect.segment", Invalid, "The cache has no such segment.";
    // Traces, what-if, demo, simulator.
    TraceEmpty, "trace.empty", Failed, "The trace has no requests that the command could use.";
    TraceUnreadable, "trace.unreadable", Failed, "The trace cannot be read or written, or its format is wrong.";
    TraceFormat, "trace.format", Invalid, "The format of the trace is unknown.";
    TraceTarget, "trace.target", Failed, "The target of a replay cannot be used.";
    TraceTooLarge, "trace.too-large", Failed, "The trace goes beyond the end of the target.";
    TraceRequestsFailed, "trace.requests-failed", Failed, "Requests of a replay failed.";
    TraceNote, "trace.note", Info, "A note about what a trace holds.";
    WhatIfModel, "what-if.model", Failed, "The model cannot carry out the variant.";
    WhatIfVariants, "what-if.variants", Invalid, "The variants are wrong, or too many.";
    DemoSize, "demo.size", Invalid, "The sizes do not suit the demo.";
    DemoWrongData, "demo.wrong-data", Failed, "The demo read other data than it had written.";
    DemoIo, "demo.io", Failed, "A request of the demo failed.";
    DemoKept, "demo.kept", Info, "The demo keeps its folder.";
    UblkNotOurs, "ublk.not-ours", Failed, "The block device does not belong to Forebay.";
    UblkRemoval, "ublk.removal", Failed, "The block device cannot be removed.";
}

/// Returns the class of an event's kind, which errors about the same condition share.
fn class_of(kind: EventKind) -> Class {
    match kind {
        EventKind::BackingChanged | EventKind::CacheFailed | EventKind::VolumeAbsent => Class::Conflict,
        EventKind::PoolNotAnswering => Class::Unavailable,
        _ => Class::Failed,
    }
}

impl MessageId {
    /// Returns the default kind of an error with this id.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        self.class().kind()
    }

    /// Returns the default severity of a line with this id.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::Event(kind) => kind.severity(),
            other => other.class().severity(),
        }
    }

    /// Returns the kind of an error, or the severity of another message, as the documentation names
    /// it.
    #[must_use]
    pub fn class_name(self) -> &'static str {
        self.class().name()
    }

    /// Returns the id with this name; names of events are ids too.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let own = Self::ALL.iter().copied().find(|id| id.name() == name);
        own.or_else(|| EventKind::from_name(name).map(Self::Event))
    }
}

impl From<EventKind> for MessageId {
    fn from(kind: EventKind) -> Self {
        Self::Event(kind)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for MessageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_of_one_form() {
        let events = EventKind::ALL.iter().map(|kind| kind.name());
        let names: BTreeSet<_> = MessageId::ALL.iter().map(|id| id.name()).chain(events).collect();
        assert_eq!(names.len(), MessageId::ALL.len() + EventKind::ALL.len(), "an id is in use twice");
        for id in MessageId::ALL {
            let (subject, problem) = id.name().split_once('.').expect("subject.problem");
            for part in [subject, problem] {
                let is_kebab = part
                    .split('-')
                    .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()));
                assert!(is_kebab, "{id}");
            }
            assert!(id.help().ends_with('.') && id.help().len() < 120, "{id}: {}", id.help());
            assert_eq!(MessageId::from_name(id.name()), Some(*id));
        }
    }

    #[test]
    fn a_name_of_an_event_is_an_id() {
        let id = MessageId::from_name("backing.changed").unwrap();
        assert_eq!(id, MessageId::Event(EventKind::BackingChanged));
        assert_eq!((id.kind(), id.severity()), (ErrorKind::Conflict, Severity::Error));
        assert_eq!(MessageId::from_name("backing"), None);
    }
}
