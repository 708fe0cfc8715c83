//! The vhost-user protocol without I/O: messages by which a virtual machine monitor (the frontend)
//! sets up a device in this process.
//!
//! ```text
//! header = 12 bytes, with descriptors
//! Header::decode(header)      -> number of bytes that follow
//! Message::decode(.., body)   -> the message; then one of
//!     reply(header, body)        if it requests a value
//!     ack(header, ok)            if it requests an acknowledgement (REPLY_ACK)
//! ```
//!
//! Invariants
//! - Decoding does not panic on any bytes, and takes no memory beyond [`BODY_BYTES_MAX`].
//! - A message has exactly the descriptors that its type requires.
//!
//! Source: QEMU's `docs/interop/vhost-user.rst`.

use thiserror::Error;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Most bytes after a header.
pub const BODY_BYTES_MAX: usize = 4096;
/// Most descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 32;
/// Most regions of guest memory in one message.
pub const REGIONS_IN_MESSAGE_MAX: usize = 8;
/// Most regions of guest memory in total.
pub const REGIONS_MAX: usize = 64;
/// The virtio feature bit that announces protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol features (bits).
pub mod protocol {
    /// Several rings.
    pub const MQ: u64 = 1 << 0;
    /// Any message may request an acknowledgement.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// A second channel, for requests of this side.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// Memory that records the requests in flight.
    pub const INFLIGHT: u64 = 1 << 12;
    /// Memory regions are added and removed one by one.
    pub const MEMORY_SLOTS: u64 = 1 << 15;
    /// All that this side supports.
    pub const ALL: u64 = MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT | MEMORY_SLOTS;
}

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// Flag next to the ring's number: no event counter is attached.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// Bytes of the configuration's head, before its content.
const CONFIG_HEAD: usize = 12;
/// Request of this side that announces a change of the configuration.
const CONFIG_CHANGE: u32 = 2;

/// Why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Another version of the protocol, or a reply.
    #[error("a message with flags {0:#x}")]
    Flags(u32),
    /// A message that was not negotiated.
    #[error("message {0} is not known")]
    Unknown(u32),
    /// Too long, or of the wrong length for its type.
    #[error("message {request} has {bytes} bytes")]
    Length {
        /// The message.
        request: u32,
        /// Its length.
        bytes: usize,
    },
    /// Too few descriptors, or too many.
    #[error("message {request} has {descriptors} descriptors")]
    Descriptors {
        /// The message.
        request: u32,
        /// Number of descriptors received.
        descriptors: usize,
    },
    /// An impossible value.
    #[error("message {request} has an impossible value")]
    Value {
        /// The message.
        request: u32,
    },
}

/// The header of each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    request: u32,
    /// The frontend requests an acknowledgement.
    pub wants_ack: bool,
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`Malformed::Flags`], [`Malformed::Length`]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let (request, flags) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let body_bytes = u32::from_le_bytes([i, j, k, l]) as usize;
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Malformed::Flags(flags));
        }
        if body_bytes > BODY_BYTES_MAX {
            return Err(Malformed::Length { request, bytes: body_bytes });
        }
        Ok(Self { request, wants_ack: flags & NEED_REPLY != 0, body_bytes })
    }
}

/// A region of guest memory; its descriptor comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First guest-physical address.
    pub guest_address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// First address in the frontend's address space, which rings use.
    pub user_address: u64,
    /// Offset in the file.
    pub file_offset: u64,
}

/// Memory that records the requests in flight; its descriptor comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InflightArea {
    /// Bytes.
    pub size_bytes: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Number of rings.
    pub rings: u16,
    /// Descriptors of each ring.
    pub ring_size: u16,
}

/// Addresses of a ring in the frontend's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// Of its descriptors.
    pub descriptors: u64,
    /// Of its used entries.
    pub used: u64,
    /// Of its available entries.
    pub available: u64,
}

/// An event counter of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// The driver made requests available.
    Kick,
    /// The device has used requests.
    Call,
    /// The ring is broken.
    Error,
}

