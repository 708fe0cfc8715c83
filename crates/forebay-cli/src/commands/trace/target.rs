//! Targets of a replay: an NBD export, or a block device or file.

use crate::message;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_admin::{MessageId, VolumeInfo};
use forebay_export::nbd::codec::{cmd, cmd_flag};
use forebay_export::uri::ExportUri;
use forebay_nbd_client::{ClientError, NbdClient, Transport};
use forebay_trace::{Operation, Record};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::client::{self, Admin, escaped};
use crate::failure::{Failure, system};
use crate::screen::harmless;

/// Time limit for a server's reply.
const SILENCE: Duration = Duration::from_secs(120);
/// Longest request without payload, in bytes.
const PART_BYTES: usize = 1 << 30;
/// Alignment of direct I/O.
const ALIGN: usize = 4096;

/// The target of a replay.
pub(super) struct Target {
    /// Name in messages.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    place: Place,
    writes: bool,
    /// Holds a file or device exclusively while the replay may write to it.
    _alone: Option<File>,
}

enum Place {
    Nbd(ExportUri),
    File { path: PathBuf, flags: i32 },
}

/// A connection, with one request at a time.
pub(super) enum Connection {
    Nbd { client: Box<NbdClient<Transport>>, cookie: u64, data: Vec<u8> },
    File { file: File, memory: Vec<u8> },
}

impl Target {
    /// Resolves a URI, a path, or a volume of the daemon.
    pub(super) fn find(text: &str, admin: &Admin, writes: bool) -> Result<Self, Failure> {
        if text.starts_with('/') || text.starts_with("./") || text.starts_with("../") {
            return Self::file(text.into(), writes);
        }
        if text.contains("://") {
            let uri = text
                .parse::<ExportUri>()
                .map_err(|error| Failure::usage(MessageId::ExportSyntax, error.to_string()))?;
            return Self::nbd(uri, writes);
        }
        let answer = admin.client().get(&format!("/v1/volumes/{}", escaped(text)))?;
        let volume: VolumeInfo = client::read(&answer)?;
        let uris = volume.exports.iter().filter_map(|export| export.parse::<ExportUri>().ok());
        match uris
            .into_iter()
            .find(|uri| matches!(uri, ExportUri::Nbd { guards, .. } if guards.tls.is_none()))
        {
            Some(uri) => Self::nbd(uri, writes),
            None => Err(Failure::new(
                MessageId::ExportMissing,
                format!("volume {} has no NBD export without TLS", harmless(text)),
            )
            .hint("give the path of its file or block device")),
        }
    }

    fn nbd(uri: ExportUri, writes: bool) -> Result<Self, Failure> {
        if !matches!(uri, ExportUri::Nbd { .. }) {
            return Err(Failure::usage(
                MessageId::ExportSyntax,
                format!("{uri} is not the URI of an NBD export"),
            )
            .hint("give nbd://, nbd+unix://, the path of a device, or the name of a volume"));
        }
        let mut target =
            Self { name: uri.to_string(), size_bytes: 0, place: Place::Nbd(uri), writes, _alone: None };
        if let Connection::Nbd { client, .. } = target.connect(0)? {
            target.size_bytes = client.size_bytes();
        }
        Ok(target)
    }

    fn file(path: PathBuf, writes: bool) -> Result<Self, Failure> {
        let cannot = || system(format!("cannot open {}", path.display()));
        let open = |flags: OFlags| {
            OpenOptions::new().read(true).write(writes).custom_flags(flags.bits() as i32).open(&path)
        };
        let (file, flags) = match open(OFlags::DIRECT) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let what = format!("{} has no direct I/O: the page cache affects the result", path.display());
                message::note(MessageId::CliNote, &what);
                (open(OFlags::empty()).map_err(cannot())?, OFlags::empty())
            }
            opened => (opened.map_err(cannot())?, OFlags::DIRECT),
        };
        if file.metadata().map_err(cannot())?.is_dir() {
            return Err(Failure::new(MessageId::TraceTarget, format!("{} is a folder", path.display()))
                .hint("give a file, a block device, the URI of an NBD export, or a volume"));
        }
        let alone = if writes { Some(alone(&path)?) } else { None };
        let mut end = &file;
        let size_bytes = std::io::Seek::seek(&mut end, std::io::SeekFrom::End(0)).map_err(cannot())?;
        let name = path.display().to_string();
        let place = Place::File { path, flags: flags.bits() as i32 };
        Ok(Self { name, size_bytes, place, writes, _alone: alone })
    }

    /// Opens another connection.
    pub(super) fn connect(&self, number: usize) -> Result<Connection, Failure> {
        match &self.place {
            Place::File { path, flags } => {
                let opened = OpenOptions::new().read(true).write(self.writes).custom_flags(*flags).open(path);
                let file = opened.map_err(system(format!("cannot open {}", path.display())))?;
                Ok(Connection::File { file, memory: Vec::new() })
            }
            Place::Nbd(uri) => {
                let refused = |error: ClientError| {
                    let what = format!("cannot connect to {}: {}", self.name, whole(&error));
                    let failure = Failure::new(MessageId::TraceTarget, harmless(&what));
                    if number > 0 {
                        failure
                            .hint(format!("the server took {number} connections; choose a smaller --depth"))
                    } else {
                        failure
                    }
                };
                let client = NbdClient::connect(uri).map_err(refused)?;
                let limited = client.stream().set_timeout(Some(SILENCE));
                limited.map_err(system(format!("cannot use the connection to {}", self.name)))?;
                Ok(Connection::Nbd { client: Box::new(client), cookie: 0, data: Vec::new() })
            }
        }
    }
}

