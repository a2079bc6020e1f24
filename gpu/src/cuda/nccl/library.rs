//! Calls of NCCL, loaded at run time. All unsafe code of its use.
//!
//! Its results are numbers here, not an enum as in `cudarc`, so that a newer library may answer what
//! this one does not know; and the file can be named, which `cudarc` takes from the loader alone.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

use libloading::Library;

use crate::cuda::error::CudaError;
use crate::cuda::places::{Places, unusable};
use odeon_collective::{ElementType, Reduce};

/// Where it may lie.
const PLACES: Places = Places {
    variable: "ODEON_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    wheels: &["nccl"],
};
const ADVICE: &str = "install NVIDIA's package libnccl2 or `pip install nvidia-nccl-cu13`, and set \
                      ODEON_NCCL if the loader does not find it";
/// The oldest version whose functions do what is asked of them here, without waiting.
const VERSION_LEAST: c_int = 21_800;

/// NCCL, as it is on this machine.
#[derive(Clone, Copy, Debug)]
pub struct NcclLibrary {
    functions: &'static Functions,
    version: c_int,
}

/// `ncclUniqueId`: by it the ranks of a communicator find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UNIQUE_ID_BYTES]);

pub(super) const UNIQUE_ID_BYTES: usize = 128;

/// `ncclConfig_t` of version 2.18, which newer ones take as well: they read as much as it says that
/// it has.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

type Handle = *mut c_void;
type Stream = *mut c_void;
type Code = c_int;

const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;
const UNDEFINED: c_int = c_int::MIN;

/// Declares the functions and loads them.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> $out,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// The library is NCCL.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of `nccl.h`.
                    $($field: *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> $out>($symbol) }?,)*
                })
            }
        }
    };
}

functions! {
    version = b"ncclGetVersion": fn(*mut c_int) -> Code;
    unique_id = b"ncclGetUniqueId": fn(*mut UniqueId) -> Code;
    error_string = b"ncclGetErrorString": fn(Code) -> *const c_char;
    last_error = b"ncclGetLastError": fn(Handle) -> *const c_char;
    init = b"ncclCommInitRankConfig": fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Code;
    async_error = b"ncclCommGetAsyncError": fn(Handle, *mut Code) -> Code;
    finalize = b"ncclCommFinalize": fn(Handle) -> Code;
    destroy = b"ncclCommDestroy": fn(Handle) -> Code;
    abort = b"ncclCommAbort": fn(Handle) -> Code;
    group_start = b"ncclGroupStart": fn() -> Code;
    group_end = b"ncclGroupEnd": fn() -> Code;
    all_reduce = b"ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
    reduce = b"ncclReduce":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Stream) -> Code;
    reduce_scatter = b"ncclReduceScatter":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
    broadcast = b"ncclBroadcast":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
    all_gather = b"ncclAllGather":
        fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> Code;
    send = b"ncclSend": fn(*const c_void, usize, c_int, c_int, Handle, Stream) -> Code;
    receive = b"ncclRecv": fn(*mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").finish_non_exhaustive()
    }
}

impl NcclLibrary {
    /// Loads it: from `$ODEON_NCCL` (the file, or a folder that holds it somewhere), by the loader,
    /// from `$CUDA_HOME` or `/usr/local/cuda`, or from the virtual environment of Python into which
    /// the wheel `nvidia-nccl-cu13` was installed.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoLibrary`] with all that was tried, [`CudaError::OldLibrary`].
    ///
    /// ```
    /// use odeon_gpu::cuda::nccl::NcclLibrary;
    ///
    /// match NcclLibrary::load() {
    ///     Ok(nccl) => assert!(nccl.version() >= 21_800),
    ///     // What was looked for, and what to install.
    ///     Err(error) => assert!(error.to_string().contains("libnccl")),
    /// }
    /// ```
    pub fn load() -> Result<Self, CudaError> {
        let mut tried = Vec::new();
        for candidate in PLACES.candidates() {
            match Self::open(&candidate) {
                Ok(functions) => return Self::of(functions),
                Err(error) => tried.push(unusable(&candidate, &error)),
            }
        }
        if tried.is_empty() {
            tried.push(format!(
                "no file of that name where {} points",
                PLACES.variable
            ));
        }
        Err(absent(tried.join("; ")))
    }

