//! Recordings of requests: a job, and the trace as a stream of bytes.

use axum::body::Body as ResponseBody;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use tokio::sync::mpsc;

use super::handler::{Context, location};
use crate::api::extract::{Body, Names};
use crate::api::problem::Problem;
use forebay_admin::RecordRequest;

/// Blocks in transit to a client. The job keeps blocks that the client does not take in time.
const BLOCKS: usize = 16;

/// Records the requests of a volume, in Forebay's trace format.
///
/// The response is the trace as it grows. It ends with the job that the header `Location` names.
#[utoipa::path(post, path = "/v1/volumes/{volume}/trace", tag = "statistics", request_body = RecordRequest,
    params(("volume" = String, Path, description = "Name")),
    responses((status = 200, description = "The trace", body = String, content_type = "application/octet-stream",
        headers(("Location" = String)))))]
pub(super) async fn record_volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Body(request): Body<RecordRequest>,
) -> Result<Response, Problem> {
    let (to, blocks) = mpsc::channel(BLOCKS);
    let job = context.change(move |admin| admin.record_volume(&volume, request, to)).await?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, location(&["jobs", &job.id]), ResponseBody::from_stream(Blocks(blocks))).into_response())
}

/// Blocks from the channel.
struct Blocks(mpsc::Receiver<Vec<u8>>);

impl Stream for Blocks {
    type Item = Result<Vec<u8>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|block| block.map(Ok))
    }
}
