//! The structures of a cache for display, and parts of its JSON.

use forebay_format::batch::{BatchKind, Entry};
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState, VolumeEntry};
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, FormatError, MirrorMark};
use serde_json::{Value, json};

use super::super::findings::checkpoint_name;
use super::{slots, state_name, stream_name};
use crate::screen::{self, Paint, bytes, count};
use forebay_offline::image::Image;
use forebay_offline::log::{self, Batch};

/// Returns superblocks, checkpoint, volumes and a summary of the segments.
pub(super) fn overview(image: &Image) -> String {
    let paint = Paint::for_stdout();
    let mut text =
        format!("{} ({})\n\n{}\n", image.shown(), bytes(image.device_bytes()), paint.bold("superblocks"));
    text += &superblocks(&image.superblocks);
    text += &exported(image);
    let name = checkpoint_name(&image.superblock);
    text += &format!("\n{}\n", paint.bold(&format!("checkpoint {name}")));
    for (copy, name) in image.checkpoints.iter().zip(["A", "B"]) {
        let state = copy.as_ref().err().map_or("intact".into(), ToString::to_string);
        text += &format!(" copy {name}  {state}\n");
    }
    let Some(checkpoint) = image.checkpoint() else { return text };
    text += &facts(checkpoint);
    text += &format!("\n{}\n{}", paint.bold("volumes"), volumes(checkpoint));
    text += &format!("\n{}\n{}", paint.bold("segments"), summary(checkpoint));
    text
}

fn superblocks(copies: &[Result<Superblock, FormatError>; 2]) -> String {
    let mut table = screen::table(&["", "copy A", "copy B"], &[]);
    let mut row = |name: &str, get: &dyn Fn(&Superblock) -> String| {
        let cell = |copy: &Result<Superblock, FormatError>| copy.as_ref().map_or("-".into(), get);
        table.add_row([name.to_owned(), cell(&copies[0]), cell(&copies[1])]);
    };
    row("uuid", &|s| s.uuid.to_string());
    row("generation", &|s| s.generation.to_string());
    row("epoch", &|s| s.epoch.to_string());
    row("checkpoint_generation", &checkpoint_name);
    row("state", &|s| cache_state(s.state).into());
    row("device_blocks", &|s| s.geometry.device_blocks.to_string());
    row("segments", &|s| format!("{} of {} blocks", s.geometry.segment_count, s.geometry.segment_blocks));
    row("segments_start_block", &|s| s.geometry.segments_start_block.to_string());
    row("checkpoint_slot_blocks", &|s| s.geometry.checkpoint_slot_blocks.to_string());
    row("members", &|s| s.members.count().to_string());
    row("mirrored", &|s| s.mirror.map_or("no".into(), mirrored));
    row("encryption", &|s| s.encryption.map_or("none", |_| "AES-256-XTS").into());
    row("shard", &|s| format!("{} of {}", s.shard_index, s.shard_count));
    row("created_unix_s", &|s| s.created_unix_s.to_string());
    row("written_by", &|s| screen::harmless(&s.written_by));
    let mut text = format!("{table}\n");
    for (copy, name) in copies.iter().zip(["A", "B"]) {
        if let Err(error) = copy {
            text += &format!(" copy {name}: {error}\n");
        }
    }
    text
}

/// Returns whether the cache is exported, and by which host.
fn exported(image: &Image) -> String {
    let copy = match image.settings_copy() {
        Ok(None) => return String::new(),
        Ok(Some(copy)) => copy,
        Err(error) => return format!(" exported: {error}\n"),
    };
    let host = screen::harmless(&copy.host);
    let ago = screen::uptime(screen::now_unix_s().saturating_sub(copy.exported_unix_s));
    match copy.is_current(&image.superblock) {
        true => {
            format!(" exported by {host}, {ago} ago; to open it with its settings: forebay pool import\n")
        }
        false => format!(" was exported by {host}, {ago} ago, and opened since\n"),
    }
}

