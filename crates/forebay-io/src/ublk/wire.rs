//! The wire format of the kernel's ublk driver: commands and structures of
//! `include/uapi/linux/ublk_cmd.h`.
//!
//! The structures have the byte order of the machine. Only the fields in use have a name.

/// Bytes of one description of a request (`ublksrv_io_desc`) in the memory shared with the kernel.
pub const DESCRIPTOR_BYTES: usize = 24;
/// Bytes of `ublksrv_ctrl_dev_info`.
pub(super) const INFO_BYTES: usize = 64;
/// Bytes of the parameters that are set: the header, the basic parameters, and discards.
pub(super) const PARAMS_BYTES: usize = 60;
/// Bytes of the answer to the feature query.
pub(super) const FEATURES_BYTES: usize = 8;

/// Shift of the sectors that requests are counted in.
const SECTOR_SHIFT: u32 = 9;
/// Size of cache blocks: smaller discards do nothing, and smaller writes are merged.
const PHYSICAL_SHIFT: u8 = 12;
/// The device has a volatile cache: FLUSH and FUA take effect.
const ATTRIBUTES: u32 = (1 << 2) | (1 << 3);
/// The basic parameters, and those of discards.
const PARAM_TYPES: u32 = 1 | (1 << 1);
/// Longest discard and zeroing: the number of bytes fits into 32 bits.
const RANGE_SECTORS_MAX: u32 = u32::MAX >> SECTOR_SHIFT;

/// Start of payloads in the file of a device.
const PAYLOAD_OFFSET: u64 = 0x8000_0000;
/// Bits of a position within the payload of one request.
const PAYLOAD_BITS: u32 = 25;

/// Capabilities, of the driver and of a device.
pub(super) mod feature {
    /// The device stays when its server dies (Linux 6.0).
    pub(crate) const RECOVERY: u64 = 1 << 3;
    /// The kernel repeats requests that the dead server had not answered (Linux 6.1).
    pub(crate) const REISSUE: u64 = 1 << 4;
    /// Payloads are read from and written to the file of the device (Linux 6.5).
    pub(crate) const USER_COPY: u64 = 1 << 7;
    /// The size can be changed (Linux 6.16).
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
}

const fn command(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

/// `_IOR('u', number, struct ublksrv_ctrl_cmd)`
const fn reads(number: u32) -> u32 {
    command(2, number, 32)
}

/// `_IOWR('u', number, struct ublksrv_ctrl_cmd)`
const fn changes(number: u32) -> u32 {
    command(3, number, 32)
}

/// Commands of `/dev/ublk-control`.
pub(super) mod op {
    use super::{changes, reads};
    pub(crate) const GET_INFO: u32 = reads(0x02);
    pub(crate) const ADD: u32 = changes(0x04);
    pub(crate) const DELETE: u32 = changes(0x05);
    pub(crate) const START: u32 = changes(0x06);
    pub(crate) const STOP: u32 = changes(0x07);
    pub(crate) const SET_PARAMS: u32 = changes(0x08);
    pub(crate) const START_RECOVERY: u32 = changes(0x10);
    pub(crate) const END_RECOVERY: u32 = changes(0x11);
    pub(crate) const GET_FEATURES: u32 = reads(0x13);
    pub(crate) const DELETE_ASYNC: u32 = reads(0x14);
    pub(crate) const UPDATE_SIZE: u32 = changes(0x15);
}

/// Commands of a device's file: takes a request, or answers one and takes the next.
const FETCH: u32 = command(3, 0x20, 16);
const COMMIT_AND_FETCH: u32 = command(3, 0x21, 16);

/// The command that takes the next request of a tag of the first queue, and its payload; it first
/// answers the last request, if there was one.
pub(crate) fn next_request(tag: u16, answer: Option<i32>) -> (u32, [u8; 16]) {
    let mut bytes = [0; 16];
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&answer.unwrap_or(0).to_ne_bytes());
    (if answer.is_some() { COMMIT_AND_FETCH } else { FETCH }, bytes)
}

/// Position of the payload of a tag of the first queue in the file of the device.
pub(crate) fn payload_position(tag: u16, done: u64) -> u64 {
    PAYLOAD_OFFSET + (u64::from(tag) << PAYLOAD_BITS) + done
}

/// Payload of a command of `/dev/ublk-control` (`ublksrv_ctrl_cmd`), in an entry of 128 bytes.
pub(super) fn control(number: u32, buffer: (u64, u16), data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes()); // for no queue
    bytes[6..8].copy_from_slice(&buffer.1.to_ne_bytes());
    bytes[8..16].copy_from_slice(&buffer.0.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no block device: not yet started, or stopped.
    Dead,
    /// It is served.
    Live,
    /// Its server is gone, and its requests wait for another one.
    Quiesced,
    /// Its server is gone, and its requests fail.
    Failing,
}

/// The driver's information about a device (`ublksrv_ctrl_dev_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The N of `/dev/ublkbN`.
    pub number: u32,
    /// Number of queues.
    pub queues: u16,
    /// Requests per queue.
    pub depth: u16,
    /// State of the device.
    pub state: State,
    /// Longest request with a payload, in bytes.
    pub payload_bytes_max: u32,
    /// The process that serves it; not above zero if it is gone.
    pub server_pid: i32,
    /// Its capabilities.
    pub(super) features: u64,
    /// The mark that its server set when it created the device.
    pub mark: u64,
}

