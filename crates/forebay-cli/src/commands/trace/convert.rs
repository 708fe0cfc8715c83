//! `forebay trace convert`: converts between formats, and reports the losses.

use crate::message;
use forebay_admin::MessageId;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_trace::native::Header;
use forebay_trace::{Format, NewTrace, Reading, Sink, Source, Tally, writer};
use serde_json::{Value, json};

use super::files::{self, Input, Output, failed, is_stdio, shown};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::screen::{self, count};

/// Requests between two checks for Ctrl-C.
const LOOK_EVERY: u64 = 10_000;

/// Options of `forebay trace convert`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The end of a name shows its format (.fbtrace, .csv, .oracleGeneral, .bin, .iolog, .blkparse, .msr, .alibaba). A trace
that is packed with zstd is unpacked while it is read. - is the standard input or output.
Examples:
  forebay trace convert db.fbtrace db.oracleGeneral
  forebay trace convert --from blkparse sdb.txt sdb.fbtrace
  blkparse -i sdb | forebay trace convert --from blkparse - sdb.fbtrace")]
pub(crate) struct Options {
    /// The trace to read
    #[arg(value_name = "FROM")]
    source: PathBuf,
    /// The trace to write
    #[arg(value_name = "TO")]
    target: PathBuf,
    #[command(flatten)]
    input: Input,
    /// Format of the new trace, if its name does not tell it
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
    /// Replace an existing trace
    #[arg(long)]
    overwrite: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Converts a trace.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let by_name = || Format::of_name(&options.target.to_string_lossy());
    let Some(format) = options.to.or_else(by_name) else {
        let what = format!("the name of {} does not show a format", shown(&options.target));
        return Err(Failure::usage(MessageId::TraceFormat, what)
            .hint("name it with --to, for instance --to oracleGeneral"));
    };
    if let Some(unpacked) = options.target.to_str().and_then(|name| name.strip_suffix(".zst")) {
        let what = format!("{} would not be packed: a trace is written unpacked", shown(&options.target));
        let hint = format!("write {unpacked}, then pack it with zstd");
        return Err(Failure::usage(MessageId::TraceTarget, what).hint(hint));
    }
    if is_same(&options.source, &options.target) {
        let what = format!("{} cannot be written while it is read", shown(&options.target));
        return Err(
            Failure::usage(MessageId::TraceTarget, what).hint("choose another name for the new trace")
        );
    }
    let interrupt = Interrupt::listen()?;
    let mut source = files::open(&options.source, &options.input)?;
    let header = source.reading().header.clone().unwrap_or_default();
    let (output, to) = Output::create_beside(&options.target, options.overwrite)?;
    let done = convert(options, &mut source, (format, header, to), &interrupt);
    let tally = done.inspect_err(|_| output.remove())?;
    output.finish()?;
    let reading = source.reading();
    if options.json {
        let text = format!("{:#}\n", document(reading, format, &tally));
        return say(options, &text);
    }
    say(options, &words(reading, format, &tally))
}

/// Returns true if both are the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Prints the result, to stderr if the trace goes to the standard output.
fn say(options: &Options, text: &str) -> Result<(), Failure> {
    if is_stdio(&options.target) {
        message::say(MessageId::TraceNote, text.trim_end(), || text.to_owned());
        return Ok(());
    }
    screen::print(text)
}

fn convert(
    options: &Options,
    source: &mut Source,
    (format, header, to): (Format, Header, Box<dyn std::io::Write>),
    interrupt: &Interrupt,
) -> Result<Tally, Failure> {
    let new = NewTrace { format, options: options.input.options(), header };
    let cannot_write = || failed("write", &options.target);
    let mut sink: Sink = writer(to, &new).map_err(cannot_write())?;
    let progress = Progress::new("convert", 0);
    let (mut number, mut lost) = (0_u64, 0);
    while let Some(record) = source.next_record().map_err(failed("read", &options.source))? {
        sink.lose(source.reading().lost - lost);
        lost = source.reading().lost;
        sink.push(&record).map_err(cannot_write())?;
        number += 1;
        if number.is_multiple_of(LOOK_EVERY) {
            progress.at(number, || format!("{} requests", count(number)));
            if interrupt.came() {
                return Err(Failure::new(
                    MessageId::CliInterrupted,
                    "interrupted; the new trace was removed",
                ));
            }
        }
    }
    sink.lose(source.reading().lost - lost);
    sink.finish().map_err(cannot_write())
}

fn words(reading: &Reading, format: Format, tally: &Tally) -> String {
    let (read, written) = (count(reading.records), count(tally.records));
    let (from, to) = (reading.format.name(), format.name());
    let mut text = format!("{read} requests read ({from}), {written} written ({to})\n");
    for note in files::notes(reading) {
        text += &format!("note: {note}\n");
    }
    for (loss, requests) in &tally.losses {
        text += &format!(
            "lost in {}: {loss}\n",
            if *requests == 1 { "1 request".into() } else { format!("{} requests", count(*requests)) }
        );
    }
    text
}

fn document(reading: &Reading, format: Format, tally: &Tally) -> Value {
    let losses =
        tally.losses.iter().map(|(loss, requests)| json!({ "what": loss.to_string(), "requests": requests }));
    json!({
        "from": reading.format.name(), "to": format.name(),
        "read": reading.records, "written": tally.records,
        "losses": losses.collect::<Vec<_>>(), "notes": files::notes(reading),
    })
}
