//! Numeric ids of users and groups, looked up by name in the system's name service.
//!
//! The name service can query a server on the network: calls can block.

use std::ffi::CString;
use std::io;

/// Initial and largest buffer for an entry, in bytes: a group's entry has the names of all its
/// members.
const ENTRY_BYTES: usize = 4 << 10;
const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Returns the id of a user, given by name or in digits; `None` if no user has this name.
///
/// # Errors
/// The name service fails.
pub fn user_id(name: &str) -> io::Result<Option<u32>> {
    if let Some(number) = number(name) {
        return Ok(Some(number));
    }
    // SAFETY: an all-zero passwd is a valid value, as its pointers can be null.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let found = look_up(name, |name, buffer, found| {
        // SAFETY: the name ends with a zero; entry, buffer and result live through the call, and
        // the length is that of the buffer.
        unsafe { libc::getpwnam_r(name, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), found) }
    })?;
    Ok(found.then_some(entry.pw_uid))
}

/// Returns the id of a group, given by name or in digits; `None` if no group has this name.
///
/// # Errors
/// The name service fails.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    if let Some(number) = number(name) {
        return Ok(Some(number));
    }
    // SAFETY: an all-zero group is a valid value, as its pointers can be null.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let found = look_up(name, |name, buffer, found| {
        // SAFETY: as in `user_id`.
        unsafe { libc::getgrnam_r(name, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), found) }
    })?;
    Ok(found.then_some(entry.gr_gid))
}

/// The largest number means "unchanged" to chown.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|number| *number != u32::MAX)
}

/// Looks up with a buffer that grows until the entry fits; returns whether there is one.
fn look_up<T>(
    name: &str,
    mut ask: impl FnMut(*const libc::c_char, &mut [libc::c_char], *mut *mut T) -> libc::c_int,
) -> io::Result<bool> {
    let name = CString::new(name)?;
    let mut buffer = vec![0; ENTRY_BYTES];
    loop {
        let mut found = std::ptr::null_mut();
        match ask(name.as_ptr(), &mut buffer, &raw mut found) {
            0 => return Ok(!found.is_null()),
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 4, 0),
            // Implementations return these for an unknown name, according to getpwnam(3).
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(false),
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_group_lookup_finds_known_ids() {
        assert_eq!(user_id("root").unwrap(), Some(0));
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!((user_id("1234").unwrap(), group_id("5678").unwrap()), (Some(1234), Some(5678)));
        for name in ["no-such-name", "", "4294967295"] {
            assert_eq!((user_id(name).unwrap(), group_id(name).unwrap()), (None, None), "{name}");
        }
        assert!(user_id("with\0zero").is_err());
    }
}