impl DeviceInfo {
    pub(super) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes_max.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.server_pid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.mark.to_ne_bytes());
        bytes
    }

    /// Returns `None` if there are too few bytes, or an unknown state.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let state = match u16_at(4)? {
            0 => State::Dead,
            1 => State::Live,
            2 => State::Quiesced,
            3 => State::Failing,
            _ => return None,
        };
        Some(Self {
            number: u32_at(12)?,
            queues: u16_at(0)?,
            depth: u16_at(2)?,
            state,
            payload_bytes_max: u32_at(8)?,
            server_pid: u32_at(16)? as i32,
            features: u64_at(24)?,
            mark: u64_at(32)?,
        })
    }
}

/// Sectors of a device of this size: whole logical blocks.
pub(super) fn sectors(size_bytes: u64, block_bytes: u32) -> u64 {
    let block = u64::from(block_bytes.max(1 << SECTOR_SHIFT));
    (size_bytes / block * block) >> SECTOR_SHIFT
}

/// The parameters of a device (`ublk_params`).
pub(super) fn params(size_bytes: u64, block_bytes: u32, payload_bytes_max: u32) -> [u8; PARAMS_BYTES] {
    let logical_shift = block_bytes.max(1 << SECTOR_SHIFT).trailing_zeros() as u8;
    let mut bytes = [0; PARAMS_BYTES];
    bytes[0..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&PARAM_TYPES.to_ne_bytes());
    bytes[8..12].copy_from_slice(&ATTRIBUTES.to_ne_bytes());
    bytes[12..16].copy_from_slice(&[logical_shift, PHYSICAL_SHIFT, PHYSICAL_SHIFT, PHYSICAL_SHIFT]);
    bytes[16..20].copy_from_slice(&(payload_bytes_max >> SECTOR_SHIFT).to_ne_bytes());
    bytes[24..32].copy_from_slice(&sectors(size_bytes, block_bytes).to_ne_bytes());
    bytes[44..48].copy_from_slice(&(1u32 << PHYSICAL_SHIFT).to_ne_bytes());
    bytes[48..52].copy_from_slice(&RANGE_SECTORS_MAX.to_ne_bytes());
    bytes[52..56].copy_from_slice(&RANGE_SECTORS_MAX.to_ne_bytes());
    bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
    bytes
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The numbers that a C compiler computes from `ublk_cmd.h` (x86-64).
    #[test]
    fn commands_have_the_numbers_of_the_header() {
        let control = [
            op::GET_INFO,
            op::ADD,
            op::DELETE,
            op::START,
            op::STOP,
            op::SET_PARAMS,
            op::START_RECOVERY,
            op::END_RECOVERY,
            op::GET_FEATURES,
            op::DELETE_ASYNC,
            op::UPDATE_SIZE,
        ];
        let expected = [
            0x8020_7502,
            0xc020_7504,
            0xc020_7505,
            0xc020_7506,
            0xc020_7507,
            0xc020_7508,
            0xc020_7510,
            0xc020_7511,
            0x8020_7513,
            0x8020_7514,
            0xc020_7515_u32,
        ];
        assert_eq!(control, expected);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn requests_and_replies_have_sixteen_bytes() {
        let (fetch, bytes) = next_request(0x0102, None);
        assert_eq!((fetch, hex(&bytes).as_str()), (FETCH, "00000201000000000000000000000000"));
        let (commit, bytes) = next_request(7, Some(-5));
        assert_eq!((commit, hex(&bytes).as_str()), (COMMIT_AND_FETCH, "00000700fbffffff0000000000000000"));
        assert_eq!(next_request(7, Some(0)).0, COMMIT_AND_FETCH, "nothing done is an answer too");
    }

    #[test]
    fn payloads_have_a_place_for_each_tag() {
        assert_eq!(payload_position(0, 0), 0x8000_0000);
        assert_eq!(payload_position(1, 512), 0x8200_0200);
        assert_eq!(payload_position(4095, 0), 0x8000_0000 + (4095 << 25));
    }

    #[test]
    fn control_command_targets_no_queue() {
        let bytes = control(3, (0x1122_3344_5566_7788, 64), 0x99);
        assert_eq!(
            hex(&bytes[..32]),
            "03000000ffff400088776655443322119900000000000000".to_owned() + &"0".repeat(16)
        );
        assert!(bytes[32..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn device_info_round_trips() {
        let info = DeviceInfo {
            number: u32::MAX,
            queues: 1,
            depth: 128,
            state: State::Dead,
            payload_bytes_max: 1 << 20,
            server_pid: -1,
            features: 0x498,
            mark: 0x4642_0000_0000_0001,
        };
        let bytes = info.encode();
        let expected = "0100800000000000\
                        00001000ffffffff\
                        ffffffff00000000\
                        9804000000000000\
                        0100000000004246";
        assert_eq!(hex(&bytes[..40]), expected);
        assert!(bytes[40..].iter().all(|byte| *byte == 0));
        assert_eq!(DeviceInfo::decode(&bytes), Some(info));
        let mut quiesced = bytes;
        quiesced[4] = 2;
        assert_eq!(DeviceInfo::decode(&quiesced).map(|info| info.state), Some(State::Quiesced));
        quiesced[4] = 9;
        assert_eq!(DeviceInfo::decode(&quiesced), None, "a state of a later kernel is not guessed at");
        assert_eq!(DeviceInfo::decode(&bytes[..39]), None);
    }

    #[test]
    fn parameters_reflect_cache_features() {
        let bytes = params((1 << 30) + 1536, 512, 1 << 20);
        let expected = "3c00000003000000\
                        0c000000090c0c0c\
                        0008000000000000\
                        0300200000000000\
                        0000000000000000\
                        0000000000100000\
                        ffff7f00ffff7f00\
                        01000000";
        assert_eq!(hex(&bytes), expected);
        assert_eq!(params(1 << 30, 4096, 1 << 20)[12], 12);
        assert_eq!(sectors((1 << 30) + 1536, 4096), 1 << 21, "what is no whole block is left out");
    }
}
