//! A volume without storage, for measuring the export path alone.
//!
//! Connections, protocol, buffers, checksums and system calls are those of a pool ([`crate`]); only
//! the engine and its devices are missing. Reads return zeroes, and written data is discarded.

use crate::{Answer, HostEvent, HostOptions, Nanos, Request, RequestHandler, RequestId, RequestKind};
use forebay_admin::MessageId;
use forebay_export::uri::ExportUri;
use forebay_format::BLOCK_BYTES;
use forebay_io::{EnginePreference, Reactor, Span};
use forebay_pool::RunError;

/// Answers every request at once.
#[derive(Debug, Default)]
struct NullVolume {
    answered: Vec<RequestId>,
    /// Buffers of reads, which can contain data of earlier requests.
    to_zero: Vec<Span>,
}

impl RequestHandler for NullVolume {
    fn submit(&mut self, _now: Nanos, request: Request<'_>) {
        if let (RequestKind::Read, Some(buf)) = (request.kind, request.buf) {
            let lead = request.offset % BLOCK_BYTES as u64;
            let buf = forebay_pool::engine_io::to_io(buf);
            self.to_zero.push(Span { buf, offset: lead as u32, len: request.len as u32 });
        }
        self.answered.push(request.id);
    }

    fn block_status(&self, _first_block: u64, blocks: u64, f: &mut dyn FnMut(u64, bool, bool) -> bool) {
        f(blocks, true, false);
    }

    fn act(&mut self, _now: Nanos, reactor: &mut Reactor, answers: &mut Vec<Answer>) -> bool {
        for span in self.to_zero.drain(..) {
            reactor.pool_mut().fill_zero(span);
        }
        let any = !self.answered.is_empty();
        answers.extend(self.answered.drain(..).map(|id| (id, Ok(()))));
        any
    }
}

/// Serves a volume of `size_bytes` under `uri` until SIGINT or SIGTERM; calls `ready` with the URI
/// for clients.
///
/// # Errors
/// The export is not an NBD export or cannot be listened on, or the kernel allows no I/O.
pub fn serve(
    uri: &ExportUri,
    size_bytes: u64,
    io: EnginePreference,
    ready: impl FnOnce(&str),
) -> Result<(), RunError> {
    if !matches!(uri, ExportUri::Nbd { .. }) {
        return Err(RunError::usage(
            MessageId::ExportUnsupported,
            format!("{uri} is no NBD export; nbd+unix:///null?socket=/path is one"),
        ));
    }
    let options = HostOptions { exports: std::slice::from_ref(uri), size_bytes, io };
    let mut ready = Some(ready);
    let mut report = |event| match event {
        HostEvent::Ready(uri) => ready.take().into_iter().for_each(|ready| ready(&uri)),
        HostEvent::Note(what) => eprintln!("forebay: {what}"),
    };
    crate::serve(&options, |_| Ok(NullVolume::default()), &mut report).map(drop)
}
