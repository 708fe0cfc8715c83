//! Everything that a dashboard displays.

use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use utoipa::ToSchema;

use super::handler::{Answer, Context};
use crate::api::access::Level;
use forebay_admin::events::AlarmInfo;
use forebay_admin::{DaemonInfo, JobInfo, PoolInfo, RatesInfo, VolumeInfo};

/// Maximum number of ended jobs, the newest.
const ENDED_JOBS_MAX: usize = 10;
/// Maximum number of alarms, the most severe.
const ALARMS_MAX: usize = 200;

/// The whole state at one instant, in few numbers.
#[derive(Serialize, ToSchema)]
pub(super) struct Overview {
    /// Whether the client may change things.
    may_operate: bool,
    /// The daemon.
    daemon: DaemonInfo,
    /// All pools.
    pools: Vec<PoolInfo>,
    /// All volumes.
    volumes: Vec<VolumeInfo>,
    /// Rates of pools that are open, by name.
    pool_rates: BTreeMap<String, RatesInfo>,
    /// Rates of volumes that are attached, by name.
    volume_rates: BTreeMap<String, RatesInfo>,
    /// Jobs that have not ended, and the last ten that have; the newest last.
    jobs: Vec<JobInfo>,
    /// The most severe active alarms, and of these the newest, at most 200; the most severe first.
    alarms: Vec<AlarmInfo>,
    /// Number of active alarms.
    alarms_total: usize,
}

/// Everything that a dashboard displays, in one request.
#[utoipa::path(get, path = "/v1/overview", tag = "statistics",
    responses((status = 200, description = "State of everything", body = Overview)))]
pub(super) async fn overview(
    State(context): State<Context>,
    level: Option<Extension<Level>>,
) -> Answer<Overview> {
    let mut alarms = context.events.alarms();
    alarms.reverse(); // newest first
    alarms.sort_by_key(|alarm| Reverse(alarm.severity));
    // Without a level the client has full access.
    let may_operate = level.is_none_or(|Extension(level)| level >= Level::Operate);
    let overview = move |admin: &dyn forebay_admin::Admin| {
        let rates = admin.rates()?;
        Ok(Overview {
            may_operate,
            daemon: admin.daemon(),
            pools: admin.pools()?,
            volumes: admin.volumes()?,
            pool_rates: rates.pools,
            volume_rates: rates.volumes,
            jobs: newest(admin.jobs()),
            alarms: alarms.iter().take(ALARMS_MAX).map(AlarmInfo::from).collect(),
            alarms_total: alarms.len(),
        })
    };
    context.look(overview).await.map(Json)
}

/// Returns jobs that have not ended, and the newest others.
fn newest(mut jobs: Vec<JobInfo>) -> Vec<JobInfo> {
    let ended = jobs.iter().filter(|job| job.finished.is_some()).count();
    let mut too_many = ended.saturating_sub(ENDED_JOBS_MAX);
    jobs.retain(|job| {
        let goes = job.finished.is_some() && too_many > 0;
        too_many -= usize::from(goes);
        !goes
    });
    jobs
}
