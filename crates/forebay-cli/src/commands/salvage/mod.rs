//! `forebay salvage CACHE... --to FOLDER`: extracts the dirty data of a cache, without a daemon.
//!
//! [`forebay_offline::salvage`] determines the dirty data and its certainty. [`output`] writes it.
//! Nothing is written to the cache. There are three kinds of sectors. *Dirty* ones are current, and
//! only in the cache. For *uncertain* ones newer data may exist. The bytes of *lost* ones are
//! wrong, and never written anywhere.

mod output;
mod ranges;
pub(super) mod record;

use crate::message;
use forebay_admin::MessageId;
use std::path::PathBuf;

use forebay_export::uri::BackingUri;
use forebay_format::CacheUuid;
use forebay_pool::CacheRecord;
use serde_json::{Value, json};

use self::output::{Outputs, Volume};
use self::record::Sought;
use super::findings::{finding_json, with_bar};
use super::key::KeyOption;
use crate::failure::Failure;
use crate::screen::{self, Paint, bytes, count};
use forebay_offline::Given;
use forebay_offline::salvage::{Salvage, Worth};
use forebay_offline::verdict::Verdict;
use forebay_offline::{Finding, Findings, Severity};

/// Options of `forebay salvage`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes nothing to the cache. A folder gets for every volume with dirty data:
  NAME.dirty      a sparse file of the volume's size, with the dirty sectors at their places
  NAME.uncertain  the same for sectors of which something newer may exist (if the cache is damaged, or was given up)
  NAME.ranges     text: offset, bytes, and dirty, uncertain or lost
Sectors whose checksum is wrong are not extracted, but reported as lost.
Exit codes: 0 everything dirty was extracted, 1 something is lost or uncertain, or it failed, 2 usage.
Examples:
  forebay salvage flash.img --to rescued/ --config /etc/forebay/forebay.toml
  forebay salvage flash0.img flash1.img --to rescued/             # a pool of two devices, mirrored or not
  forebay salvage flash.img --volume db --onto copy-of-disk.img   # bring a copy of the backing store up to date")]
#[command(group = clap::ArgGroup::new("where").required(true).args(["to", "onto"]))]
pub(crate) struct Options {
    /// Files or block devices of the cache: all available ones of its pool, in any order; no daemon
    /// may have it open
    #[arg(required = true)]
    cache: Vec<PathBuf>,
    /// Directory for the dirty data of every volume; created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// File or block device to write the dirty data of one volume onto: a copy of its backing store
    #[arg(long, value_name = "URI", requires = "volume")]
    onto: Option<BackingUri>,
    /// Only this volume
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Treat uncertain sectors like dirty ones
    #[arg(long)]
    include_uncertain: bool,
    /// Replace files of an earlier salvage in the directory
    #[arg(long)]
    overwrite: bool,
    /// Configuration of the daemon that had the cache: names its state directory, which records
    /// whether the cache was given up
    #[arg(long, value_name = "FILE", conflicts_with = "state_dir")]
    config: Option<PathBuf>,
    /// That state directory itself [default: those of `forebay run` and of
    /// /etc/forebay/forebay.toml]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    key: KeyOption,
    /// Identity of the cache (`forebay check` shows it), if it is encrypted and all its superblocks
    /// are destroyed
    #[arg(long, value_name = "UUID", requires = "key_file", value_parser = identity)]
    uuid: Option<CacheUuid>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Findings shown; `--json` has more.
const SHOWN_MAX: usize = 20;

/// Extracts the dirty data.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let sought = Sought::new(options)?;
    if options.onto.is_some() {
        sought.check_there()?;
    }
    let mut findings = Findings::default();
    let mut note = |memory_bytes| {
        let what = format!(
            "no checkpoint is intact: everything is read and sorted, which takes up to {} of memory",
            screen::bytes(memory_bytes)
        );
        let text = || format!("{} {what}\n", Paint::for_stderr().yellow("note:"));
        message::say(MessageId::CacheDamaged, &what, text);
    };
    let key = options.key.read()?;
    let given = Given { paths: &options.cache, key: key.as_ref() };
    let mut salvage = with_bar(|progress| {
        let noted = |cache, tag| sought.is_out(cache, tag);
        Salvage::open(given, options.uuid, &mut findings, &mut note, progress, &noted)
    })?;
    let only = sought.find(salvage.superblock().uuid)?;
    let record = only.as_ref().map(record::told);
    if let Some(only) = only {
        salvage.restrict(only);
    }
    let known = sought.cache_record(salvage.superblock().uuid)?;
    if let Some((path, known)) = &known {
        for why in record::against(salvage.superblock(), path, known) {
            salvage.doubt_all(why);
        }
    }
    let volumes = volumes(&salvage);
    if let Some(name) = &options.volume
        && salvage.knows_volumes
        && !volumes.iter().any(|volume| volume.name == *name)
    {
        let names: Vec<String> = volumes.iter().map(|volume| screen::harmless(&volume.name)).collect();
        let what = format!("--volume {name}: the cache has no such volume, but {}", names.join(", "));
        return Err(Failure::usage(MessageId::SalvageVolume, what));
    }
    let mut outputs = Outputs::new(options, volumes)?;
    let verdict =
        with_bar(|progress| salvage.extract(&mut findings, progress, &mut |piece| outputs.take(piece)));
    let cache = format!("{} ({})", salvage.superblock().uuid, salvage.shown());
    let done = outputs.finish(&cache)?;
    let (salvage, done, findings, verdict, sought) = (&salvage, &done, &findings, &verdict, &sought);
    let report = Report { salvage, done, findings, verdict, record, known: known.as_ref(), sought };
    match options.json {
        true => screen::print_json(&report.json())?,
        false => screen::print(&report.text())?,
    }
    report.verdict()
}

