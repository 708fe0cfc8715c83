//! The operator's contract: the daemon's requests and answers, as types and one trait. All clients
//! and servers of the admin API build on it.
//!
//! - `admin`: [`Admin`], the one interface.
//! - `request`: requests.
//! - `info`, `flash`: answers.
//! - `error`: errors of requests.
//! - `message`: the ids of messages, for scripts.
//! - [`jobs`]: long work.
//! - [`events`]: events for readers that follow them, and alarms.
//! - [`clock`]: time for jobs and events.
//! - [`size`]: sizes and durations as operators write them.
#![forbid(unsafe_code)]

mod admin;
pub mod clock;
mod error;
pub mod events;
mod flash;
mod info;
pub mod jobs;
mod message;
mod request;
pub mod size;

pub use admin::{Admin, Target, TraceSender};
pub use error::{AdminError, ErrorKind};
pub use flash::{EnduranceInfo, FlashInfo, WearInfo};
pub use info::{
    AdviceInfo, AdviceSize, AlarmTested, CopyInfo, DaemonInfo, DeviceInfo, EventHistory, FileInfo,
    ImportInfo, ImportedVolume, JobInfo, LossInfo, PoolInfo, RatesInfo, RatesOfAll, RecordedInfo, ReloadDone,
    SettingInfo, SettingsDone, UpgradeBegun, UpgradeInfo, VolumeInfo, VolumeState, WarningInfo,
};
pub use message::MessageId;
pub use request::{
    DetachHow, DetachRequest, DeviceRequest, ExportRequest, GrowRequest, ImportRequest, Leaving, MetricsForm,
    OpenHow, PoolRequest, RecordRequest, ReplaceRequest, RuleRequest, ScrubRequest, SettingsRequest,
    ShrinkRequest, Taking, VolumeRequest,
};