/// A message of the frontend. Rings are named by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemory(Vec<Region>),
    SetRingSize { ring: u32, size: u32 },
    SetRingAddresses { ring: u32, addresses: RingAddresses },
    SetRingBase { ring: u32, base: u32 },
    GetRingBase { ring: u32 },
    SetCounter { counter: Counter, ring: u32, is_there: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetRings,
    EnableRing { ring: u32, on: bool },
    SetBackendChannel,
    GetConfig { offset: u32, bytes: u32 },
    SetConfig,
    GetInflight(InflightArea),
    SetInflight(InflightArea),
    GetRegionsMax,
    AddRegion(Region),
    RemoveRegion(Region),
}

/// Reads integers from a body.
struct Body<'a> {
    request: u32,
    bytes: &'a [u8],
    len: usize,
}

impl Body<'_> {
    fn wrong_length(&self) -> Malformed {
        Malformed::Length { request: self.request, bytes: self.len }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.wrong_length())?;
        self.bytes = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn region(&mut self) -> Result<Region, Malformed> {
        Ok(Region {
            guest_address: self.u64()?,
            size_bytes: self.u64()?,
            user_address: self.u64()?,
            file_offset: self.u64()?,
        })
    }

    fn inflight(&mut self) -> Result<InflightArea, Malformed> {
        let area = InflightArea {
            size_bytes: self.u64()?,
            file_offset: self.u64()?,
            rings: self.u16()?,
            ring_size: self.u16()?,
        };
        // C pads the structure to a multiple of its alignment.
        self.bytes = if self.bytes.len() == 4 { &[] } else { self.bytes };
        Ok(area)
    }

    fn value(&self) -> Malformed {
        Malformed::Value { request: self.request }
    }
}

