//! Would another size of the cache help?

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Answer, Context};
use crate::api::extract::{Names, Parameters};
use forebay_admin::{AdviceInfo, Target};

/// Which time is asked about.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Time {
    /// So many hours before this one, at most 23; all of them if left out.
    #[param(required = false)]
    hours: Option<u64>,
}

impl Time {
    fn hours(&self) -> u64 {
        self.hours.unwrap_or(u64::MAX)
    }
}

/// What caches of other sizes would have done for all of a pool.
#[utoipa::path(get, path = "/v1/pools/{pool}/advice", tag = "statistics",
    params(("pool" = String, Path, description = "Name"), Time),
    responses((status = 200, description = "Hits by size", body = AdviceInfo)))]
pub(super) async fn pool_advice(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Parameters(time): Parameters<Time>,
) -> Answer<AdviceInfo> {
    context.look(move |admin| admin.advise(Target::Pool(&pool), time.hours())).await.map(Json)
}

/// What caches of other sizes, for all of its pool, would have done for a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/advice", tag = "statistics",
    params(("volume" = String, Path, description = "Name"), Time),
    responses((status = 200, description = "Hits by size", body = AdviceInfo)))]
pub(super) async fn volume_advice(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Parameters(time): Parameters<Time>,
) -> Answer<AdviceInfo> {
    context.look(move |admin| admin.advise(Target::Volume(&volume), time.hours())).await.map(Json)
}
