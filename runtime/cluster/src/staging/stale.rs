//! Mounts that a killed daemon has left: nobody answers there any more, and looking at one fails.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::mount::unmount;

/// Takes away all mounts below a folder, and what is left of the folder. Says how many these were.
pub(crate) fn clear(folder: &Path) -> io::Result<usize> {
    // As the system names it, which knows of no links.
    let folder = match fs::canonicalize(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        found => found?,
    };
    let table = fs::read("/proc/self/mountinfo")?;
    let mut cleared = 0;
    // What was mounted last lies on top.
    for place in places(&table).iter().rev() {
        if place.starts_with(&folder) && *place != folder {
            tracing::warn!(place = %place.display(), "a mount of the daemon before this one is taken away");
            unmount(place);
            cleared += 1;
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(cleared)
}

/// Where something is mounted, as the system's table has it. Pure.
fn places(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let place = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(unescaped(field)))
    };
    lines.filter_map(place).collect()
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = vec![];
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|it| std::str::from_utf8(it).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Returns true where anything is mounted below a folder.
#[cfg(test)]
pub(super) fn is_mounted_below(folder: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").expect("the system's table");
    places(&table).iter().any(|it| it.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use odeon_skip::{Need, skip};
    use rustix::mount::{MountFlags, mount};

    use super::*;

    #[test]
    fn places_are_read_from_the_table() {
        let table = b"22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n\
            30 22 0:26 / /run/a\\040b\\134c rw shared:5 - tmpfs none rw\n\
            \n31 22";
        let expected = ["/", "/run/a b\\c"].map(PathBuf::from);
        assert_eq!(places(table), expected);
        assert_eq!(unescaped(b"a\\9"), "a\\9");
    }

    /// SEMANTICS 56.
    #[test]
    fn a_mount_whose_daemon_is_gone_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let mounts = folder.path().join("mounts");
        let place = mounts.join("left here");
        fs::create_dir_all(&place).unwrap();
        let device = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse");
        let mounted = device.and_then(|device| {
            let user = rustix::process::getuid().as_raw();
            let options = format!(
                "fd={},rootmode=40000,user_id={user},group_id=0\0",
                device.as_raw_fd()
            );
            let options = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap();
            mount(
                "odeon",
                &place,
                "fuse",
                MountFlags::RDONLY,
                Some(options.as_c_str()),
            )?;
            Ok(())
        });
        if let Err(error) = mounted {
            return skip(Need::Mounts, error);
        }
        // Nobody answers there now.
        assert!(fs::metadata(&place).is_err());
        assert!(is_mounted_below(&mounts));
        assert_eq!(clear(&mounts).unwrap(), 1);
        assert!(!is_mounted_below(&mounts) && !mounts.exists());
        assert_eq!(clear(&mounts).unwrap(), 0);
    }
}
