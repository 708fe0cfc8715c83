//! Recording the requests of a volume, as a trace that is handed out while it grows.
//!
//! The job takes from the pool what has come together, packs it in blocks, and offers those to
//! whoever asked. If they are not taken it takes nothing more from the pool, which then counts what
//! it has no room for.
//!
//! Invariants
//! - However it ends, unless the client has gone: the trace ends with the block that says that it
//!   is whole.
//! - The trace is not longer than was asked for.

use super::work::End;
use super::{Service, lock};
use forebay_admin::jobs::{JobFilter, JobId, JobKind, JobSpec, JobView, Left, Phase, Report};
use forebay_admin::{AdminError, JobInfo, MessageId, RecordRequest};
use forebay_pool::PoolHandle;
use forebay_trace::native::{BlockWriter, Header};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// How often is taken what has come together.
const TAKE: Duration = Duration::from_millis(50);
/// A block that is not full is handed out after so long, so that little is lost with a daemon.
const BLOCK_WITHIN: Duration = Duration::from_secs(1);
/// Whoever asked has so long to take the end.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Longest recording, in seconds.
const SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Least and usual size, in bytes.
const BYTES_MIN: u64 = 4096;
const BYTES_USUAL: u64 = 1 << 30;
/// Bytes of the block that ends a trace.
const END_BYTES: u64 = 32;

/// A recording that is to begin.
pub(super) struct Asked {
    seconds: u64,
    bytes_max: u64,
    to: Sender<Vec<u8>>,
}

/// Bytes on their way to whoever asked.
struct Output {
    to: Sender<Vec<u8>>,
    /// What was offered and not taken.
    offered: Option<Vec<u8>>,
    bytes: u64,
    bytes_max: u64,
}

impl Output {
    /// Offers bytes, or what was offered before; true if all was taken.
    fn offer(&mut self, bytes: Vec<u8>) -> Result<bool, End> {
        self.bytes += bytes.len() as u64;
        let all = match self.offered.take() {
            Some(mut before) => {
                before.extend(bytes);
                before
            }
            None => bytes,
        };
        if all.is_empty() {
            return if self.to.is_closed() { Err(gone()) } else { Ok(true) };
        }
        match self.to.try_send(all) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(all)) => {
                self.offered = Some(all);
                Ok(false)
            }
            Err(TrySendError::Closed(_)) => Err(gone()),
        }
    }

    /// So many more bytes do not fit.
    fn is_full_with(&self, bytes: usize) -> bool {
        self.bytes + bytes as u64 + END_BYTES > self.bytes_max
    }
}

fn gone() -> End {
    End::Failed(MessageId::RecordingEndedEarly, "whoever recorded has gone".into())
}

impl Service {
    pub(super) fn begin_recording(
        &self,
        name: &str,
        request: &RecordRequest,
        to: Sender<Vec<u8>>,
    ) -> Result<JobInfo, AdminError> {
        let bytes_max = request.max_bytes.unwrap_or(BYTES_USUAL);
        if !(1..=SECONDS_MAX).contains(&request.for_s) {
            let what = format!("for_s={}: a recording lasts from 1 to {SECONDS_MAX} seconds", request.for_s);
            return Err(AdminError::new(MessageId::RecordingLimit, what, "choose another time"));
        }
        if bytes_max < BYTES_MIN {
            let what = format!("max_bytes={bytes_max}: a trace needs at least {BYTES_MIN} bytes");
            return Err(AdminError::new(MessageId::RecordingLimit, what, "choose a larger size"));
        }
        let (pool, handle) = self.pool_of(name)?;
        let asked = name.to_owned();
        if !Self::ask(&handle, move |pool| pool.find(&asked).is_some())? {
            return Err(super::info::not_attached(name));
        }
        // Held until it is there: the job may begin at once.
        let mut recordings = lock(&self.recordings);
        let job = self.begin_job(JobSpec::volume(JobKind::Record(request.for_s), &pool, name))?;
        let id = Self::job_id(&job.id)?;
        recordings.insert(id, Asked { seconds: request.for_s, bytes_max, to });
        Ok(job)
    }

