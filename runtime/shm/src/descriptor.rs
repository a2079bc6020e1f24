//! Descriptors that stay open when this process becomes another program, and how that takes them over.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Leaves a descriptor open to the program that this process becomes.
///
/// # Errors
///
/// There is no such descriptor.
pub fn keep_open(fd: RawFd) -> io::Result<()> {
    Ok(fcntl_setfd(borrow(fd)?, FdFlags::empty())?)
}

/// Takes over a descriptor that the program before this one has left open with [`keep_open`], and
/// closes it to programs that are started from here. Once: what belongs to somebody in this program is
/// closed to others, and is refused.
///
/// # Errors
///
/// There is no such descriptor, or it was not left.
pub fn take_open(fd: RawFd) -> io::Result<OwnedFd> {
    let left = borrow(fd)?;
    if fcntl_getfd(left)?.contains(FdFlags::CLOEXEC) {
        let why = format!("descriptor {fd} belongs to somebody in this program");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    fcntl_setfd(left, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, as the calls above have shown, and nobody in this program has it: all that
    // Rust opens is closed to other programs, as this one is from now on.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A number as a descriptor, for calls that find out whether it is one.
fn borrow<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    // The first three are everybody's.
    if fd <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is not used but for the flags of the number, which fails when that is not open.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn what_was_left_is_taken_once_and_what_has_an_owner_never() {
        let mine = std::fs::File::open("/dev/null").unwrap();
        assert!(take_open(mine.as_raw_fd()).is_err());
        let left = mine.into_raw_fd();
        keep_open(left).unwrap();
        let taken = take_open(left).unwrap();
        assert_eq!(taken.as_raw_fd(), left);
        assert!(take_open(left).is_err());
        for none in [-1, 0, 2, 1 << 20] {
            assert!(take_open(none).is_err() && keep_open(none).is_err());
        }
    }
}