    /// Loads this file.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn at(path: &Path) -> Result<Self, CudaError> {
        let functions = Self::open(path).map_err(|error| absent(unusable(path, &error)))?;
        Self::of(functions)
    }

    fn open(path: &Path) -> Result<&'static Functions, libloading::Error> {
        // SAFETY: NCCL's constructors need nothing of this process, and what is loaded under its
        // name has its functions.
        let (library, functions) = unsafe {
            let library = Library::new(path)?;
            let functions = Functions::of(&library)?;
            (library, functions)
        };
        // It has threads of its own, so it stays as long as the process.
        Box::leak(Box::new(library));
        Ok(Box::leak(Box::new(functions)))
    }

    fn of(functions: &'static Functions) -> Result<Self, CudaError> {
        let mut version = 0;
        // SAFETY: the place outlives the call.
        let code = unsafe { (functions.version)(&raw mut version) };
        let library = Self { functions, version };
        if code != SUCCESS {
            return Err(absent(
                library.refusal("ncclGetVersion", code, None).to_string(),
            ));
        }
        if version < VERSION_LEAST {
            return Err(CudaError::OldLibrary {
                name: "libnccl",
                found: version_text(version),
                least: "2.18",
                advice: ADVICE,
            });
        }
        Ok(library)
    }

    /// Its version, as 10000 times the major, 100 times the minor, and the patch number.
    #[must_use]
    pub const fn version(&self) -> i32 {
        self.version
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, Refusal> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: the place outlives the call.
        let code = unsafe { (self.functions.unique_id)(&raw mut id) };
        self.checked("ncclGetUniqueId", code, None).map(|()| id)
    }

    /// Begins to form a communicator on the calling thread's device; [`Comm::is_ready`] says when
    /// it is there.
    pub(super) fn init(&self, world: usize, id: UniqueId, rank: usize) -> Result<Comm, Refusal> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: VERSION_LEAST.cast_unsigned(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: both places outlive the call, which copies the configuration.
        let code = unsafe {
            (self.functions.init)(
                &raw mut handle,
                world as c_int,
                id,
                rank as c_int,
                &raw mut config,
            )
        };
        let comm = Comm {
            library: *self,
            handle,
        };
        // What was begun and refused is taken back when it is dropped.
        self.checked("ncclCommInitRankConfig", code, None)
            .map(|()| comm)
    }

    /// Checks that a call was taken, be it under way or done.
    fn checked(
        &self,
        call: &'static str,
        code: Code,
        handle: Option<Handle>,
    ) -> Result<(), Refusal> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            _ => Err(self.refusal(call, code, handle)),
        }
    }

    fn refusal(&self, call: &'static str, code: Code, handle: Option<Handle>) -> Refusal {
        // SAFETY: every number has a text, which lives as long as the library; the last error is
        // kept by the library too, and asked for with no communicator or with one that is there.
        let (text, last) = unsafe {
            (
                words((self.functions.error_string)(code)),
                words((self.functions.last_error)(
                    handle.unwrap_or(ptr::null_mut()),
                )),
            )
        };
        let mut why = format!("{text} (number {code})");
        if !last.is_empty() {
            why = format!("{why}: {last}");
        }
        Refusal { call, why }
    }
}

fn absent(tried: String) -> CudaError {
    CudaError::NoLibrary {
        name: "libnccl",
        tried,
        advice: ADVICE,
    }
}

/// # Safety
///
/// A string that ends with zero, or nothing.
unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().trim().to_owned()
}

/// A version as people write it.
pub(super) fn version_text(version: i32) -> String {
    let (major, minor) = (version / 10_000, version / 100 % 100);
    format!("{major}.{minor}.{}", version % 100)
}

/// A call that NCCL refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) call: &'static str,
    pub(super) why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of NCCL says: {}", self.call, self.why)
    }
}

/// Where a call's numbers lie on the card, and on which queue it happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) count: usize,
    pub(super) element: ElementType,
    pub(super) stream: u64,
}

impl Span {
    const fn element(self) -> c_int {
        match self.element {
            ElementType::F32 => 7,
            ElementType::Bf16 => 9,
        }
    }

    fn input(self) -> *const c_void {
        self.address as *const c_void
    }

    fn stream(self) -> Stream {
        self.stream as Stream
    }

    /// The part that begins after `start` elements.
    pub(super) const fn part(self, start: usize, count: usize) -> Self {
        Self {
            address: self.address + (start * self.element.bytes()) as u64,
            count,
            ..self
        }
    }
}

const fn operator(reduce: Reduce) -> c_int {
    match reduce {
        Reduce::Sum => 0,
        Reduce::Max => 2,
        Reduce::Min => 3,
        Reduce::Mean => 4,
    }
}

/// A rank's communicator of NCCL, whose calls do not wait: one that was taken may still be under
/// way, and no other may be made before [`Self::is_ready`]. Aborted when it is dropped.
#[derive(Debug)]
pub(super) struct Comm {
    library: NcclLibrary,
    handle: Handle,
}

// SAFETY: a communicator belongs to no thread; whoever holds it makes one call at a time.
unsafe impl Send for Comm {}

impl Comm {
    fn checked(&self, call: &'static str, code: Code) -> Result<(), Refusal> {
        self.library.checked(call, code, Some(self.handle))
    }