/// Parses the identity of a cache.
fn identity(text: &str) -> Result<CacheUuid, String> {
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != '-').map_while(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let whole = text.chars().filter(|c| *c != '-').count() == digits.len();
    let uuid = <[u8; 16]>::try_from(bytes).ok().filter(|_| whole && digits.len() == 32);
    uuid.map(CacheUuid).ok_or_else(|| "an identity has 32 hexadecimal digits".into())
}

fn volumes(salvage: &Salvage) -> Vec<Volume> {
    let known = salvage.volumes().iter();
    known.map(|entry| Volume::new(entry.id.0, &entry.name, Some(entry.size_bytes))).collect()
}

/// Content of the final report.
struct Report<'a> {
    salvage: &'a Salvage,
    done: &'a [Volume],
    findings: &'a Findings,
    verdict: &'a Verdict,
    /// A note that the cache was given up.
    record: Option<String>,
    /// The record of the cache, and its path.
    known: Option<&'a (PathBuf, CacheRecord)>,
    sought: &'a Sought,
}

impl Report<'_> {
    fn sum(&self, worth: Worth) -> u64 {
        self.done.iter().map(|volume| volume.ranges.bytes(worth)).sum()
    }

    fn text(&self) -> String {
        let mut table = screen::table(&["volume", "size", "dirty", "uncertain", "lost"], &[1, 2, 3, 4]);
        for volume in self.done {
            let worth = |worth| bytes(volume.ranges.bytes(worth));
            table.add_row([
                screen::harmless(&volume.name),
                volume.size_bytes.map_or("unknown".into(), bytes),
                worth(Worth::Dirty),
                worth(Worth::Uncertain),
                worth(Worth::Lost),
            ]);
        }
        let mut text = format!("{}\n", self.salvage.shown());
        text += &if self.done.is_empty() { "no volumes\n".into() } else { format!("{table}\n") };
        let record = self.record.clone().unwrap_or_else(|| self.sought.nothing());
        let known = self.known.map(|(path, known)| record::recorded(path, known));
        for doubt in self.salvage.doubts.iter().chain([&record]).chain(&known) {
            text += &format!("{} {doubt}\n", Paint::for_stdout().yellow("note:"));
        }
        let mut shown: Vec<&Finding> =
            self.findings.kept.iter().filter(|finding| finding.severity > Severity::Note).collect();
        shown.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        for finding in shown.iter().take(SHOWN_MAX) {
            text += &format!("{}: {}: {}\n", finding.severity.name(), finding.place, finding.what);
        }
        if shown.len() > SHOWN_MAX {
            text += &format!("and {} more (--json lists them)\n", count((shown.len() - SHOWN_MAX) as u64));
        }
        for place in self.done.iter().flat_map(|volume| &volume.written) {
            text += &format!("wrote {}\n", place.display());
        }
        text
    }

    fn json(&self) -> Value {
        let volumes: Vec<Value> = self.done.iter().map(Volume::json).collect();
        let listed: Vec<Value> = self.findings.kept.iter().map(finding_json).collect();
        json!({
            "cache": self.salvage.shown(),
            "uuid": self.salvage.superblock().uuid.to_string(),
            "complete": self.verdict().is_ok(),
            "dirty_bytes": self.sum(Worth::Dirty),
            "uncertain_bytes": self.sum(Worth::Uncertain),
            "lost_bytes": self.sum(Worth::Lost),
            "lost_blocks_of_unknown_address": self.verdict.unknown_dirty,
            "doubts": self.salvage.doubts,
            "given_up": self.record,
            "recorded": self.known.map(|(path, known)| json!({ "path": path, "record": known })),
            "records_sought_in": self.sought.json(),
            "volumes": volumes,
            "findings": listed,
        })
    }

    /// Fails unless all dirty data was extracted.
    fn verdict(&self) -> Result<(), Failure> {
        let (lost, uncertain, unknown) =
            (self.sum(Worth::Lost), self.sum(Worth::Uncertain), self.verdict.unknown_dirty);
        let mut what = Vec::new();
        if lost > 0 {
            what.push(format!("{} of dirty data are lost", bytes(lost)));
        }
        if unknown > 0 {
            what.push(format!(
                "{} dirty blocks are lost, and their addresses cannot be read",
                count(unknown)
            ));
        }
        if uncertain > 0 {
            what.push(format!("{} are uncertain", bytes(uncertain)));
        }
        if what.is_empty() && self.salvage.doubts.is_empty() {
            return Ok(());
        }
        if what.is_empty() {
            what.push("some data may be missing".into());
        }
        let hint = match (lost + unknown, uncertain) {
            (0, 1..) => {
                "compare the uncertain sectors with the backing store before you use them (--include-uncertain)"
            }
            _ => "the .ranges files and `--json` list them; restore the rest from a backup",
        };
        Err(Failure::new(
            MessageId::SalvageIncomplete,
            format!("{}: {}", self.salvage.shown(), what.join("; ")),
        )
        .hint(hint))
    }
}