impl Message {
    /// Decodes a message that came with this many descriptors.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(header: &Header, body: &[u8], descriptors: usize) -> Result<Self, Malformed> {
        let request = header.request;
        let mut body = Body { request, bytes: body, len: body.len() };
        let (message, wanted) = Self::read(request, &mut body)?;
        if !body.bytes.is_empty() {
            return Err(body.wrong_length());
        }
        // Some frontends send a region's descriptor again when they remove the region.
        let too_much = matches!(message, Self::RemoveRegion(_)) && descriptors == 1;
        if descriptors != wanted && !too_much {
            return Err(Malformed::Descriptors { request, descriptors });
        }
        Ok(message)
    }

    /// Returns the message and its number of descriptors.
    fn read(request: u32, body: &mut Body<'_>) -> Result<(Self, usize), Malformed> {
        let message = match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(body.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => return Self::memory(body),
            8 => Self::SetRingSize { ring: body.u32()?, size: body.u32()? },
            9 => return Self::addresses(body).map(|message| (message, 0)),
            10 => Self::SetRingBase { ring: body.u32()?, base: body.u32()? },
            11 => {
                let ring = body.u32()?;
                body.u32()?;
                Self::GetRingBase { ring }
            }
            12 => return Self::counter(body, Counter::Kick),
            13 => return Self::counter(body, Counter::Call),
            14 => return Self::counter(body, Counter::Error),
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(body.u64()?),
            17 => Self::GetRings,
            18 => match (body.u32()?, body.u32()?) {
                (ring, on @ 0..=1) => Self::EnableRing { ring, on: on == 1 },
                _ => return Err(body.value()),
            },
            21 => return Ok((Self::SetBackendChannel, 1)),
            24 => return Self::config(body).map(|message| (message, 0)),
            25 => {
                body.bytes = &[];
                Self::SetConfig
            }
            31 => Self::GetInflight(body.inflight()?),
            32 => return Ok((Self::SetInflight(body.inflight()?), 1)),
            36 => Self::GetRegionsMax,
            37 => {
                body.u64()?;
                return Ok((Self::AddRegion(body.region()?), 1));
            }
            38 => {
                body.u64()?;
                Self::RemoveRegion(body.region()?)
            }
            _ => return Err(Malformed::Unknown(request)),
        };
        Ok((message, 0))
    }

    fn memory(body: &mut Body<'_>) -> Result<(Self, usize), Malformed> {
        let count = body.u32()? as usize;
        body.u32()?;
        if count > REGIONS_IN_MESSAGE_MAX {
            return Err(body.value());
        }
        let regions: Result<Vec<_>, _> = (0..count).map(|_| body.region()).collect();
        Ok((Self::SetMemory(regions?), count))
    }

    fn addresses(body: &mut Body<'_>) -> Result<Self, Malformed> {
        let (ring, flags) = (body.u32()?, body.u32()?);
        let addresses = RingAddresses { descriptors: body.u64()?, used: body.u64()?, available: body.u64()? };
        body.u64()?; // address of a log, which was not negotiated
        if flags != 0 {
            return Err(body.value());
        }
        Ok(Self::SetRingAddresses { ring, addresses })
    }

    fn counter(body: &mut Body<'_>, counter: Counter) -> Result<(Self, usize), Malformed> {
        let value = body.u64()?;
        let is_there = value & NO_DESCRIPTOR == 0;
        if value & !(NO_DESCRIPTOR | 0xFF) != 0 {
            return Err(body.value());
        }
        Ok((Self::SetCounter { counter, ring: (value & 0xFF) as u32, is_there }, usize::from(is_there)))
    }

    fn config(body: &mut Body<'_>) -> Result<Self, Malformed> {
        let (offset, bytes) = (body.u32()?, body.u32()?);
        body.u32()?;
        if bytes as usize != body.bytes.len() {
            return Err(body.wrong_length());
        }
        body.bytes = &[];
        Ok(Self::GetConfig { offset, bytes })
    }
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&request.to_le_bytes());
    bytes.extend_from_slice(&(VERSION | flags).to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes the reply to a message that requests a value.
pub fn reply(header: &Header, body: &[u8]) -> Vec<u8> {
    message(header.request, REPLY, body)
}

/// Encodes the acknowledgement of a message.
pub fn ack(header: &Header, done: bool) -> Vec<u8> {
    reply(header, &u64::from(!done).to_le_bytes())
}

/// Encodes the body of a reply about a ring.
pub fn ring_state(ring: u32, value: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&ring.to_le_bytes());
    body[4..].copy_from_slice(&value.to_le_bytes());
    body
}

/// Encodes the body of a reply with a part of the configuration space. Returns `None` beyond its
/// end.
pub fn config(space: &[u8], offset: u32, bytes: u32) -> Option<Vec<u8>> {
    let end = (offset as usize).checked_add(bytes as usize)?;
    let part = space.get(offset as usize..end)?;
    let mut body = Vec::with_capacity(CONFIG_HEAD + part.len());
    body.extend_from_slice(&offset.to_le_bytes());
    body.extend_from_slice(&bytes.to_le_bytes());
    body.extend_from_slice(&0u32.to_le_bytes());
    body.extend_from_slice(part);
    Some(body)
}

impl InflightArea {
    /// Encodes the body of a reply with this area.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.size_bytes.to_le_bytes().to_vec();
        body.extend_from_slice(&self.file_offset.to_le_bytes());
        body.extend_from_slice(&self.rings.to_le_bytes());
        body.extend_from_slice(&self.ring_size.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
        body
    }
}