    /// Returns true when the last call is done, as far as the host has a part in it.
    ///
    /// # Errors
    /// It has failed, or something has since.
    pub(super) fn is_ready(&self) -> Result<bool, Refusal> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is there as long as `self`, and the place outlives the call.
        let code = unsafe { (self.library.functions.async_error)(self.handle, &raw mut state) };
        self.checked("ncclCommGetAsyncError", code)?;
        self.checked("an asynchronous operation", state)
            .map(|()| state == SUCCESS)
    }

    /// Calls that begin together.
    pub(super) fn group(
        &self,
        calls: impl FnOnce(&Self) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        // SAFETY: no arguments; the group ends on every path.
        let code = unsafe { (self.library.functions.group_start)() };
        self.checked("ncclGroupStart", code)?;
        let made = calls(self);
        // SAFETY: as above.
        let code = unsafe { (self.library.functions.group_end)() };
        let ended = self.checked("ncclGroupEnd", code);
        made.and(ended)
    }

    pub(super) fn all_reduce(&self, data: Span, reduce: Reduce) -> Result<(), Refusal> {
        let (element, operator) = (data.element(), operator(reduce));
        // SAFETY: addresses are followed by the card alone; the communicator is there as long as
        // `self`, and the stream as long as the card, which outlives it.
        let code = unsafe {
            (self.library.functions.all_reduce)(
                data.input(),
                data.address as *mut c_void,
                data.count,
                element,
                operator,
                self.handle,
                data.stream(),
            )
        };
        self.checked("ncclAllReduce", code)
    }

    /// `input` of all ranks, reduced, to `output` of the root alone.
    pub(super) fn reduce(
        &self,
        input: Span,
        output: u64,
        reduce: Reduce,
        root: usize,
    ) -> Result<(), Refusal> {
        let (element, operator) = (input.element(), operator(reduce));
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.reduce)(
                input.input(),
                output as *mut c_void,
                input.count,
                element,
                operator,
                root as c_int,
                self.handle,
                input.stream(),
            )
        };
        self.checked("ncclReduce", code)
    }

    /// `output` says how much each rank gets.
    pub(super) fn reduce_scatter(
        &self,
        input: u64,
        output: Span,
        reduce: Reduce,
    ) -> Result<(), Refusal> {
        let (element, operator) = (output.element(), operator(reduce));
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.reduce_scatter)(
                input as *const c_void,
                output.address as *mut c_void,
                output.count,
                element,
                operator,
                self.handle,
                output.stream(),
            )
        };
        self.checked("ncclReduceScatter", code)
    }

    /// The root's `input` to `output` of all.
    pub(super) fn broadcast(&self, input: u64, output: Span, root: usize) -> Result<(), Refusal> {
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.broadcast)(
                input as *const c_void,
                output.address as *mut c_void,
                output.count,
                output.element(),
                root as c_int,
                self.handle,
                output.stream(),
            )
        };
        self.checked("ncclBroadcast", code)
    }

    pub(super) fn all_gather(&self, input: Span, output: u64) -> Result<(), Refusal> {
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.all_gather)(
                input.input(),
                output as *mut c_void,
                input.count,
                input.element(),
                self.handle,
                input.stream(),
            )
        };
        self.checked("ncclAllGather", code)
    }

    pub(super) fn send(&self, data: Span, to: usize) -> Result<(), Refusal> {
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.send)(
                data.input(),
                data.count,
                data.element(),
                to as c_int,
                self.handle,
                data.stream(),
            )
        };
        self.checked("ncclSend", code)
    }

    pub(super) fn receive(&self, data: Span, from: usize) -> Result<(), Refusal> {
        // SAFETY: as in `all_reduce`.
        let code = unsafe {
            (self.library.functions.receive)(
                data.address as *mut c_void,
                data.count,
                data.element(),
                from as c_int,
                self.handle,
                data.stream(),
            )
        };
        self.checked("ncclRecv", code)
    }

    /// Begins to part with the other ranks, after all that was begun.
    pub(super) fn finalize(&self) -> Result<(), Refusal> {
        // SAFETY: the communicator is there as long as `self`.
        let code = unsafe { (self.library.functions.finalize)(self.handle) };
        self.checked("ncclCommFinalize", code)
    }

    /// Gives back what is left of one that has parted.
    pub(super) fn destroy(mut self) -> Result<(), Refusal> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: nobody has the handle after this.
        let code = unsafe { (self.library.functions.destroy)(handle) };
        self.library.checked("ncclCommDestroy", code, None)
    }
}

impl Drop for Comm {
    /// Aborts what is under way, which ends on the card then, and gives all back.
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: nobody has the handle after this. What it answers changes nothing.
            let _ = unsafe { (self.library.functions.abort)(self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error_that_says_where_it_was_looked_for() {
        let error = NcclLibrary::at(Path::new("/nowhere/libnccl.so.2")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CudaError::NoLibrary { .. }), "{text}");
        for part in ["/nowhere/libnccl.so.2", "ODEON_NCCL", "nvidia-nccl"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(21_805), "2.18.5");
        assert_eq!(version_text(23_007), "2.30.7");
        assert_eq!(size_of::<Config>(), 48, "as in nccl.h of 2.18");
    }
}
