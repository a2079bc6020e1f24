//! Pointers of Git LFS, which lie where files are that were not fetched. Pure.

/// Returns true for what Git LFS has in place of a file.
pub(crate) fn is_pointer(file: &[u8]) -> bool {
    file.starts_with(b"version https://git-lfs.github.com/spec/")
}
