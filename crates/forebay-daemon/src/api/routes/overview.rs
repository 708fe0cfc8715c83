//! Everything that a dashboard shows at once.

use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use utoipa::ToSchema;

use super::{Answer, Context};
use crate::api::access::Level;
use forebay_admin::events::AlarmInfo;
use forebay_admin::{DaemonInfo, JobInfo, PoolInfo, RatesInfo, VolumeInfo};

/// Jobs that have ended: so many of the newest are told.
const ENDED_JOBS_MAX: usize = 10;
/// Alarms: so many of the gravest are told.
const ALARMS_MAX: usize = 200;

/// Everything at one instant, in few numbers.
#[derive(Serialize, ToSchema)]
pub(super) struct Overview {
    /// Whether who asks may change things.
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
    /// The gravest active alarms, and of these the newest, at most 200; the gravest first.
    alarms: Vec<AlarmInfo>,
    /// How many there are.
    alarms_total: usize,
}

/// Everything that a dashboard shows at once: one request in place of many.
#[utoipa::path(get, path = "/v1/overview", tag = "statistics",
    responses((status = 200, description = "How everything is", body = Overview)))]
pub(super) async fn overview(
    State(context): State<Context>,
    level: Option<Extension<Level>>,
) -> Answer<Overview> {
    let mut alarms = context.events.alarms();
    alarms.reverse(); // the newest first
    alarms.sort_by_key(|alarm| Reverse(alarm.severity));
    // Who was not asked for a level may do everything.
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

/// Those that have not ended, and the newest others.
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
