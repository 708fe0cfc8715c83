//! Data of the daemon for `forebay top`. A thread requests it, so that the screen never waits.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use forebay_admin::{AdviceInfo, DaemonInfo, PoolInfo, VolumeInfo, VolumeState};
use serde_json::Value;

use crate::client::{self, Client, escaped};
use crate::failure::Failure;
use crate::job::Job;

/// The state at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// `None` for `forebay run`.
    pub(super) daemon: Option<DaemonInfo>,
    pub(super) pools: Vec<PoolInfo>,
    /// Each with its statistics; the information is missing for `forebay run`.
    pub(super) volumes: Vec<(Option<VolumeInfo>, Value)>,
    pub(super) jobs: Vec<Job>,
    pub(super) alarms: Vec<Value>,
}

/// A request of the user.
#[derive(Debug)]
pub(super) enum FeedRequest {
    /// Acknowledge this alarm.
    Acknowledge(String),
    /// Predict the effect of other cache sizes on this volume.
    Advice(String),
}

/// Predicted effect of other cache sizes on a volume, or the reason why it is unknown.
pub(super) type Advice = Result<AdviceInfo, String>;

/// A sample, or the error.
pub(super) type News = Result<Snapshot, String>;

/// The sampling thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Feed {
    requests: Sender<FeedRequest>,
    news: Receiver<News>,
    advice: Receiver<Advice>,
}

impl Feed {
    /// Samples every `interval`.
    pub(super) fn start(client: Client, interval: Duration) -> std::io::Result<Self> {
        let (requests, requested) = channel();
        let (samples, news) = channel();
        let (advised, advice) = channel();
        std::thread::Builder::new().name("forebay-feed".into()).spawn(move || {
            sample_loop(&client, interval, &requested, &samples, &advised);
        })?;
        Ok(Self { requests, news, advice })
    }

    /// Returns the latest sample since the last call, if there is one.
    pub(super) fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Returns the requested advice, if it has arrived.
    pub(super) fn advice(&self) -> Option<Advice> {
        self.advice.try_recv().ok()
    }

    /// Sends a request: the next sample shows an acknowledged alarm, and advice is available once
    /// it arrives.
    pub(super) fn request(&self, request: FeedRequest) {
        let _ = self.requests.send(request); // an error means that the thread has ended, which ends the display
    }
}

fn sample_loop(
    client: &Client,
    interval: Duration,
    requested: &Receiver<FeedRequest>,
    samples: &Sender<News>,
    advised: &Sender<Advice>,
) {
    let mut next = Instant::now() + interval;
    loop {
        match requested.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(FeedRequest::Advice(volume)) => {
                let path = super::super::volume::path(&volume, "/advice");
                let advice = client.get(&path).and_then(|answer| client::read(&answer));
                let _ = advised.send(advice.map_err(|failure| failure.to_string()));
                continue;
            }
            Ok(FeedRequest::Acknowledge(alarm)) => {
                let by = escaped(&super::super::alarms::user());
                let path = format!("/v1/alarms/{}/acknowledge?by={by}", escaped(&alarm));
                if let Err(failure) = client.post_nothing(&path) {
                    let _ = samples.send(Err(failure.to_string()));
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        next = Instant::now() + interval;
        if samples.send(look(client).map_err(|failure| failure.to_string())).is_err() {
            return;
        }
    }
}

/// Takes one sample.
pub(super) fn look(client: &Client) -> Result<Snapshot, Failure> {
    let Some(volumes) = client.get_if_there("/v1/volumes")? else {
        let stats = client.get("/v1/stats")?;
        return Ok(Snapshot { volumes: vec![(None, stats)], ..Snapshot::default() });
    };
    let volumes: Vec<VolumeInfo> = client::list(&volumes, "volumes")?;
    let mut with_statistics = Vec::with_capacity(volumes.len());
    for volume in volumes {
        // A volume that was just detached has none, and is missing from the next sample.
        let path = super::super::volume::path(&volume.name, "/stats");
        let statistics = match volume.state {
            VolumeState::Unknown => Value::Null, // its pool does not answer this either
            _ => client.get_if_there(&path)?.unwrap_or(Value::Null),
        };
        with_statistics.push((Some(volume), statistics));
    }
    let mut jobs: Vec<Job> = client::list(&client.get("/v1/jobs")?, "jobs")?;
    jobs.retain(|job| !job.is_over());
    Ok(Snapshot {
        daemon: Some(client::read(&client.get("/v1/daemon")?)?),
        pools: client::list(&client.get("/v1/pools")?, "pools")?,
        volumes: with_statistics,
        jobs,
        alarms: client::list(&client.get("/v1/alarms")?, "alarms")?,
    })
}
