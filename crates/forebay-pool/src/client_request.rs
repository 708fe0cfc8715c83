//! Requests of clients on their way to the engine, alike for all protocols: memory, rules,
//! checksums, and the form that the engine expects.
//!
//! A protocol checks a request, allocates its buffer, and fills it for a write. Then it passes a
//! `Submission` to the engine. The protocol translates the reply.
//!
//! A buffer begins at a block boundary of the volume and has all blocks that the request touches,
//! so the payload lies at the same offset within its first block as in the volume.
//!
//! Invariant: an allocation leaves the part of the memory to others that its kind prescribes
//! (`FOR_REQUESTS`, `FOR_REPLIES`, `FOR_ENGINE`), so idle clients cannot take it from requests,
//! requests not from replies, and replies not from the engine, whose writes would fail.

use crate::token::FrontendOp;
use forebay_config::rules::{Action, Direction, RuleId};
use forebay_core::{Nanos, Request, RequestKind, Treatment};
use forebay_export::request::{ClientRequest, Operation};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufId, BufPool, Span};

/// Large receive buffers leave this part of the memory to others,
pub(crate) const FOR_REQUESTS: usize = 2;
/// requests this one,
pub(crate) const FOR_REPLIES: usize = 8;
/// and replies this one, which is the engine's.
pub(crate) const FOR_ENGINE: usize = 16;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The engine as the front ends see it: that of a pool, or a substitute for it.
pub trait ClientEngine {
    /// Takes a request; the owner of both passes the reply to the front end that the id names. The
    /// data of a read then lies in the request's buffer. `now` is in nanoseconds of the engine's
    /// clock.
    fn submit(&mut self, now: Nanos, request: Request<'_>);

    /// Calls `f(blocks, cached, dirty)` for runs of equal blocks of a range, until it returns
    /// false.
    fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    );
}

/// Length of the buffer of a request, in bytes.
pub(crate) fn covered_bytes(request: &ClientRequest) -> usize {
    (request.offset_bytes % BLOCK + request.length_bytes).next_multiple_of(BLOCK) as usize
}

/// The payload of a request in its buffer.
pub(crate) fn payload(buffer: BufId, request: &ClientRequest) -> Span {
    Span::new(buffer, (request.offset_bytes % BLOCK) as u32, request.length_bytes as u32)
}

/// The treatment of a request by the rules of its volume; `decide` asks them for its direction,
/// offset and length.
pub(crate) fn treatment(
    request: &ClientRequest,
    decide: impl FnOnce(Direction, u64, u64) -> (Action, Option<RuleId>),
) -> Treatment {
    let Some(direction) = direction(request.operation) else { return Treatment::Cache };
    decide(direction, request.offset_bytes, request.length_bytes).0.into()
}

/// The direction of a request, `None` if no rule can apply to it: it carries no data.
fn direction(operation: Operation) -> Option<Direction> {
    match operation {
        Operation::Read | Operation::Cache => Some(Direction::Read),
        Operation::Write { .. } => Some(Direction::Write),
        Operation::Flush
        | Operation::Trim { .. }
        | Operation::WriteZeroes { .. }
        | Operation::BlockStatus { .. } => None,
    }
}

/// The operation as the engine names it.
fn kind(operation: Operation) -> RequestKind {
    match operation {
        Operation::Read => RequestKind::Read,
        Operation::Write { fua } => RequestKind::Write { fua },
        Operation::Flush => RequestKind::Flush,
        Operation::Trim { fua } => RequestKind::Discard { fua },
        Operation::WriteZeroes { fua, no_hole, .. } => RequestKind::WriteZeroes { fua, may_unmap: !no_hole },
        Operation::Cache | Operation::BlockStatus { .. } => RequestKind::Prefetch,
    }
}

/// A request that is ready for the engine.
pub(crate) struct Submission<'a> {
    /// Its id.
    pub(crate) op: FrontendOp,
    /// Its volume.
    pub(crate) volume: VolumeId,
    /// The checked request.
    pub(crate) request: &'a ClientRequest,
    /// Its buffer, which for a write has the payload.
    pub(crate) buffer: Option<BufId>,
    /// The decision of the rules.
    pub(crate) treatment: Treatment,
}

impl Submission<'_> {
    /// Computes the checksums of the blocks of a write, in `crcs`, and passes the request to the
    /// engine.
    pub(crate) fn submit(
        self,
        engine: &mut impl ClientEngine,
        now: Nanos,
        pool: &BufPool,
        crcs: &mut Vec<u32>,
    ) {
        let Self { op, volume, request, buffer, treatment } = self;
        crcs.clear();
        if let (Operation::Write { .. }, Some(buffer)) = (request.operation, buffer) {
            pool.crc32c_blocks(Span::new(buffer, 0, covered_bytes(request) as u32), crcs);
        }
        let request = Request {
            id: op.request_id(),
            volume,
            kind: kind(request.operation),
            offset: request.offset_bytes,
            len: request.length_bytes,
            buf: buffer.map(|buffer| forebay_core::BufId(buffer.0)),
            treatment,
            block_crcs: crcs,
        };
        engine.submit(now, request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transfers_have_a_direction() {
        let zeroes = Operation::WriteZeroes { fua: false, no_hole: false, fast_only: false };
        for (operation, expected) in [
            (Operation::Read, Some(Direction::Read)),
            (Operation::Cache, Some(Direction::Read)),
            (Operation::Write { fua: true }, Some(Direction::Write)),
            (Operation::Flush, None),
            (Operation::Trim { fua: false }, None),
            (zeroes, None),
        ] {
            assert_eq!(direction(operation), expected, "{operation:?}");
        }
    }
}
