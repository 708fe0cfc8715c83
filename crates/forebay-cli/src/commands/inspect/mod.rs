//! `forebay inspect CACHE`: prints the structures of a cache device as stored, for diagnosis.

mod show;
mod udev;

use forebay_admin::MessageId;
use std::path::PathBuf;

use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState, SlotState};
use serde_json::{Map, Value, json};

use super::key::KeyOption;
use crate::failure::Failure;
use crate::screen;
use forebay_offline::Given;
use forebay_offline::image::Image;
use forebay_offline::log::{self, Batch};

/// Options of `forebay inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The structures are described in docs/internals/on-disk-format.md. Nothing is written, and nothing is repaired or replayed:
`forebay check` reports damage, this shows the content.
Examples:
  forebay inspect flash.img
  forebay inspect flash.img --segments
  forebay inspect flash0.img flash1.img      # a pool of two devices
  forebay inspect flash.img --segment 17 --batches --json
  forebay inspect --udev /dev/nvme0n1p4      # its properties for udev, if it belongs to a cache; else exit code 1")]
pub(crate) struct Options {
    /// Files or block devices of the cache: all of its pool, in any order; no daemon may have it
    /// open
    #[arg(required = true)]
    cache: Vec<PathBuf>,
    /// A line for every segment in use
    #[arg(long)]
    segments: bool,
    /// All details of one segment
    #[arg(long, value_name = "N")]
    segment: Option<u32>,
    /// Every batch with its entries, of the requested segment or of all in use
    #[arg(long)]
    batches: bool,
    /// Only report whether a device belongs to a cache, as udev properties; a daemon may have it
    /// open
    #[arg(long, conflicts_with_all = ["segments", "segment", "batches", "key_file", "json"])]
    udev: bool,
    #[command(flatten)]
    key: KeyOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints a cache.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.udev {
        return udev::execute(&options.cache);
    }
    let key = options.key.read()?;
    let image = Image::open(Given { paths: &options.cache, key: key.as_ref() })?;
    if let Some(number) = options.segment.filter(|number| *number >= image.geometry().segment_count) {
        let last = image.geometry().segment_count - 1;
        return Err(Failure::usage(
            MessageId::InspectSegment,
            format!("--segment {number}: the cache has segments 0 to {last}"),
        ));
    }
    if options.json {
        return screen::print_json(&document(&image, options));
    }
    if options.segment.is_none() {
        screen::print(&show::overview(&image))?;
    }
    let Some(checkpoint) = image.checkpoint() else {
        let what = format!("{}: no copy of the checkpoint is intact", image.shown());
        return Err(Failure::new(MessageId::CacheDamaged, what).hint("`forebay check` lists the damage"));
    };
    if options.segments {
        screen::print(&show::segments(checkpoint))?;
    }
    for number in chosen(options, checkpoint) {
        screen::print(&show::segment(number, &checkpoint.segments[number as usize]))?;
        screen::print(&show::batches(&batches_of(&image, number), options.batches))?;
    }
    Ok(())
}

/// Returns the segments whose batches are requested.
fn chosen(options: &Options, checkpoint: &Checkpoint) -> Vec<u32> {
    match options.segment {
        Some(number) => vec![number],
        None if options.batches => {
            let used = (0..).zip(&checkpoint.segments).filter(|(_, entry)| entry.state.has_slots());
            used.map(|(number, _)| number).collect()
        }
        None => Vec::new(),
    }
}

/// Returns every batch of a segment whose header is intact and in its place, including leftovers of
/// earlier uses.
fn batches_of(image: &Image, number: u32) -> Vec<(Batch, bool)> {
    let bytes = image.segment(number);
    let mut batches = Vec::new();
    let mut at = 0;
    while at < image.geometry().segment_blocks {
        match log::batch_at(&bytes, image.superblock.uuid, number, at) {
            Ok(batch) => {
                at = batch.end();
                let whole = log::is_whole(&bytes, &batch);
                batches.push((batch, whole));
            }
            Err(_) => at += 1,
        }
    }
    batches
}

/// Returns the slots of an entry by state: dirty, clean.
fn slots(entry: &SegmentEntry) -> (usize, usize) {
    let of = |state| entry.slots.iter().filter(|slot| *slot == state).count();
    (of(SlotState::Dirty), of(SlotState::Clean))
}

fn state_name(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Free => "free",
        SegmentState::Open => "open",
        SegmentState::Sealed => "sealed",
        SegmentState::Twin => "twin",
    }
}

fn stream_name(number: u8) -> &'static str {
    forebay_format::StreamKind::from_u8(number).map_or("?", log::stream_name)
}