/// Encodes the message of this side that announces a change of the configuration.
pub fn config_changed() -> Vec<u8> {
    message(CONFIG_CHANGE, 0, &[])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn header(request: u32, flags: u32, len: u32) -> Result<Header, Malformed> {
        let bytes = [request.to_le_bytes(), flags.to_le_bytes(), len.to_le_bytes()].concat();
        Header::decode(&bytes.try_into().unwrap())
    }

    fn decode(request: u32, body: &[u8], descriptors: usize) -> Result<Message, Malformed> {
        Message::decode(&header(request, 1, body.len() as u32)?, body, descriptors)
    }

    #[test]
    fn headers_are_checked() {
        let good = header(5, 9, 4096).unwrap();
        assert_eq!((good.wants_ack, good.body_bytes), (true, 4096));
        assert_eq!(header(5, 1, 4097), Err(Malformed::Length { request: 5, bytes: 4097 }));
        for flags in [0, 2, 3, 5, 13] {
            assert_eq!(header(1, flags, 0), Err(Malformed::Flags(flags)));
        }
    }

    #[test]
    fn messages_have_one_length_and_descriptors() {
        let sizes = [
            (1, 0, 0),
            (2, 8, 0),
            (3, 0, 0),
            (4, 0, 0),
            (5, 8, 0),
            (8, 8, 0),
            (9, 40, 0),
            (10, 8, 0),
            (11, 8, 0),
            (12, 8, 1),
            (13, 8, 1),
            (14, 8, 1),
            (15, 0, 0),
            (16, 8, 0),
            (17, 0, 0),
            (18, 8, 0),
            (21, 0, 1),
            (24, 12, 0),
            (31, 20, 0),
            (31, 24, 0),
            (32, 20, 1),
            (32, 24, 1),
            (36, 0, 0),
            (37, 40, 1),
            (38, 40, 0),
        ];
        for (request, bytes, descriptors) in sizes {
            let body = vec![0; bytes];
            decode(request, &body, descriptors).unwrap_or_else(|error| panic!("{error}"));
            let other = Malformed::Descriptors { request, descriptors: descriptors + 2 };
            assert_eq!(decode(request, &body, descriptors + 2), Err(other));
            assert_eq!(decode(request, &body, descriptors + 1).is_ok(), request == 38);
            for len in 0..64 {
                let fits = sizes.iter().any(|(other, fits, _)| (*other, *fits) == (request, len));
                assert_eq!(decode(request, &vec![0; len], descriptors).is_ok(), fits, "{request} {len}");
            }
        }
        for request in [0, 6, 7, 19, 20, 26, 30, 33, 40, u32::MAX] {
            assert_eq!(decode(request, &[0; 8], 0), Err(Malformed::Unknown(request)));
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        let nine = [&9u32.to_le_bytes()[..], &[0; 4 + 9 * 32]].concat();
        assert_eq!(decode(5, &nine, 9), Err(Malformed::Value { request: 5 }));
        assert_eq!(decode(18, &[0, 0, 0, 0, 2, 0, 0, 0], 0), Err(Malformed::Value { request: 18 }));
        assert_eq!(decode(12, &[0, 2, 0, 0, 0, 0, 0, 0], 1), Err(Malformed::Value { request: 12 }));
        let polled = Message::SetCounter { counter: Counter::Call, ring: 3, is_there: false };
        assert_eq!(decode(13, &[3, 1, 0, 0, 0, 0, 0, 0], 0), Ok(polled));
        let logged = [&[0; 4][..], &[1, 0, 0, 0], &[0; 32]].concat();
        assert_eq!(decode(9, &logged, 0), Err(Malformed::Value { request: 9 }));
    }

    #[test]
    fn answers_are_messages_of_the_same_number() {
        let asked = header(24, 1, 13).unwrap();
        assert_eq!(
            decode(24, &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0),
            Ok(Message::GetConfig { offset: 2, bytes: 1 })
        );
        let body = config(&[5, 6, 7, 8], 2, 1).unwrap();
        assert_eq!(reply(&asked, &body)[..12], [24, 0, 0, 0, 5, 0, 0, 0, 13, 0, 0, 0]);
        assert_eq!(body, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!((config(&[0; 4], 4, 1), config(&[0; 4], u32::MAX, 2)), (None, None));
        assert_eq!(ack(&asked, false)[12..], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(config_changed(), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let area = InflightArea { size_bytes: 9, file_offset: 8, rings: 7, ring_size: 6 };
        assert_eq!(decode(31, &area.encode(), 0), Ok(Message::GetInflight(area)));
    }
}
