//! A volume without storage behind it, for measuring what the export path alone can do.
//!
//! Connections, protocol, buffers, checksums and system calls are those of a pool; only the engine and its devices are
//! missing. Reads answer zeroes, what is written is forgotten.

use crate::config::PoolTunables;
use crate::error::RunError;
use crate::rules::{DefaultAction, RuleSet};
use crate::server::{Offer, Server, ServerToken, Volumes};
use forebay_core::{Request, RequestId, RequestKind};
use forebay_export::directory::ExportInfo;
use forebay_export::uri::{ExportUri, Guards};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{EnginePreference, Limits, Reactor, Span, Waker};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::time::Instant;

const KIND_SHIFT: u32 = 32;
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const VOLUME: VolumeId = VolumeId(0);

/// Answers everything at once.
#[derive(Debug, Default)]
struct NullVolume {
    answered: Vec<RequestId>,
    /// Buffers of reads, which may hold what others have written.
    to_zero: Vec<Span>,
}

impl Volumes for NullVolume {
    fn submit(&mut self, _now: u64, request: Request<'_>) {
        if let (RequestKind::Read, Some(buf)) = (request.kind, request.buf) {
            let lead = request.offset % BLOCK_BYTES as u64;
            let buf = crate::engine_io::to_io(buf);
            self.to_zero.push(Span { buf, offset: lead as u32, len: request.len as u32 });
        }
        self.answered.push(request.id);
    }

    fn block_status(
        &self,
        _volume: VolumeId,
        _first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        f(blocks, true, false);
    }
}

fn token(what: ServerToken) -> u64 {
    let (kind, index) = match what {
        ServerToken::Accept(index) => (ACCEPT, index),
        ServerToken::Receive(index) => (RECEIVE, index),
        ServerToken::Send(index) => (SEND, index),
    };
    kind << KIND_SHIFT | u64::from(index)
}

/// Serves a volume of `size_bytes` under `uri` until SIGINT or SIGTERM; `ready` is called with the URI that clients use.
///
/// # Errors
/// The export is not one of NBD or cannot be listened on, or the kernel allows no I/O.
pub fn serve(
    uri: &ExportUri,
    size_bytes: u64,
    io: EnginePreference,
    ready: impl FnOnce(&str),
) -> Result<(), RunError> {
    let ExportUri::Nbd { endpoint, name, guards } = uri else {
        return Err(RunError::Usage(format!("{uri} is no NBD export; nbd+unix:///null?socket=/path is one")));
    };
    if *guards != Guards::default() {
        return Err(RunError::Usage(
            "there is no configuration here that could have certificates or lists".into(),
        ));
    }
    let failed = |error| RunError::failed(error, "");
    let defaults = PoolTunables::default();
    // As a pool does, and like there it is no failure if the process may not.
    let _ = crate::nice::boost(defaults.nice_boost);
    let limits = Limits { spin: defaults.spin, ..Limits::default() };
    let (mut reactor, _) =
        Reactor::open(io, limits).map_err(|error| RunError::failed(error, "try --io psync"))?;
    let stopper = stop_by_signal(reactor.waker())?;
    let mut server =
        Server::new(token, Arc::default(), defaults.pool_connections_max, defaults.buffer_memory.0 as usize);
    server.add_volume(VOLUME, Arc::new(RuleSet::new(DefaultAction::Cache, size_bytes)));
    let info = ExportInfo::new(name, size_bytes);
    let offer = Offer {
        endpoint,
        volume: VOLUME,
        info,
        mark: String::new(),
        connections_max: u32::MAX,
        tls: None,
        access: None,
    };
    let uri = server
        .export(&mut reactor, offer)
        .map_err(|error| RunError::failed(error, "choose another socket or port"))?;
    ready(&uri);
    let outcome = turns(&mut server, &mut reactor).map_err(failed);
    server.close(&mut reactor);
    stopper.close();
    outcome
}

/// Makes the loop return when a signal comes.
fn stop_by_signal(waker: Waker) -> Result<signal_hook::iterator::Handle, RunError> {
    let fail = |error| RunError::failed(format!("cannot watch signals: {error}"), "");
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(fail)?;
    let handle = signals.handle();
    let watch = move || {
        if signals.forever().next().is_some() {
            waker.wake();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(handle)
}

/// The loop of a pool without its engine, until the reactor is woken.
fn turns(server: &mut Server, reactor: &mut Reactor) -> Result<(), String> {
    let origin = Instant::now();
    let mut volume = NullVolume::default();
    let mut completions = Vec::new();
    loop {
        let now = origin.elapsed().as_nanos() as u64;
        while server.turn(&mut volume, reactor, now) {
            for span in volume.to_zero.drain(..) {
                reactor.pool_mut().fill_zero(span);
            }
            for id in volume.answered.drain(..) {
                server.replied(reactor, id, Ok(()));
            }
        }
        server.send_all(reactor);
        let pause = server.timers(reactor);
        let waited = reactor
            .wait(pause, &mut completions)
            .map_err(|error| format!("the I/O engine failed: {error}"))?;
        for completion in completions.drain(..) {
            let index = completion.token as u32;
            match completion.token >> KIND_SHIFT {
                ACCEPT => server.accepted(reactor, index, completion.result),
                RECEIVE => server.received(reactor, index, completion.result),
                _ => server.sent(reactor, index, completion.result.is_ok()),
            }
        }
        if waited.woken {
            return Ok(());
        }
        server.wake_starved();
        if let Some(refused) = server.take_refused() {
            eprintln!("forebay: {}", refused.what);
        }
    }
}
