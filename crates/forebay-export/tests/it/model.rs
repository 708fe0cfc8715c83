//! A client and a session in memory against a model: many requests in flight, any order, any size
//! and alignment.

use crate::common::client::Requests;
use crate::common::*;
use forebay_export::nbd::codec::{cmd_flag, extent_flag};
use forebay_export::nbd::{Errno, Limits};
use forebay_nbd_client::{ClientError, HandshakeOptions, NbdClient, Reply};
use proptest::prelude::*;
use std::collections::HashMap;

const SIZE: u64 = 50_000;

#[derive(Debug, Clone)]
enum Op {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        length: u32,
        fill: u8,
        fua: bool,
    },
    Zero {
        offset: u64,
        length: u32,
        flags: u16,
    },
    Trim {
        offset: u64,
        length: u32,
        fua: bool,
    },
    Cache {
        offset: u64,
        length: u32,
    },
    Status {
        offset: u64,
        length: u32,
        one: bool,
    },
    Flush,
    /// Receive the replies to all requests in flight.
    Receive,
}

fn range() -> impl Strategy<Value = (u64, u32)> {
    let offset = prop_oneof![9 => 0..SIZE, 1 => SIZE - 3..SIZE + 3, 1 => any::<u64>()];
    let length = prop_oneof![9 => 0..10_000_u32, 1 => 20_000..60_000_u32, 1 => any::<u32>()];
    (offset, length)
}

fn op() -> impl Strategy<Value = Op> {
    let writable = range().prop_map(|(offset, length)| (offset, length % 200_000));
    prop_oneof![
        3 => range().prop_map(|(offset, length)| Op::Read { offset, length }),
        4 => (writable, any::<u8>(), any::<bool>())
            .prop_map(|((offset, length), fill, fua)| Op::Write { offset, length, fill, fua }),
        2 => (range(), 0..4_u16).prop_map(|((offset, length), flags)| Op::Zero { offset, length, flags: flags & 3 }),
        2 => (range(), any::<bool>()).prop_map(|((offset, length), fua)| Op::Trim { offset, length, fua }),
        1 => range().prop_map(|(offset, length)| Op::Cache { offset, length }),
        2 => (range(), any::<bool>()).prop_map(|((offset, length), one)| Op::Status { offset, length, one }),
        1 => Just(Op::Flush),
        2 => Just(Op::Receive),
    ]
}

/// The required reply to a request.
enum Expect {
    Ok,
    Data(Vec<u8>),
    Error(Errno),
    Status(u64, bool),
}

struct Model {
    bytes: Vec<u8>,
    structured: bool,
    payload_max: u32,
}

impl Model {
    /// Returns the range, or the error for one beyond the end.
    fn place(&self, offset: u64, length: u32, past_end: Errno) -> Result<std::ops::Range<usize>, Expect> {
        match offset.checked_add(u64::from(length)) {
            Some(end) if end <= SIZE => Ok(offset as usize..end as usize),
            _ => Err(Expect::Error(past_end)),
        }
    }

    fn apply(&mut self, op: &Op) -> Result<Expect, Expect> {
        match *op {
            Op::Read { offset, length } => {
                let place = self.place(offset, length, Errno::Invalid)?;
                if length > self.payload_max {
                    return Err(Expect::Error(Errno::Invalid));
                }
                Ok(Expect::Data(self.bytes[place].to_vec()))
            }
            Op::Write { offset, length, fill, .. } => {
                let place = self.place(offset, length, Errno::NoSpace)?;
                if length > self.payload_max {
                    return Err(Expect::Error(Errno::Invalid));
                }
                self.bytes[place].fill(fill);
                Ok(Expect::Ok)
            }
            Op::Zero { offset, length, .. } => {
                let place = self.place(offset, length, Errno::NoSpace)?;
                self.bytes[place].fill(0);
                Ok(Expect::Ok)
            }
            Op::Trim { offset, length, .. } => {
                let place = self.place(offset, length, Errno::Invalid)?;
                self.bytes[place].fill(0);
                Ok(Expect::Ok)
            }
            Op::Cache { offset, length } => self.place(offset, length, Errno::Invalid).map(|_| Expect::Ok),
            Op::Status { offset, length, one } => {
                self.place(offset, length, Errno::Invalid)?;
                if !self.structured || length == 0 {
                    return Err(Expect::Error(Errno::Invalid));
                }
                Ok(Expect::Status(u64::from(length), one))
            }
            Op::Flush | Op::Receive => Ok(Expect::Ok),
        }
    }
}

fn send(client: &mut NbdClient<Pipe>, cookie: u64, op: &Op) -> Result<(), ClientError> {
    match *op {
        Op::Read { offset, length } => client.send_read(cookie, offset, length),
        Op::Write { offset, length, fill, fua } => {
            client.send_write(cookie, offset, &vec![fill; length as usize], fua)
        }
        Op::Zero { offset, length, flags } => client.send_write_zeroes(cookie, offset, length, flags),
        Op::Trim { offset, length, fua } => client.send_trim(cookie, offset, length, fua),
        Op::Cache { offset, length } => client.send_cache(cookie, offset, length),
        Op::Status { offset, length, one } => client.send_block_status(cookie, offset, length, one),
        Op::Flush => client.send_flush(cookie),
        Op::Receive => unreachable!(),
    }
}

