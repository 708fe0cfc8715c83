//! The operator's contract: what can be asked of the daemon, as types and one trait. Everything
//! that asks or answers is built on it.
//!
//! - `admin`: [`Admin`], the one interface.
//! - `request`: what is asked for.
//! - `info`, `flash`: what is answered.
//! - `error`: why something was not done.
//! - `message`: the ids of messages, for scripts.
//! - [`jobs`]: work that takes long.
//! - [`events`]: what happens, told to whoever follows, and alarms.
//! - [`clock`]: time as jobs and events see it.
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