/// Opens a file or device exclusively: refuses a mounted disk, and one under a cache, which would
/// not notice writes that bypass it.
fn alone(path: &Path) -> Result<File, Failure> {
    let cannot = || system(format!("cannot open {}", path.display()));
    let is_block = std::fs::metadata(path).map_err(cannot())?.file_type().is_block_device();
    let flags = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let opened = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path);
    let taken = opened.and_then(|file| {
        if !is_block {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        }
        Ok(file)
    });
    taken.map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy | ErrorKind::WouldBlock => Failure::new(
            MessageId::DeviceInUse,
            format!("{} is in use: it is mounted, or a daemon has it", path.display()),
        )
        .hint("a target in use is not written to; if it is the disk of a volume: --to VOLUME"),
        _ => cannot()(error),
    })
}

/// Formats an error with its cause.
fn whole(error: &ClientError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Fills memory with data for a write: it differs from block to block, and is not zeroes.
fn fill(memory: &mut [u8], offset: u64) {
    for (number, block) in memory.chunks_mut(512).enumerate() {
        block.fill(number as u8 | 1);
        let stamp = (offset + number as u64 * 512).to_le_bytes();
        let len = block.len().min(stamp.len());
        block[..len].copy_from_slice(&stamp[..len]);
    }
}

impl Connection {
    /// Executes a request; returns false if the target does not support it. The inner error is that
    /// of the request, the outer one ends the replay.
    pub(super) fn make(&mut self, record: &Record) -> Result<Result<bool, String>, Failure> {
        match self {
            Self::Nbd { client, cookie, data } => {
                *cookie += 1;
                match over_nbd(client, *cookie, data, record) {
                    Ok(()) => Ok(Ok(true)),
                    Err(error @ ClientError::Request(_)) => Ok(Err(at(record, &error.to_string()))),
                    Err(error) => Err(Failure::new(
                        MessageId::TraceRequestsFailed,
                        harmless(&at(record, &whole(&error))),
                    )),
                }
            }
            Self::File { file, memory } => match on_file(file, memory, record) {
                Ok(made) => Ok(Ok(made)),
                Err(error) => Ok(Err(at(record, &error.to_string()))),
            },
        }
    }
}

fn at(record: &Record, what: &str) -> String {
    let Record { operation, offset, len, .. } = record;
    format!("{} of {len} bytes at byte {offset}: {what}", operation.name())
}

fn over_nbd(
    client: &mut NbdClient<Transport>,
    cookie: u64,
    data: &mut Vec<u8>,
    record: &Record,
) -> Result<(), ClientError> {
    let fua = if record.fua { cmd_flag::FUA } else { 0 };
    let len = record.len as u32; // of a read or write, which `MadeTrace` has split
    match record.operation {
        Operation::Read => client.send_read(cookie, record.offset, len)?,
        Operation::Write => {
            data.resize(len as usize, 0);
            fill(data, record.offset);
            client.send_write(cookie, record.offset, data, record.fua)?;
        }
        Operation::Flush => client.send_request(cmd::FLUSH, 0, cookie, 0, 0)?,
        Operation::Discard => return in_parts(client, (cmd::TRIM, fua), cookie, data, record),
        Operation::WriteZeroes => return in_parts(client, (cmd::WRITE_ZEROES, fua), cookie, data, record),
    }
    client.recv_reply(data)?.result?;
    Ok(())
}

/// Splits a request without payload that exceeds NBD's maximum length.
fn in_parts(
    client: &mut NbdClient<Transport>,
    (kind, flags): (u16, u16),
    cookie: u64,
    data: &mut Vec<u8>,
    record: &Record,
) -> Result<(), ClientError> {
    for offset in (record.offset..record.end()).step_by(PART_BYTES) {
        let len = (record.end() - offset).min(PART_BYTES as u64) as u32;
        client.send_request(kind, flags, cookie, offset, len)?;
        client.recv_reply(data)?.result?;
    }
    Ok(())
}

/// Executes a request on a file; returns false if files do not support it.
fn on_file(file: &File, memory: &mut Vec<u8>, record: &Record) -> std::io::Result<bool> {
    match record.operation {
        Operation::Flush => return file.sync_data().map(|()| true),
        Operation::Discard | Operation::WriteZeroes => return Ok(false),
        Operation::Read | Operation::Write => {}
    }
    // Direct I/O needs whole, aligned blocks.
    let first = record.offset / ALIGN as u64 * ALIGN as u64;
    let len = (record.end() - first).next_multiple_of(ALIGN as u64) as usize;
    if memory.len() < len + ALIGN {
        memory.resize(len + ALIGN, 0);
    }
    let lead = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
    let memory = &mut memory[lead..lead + len];
    if record.operation == Operation::Write {
        fill(memory, first);
        file.write_all_at(memory, first)?;
        if record.fua {
            file.sync_data()?;
        }
        return Ok(true);
    }
    let mut have = 0;
    while (have as u64) < record.end() - first {
        match file.read_at(&mut memory[have..], first + have as u64)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => have += read,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_and_folders_are_no_targets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::fs::write(&path, [0; ALIGN]).unwrap();
        let daemon = File::open(&path).unwrap();
        flock(&daemon, FlockOperation::NonBlockingLockExclusive).unwrap();
        let refused = Target::file(path.clone(), true).err().unwrap();
        assert!(refused.to_string().ends_with("is in use: it is mounted, or a daemon has it"), "{refused}");
        assert!(Target::file(path.clone(), false).is_ok());
        drop(daemon);
        let target = Target::file(path.clone(), true).unwrap();
        assert!(target.connect(0).is_ok() && Target::file(path, true).is_err());
        let refused = Target::file(folder.path().into(), false).err().unwrap();
        assert!(refused.to_string().ends_with("is a folder"), "{refused}");
    }
}
