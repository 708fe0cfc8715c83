//! Requests and replies in an entry of the ring (FUSE over io_uring): the same messages, in parts.
//!
//! Source: `struct fuse_uring_req_header` and `struct fuse_uring_ent_in_out` in
//! `include/uapi/linux/fuse.h`, kernel interface 7.42 (Linux 6.14).
//!
//! ```text
//! head     128 bytes  header of the request; header of the reply
//!          128 bytes  fixed part of the operation; unused in a reply
//!           32 bytes  u64 flags  u64 number for the reply  u32 bytes of payload  u32 0  u64 0
//! payload             the rest of the request: data, or a name; the whole reply except its header
//! ```
//!
//! Nothing here panics on any bytes, or reads beyond them.

use super::request::Malformed;
use super::wire::IN_HEADER_BYTES;

const OPERATION_AT: usize = 128;
const ENTRY_AT: usize = 256;
const NUMBER_AT: usize = ENTRY_AT + 8;
const PAYLOAD_BYTES_AT: usize = ENTRY_AT + 16;

/// Length of an entry's head.
pub const HEAD_BYTES: usize = ENTRY_AT + 32;

/// A request taken from an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number that the reply must carry.
    pub number: u64,
    /// Length of the whole message.
    pub length_bytes: usize,
    /// Bytes of it in the payload.
    pub payload_bytes: usize,
}

/// Appends the message of an entry, without its payload, to `message`. `payload_bytes_max` is the
/// length of the entry's payload.
///
/// [`Malformed::Length`]: the lengths are inconsistent.
pub fn request(
    head: &[u8; HEAD_BYTES],
    payload_bytes_max: usize,
    message: &mut Vec<u8>,
) -> Result<Taken, Malformed> {
    let said_bytes = u32_at(head, 0);
    let (length_bytes, payload_bytes) = (said_bytes as usize, u32_at(head, PAYLOAD_BYTES_AT) as usize);
    let operation = length_bytes.checked_sub(IN_HEADER_BYTES + payload_bytes);
    match operation {
        Some(bytes) if bytes <= ENTRY_AT - OPERATION_AT && payload_bytes <= payload_bytes_max => {
            message.extend_from_slice(&head[..IN_HEADER_BYTES]);
            message.extend_from_slice(&head[OPERATION_AT..OPERATION_AT + bytes]);
            let mut number = [0; 8];
            number.copy_from_slice(&head[NUMBER_AT..NUMBER_AT + 8]);
            Ok(Taken { number: u64::from_le_bytes(number), length_bytes, payload_bytes })
        }
        _ => Err(Malformed::Length { received_bytes: IN_HEADER_BYTES + payload_bytes, said_bytes }),
    }
}

/// Offset in the head of the length of a reply's payload: all bytes after its header. The header is
/// at the start.
pub const ANSWER_PAYLOAD_AT: usize = PAYLOAD_BYTES_AT;

fn u32_at(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&head[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the head that Linux 6.18 writes for a WRITE of 8192 bytes at 4096, except the
    /// numbers.
    fn write_head() -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&(40u32 + 40 + 8192).to_le_bytes());
        head[4..8].copy_from_slice(&16u32.to_le_bytes());
        head[8..16].copy_from_slice(&77u64.to_le_bytes());
        head[128 + 8..128 + 16].copy_from_slice(&4096u64.to_le_bytes());
        head[264..272].copy_from_slice(&77u64.to_le_bytes());
        head[272..276].copy_from_slice(&8192u32.to_le_bytes());
        head
    }

    #[test]
    fn a_message_is_put_together_from_its_parts() {
        let (head, mut message) = (write_head(), Vec::new());
        let taken = request(&head, 8192, &mut message).unwrap();
        assert_eq!(taken, Taken { number: 77, length_bytes: 8272, payload_bytes: 8192 });
        assert_eq!(message.len(), 80, "the payload of a write begins behind this");
        assert_eq!((&message[..40], &message[40..]), (&head[..40], &head[128..168]));
    }

    #[test]
    fn contradictory_lengths_are_refused() {
        let with = |at: usize, value: u32| {
            let mut head = write_head();
            head[at..at + 4].copy_from_slice(&value.to_le_bytes());
            request(&head, 8192, &mut Vec::new())
        };
        for (at, value) in [(0, 0), (0, 39), (0, u32::MAX), (272, 8193), (272, u32::MAX), (272, 8100)] {
            let refused = matches!(with(at, value), Err(Malformed::Length { .. }));
            assert!(refused, "{value} at {at}: {:?}", with(at, value));
        }
        assert!(with(272, 8104).is_ok(), "128 bytes are fixed of it at most");
    }
}
