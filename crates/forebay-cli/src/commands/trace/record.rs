//! `forebay trace record`: records the requests of clients on a volume into a file.
//!
//! The daemon sends the trace as it grows, and this process writes it. If it does not keep up, the
//! daemon counts the records that it has no room for. Ctrl-C cancels the job; the trace up to then
//! is complete.

use crate::message;
use forebay_admin::events::EventKind;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::size::{ByteSize, parse_duration};
use forebay_admin::{JobInfo, MessageId, RecordRequest};
use forebay_trace::{Format, Reading};
use serde_json::json;

use super::files::{Input, Output, failed, is_stdio, notes, open};
use crate::client::{self, Admin, Client, Piece, escaped};
use crate::complete;
use crate::failure::{Failure, system};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::screen::{self, bytes, count, harmless, uptime};

/// Time limit for the rest of a recording that was ended.
const END_WITHIN: Duration = Duration::from_secs(15);

/// Options of `forebay trace record`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Times, operations, ranges, outcomes and latencies are recorded, and no data. Ctrl-C ends it; the trace is whole.
Examples:
  forebay trace record db --for 1h --to db.fbtrace
  forebay trace record db --for 10min --to - | forebay trace convert - db.iolog")]
pub(crate) struct Options {
    /// Volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    volume: String,
    /// Duration of the recording
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    time: Duration,
    /// The file to write; - is the standard output
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// End before the file exceeds this size
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_size: ByteSize,
    /// Replace an existing file
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Records the requests.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let seconds = options.time.as_secs().max(u64::from(!options.time.is_zero()));
    let request = RecordRequest { for_s: seconds, max_bytes: Some(options.max_size.0) };
    let interrupt = Interrupt::listen()?;
    let client = options.admin.client();
    let (output, mut file) = Output::create(&options.to, options.overwrite)?;
    let path = format!("/v1/volumes/{}/trace", escaped(&options.volume));
    let begun = client.stream(&path, &request).inspect_err(|_| output.remove());
    let (mut stream, job) = begun?;
    let progress = Progress::new("record", seconds);
    let (began, mut written, mut ended_at) = (Instant::now(), 0, None);
    loop {
        if interrupt.came() && ended_at.is_none() {
            ended_at = Some(Instant::now());
            // It may have ended by itself just now.
            let _ = client.delete(&job);
        }
        if ended_at.is_some_and(|at| at.elapsed() > END_WITHIN) {
            break;
        }
        match stream.next()? {
            Piece::Bytes(piece) => {
                if written == 0 {
                    output.begin()?;
                }
                written += piece.len() as u64;
                let kept = file.write_all(&piece).and_then(|()| file.flush());
                kept.map_err(system(format!("cannot write {}", options.to.display())))?;
            }
            Piece::Nothing => {}
            Piece::End => break,
        }
        let passed = began.elapsed().as_secs();
        progress.at(passed, || format!("{} of {}, {}", uptime(passed), uptime(seconds), bytes(written)));
    }
    drop((progress, file));
    if written == 0 {
        output.remove(); // the recording did not begin; the job has the reason
    }
    report(options, &client, &job, (written > 0, interrupt.came()))
}

/// Reports the recording, and the result of the job.
fn report(
    options: &Options,
    client: &Client,
    job: &str,
    (begun, interrupted): (bool, bool),
) -> Result<(), Failure> {
    let written = if begun { what_is_there(options)? } else { None };
    let cut = written.as_ref().is_some_and(|reading| reading.cut_bytes.is_some());
    // The stream ends a moment before the job.
    let answer = client.wait(&format!("{job}?wait=5s"), END_WITHIN);
    let answer = answer.map_err(|failure| match (begun, cut) {
        (false, _) => failure,
        (true, cut) => {
            Failure::new(MessageId::RecordingEndedEarly, "the daemon has ended, and the recording with it")
                .hint(match cut {
                    true => "the trace is cut off at its end; the rest can be used",
                    false => "the trace is whole up to there",
                })
        }
    });
    if let Some(reading) = &written {
        if options.admin.json {
            let job = answer.as_ref().ok();
            screen::print_json(
                &json!({ "requests": reading.records, "lost": reading.lost, "cut_off": cut, "job": job }),
            )?;
        } else {
            screen::print(&format!("{} requests in {}\n", count(reading.records), options.to.display()))?;
            notes(reading).iter().for_each(|note| message::note(MessageId::TraceNote, note));
        }
    }
    let ended: JobInfo = client::read(&answer?)?;
    match ended.state.as_str() {
        "completed" => Ok(()),
        "cancelled" if interrupted => Ok(()),
        "cancelled" => Err(Failure::new(
            MessageId::Event(EventKind::JobCancelled),
            "the recording was cancelled; the trace is whole up to there",
        )),
        _ => {
            let why = ended.error.unwrap_or_else(|| "it has not ended".into());
            let what = format!("the recording has ended early: {}", harmless(&why));
            let failure = Failure::new(MessageId::RecordingEndedEarly, what);
            Err(match ended.error_id {
                Some(id) => failure.with_id(harmless(&id)),
                None => failure,
            })
        }
    }
}

/// Reads the written file, unless the trace went through a pipe.
fn what_is_there(options: &Options) -> Result<Option<Reading>, Failure> {
    if is_stdio(&options.to) || !options.to.is_file() {
        return Ok(None);
    }
    let input = Input { from: Some(Format::Forebay), only: None, id_bytes: 4096 };
    let mut source = open(&options.to, &input)?;
    while source.next_record().map_err(failed("read", &options.to))?.is_some() {}
    Ok(Some(source.reading().clone()))
}