// --- as JSON

fn document(image: &Image, options: &Options) -> Value {
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| drop(document.insert(name.into(), value));
    put("path", json!(image.shown()));
    put("device_bytes", json!(image.device_bytes()));
    put("superblocks", image.superblocks.iter().map(superblock_json).collect());
    put("exported", show::exported_json(image));
    put(
        "checkpoint_copies",
        image
            .checkpoints
            .iter()
            .map(|copy| json!(copy.as_ref().err().map(ToString::to_string).unwrap_or("intact".into())))
            .collect(),
    );
    if let Some(checkpoint) = image.checkpoint() {
        put("checkpoint", checkpoint_json(checkpoint));
        put("volumes", checkpoint.volumes.iter().map(show::volume_json).collect());
        if options.segments {
            put(
                "segments",
                (0..).zip(&checkpoint.segments).map(|(number, entry)| segment_json(number, entry)).collect(),
            );
        }
        let details = chosen(options, checkpoint).into_iter().map(|number| {
            let mut value = segment_json(number, &checkpoint.segments[number as usize]);
            value["batches"] =
                batches_of(image, number).iter().map(|(batch, whole)| batch_json(batch, *whole)).collect();
            value
        });
        let details: Vec<Value> = details.collect();
        if !details.is_empty() {
            put("segment_details", details.into());
        }
    }
    document.into()
}

fn superblock_json(
    copy: &Result<forebay_format::superblock::Superblock, forebay_format::FormatError>,
) -> Value {
    let superblock = match copy {
        Ok(superblock) => superblock,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let geometry = &superblock.geometry;
    json!({
        "uuid": superblock.uuid.to_string(),
        "generation": superblock.generation,
        "epoch": superblock.epoch,
        "checkpoint_generation": superblock.checkpoint_generation,
        "base_generation": superblock.chain.map(|chain| chain.base),
        "increment_blocks": superblock.chain.map_or(0, |chain| chain.blocks),
        "state": show::cache_state(superblock.state),
        "device_blocks": geometry.device_blocks,
        "segment_blocks": geometry.segment_blocks,
        "segment_count": geometry.segment_count,
        "checkpoint_slot_blocks": geometry.checkpoint_slot_blocks,
        "segments_start_block": geometry.segments_start_block,
        "member_count": superblock.members.count(),
        "mirror": superblock.mirror.map(|mark| json!({
            "member": mark.member, "out": mark.out, "tags": mark.tags.map(|tag| format!("{tag:016x}")),
        })),
        "shard_index": superblock.shard_index,
        "shard_count": superblock.shard_count,
        "created_unix_s": superblock.created_unix_s,
        "written_by": superblock.written_by,
    })
}

fn checkpoint_json(checkpoint: &Checkpoint) -> Value {
    let of = |state| checkpoint.segments.iter().filter(|entry| entry.state == state).count();
    let intents: Vec<Value> = checkpoint
        .intents
        .iter()
        .map(|intent| json!({ "volume": intent.volume.0, "region": intent.region, "count": intent.count }))
        .collect();
    json!({
        "generation": checkpoint.generation,
        "epoch": checkpoint.epoch,
        "next_sequence": checkpoint.next_sequence,
        "next_stream_sequence": checkpoint.next_stream_sequence,
        "free_segments": of(SegmentState::Free),
        "open_segments": of(SegmentState::Open),
        "sealed_segments": of(SegmentState::Sealed),
        "window": checkpoint.window,
        "intents": intents,
    })
}

fn segment_json(number: u32, entry: &SegmentEntry) -> Value {
    let (dirty, clean) = slots(entry);
    json!({
        "segment": number,
        "state": state_name(entry.state),
        "stream": stream_name(entry.stream),
        "first_sequence": entry.first_sequence,
        "first_stream_sequence": entry.first_stream_sequence,
        "used_blocks": entry.used_blocks,
        "summary_block": entry.summary_block,
        "dirty_slots": dirty,
        "clean_slots": clean,
    })
}

fn batch_json(batch: &Batch, whole: bool) -> Value {
    let header = &batch.header;
    let entries: Vec<Value> = batch.entries.iter().map(show::entry_json).collect();
    json!({
        "block_in_segment": batch.start,
        "kind": show::batch_kind(header.kind),
        "stream": log::stream_name(header.stream),
        "epoch": header.epoch,
        "sequence": header.sequence,
        "stream_sequence": header.stream_sequence,
        "flushed_stream_sequence": header.flushed_stream_sequence,
        "payload_blocks": header.payload_blocks,
        "payload_intact": whole,
        "entries": entries,
    })
}
