//! Requests of the client that only tests use: zeroes, trims, hints and status.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]

use std::io::{Read, Write};

use forebay_export::nbd::codec::{cmd, cmd_flag};
use forebay_nbd_client::{ClientError, ContextStatus, NbdClient, Reply};

/// Lengths are cut into pieces of this size: the largest in 32 bits that keeps pieces aligned.
const RANGE_BYTES_MAX: u64 = 1 << 31;
/// Cookie of a request that the caller waits for.
const LONE: u64 = u64::MAX;

fn fua_flag(fua: bool) -> u16 {
    if fua { cmd_flag::FUA } else { 0 }
}

pub trait Requests {
    fn send(&mut self, kind: u16, flags: u16, cookie: u64, range: (u64, u32)) -> Result<(), ClientError>;
    fn one(&mut self, kind: u16, flags: u16, range: (u64, u32)) -> Result<Reply, ClientError>;

    fn send_flush(&mut self, cookie: u64) -> Result<(), ClientError> {
        self.send(cmd::FLUSH, 0, cookie, (0, 0))
    }

    fn send_trim(&mut self, cookie: u64, offset: u64, length: u32, fua: bool) -> Result<(), ClientError> {
        self.send(cmd::TRIM, fua_flag(fua), cookie, (offset, length))
    }

    fn send_write_zeroes(
        &mut self,
        cookie: u64,
        at: u64,
        length: u32,
        flags: u16,
    ) -> Result<(), ClientError> {
        self.send(cmd::WRITE_ZEROES, flags, cookie, (at, length))
    }

    fn send_cache(&mut self, cookie: u64, offset: u64, length: u32) -> Result<(), ClientError> {
        self.send(cmd::CACHE, 0, cookie, (offset, length))
    }

    /// Requests extents; only one if `one`.
    fn send_block_status(&mut self, cookie: u64, at: u64, length: u32, one: bool) -> Result<(), ClientError> {
        self.send(cmd::BLOCK_STATUS, if one { cmd_flag::REQ_ONE } else { 0 }, cookie, (at, length))
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        self.one(cmd::FLUSH, 0, (0, 0)).map(drop)
    }

    fn trim(&mut self, offset: u64, length: u64, fua: bool) -> Result<(), ClientError> {
        self.in_pieces(cmd::TRIM, fua_flag(fua), offset, length)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64, flags: u16) -> Result<(), ClientError> {
        self.in_pieces(cmd::WRITE_ZEROES, flags, offset, length)
    }

    fn cache(&mut self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.in_pieces(cmd::CACHE, 0, offset, length)
    }

    /// Returns one reply to a status query; it may end before `length` does.
    fn block_status(&mut self, offset: u64, length: u32) -> Result<Vec<ContextStatus>, ClientError> {
        self.one(cmd::BLOCK_STATUS, 0, (offset, length)).map(|reply| reply.status)
    }

    fn in_pieces(&mut self, kind: u16, flags: u16, mut at: u64, mut left: u64) -> Result<(), ClientError> {
        while left > 0 {
            let piece = left.min(RANGE_BYTES_MAX);
            self.one(kind, flags, (at, piece as u32))?;
            (at, left) = (at + piece, left - piece);
        }
        Ok(())
    }
}

impl<S: Read + Write> Requests for NbdClient<S> {
    fn send(&mut self, kind: u16, flags: u16, cookie: u64, range: (u64, u32)) -> Result<(), ClientError> {
        self.send_request(kind, flags, cookie, range.0, range.1)
    }

    fn one(&mut self, kind: u16, flags: u16, range: (u64, u32)) -> Result<Reply, ClientError> {
        if self.in_flight() > 0 {
            return Err(ClientError::Misuse("receive the replies to the requests in flight first"));
        }
        self.send(kind, flags, LONE, range)?;
        let reply = self.recv_reply(&mut Vec::new())?;
        reply.result.clone()?;
        Ok(reply)
    }
}