    /// Lets go of those that were cancelled before they began.
    pub(super) fn forget_recordings(&self) {
        let ended = |id: &JobId| self.jobs.get(*id).map_or(true, |job| job.state.is_final());
        lock(&self.recordings).retain(|id, _| !ended(id));
    }

    /// Recordings have so long to end, with a whole trace, before their pools stop.
    pub(super) fn await_recordings(&self, within: Duration) {
        let until = Instant::now() + within;
        let is_open = |job: &JobView| matches!(job.spec.kind, JobKind::Record(_)) && !job.state.is_final();
        while self.jobs.list(&JobFilter::default()).iter().any(is_open) && Instant::now() < until {
            std::thread::sleep(TAKE / 5);
        }
    }

    /// Records until time or room is used up, or somebody ends it.
    pub(super) fn record(&self, id: JobId, volume: &str) -> Result<(), End> {
        let asked = lock(&self.recordings).remove(&id);
        let Some(Asked { seconds, bytes_max, to }) = asked else { return Err(gone()) };
        self.jobs
            .report(id, Report { left: Left::Unknown, phase: Phase::Recording, limited_by: None, errors: 0 });
        let (_, handle) = self.pool_of(volume)?;
        let name = volume.to_owned();
        let (number, volume_bytes) = Self::ask(&handle, move |pool| pool.begin_recording(&name))??;
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            started_unix_ns: u64::try_from(began.as_nanos()).unwrap_or(0),
            volume_bytes,
            volume: volume.into(),
        };
        let mut output = Output { to, offered: None, bytes: 0, bytes_max };
        let result = output.offer(BlockWriter::header(&header));
        let result = result.and_then(|_| {
            let until = Instant::now() + Duration::from_secs(seconds);
            self.record_until(id, (&handle, number), &mut output, until)
        });
        handle.order(move |pool| pool.end_recording(number));
        result
    }

    fn record_until(
        &self,
        id: JobId,
        (handle, number): (&PoolHandle, u64),
        output: &mut Output,
        until: Instant,
    ) -> Result<(), End> {
        let mut blocks = BlockWriter::default();
        let mut block_since = Instant::now();
        let end = loop {
            let (stopped, over) = (self.should_stop(id), Instant::now() >= until);
            if output.offer(Vec::new())? {
                match take(handle, number, &mut blocks, output) {
                    Taken::All => {}
                    Taken::Full => break Ok(()),
                    Taken::Nothing(end) => break Err(end),
                }
            }
            if stopped || over {
                break if stopped { Err(End::Stopped) } else { Ok(()) };
            }
            if block_since.elapsed() >= BLOCK_WITHIN {
                block_since = Instant::now();
                let block = blocks.block();
                output.offer(block)?;
            }
            std::thread::sleep(TAKE);
        };
        let mut taken = output.offer(blocks.end())?;
        let patience = Instant::now() + END_WITHIN;
        while !taken && Instant::now() < patience {
            std::thread::sleep(TAKE);
            taken = output.offer(Vec::new())?;
        }
        end
    }
}

/// What came of taking.
enum Taken {
    All,
    /// The trace is as long as it may be.
    Full,
    /// There is nothing more to take.
    Nothing(End),
}

/// Takes what has come together, and offers what is a whole block.
fn take(handle: &PoolHandle, number: u64, blocks: &mut BlockWriter, output: &mut Output) -> Taken {
    let room = Vec::with_capacity(1024);
    let recorded = match Service::ask(handle, move |pool| pool.take_recorded(number, room)) {
        Ok(Some(recorded)) => recorded,
        Ok(None) => {
            return Taken::Nothing(End::Failed(
                MessageId::VolumeNotAttached,
                "the volume is not attached any more".into(),
            ));
        }
        Err(error) => return Taken::Nothing(error.into()),
    };
    blocks.lose(recorded.lost);
    for record in recorded.records {
        // Before packing, so that what does not fit is never packed; packing only makes it shorter.
        if output.is_full_with(blocks.bytes_with_another()) {
            return Taken::Full;
        }
        blocks.push(&record);
        if blocks.is_full()
            && let Err(end) = output.offer(blocks.block())
        {
            return Taken::Nothing(end);
        }
    }
    Taken::All
}
