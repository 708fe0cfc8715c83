//! Ranges of IP addresses: `10.0.0.0/8`, `2001:db8::/32`, or one address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    first: IpAddr,
    prefix_bits: u8,
}

/// Returns an address as a number, with its length in bits.
fn number(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl AddressRange {
    /// Returns whether an address is in the range. An IPv4 address in IPv6 form counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let ((first, bits), (number, its_bits)) = (number(self.first), number(address.to_canonical()));
        let free_bits = u32::from(bits - self.prefix_bits);
        bits == its_bits && (first ^ number).checked_shr(free_bits).unwrap_or(0) == 0
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            let text = text.escape_debug();
            format!("\"{text}\" is not a range of addresses, such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7")
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        if address != address.to_canonical() {
            return Err(format!("\"{text}\" is an IPv4 address: write it as {}", address.to_canonical()));
        }
        let (value, bits) = number(address);
        let digits = |prefix: &str| prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix_bits = match prefix {
            None => bits,
            Some(prefix) if digits(prefix) => prefix.parse().map_err(|_| form())?,
            Some(_) => return Err(form()),
        };
        if prefix_bits > bits {
            return Err(form());
        }
        let host = value & !u128::MAX.checked_shl(u32::from(bits - prefix_bits)).unwrap_or(0);
        if host != 0 {
            let first = match address {
                IpAddr::V4(_) => IpAddr::from(((value ^ host) as u32).to_be_bytes()),
                IpAddr::V6(_) => IpAddr::from((value ^ host).to_be_bytes()),
            };
            return Err(format!(
                "\"{text}\" has bits behind its prefix: write {first}/{prefix_bits} for the range, {address} for the one"
            ));
        }
        Ok(Self { first: address, prefix_bits })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix_bits)
    }
}
