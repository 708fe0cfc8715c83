//! The output of a salvage: files in a directory, or a copy of the backing store.
//!
//! Invariants
//! - An existing file is neither replaced nor written to, except on request.
//! - Only bytes that match their checksums are written, and lost sectors keep the content of the
//!   backing store's copy.
//! - Everything is durable before success is reported.

use forebay_admin::MessageId;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_export::uri::BackingUri;
use forebay_io::{Device, DeviceOptions};
use serde_json::{Value, json};

use super::Options;
use super::ranges::Ranges;
use crate::failure::{Failure, system};
use crate::screen;
use forebay_offline::salvage::{Piece, Worth};

/// A volume and its salvaged data.
#[derive(Debug)]
pub(super) struct Volume {
    number: u16,
    /// Name, or one derived from its number.
    pub(super) name: String,
    /// Size in bytes, if known.
    pub(super) size_bytes: Option<u64>,
    /// Salvaged ranges.
    pub(super) ranges: Ranges,
    /// Written files.
    pub(super) written: Vec<PathBuf>,
    dirty: Option<File>,
    uncertain: Option<File>,
}

impl Volume {
    /// Returns a volume without ranges.
    pub(super) fn new(number: u16, name: &str, size_bytes: Option<u64>) -> Self {
        let name = if name.is_empty() { format!("volume-{number}") } else { name.to_owned() };
        let ranges = Ranges::default();
        Self { number, name, size_bytes, ranges, written: Vec::new(), dirty: None, uncertain: None }
    }

    /// Returns the name as a file name: names come from the device, and may contain any character.
    fn file_name(&self) -> String {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
        let sound = self.name.chars().all(plain) && !self.name.starts_with('.');
        if sound { self.name.clone() } else { format!("volume-{}", self.number) }
    }

    /// Returns the JSON form.
    pub(super) fn json(&self) -> Value {
        let ranges: Vec<Value> = self
            .ranges
            .iter()
            .map(|(offset, bytes, worth)| json!({ "offset_bytes": offset, "bytes": bytes, "state": worth.name() }))
            .collect();
        json!({
            "id": self.number, "name": self.name, "size_bytes": self.size_bytes,
            "dirty_bytes": self.ranges.bytes(Worth::Dirty),
            "uncertain_bytes": self.ranges.bytes(Worth::Uncertain),
            "lost_bytes": self.ranges.bytes(Worth::Lost),
            "files": self.written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "ranges": ranges,
        })
    }
}

/// Destination of pieces.
#[derive(Debug)]
enum Target {
    Folder(PathBuf),
    Copy(Device),
}

/// All volumes and the destination of their data.
#[derive(Debug)]
pub(super) struct Outputs {
    target: Target,
    volumes: BTreeMap<u16, Volume>,
    only: Option<String>,
    include_uncertain: bool,
    overwrite: bool,
    failed: Option<Failure>,
}

impl Outputs {
    /// Checks that the destination is usable, and creates the directory.
    pub(super) fn new(options: &Options, volumes: Vec<Volume>) -> Result<Self, Failure> {
        let wanted = |volume: &Volume| options.volume.as_ref().is_none_or(|name| volume.name == *name);
        let volumes: BTreeMap<u16, Volume> =
            volumes.into_iter().filter(wanted).map(|volume| (volume.number, volume)).collect();
        let target = match (&options.to, &options.onto) {
            (_, Some(uri)) => Target::Copy(open_copy(uri, &volumes)?),
            (folder, None) => Target::Folder(folder.clone().unwrap_or_default()),
        };
        let outputs = Self {
            target,
            volumes,
            only: options.volume.clone(),
            include_uncertain: options.include_uncertain,
            overwrite: options.overwrite,
            failed: None,
        };
        if let Target::Folder(folder) = &outputs.target {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(system(format!("cannot make the folder {}", folder.display())))?;
            for volume in outputs.volumes.values() {
                outputs.check_unused(folder, volume)?;
            }
        }
        Ok(outputs)
    }

