//! Advice on the size of the cache.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::handler::{Answer, Context};
use crate::api::extract::{Names, Parameters};
use crate::api::problem::Problem;
use forebay_admin::{AdminError, AdviceInfo, MessageId, Target};

/// Period of the advice.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Time {
    /// This many hours before the current one, at most 23; all of them if omitted.
    #[param(required = false, maximum = 23)]
    hours: Option<u64>,
}

/// Counts are kept of the current hour and of this many before it.
const HOURS_MAX: u64 = 23;

impl Time {
    fn hours(&self) -> Result<u64, Problem> {
        match self.hours {
            None => Ok(HOURS_MAX),
            Some(hours @ 0..=HOURS_MAX) => Ok(hours),
            Some(hours) => {
                let what = format!("hours={hours}: counts are kept of {HOURS_MAX} hours before this one");
                Err(AdminError::new(MessageId::AdviceHours, what, "leave hours out for all of them").into())
            }
        }
    }
}

/// Predicts the effect of other cache sizes on a whole pool, from its recent requests.
#[utoipa::path(get, path = "/v1/pools/{pool}/advice", tag = "statistics",
    params(("pool" = String, Path, description = "Name"), Time),
    responses((status = 200, description = "Hits by size", body = AdviceInfo)))]
pub(super) async fn pool_advice(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Parameters(time): Parameters<Time>,
) -> Answer<AdviceInfo> {
    let hours = time.hours()?;
    context.look(move |admin| admin.advise(Target::Pool(&pool), hours)).await.map(Json)
}

/// Predicts the effect of other sizes of the pool's cache on a volume, from its recent requests.
#[utoipa::path(get, path = "/v1/volumes/{volume}/advice", tag = "statistics",
    params(("volume" = String, Path, description = "Name"), Time),
    responses((status = 200, description = "Hits by size", body = AdviceInfo)))]
pub(super) async fn volume_advice(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Parameters(time): Parameters<Time>,
) -> Answer<AdviceInfo> {
    let hours = time.hours()?;
    context.look(move |admin| admin.advise(Target::Volume(&volume), hours)).await.map(Json)
}