fn check(reply: &Reply, data: &[u8], expect: Expect) {
    match expect {
        Expect::Ok => assert_eq!((&reply.result, data.len()), (&Ok(()), 0)),
        Expect::Data(bytes) => {
            assert_eq!(reply.result, Ok(()));
            assert!(data == bytes, "wrong data");
        }
        Expect::Error(errno) => {
            assert_eq!(reply.result.as_ref().expect_err("must fail").errno, errno);
            assert!(data.is_empty());
        }
        Expect::Status(length, one) => {
            assert_eq!(reply.result, Ok(()));
            assert_eq!(reply.status.len(), 2);
            for context in &reply.status {
                let sum: u64 = context.extents.iter().map(|extent| u64::from(extent.length_bytes)).sum();
                assert!(if one { (1..=length).contains(&sum) } else { sum == length });
                assert!(!one || context.extents.len() == 1);
                assert!(context.extents.windows(2).all(|pair| pair[0].flags != pair[1].flags));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn client_agrees_with_the_model(
        ops in prop::collection::vec(op(), 1..60),
        structured: bool,
        chunk in prop_oneof![Just(usize::MAX), 1..100_usize, 100..10_000_usize],
    ) {
        let payload_max = 32_768;
        let limits = Limits { payload_bytes_max: payload_max, skip_bytes_max: 300_000, ..Limits::default() };
        let exports = vec![forebay_export::directory::ExportInfo::new("m", SIZE)];
        let options = HandshakeOptions { structured, ..HandshakeOptions::default() };
        let pipe = Pipe::new(Peer::with_limits(exports, limits), chunk);
        let mut client = NbdClient::handshake(pipe, "", &options).unwrap();
        let mut model = Model { bytes: vec![0; SIZE as usize], structured, payload_max };
        let mut expected = HashMap::new();
        let mut data = Vec::new();
        for (cookie, op) in ops.iter().chain([&Op::Receive]).enumerate() {
            if !matches!(op, Op::Receive) {
                let cookie = (cookie as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let expect = model.apply(op).unwrap_or_else(|error| error);
                expected.insert(cookie, expect);
                send(&mut client, cookie, op).unwrap();
                continue;
            }
            while client.in_flight() > 0 {
                let reply = client.recv_reply(&mut data).unwrap();
                check(&reply, &data, expected.remove(&reply.cookie).unwrap());
            }
        }
        prop_assert!(expected.is_empty());
        let mut all = vec![1; SIZE as usize];
        client.read_at(0, &mut all).unwrap();
        prop_assert!(all == model.bytes);
        let pipe = client.disconnect().unwrap();
        prop_assert!(pipe.peer.closed().unwrap().is_clean());
    }
}

#[test]
fn client_calls_split_long_transfers() {
    let mut client = NbdClient::handshake(
        Pipe::new(Peer::new(two_exports()), 100_000),
        "db",
        &HandshakeOptions::default(),
    )
    .unwrap();
    assert_eq!(client.size_bytes(), 8 << 30);
    let big: Vec<u8> = (0..40_000_000_u32).map(|at| (at % 251) as u8).collect();
    client.write_at(5, &big, true).unwrap(); // more than one request may carry
    let mut back = vec![0; big.len()];
    client.read_at(5, &mut back).unwrap();
    assert!(big == back);
    client.write_zeroes(4096, 4096, cmd_flag::FUA).unwrap();
    client.read_at(4000, &mut back[..5000]).unwrap();
    assert!(back[96..96 + 4096].iter().all(|byte| *byte == 0) && back[95] != 0 && back[4192] != 0);
    client.cache(0, 1 << 20).unwrap();
    client.flush().unwrap();
    client.write_at(0, b"dirty", false).unwrap();
    let status = client.block_status(0, 16384).unwrap();
    let flags = |at: usize| -> Vec<(u32, u32)> {
        status[at].extents.iter().map(|extent| (extent.length_bytes, extent.flags)).collect()
    };
    let (hole, cached) = (extent_flag::HOLE | extent_flag::ZERO, extent_flag::CACHED);
    assert_eq!(flags(0), [(4096, 0), (4096, hole), (8192, 0)]);
    assert_eq!(flags(1), [(4096, cached | extent_flag::DIRTY), (4096, 0), (8192, cached)]);
    client.trim(0, 8 << 30, false).unwrap(); // four pieces
    client.read_at(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 0));
    let error = client.write_at(8 << 30, b"x", false).unwrap_err().to_string();
    assert_eq!(
        error,
        "the server answered ENOSPC: range 8589934592+1 ends past the export's 8589934592 bytes"
    );
    client.flush().unwrap();
    client.send_flush(1).unwrap();
    assert!(matches!(client.send_flush(1), Err(ClientError::Misuse(_))), "cookie in flight");
    assert!(matches!(client.flush(), Err(ClientError::Misuse(_))), "replies not received");
    client.recv_reply(&mut Vec::new()).unwrap();
    assert!(matches!(client.recv_reply(&mut Vec::new()), Err(ClientError::Misuse(_))), "nothing in flight");
}