    /// Checks that a volume's files do not exist, or removes them.
    fn check_unused(&self, folder: &Path, volume: &Volume) -> Result<(), Failure> {
        for suffix in ["dirty", "uncertain", "ranges"] {
            let path = folder.join(format!("{}.{suffix}", volume.file_name()));
            if self.overwrite {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(system(format!("cannot replace {}", path.display()))(error));
                    }
                    _ => {}
                }
            } else if path.exists() {
                return Err(Failure::new(MessageId::CliExists, format!("{} exists already", path.display()))
                    .hint("name another folder, or replace the existing files with --overwrite"));
            }
        }
        Ok(())
    }

    /// Writes some sectors. Keeps the first error, and writes nothing after it.
    pub(super) fn take(&mut self, piece: Piece<'_>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(failure) = self.try_take(piece) {
            self.failed = Some(failure);
        }
    }

    fn try_take(&mut self, piece: Piece<'_>) -> Result<(), Failure> {
        if !self.volumes.contains_key(&piece.volume) {
            let volume = Volume::new(piece.volume, "", None);
            if self.only.as_ref().is_some_and(|name| *name != volume.name) {
                return Ok(());
            }
            if let Target::Folder(folder) = &self.target {
                self.check_unused(folder, &volume)?;
            }
            self.volumes.insert(piece.volume, volume);
        }
        let Some(volume) = self.volumes.get_mut(&piece.volume) else { return Ok(()) };
        volume.ranges.add(piece.offset, piece.len, piece.worth);
        let as_dirty = piece.worth == Worth::Dirty || self.include_uncertain;
        match &self.target {
            _ if piece.worth == Worth::Lost => Ok(()),
            Target::Copy(_) if !as_dirty => Ok(()),
            Target::Copy(device) => device.write_at(piece.offset, piece.bytes).map_err(|error| {
                Failure::new(forebay_offline::message::of_device(&error), error.to_string())
            }),
            Target::Folder(folder) => {
                let suffix = if as_dirty { "dirty" } else { "uncertain" };
                let path = folder.join(format!("{}.{suffix}", volume.file_name()));
                let slot = if as_dirty { &mut volume.dirty } else { &mut volume.uncertain };
                let file = match slot {
                    Some(file) => file,
                    None => {
                        let file = create(&path)?;
                        volume.written.push(path.clone());
                        slot.insert(file)
                    }
                };
                let cannot = system(format!("cannot write to {}", path.display()));
                file.write_all_at(piece.bytes, piece.offset).map_err(cannot)
            }
        }
    }

    /// Gives files their sizes, writes the lists, and makes everything durable.
    pub(super) fn finish(mut self, cache: &str) -> Result<Vec<Volume>, Failure> {
        if let Some(failure) = self.failed {
            return Err(failure.hint("the files written so far are incomplete"));
        }
        for volume in self.volumes.values_mut() {
            volume.ranges.settle();
        }
        match &self.target {
            Target::Copy(device) => {
                device.flush().map_err(|error| {
                    Failure::new(forebay_offline::message::of_device(&error), error.to_string())
                })?;
                for volume in self.volumes.values_mut() {
                    volume.written.push(device.path().to_owned());
                }
            }
            Target::Folder(folder) => {
                for volume in self.volumes.values_mut().filter(|volume| !volume.ranges.is_empty()) {
                    finish_volume(folder, volume, cache)?;
                }
                let durable = File::open(folder).and_then(|folder| folder.sync_all());
                durable.map_err(system(format!("cannot make {} durable", folder.display())))?;
            }
        }
        Ok(self.volumes.into_values().collect())
    }
}

/// Creates a file that only this user can access: it has the volume's data in the clear, even if
/// the cache was encrypted.
fn create(path: &Path) -> Result<File, Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(system(format!("cannot make {}", path.display())))
}

/// Opens a copy of the backing store for writing, and checks that it is plausible.
fn open_copy(uri: &BackingUri, volumes: &BTreeMap<u16, Volume>) -> Result<Device, Failure> {
    let options = DeviceOptions { direct: false, ..DeviceOptions::default() };
    let device = Device::open_backing(uri.path(), options).map_err(|error| {
        Failure::new(forebay_offline::message::of_device(&error), error.to_string())
            .hint("name an existing copy of the volume's backing store that is not in use")
    })?;
    let size = volumes.values().filter_map(|volume| volume.size_bytes).max().unwrap_or(0);
    if device.size_bytes() < size {
        let what =
            format!("{} has {} bytes, but the volume has {size}", uri.path().display(), device.size_bytes());
        return Err(
            Failure::new(MessageId::SalvageTarget, what).hint("give a copy of the whole backing store")
        );
    }
    Ok(device)
}

fn finish_volume(folder: &Path, volume: &mut Volume, cache: &str) -> Result<(), Failure> {
    let size = volume.size_bytes.unwrap_or(0).max(volume.ranges.end());
    for file in volume.dirty.iter().chain(&volume.uncertain) {
        let done = file.set_len(size).and_then(|()| file.sync_all());
        done.map_err(system(format!("cannot finish the files of {}", screen::harmless(&volume.name))))?;
    }
    let path = folder.join(format!("{}.ranges", volume.file_name()));
    let file = create(&path)?;
    write_ranges(&file, volume, cache).map_err(system(format!("cannot write {}", path.display())))?;
    volume.written.push(path);
    Ok(())
}

fn write_ranges(file: &File, volume: &Volume, cache: &str) -> std::io::Result<()> {
    let mut to = BufWriter::new(file);
    let size = volume.size_bytes.map_or("unknown".into(), |size| size.to_string());
    writeln!(to, "# volume {} of the cache {cache}", screen::harmless(&volume.name))?;
    writeln!(to, "# size_bytes {size}")?;
    writeln!(to, "# offset_bytes bytes state")?;
    for (offset, len, worth) in volume.ranges.iter() {
        writeln!(to, "{offset} {len} {}", worth.name())?;
    }
    to.flush()?;
    file.sync_all()
}