/// As [`exported`] in JSON, with the settings.
pub(super) fn exported_json(image: &Image) -> Value {
    match image.settings_copy() {
        Ok(None) => Value::Null,
        Ok(Some(copy)) => json!({
            "current": copy.is_current(&image.superblock),
            "host": copy.host,
            "exported_unix_s": copy.exported_unix_s,
            "written_by": copy.written_by,
            "generation": copy.generation,
            "settings": copy.text,
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn mirrored(mark: MirrorMark) -> String {
    let out = mark.out.map_or("none".into(), |out| (u32::from(out) + 1).to_string());
    format!("device {}, out: {out}, tags {:016x} {:016x}", mark.member + 1, mark.tags[0], mark.tags[1])
}

fn facts(checkpoint: &Checkpoint) -> String {
    let [write, fill, survivor] = checkpoint.next_stream_sequence;
    let mut list = screen::List::new();
    let mut add = |name: &str, value: String| list.add(name, value);
    add("epoch", checkpoint.epoch.to_string());
    add(
        "next sequence",
        format!("{} (write {write}, fill {fill}, survivor {survivor})", checkpoint.next_sequence),
    );
    add("append window", format!("{} segments{}", checkpoint.window.len(), first_few(&checkpoint.window)));
    let regions: u64 = checkpoint.intents.iter().map(|intent| u64::from(intent.count)).sum();
    add("intents", format!("{} regions in {} ranges", count(regions), checkpoint.intents.len()));
    list.to_string()
}

fn first_few(numbers: &[u32]) -> String {
    let shown: Vec<String> = numbers.iter().take(8).map(ToString::to_string).collect();
    match numbers.len() {
        0 => String::new(),
        n if n > shown.len() => format!(": {}, ...", shown.join(", ")),
        _ => format!(": {}", shown.join(", ")),
    }
}

fn volumes(checkpoint: &Checkpoint) -> String {
    let header = ["id", "name", "mode", "size", "backing store", "stamp", "samples"];
    let mut table = screen::table(&header, &[0, 3, 6]);
    for entry in &checkpoint.volumes {
        table.add_row([
            entry.id.0.to_string(),
            screen::harmless(&entry.name),
            entry.mode.name().to_owned(),
            bytes(entry.size_bytes),
            format!(
                "{}, {}, {:x}:{:x}",
                kind_name(entry.backing.kind),
                bytes(entry.backing.size_bytes),
                entry.backing.unique[0],
                entry.backing.unique[1]
            ),
            entry
                .backing
                .stamp_ns
                .map_or("none (in use)".into(), |stamp| format!("{:.3} s", stamp as f64 / 1e9)),
            entry.backing.samples.len().to_string(),
        ]);
    }
    format!("{table}\n")
}

fn kind_name(kind: u32) -> &'static str {
    match kind {
        0 => "unknown",
        1 => "file",
        2 => "block device",
        _ => "other",
    }
}

/// Returns the segments by state and stream.
fn summary(checkpoint: &Checkpoint) -> String {
    let mut table =
        screen::table(&["state", "stream", "segments", "used blocks", "dirty", "clean"], &[2, 3, 4, 5]);
    for (state, stream) in
        [SegmentState::Open, SegmentState::Sealed].into_iter().flat_map(|s| [0, 1, 2].map(|n| (s, n)))
    {
        let these =
            || checkpoint.segments.iter().filter(|entry| entry.state == state && entry.stream == stream);
        if these().next().is_none() {
            continue;
        }
        let (dirty, clean) = these().map(slots).fold((0, 0), |sum, (d, c)| (sum.0 + d, sum.1 + c));
        let used: u64 = these().map(|entry| u64::from(entry.used_blocks)).sum();
        let numbers = [these().count() as u64, used, dirty as u64, clean as u64].map(count);
        table.add_row([state_name(state), stream_name(stream)].map(str::to_owned).into_iter().chain(numbers));
    }
    let free = checkpoint.segments.iter().filter(|entry| entry.state == SegmentState::Free).count() as u64;
    table.add_row(["free".to_owned(), "-".into(), count(free)]);
    format!("{table}\n")
}

/// Returns a line for every segment in use.
pub(super) fn segments(checkpoint: &Checkpoint) -> String {
    let header =
        ["segment", "state", "stream", "first sequence", "in stream", "used", "summary at", "dirty", "clean"];
    let mut table = screen::table(&header, &[0, 3, 4, 5, 6, 7, 8]);
    for (number, entry) in checkpoint.segments.iter().enumerate() {
        if entry.state == SegmentState::Free {
            continue;
        }
        let (dirty, clean) = slots(entry);
        table.add_row([
            number.to_string(),
            state_name(entry.state).to_owned(),
            stream_name(entry.stream).to_owned(),
            entry.first_sequence.to_string(),
            entry.first_stream_sequence.to_string(),
            entry.used_blocks.to_string(),
            if entry.summary_block > 0 { entry.summary_block.to_string() } else { "-".into() },
            dirty.to_string(),
            clean.to_string(),
        ]);
    }
    format!("\n{table}\n")
}

/// Returns the checkpoint's entry of one segment.
pub(super) fn segment(number: u32, entry: &SegmentEntry) -> String {
    let paint = Paint::for_stdout();
    let (dirty, clean) = slots(entry);
    let title = paint.bold(&format!("segment {number}"));
    if entry.state == SegmentState::Free {
        return format!("\n{title}: free in the checkpoint; batches found there are newer, or leftovers\n");
    }
    let summary = match entry.summary_block {
        0 => "no summary".into(),
        at => format!("summary at block {at}"),
    };
    format!(
        "\n{title}: {}, {} stream, {} blocks used, {summary}, {dirty} dirty, {clean} clean; sequence from {}, in the stream from {}\n",
        state_name(entry.state),
        stream_name(entry.stream),
        entry.used_blocks,
        entry.first_sequence,
        entry.first_stream_sequence
    )
}

/// Returns batches, with their entries if `entries`.
pub(super) fn batches(batches: &[(Batch, bool)], entries: bool) -> String {
    if batches.is_empty() {
        return "no batch with an intact header\n".into();
    }
    let header = [
        "block",
        "kind",
        "stream",
        "epoch",
        "sequence",
        "in stream",
        "flushed",
        "entries",
        "payload",
        "intact",
    ];
    let mut table = screen::table(&header, &[0, 3, 4, 5, 6, 7, 8]);
    for (batch, whole) in batches {
        let header = &batch.header;
        table.add_row([
            batch.start.to_string(),
            batch_kind(header.kind).to_owned(),
            log::stream_name(header.stream).to_owned(),
            header.epoch.to_string(),
            header.sequence.to_string(),
            header.stream_sequence.to_string(),
            header.flushed_stream_sequence.to_string(),
            batch.entries.len().to_string(),
            header.payload_blocks.to_string(),
            if *whole { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut text = format!("{table}\n");
    for (batch, _) in batches.iter().filter(|_| entries) {
        text += &format!(" batch at block {}\n", batch.start);
        for entry in &batch.entries {
            text += &format!("   {}\n", entry_line(entry));
        }
    }
    text
}

fn entry_line(entry: &Entry) -> String {
    match *entry {
        Entry::Data { volume, block, crc32c, sector_mask, dirty, flush_epoch } => {
            let kind = if dirty { "dirty" } else { "clean" };
            let byte = block.saturating_mul(BLOCK_BYTES as u64);
            let epoch = if flush_epoch > 0 { format!(" flush epoch {flush_epoch}") } else { String::new() };
            format!(
                "{kind:10} volume {} block {block} (byte {byte}) sectors {sector_mask:08b} crc32c {crc32c:#010x}{epoch}",
                volume.0
            )
        }
        Entry::CleanMark { slot, count } => {
            format!("clean mark slots {}..{}", slot.0, u64::from(slot.0) + u64::from(count))
        }
        Entry::DropMark { slot, count } => {
            format!("drop mark  slots {}..{}", slot.0, u64::from(slot.0) + u64::from(count))
        }
        Entry::Intent { volume, region, count } => {
            format!("intent     volume {} regions {region}..{}", volume.0, region + u64::from(count))
        }
        Entry::Summary { slots, crc32c } => format!("summary    {slots} slots crc32c {crc32c:#010x}"),
    }
}

/// Returns one entry as JSON.
pub(super) fn entry_json(entry: &Entry) -> Value {
    match *entry {
        Entry::Data { volume, block, crc32c, sector_mask, dirty, flush_epoch } => json!({
            "kind": if dirty { "dirty" } else { "clean" },
            "volume": volume.0, "block": block, "crc32c": crc32c, "sector_mask": sector_mask, "flush_epoch": flush_epoch,
        }),
        Entry::CleanMark { slot, count } => json!({ "kind": "clean_mark", "slot": slot.0, "count": count }),
        Entry::DropMark { slot, count } => json!({ "kind": "drop_mark", "slot": slot.0, "count": count }),
        Entry::Intent { volume, region, count } => {
            json!({ "kind": "intent", "volume": volume.0, "region": region, "count": count })
        }
        Entry::Summary { slots, crc32c } => json!({ "kind": "summary", "slots": slots, "crc32c": crc32c }),
    }
}

/// Returns one volume as JSON.
pub(super) fn volume_json(entry: &VolumeEntry) -> Value {
    json!({
        "id": entry.id.0,
        "name": entry.name,
        "mode": entry.mode.name(),
        "size_bytes": entry.size_bytes,
        "flush_epoch": entry.flush_epoch,
        "uuid": entry.uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "backing_kind": kind_name(entry.backing.kind),
        "backing_size_bytes": entry.backing.size_bytes,
        "backing_unique": entry.backing.unique,
        "backing_stamp_ns": entry.backing.stamp_ns,
        "samples": entry.backing.samples.len(),
    })
}

/// Returns the name of a state of the whole cache.
pub(super) fn cache_state(state: CacheState) -> &'static str {
    match state {
        CacheState::Clean => "clean",
        CacheState::Open => "open",
        CacheState::Failed => "failed",
    }
}

/// Returns the name of a kind of batch.
pub(super) fn batch_kind(kind: BatchKind) -> &'static str {
    match kind {
        BatchKind::Records => "records",
        BatchKind::Summary => "summary",
    }
}
