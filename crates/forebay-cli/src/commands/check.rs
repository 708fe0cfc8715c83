//! `forebay check CACHE`: verifies that a cache is intact.

use forebay_admin::MessageId;
use std::path::PathBuf;

use forebay_format::checkpoint::Checkpoint;
use serde_json::{Value, json};

use super::findings::{checkpoint_name, finding_json, with_bar};
use super::key::KeyOption;
use super::salvage::record::{Sought, against};
use crate::failure::Failure;
use crate::screen::{self, Paint, bytes, count};
use forebay_offline::Given;
use forebay_offline::image::Image;
use forebay_offline::mirror::{Mirror, together};
use forebay_offline::verdict::{Held, Verdict, verify};
use forebay_offline::{Finding, Findings, Severity};

/// Options of `forebay check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Verifies superblocks, checkpoint copies, batch headers, segment summaries, and the checksum of every block that counts.
The cache is not written to. Exit codes: 0 all is well, 1 something is damaged.
Examples:
  forebay check /dev/nvme0n1p4
  forebay check flash0.img flash1.img        # a pool of two devices; of a mirrored one each must be intact")]
pub(crate) struct Options {
    /// Files or block devices of the cache: all of its pool, in any order; no daemon may have it
    /// open
    #[arg(required = true)]
    cache: Vec<PathBuf>,
    #[command(flatten)]
    key: KeyOption,
    /// State directory of the daemon: its record shows whether this is an older copy of the cache
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const NOT_THE_ONE: &str = "a daemon refuses it: connect the latest state of the cache; to extract the data \
                           of this one: forebay salvage CACHE --to FOLDER";
/// Findings shown in the table; `--json` has more.
const SHOWN_MAX: usize = 30;

/// Checks a cache.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let key = options.key.read()?;
    let mut image = Image::open(Given { paths: &options.cache, key: key.as_ref() })?;
    let mut findings = Findings::default();
    let verdict = look(&mut image, &mut findings)?;
    let refused = compare(&image, options, &mut findings)?;
    if options.json {
        screen::print_json(&as_json(&image, &verdict, &findings))?;
    } else {
        screen::print(&as_text(&image, &verdict, &findings))?;
    }
    let Some(worst) = findings.worst() else { return Ok(()) };
    let others = match findings.faults() - 1 {
        0 => String::new(),
        n => format!(" (and {} more)", count(n)),
    };
    let what = format!("{}: {}: {}{others}", image.shown(), worst.place, worst.what);
    Err(Failure::new(MessageId::CacheFaultsFound, what).hint(if refused {
        NOT_THE_ONE
    } else {
        advice(&findings)
    }))
}

/// Compares a cache with a daemon's record of it; returns true if a daemon would refuse the cache
/// because of it.
fn compare(image: &Image, options: &Options, findings: &mut Findings) -> Result<bool, Failure> {
    let superblock = &image.superblock;
    let failed = image.is_failed();
    if failed {
        let what = "the cache failed, and its volumes continued without it: its data is older than theirs";
        findings.add(Severity::Lost, "superblocks", what);
    }
    let sought = Sought::in_folder(options.state_dir.as_deref())?;
    let Some((path, record)) = sought.cache_record(superblock.uuid)? else { return Ok(failed) };
    let against = against(superblock, &path, &record);
    for why in &against {
        findings.add(Severity::Lost, path.display().to_string(), why.as_str());
    }
    Ok(failed || !against.is_empty())
}

/// Verifies a cache; a mirrored one through each of its current devices, because either must
/// suffice.
fn look(image: &mut Image, findings: &mut Findings) -> Result<Verdict, Failure> {
    let views = image.mirror().map(Mirror::views).unwrap_or_default();
    let [first, second] = views[..] else { return Ok(look_once(image, findings)) };
    let (mut of_first, mut of_second) = (Findings::default(), Findings::default());
    image.look_through(second)?;
    let other = look_once(image, &mut of_second);
    image.look_through(first)?;
    let mut verdict = look_once(image, &mut of_first);
    together(of_first, of_second, findings);
    verdict.segments_read += other.segments_read;
    verdict.checked += other.checked;
    Ok(verdict)
}

fn look_once(image: &Image, findings: &mut Findings) -> Verdict {
    image.judge(findings);
    if let Some(mirror) = image.mirror() {
        mirror.judge(findings);
    }
    match image.checkpoint() {
        Some(checkpoint) => {
            let checkpoint = image.localized(checkpoint);
            with_bar(|progress| verify(image, &checkpoint, findings, progress))
        }
        None => Verdict::default(),
    }
}

fn advice(findings: &Findings) -> &'static str {
    if findings.lost > 0 {
        "reads of lost data return input/output errors until it is rewritten; restore it from a backup, and \
         do not trust this device"
    } else {
        "nothing is lost: the next start repairs it or reads from the backing store; if it recurs, replace the device"
    }
}

fn as_text(image: &Image, verdict: &Verdict, findings: &Findings) -> String {
    let paint = Paint::for_stdout();
    let mut text = format!("{}\n{}", image.shown(), facts(image, verdict));
    if let Some(checkpoint) = image.checkpoint() {
        text += &volumes(checkpoint, verdict);
    }
    text += &table_of(findings);
    let verdict_line = match (findings.lost, findings.damaged) {
        (0, 0) => paint.green("all is well"),
        (0, damaged) => paint.yellow(&format!("{} damaged, nothing lost", count(damaged))),
        (lost, damaged) => paint.red(&format!("{} lost, {} damaged", count(lost), count(damaged))),
    };
    format!("{text}{verdict_line}: {} checksums compared\n", count(verdict.checked))
}

