//! Tokens and request ids: the owner of an operation that has completed, and of a request that the
//! engine has answered.
//!
//! The reactor returns 64 bits of an operation with its completion, and the engine the id of a
//! request with its reply. Only this file encodes and decodes either of them:
//!
//! | bits | token | request id |
//! | --- | --- | --- |
//! | 56..63 | owner | 0 |
//! | 48..56 | protocol, if a front end is the owner | protocol |
//! | 32..48 | slot, if a front end is the owner | slot |
//! | 0..32 | number | number |
//!
//! Invariants
//! - Two owners never have the same token, and two exports never the same request id.
//! - The top bit is 0: the I/O engine uses it for its own operations.

use forebay_core::{OpId, RequestId};

const OWNER_SHIFT: u32 = 56;
const PROTOCOL_SHIFT: u32 = 48;
const SLOT_SHIFT: u32 = 32;

const ENGINE: u64 = 1;
const SECOND_DEVICE: u64 = 2;
const COPY: u64 = 3;
const FRONTEND: u64 = 4;

/// Protocols by which clients reach volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Protocol {
    /// Connections of the NBD server.
    Nbd = 0,
    /// Volumes as files.
    Fuse = 1,
    /// Volumes as block devices of this host.
    Ublk = 2,
    /// Volumes as block devices of virtual machines.
    VhostUser = 3,
}

impl Protocol {
    fn of_bits(bits: u64) -> Self {
        match (bits >> PROTOCOL_SHIFT) as u8 {
            0 => Self::Nbd,
            1 => Self::Fuse,
            2 => Self::Ublk,
            3 => Self::VhostUser,
            other => unreachable!("there is no protocol {other}"),
        }
    }
}

/// An operation or a request of a front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontendOp {
    /// The front end.
    pub protocol: Protocol,
    /// Its export; of the NBD server, the kind of its operation.
    pub slot: u16,
    /// Meaning defined by the front end.
    pub number: u32,
}

impl FrontendOp {
    /// Names an operation or a request.
    pub const fn new(protocol: Protocol, slot: u16, number: u32) -> Self {
        Self { protocol, slot, number }
    }

    const fn bits(self) -> u64 {
        (self.protocol as u64) << PROTOCOL_SHIFT | (self.slot as u64) << SLOT_SHIFT | self.number as u64
    }

    fn of_bits(bits: u64) -> Self {
        Self::new(Protocol::of_bits(bits), (bits >> SLOT_SHIFT) as u16, bits as u32)
    }

    /// The token of the operation.
    pub const fn token(self) -> u64 {
        Token::Frontend(self).encode()
    }

    /// The id of the request.
    pub const fn request_id(self) -> RequestId {
        RequestId(self.bits())
    }

    /// The request with this id.
    pub fn of_request(id: RequestId) -> Self {
        Self::of_bits(id.0)
    }
}

/// The owner of an operation of the reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    /// The engine, or its substitute.
    Engine(OpId),
    /// The engine, on the device that a cache device is copied onto.
    SecondDevice(u32),
    /// The copy itself.
    Copy,
    /// A front end.
    Frontend(FrontendOp),
}

impl Token {
    /// Encodes the token for the reactor.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Engine(op) => ENGINE << OWNER_SHIFT | op.0 as u64,
            Self::SecondDevice(number) => SECOND_DEVICE << OWNER_SHIFT | number as u64,
            Self::Copy => COPY << OWNER_SHIFT,
            Self::Frontend(op) => FRONTEND << OWNER_SHIFT | op.bits(),
        }
    }

    /// Decodes the token of a completion.
    ///
    /// # Panics
    /// [`Token::encode`] did not make it.
    pub fn decode(token: u64) -> Self {
        match token >> OWNER_SHIFT {
            ENGINE => Self::Engine(OpId(token as u32)),
            SECOND_DEVICE => Self::SecondDevice(token as u32),
            COPY => Self::Copy,
            FRONTEND => Self::Frontend(FrontendOp::of_bits(token)),
            other => unreachable!("there is no owner {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PROTOCOLS: [Protocol; 4] = [Protocol::Nbd, Protocol::Fuse, Protocol::Ublk, Protocol::VhostUser];
    const NUMBERS: [u32; 4] = [0, 1, 1 << 31, u32::MAX];

    fn ops() -> Vec<FrontendOp> {
        let slots = || [0, 1, 255, u16::MAX].into_iter();
        let of = |protocol, slot| NUMBERS.map(|number| FrontendOp::new(protocol, slot, number));
        PROTOCOLS.into_iter().flat_map(|protocol| slots().flat_map(move |slot| of(protocol, slot))).collect()
    }

    #[test]
    fn tokens_are_disjoint_and_round_trip() {
        let engine = NUMBERS.into_iter().flat_map(|n| [Token::Engine(OpId(n)), Token::SecondDevice(n)]);
        let all: Vec<Token> =
            engine.chain([Token::Copy]).chain(ops().into_iter().map(Token::Frontend)).collect();
        let encoded: HashSet<u64> = all.iter().map(|token| token.encode()).collect();
        assert_eq!(encoded.len(), all.len());
        for token in all {
            assert_eq!(Token::decode(token.encode()), token);
            assert_eq!(token.encode() >> 63, 0, "the I/O engine has these: {token:?}");
        }
    }

    #[test]
    fn request_ids_are_disjoint_and_round_trip() {
        let ids: HashSet<RequestId> = ops().into_iter().map(FrontendOp::request_id).collect();
        assert_eq!(ids.len(), ops().len());
        assert!(ops().into_iter().all(|op| FrontendOp::of_request(op.request_id()) == op));
    }
}
