//! Records the requests of a volume, as a trace that is streamed while it grows.
//!
//! The job takes records from the pool, packs them in blocks, and offers the blocks to the client.
//! If the client does not take them, the job takes no more records from the pool, which then counts
//! those that it has no room for.
//!
//! Invariants
//! - However the recording ends, unless the client has disconnected, the trace ends with the block
//!   that marks it as complete.
//! - The trace is not longer than requested.

use super::Service;
use super::job_table::{Asked, End};
use super::pool_query::ask;
use forebay_admin::jobs::{JobId, JobKind, JobSpec, Phase};
use forebay_admin::{AdminError, JobInfo, MessageId, RecordRequest};
use forebay_pool::PoolHandle;
use forebay_trace::native::{BlockWriter, Header};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// Interval at which the job takes records from the pool.
const TAKE: Duration = Duration::from_millis(50);
/// A partial block is sent after this time, so that a crash of the daemon loses little.
const BLOCK_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for the client to take the end of the trace.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Longest recording, in seconds.
const SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Minimum and default size, in bytes.
const BYTES_MIN: u64 = 4096;
const BYTES_USUAL: u64 = 1 << 30;
/// Bytes of the block that ends a trace.
const END_BYTES: u64 = 32;

/// Bytes in transit to the client.
struct Output {
    to: Sender<Vec<u8>>,
    /// Bytes offered and not taken.
    offered: Option<Vec<u8>>,
    bytes: u64,
    bytes_max: u64,
}

impl Output {
    /// Offers bytes, or the ones offered before; returns true if the client took all of them.
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

    /// Returns true if so many more bytes do not fit.
    fn is_full_with(&self, bytes: usize) -> bool {
        self.bytes + bytes as u64 + END_BYTES > self.bytes_max
    }
}

fn gone() -> End {
    End::Failed(MessageId::RecordingEndedEarly, "the client that recorded has disconnected".into())
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
        if !ask(&handle, move |pool| pool.find(&asked).is_some())? {
            return Err(super::errors::not_attached(name));
        }
        let spec = JobSpec::volume(JobKind::Record(request.for_s), &pool, name);
        self.jobs.begin_recording(spec, Asked { seconds: request.for_s, bytes_max, to })
    }

    /// Records until the time or size limit is reached, or the recording is ended.
    pub(super) fn record(&self, id: JobId, volume: &str) -> Result<(), End> {
        let Some(Asked { seconds, bytes_max, to }) = self.jobs.take_recording(id) else { return Err(gone()) };
        self.jobs.phase(id, Phase::Recording);
        let (_, handle) = self.pool_of(volume)?;
        let name = volume.to_owned();
        let (number, volume_bytes) = ask(&handle, move |pool| pool.begin_recording(&name))??;
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
            let (stopped, over) = (self.jobs.should_stop(id), Instant::now() >= until);
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

/// Result of taking records.
enum Taken {
    All,
    /// The trace has reached its size limit.
    Full,
    /// There is nothing more to take.
    Nothing(End),
}

/// Takes the available records, and offers complete blocks.
fn take(handle: &PoolHandle, number: u64, blocks: &mut BlockWriter, output: &mut Output) -> Taken {
    let room = Vec::with_capacity(1024);
    let recorded = match ask(handle, move |pool| pool.take_recorded(number, room)) {
        Ok(Some(recorded)) => recorded,
        Ok(None) => {
            return Taken::Nothing(End::Failed(
                MessageId::VolumeNotAttached,
                "the volume is no longer attached".into(),
            ));
        }
        Err(error) => return Taken::Nothing(error.into()),
    };
    blocks.lose(recorded.lost);
    for record in recorded.records {
        // Checked before packing, so that records that do not fit are never packed; packing only
        // shrinks them.
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