fn facts(image: &Image, verdict: &Verdict) -> String {
    let superblock = &image.superblock;
    let geometry = image.geometry();
    let state = match (image.is_failed(), image.is_unclean()) {
        (true, _) => "failed: its volumes continued without it, and it is never opened again",
        (false, true) => "unclean: in use, or ended without an orderly stop",
        (false, false) => "clean",
    };
    let total = verdict.total();
    let mut list = screen::List::new();
    let mut add = |name: &str, value: String| list.add(name, value);
    add("state", state.into());
    add("format version", superblock.version().to_string());
    add("encryption", superblock.encryption.map_or("none", |_| "AES-256-XTS").into());
    add("written by", screen::harmless(&superblock.written_by));
    add("identity", superblock.uuid.to_string());
    add(
        "size",
        format!("{} in {} segments", bytes(image.device_bytes()), count(u64::from(geometry.segment_count))),
    );
    for (path, standing) in image.mirror().into_iter().flat_map(Mirror::standing) {
        add("mirrored on", format!("{path}, {standing}"));
    }
    add(
        "log",
        format!("checkpoint {}, {} batches after it", checkpoint_name(superblock), count(verdict.replayed)),
    );
    add("dirty", blocks(total.dirty));
    add("clean", blocks(total.clean));
    if total.dropped > 0 {
        add("dropped at next start", blocks(total.dropped));
    }
    list.to_string()
}

fn blocks(number: u64) -> String {
    format!("{} blocks, {}", count(number), bytes(number * forebay_format::BLOCK_BYTES as u64))
}

fn volumes(checkpoint: &Checkpoint, verdict: &Verdict) -> String {
    let header = ["volume", "name", "mode", "size", "dirty blocks", "clean blocks"];
    let mut table = screen::table(&header, &[0, 3, 4, 5]);
    for entry in &checkpoint.volumes {
        let held = verdict.held.get(&entry.id.0).copied().unwrap_or_default();
        table.add_row([
            entry.id.0.to_string(),
            screen::harmless(&entry.name),
            entry.mode.name().to_owned(),
            bytes(entry.size_bytes),
            count(held.dirty),
            count(held.clean),
        ]);
    }
    if checkpoint.volumes.is_empty() { "no volumes\n".into() } else { format!("{table}\n") }
}

fn table_of(findings: &Findings) -> String {
    if findings.kept.is_empty() {
        return String::new();
    }
    let mut table = screen::table(&["", "where", "what"], &[]);
    let mut shown: Vec<&Finding> = findings.kept.iter().collect();
    shown.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in shown.iter().take(SHOWN_MAX) {
        table.add_row([finding.severity.name(), finding.place.as_str(), finding.what.as_str()]);
    }
    let notes = findings.kept.iter().filter(|finding| finding.severity == Severity::Note).count() as u64;
    let more = (findings.faults() + notes).saturating_sub(SHOWN_MAX as u64);
    let more = if more > 0 { format!("and {} more\n", count(more)) } else { String::new() };
    format!("{table}\n{more}")
}

fn mirror_json(mirror: &Mirror) -> Value {
    let device = |(path, standing): (String, &str)| json!({ "path": path, "state": standing });
    mirror.standing().map(device).into_iter().collect()
}

fn held_json(held: &Held) -> Value {
    json!({
        "dirty_blocks": held.dirty, "clean_blocks": held.clean, "partial_blocks": held.partial,
        "damaged_dirty_blocks": held.dirty_bad, "damaged_clean_blocks": held.clean_bad,
        "dropped_at_next_start_blocks": held.dropped,
    })
}

fn as_json(image: &Image, verdict: &Verdict, findings: &Findings) -> Value {
    let volumes = image.checkpoint().map_or(&[][..], |checkpoint| &checkpoint.volumes);
    let volumes: Vec<Value> = volumes
        .iter()
        .map(|entry| {
            let held = verdict.held.get(&entry.id.0).copied().unwrap_or_default();
            let mut value = json!({
                "id": entry.id.0, "name": entry.name, "mode": entry.mode.name(), "size_bytes": entry.size_bytes,
            });
            if let (Some(value), Value::Object(held)) = (value.as_object_mut(), held_json(&held)) {
                value.extend(held);
            }
            value
        })
        .collect();
    let listed: Vec<Value> = findings.kept.iter().map(finding_json).collect();
    json!({
        "path": image.shown(),
        "ok": findings.faults() == 0,
        "state": match (image.is_failed(), image.is_unclean()) {
            (true, _) => "failed",
            (false, true) => "unclean",
            (false, false) => "clean",
        },
        "format_version": image.superblock.version(),
        "encrypted": image.superblock.encryption.is_some(),
        "uuid": image.superblock.uuid.to_string(),
        "mirror": image.mirror().map(mirror_json),
        "checkpoint_generation": image.superblock.checkpoint_generation,
        "base_generation": image.superblock.chain.map(|chain| chain.base),
        "increment_blocks": image.superblock.chain.map_or(0, |chain| chain.blocks),
        "replayed_batches": verdict.replayed,
        "segments_read": verdict.segments_read,
        "checksums_compared": verdict.checked,
        "total": held_json(&verdict.total()),
        "volumes": volumes,
        "lost": findings.lost,
        "damaged": findings.damaged,
        "findings": listed,
    })
}
