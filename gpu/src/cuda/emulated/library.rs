//! The compiled kernels: made once, kept in files, loaded. All unsafe code of the emulated card.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use libloading::Symbol;
use parking_lot::Mutex;
use thiserror::Error;

use super::ThreadOrder;
use crate::cuda::card::{Arg, Launch};
use crate::cuda::kernel::{AnyKernel, HEAD, Kernel, Source, rule_body, rule_name};
use crate::update_rule::RuleText;

/// The emulated card could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmulatedError {
    /// There is no C++ compiler. Install `g++`, or name one in `CXX`.
    #[error("no C++ compiler: {compiler} cannot be started ({reason}); install g++ or set CXX")]
    NoCompiler {
        /// The command that was tried.
        compiler: String,
        /// Why it did not start.
        reason: String,
    },
    /// The compiler refuses the kernels.
    #[error("the kernels do not compile for the processor:\n{output}")]
    Refused {
        /// The compiler's output.
        output: String,
    },
    /// The compiled kernels cannot be written or loaded.
    #[error("{path}: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

const HOST: &str = include_str!("host.h");

type Take = unsafe extern "C" fn(u64) -> u64;
type Give = unsafe extern "C" fn(u64) -> c_int;
type Holds = unsafe extern "C" fn(u64, u64) -> c_int;
type Run = unsafe extern "C" fn(u32, *mut HostLaunch) -> c_int;

/// `odeon::Launch` of the host header.
#[repr(C)]
struct HostLaunch {
    grid: [u32; 3],
    block: u32,
    shared: u32,
    backwards: u32,
    count: u32,
    args: *const HostArg,
    outside: u64,
}

/// `odeon::Arg` of the host header.
#[repr(C)]
struct HostArg {
    kind: u32,
    unused: u32,
    bits: u64,
}

/// The kernels, and memory that notices who leaves it.
#[derive(Debug)]
pub(super) struct Library {
    library: libloading::Library,
    /// Kernels of update rules, each in a library of its own.
    rules: Mutex<HashMap<RuleText, libloading::Library>>,
    /// Bytes by address.
    held: Mutex<HashMap<u64, u64>>,
}

impl Library {
    pub(super) fn load() -> Result<Self, EmulatedError> {
        Ok(Self {
            library: loaded(&text())?,
            rules: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// Makes and loads a rule's kernel, unless it is here.
    pub(super) fn prepare(&self, rule: RuleText) -> Result<(), EmulatedError> {
        if let Entry::Vacant(absent) = self.rules.lock().entry(rule) {
            absent.insert(loaded(&rule_text(rule))?);
        }
        Ok(())
    }

    pub(super) fn take(&self, bytes: u64) -> u64 {
        // SAFETY: the type is that of the function in the host header.
        let address = unsafe { self.symbol::<Take>(b"odeon_take")(bytes) };
        assert!(address != 0, "the system has no {bytes} bytes left");
        self.held.lock().insert(address, bytes);
        address
    }

    /// Takes memory back; says how much it was, in bytes.
    pub(super) fn give(&self, address: u64) -> u64 {
        let bytes = self.held.lock().remove(&address);
        // SAFETY: as above; the function knows the blocks that it gave.
        let outcome = unsafe { self.symbol::<Give>(b"odeon_give")(address) };
        assert!(
            outcome != 2 || std::thread::panicking(),
            "something wrote behind a block of {bytes:?} bytes"
        );
        bytes.expect("a block of this card, given back once")
    }

    #[track_caller]
    fn check(&self, address: u64, bytes: usize) {
        // SAFETY: as above.
        let held = unsafe { self.symbol::<Holds>(b"odeon_holds")(address, bytes as u64) };
        assert!(held == 1, "{bytes} bytes at {address:#x} are in no block");
    }

    #[track_caller]
    pub(super) fn read(&self, from: u64, bytes: &mut [u8]) {
        self.check(from, bytes.len());
        // SAFETY: the block holds as many bytes, as was just checked, and is not the slice's.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
    }

    #[track_caller]
    pub(super) fn write(&self, to: u64, bytes: &[u8]) {
        self.check(to, bytes.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    /// # Panics
    /// If the kernel leaves its memory, its threads wait for each other in vain, or it does not
    /// take these arguments.
    pub(super) fn launch(&self, launch: &Launch, order: ThreadOrder) {
        let args: Vec<HostArg> = launch
            .args
            .iter()
            .map(|arg| HostArg {
                kind: match arg {
                    Arg::Pointer(_) => 0,
                    Arg::U32(_) => 1,
                    Arg::F32(_) => 2,
                    Arg::U64(_) => 3,
                },
                unused: 0,
                bits: arg.bits(),
            })
            .collect();
        let mut host = HostLaunch {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            backwards: u32::from(order == ThreadOrder::Backwards),
            count: args.len() as u32,
            args: args.as_ptr(),
            outside: 0,
        };
        let rules = self.rules.lock();
        let (library, number) = match launch.kernel {
            AnyKernel::Own(kernel) => (&self.library, kernel as u32),
            AnyKernel::Rule(rule) => (&rules[&rule], 0),
        };
        // SAFETY: the launch and its arguments outlive the call. Kernels touch memory by address
        // alone: blocks of this card lie between pages that nobody may touch, which ends the launch.
        let outcome = unsafe { symbol::<Run>(library, b"odeon_run")(number, &raw mut host) };
        drop(rules);
        let what = match outcome {
            0 => return,
            1 => format!(
                "touches {:#x}, outside of its memory or misaligned",
                host.outside
            ),
            2 => "has threads that wait for others in vain".to_owned(),
            3 => "does not take these arguments".to_owned(),
            other => format!("ends with {other}"),
        };
        panic!("{} {what}: {launch:?}", launch.kernel.name());
    }

    fn symbol<T>(&self, name: &[u8]) -> Symbol<'_, T> {
        symbol(&self.library, name)
    }
}

fn symbol<'a, T>(library: &'a libloading::Library, name: &[u8]) -> Symbol<'a, T> {
    // SAFETY: callers name a function of the host header with its type.
    let symbol = unsafe { library.get(name) };
    symbol.unwrap_or_else(|error| panic!("a function of the host header: {error}"))
}

/// The library that a text makes.
fn loaded(text: &str) -> Result<libloading::Library, EmulatedError> {
    let path = compiled(text)?;
    // SAFETY: the file was compiled from this crate's sources and the text of a rule, which is
    // arithmetic; its constructors set up maps.
    let library = unsafe { libloading::Library::new(&path) };
    library.map_err(|error| unusable(&path, &error))
}

const _: () = assert!(size_of::<*const c_void>() == 8, "addresses of eight bytes");

fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> EmulatedError {
    EmulatedError::Unusable {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// All sources as one, and a table of the kernels.
fn text() -> String {
    let mut text = format!("#line 1 \"host.h\"\n{HOST}\n#line 1 \"head.cuh\"\n{HEAD}\n");
    for source in Source::ALL {
        let (name, body) = (source.name(), source.body());
        let _ = write!(text, "#line 1 \"{name}.cu\"\n{body}\n");
    }
    let kernels = Kernel::ALL.iter();
    text + &table(kernels.map(|kernel| (*kernel as u32, kernel.name())))
}

/// A rule's kernel, and a table with it alone.
fn rule_text(rule: RuleText) -> String {
    let (body, table) = (rule_body(rule), table([(0, rule_name(rule).as_str())]));
    format!("#line 1 \"host.h\"\n{HOST}\n#line 1 \"head.cuh\"\n{HEAD}\n{body}\n{table}")
}

/// The function that runs a kernel by its number.
fn table<'a>(kernels: impl IntoIterator<Item = (u32, &'a str)>) -> String {
    let mut text = "extern \"C\" int odeon_run(uint32_t kernel, odeon::Launch* l) {\n    \
                    unsigned char* shared = odeon::shared_memory(l->shared ? l->shared : 16);\n    \
                    if (!shared) return odeon::NO_MEMORY;\n    switch (kernel) {\n"
        .to_owned();
    for (number, name) in kernels {
        let _ = writeln!(
            text,
            "    case {number}: return odeon::launch(&{name}, l, shared);"
        );
    }
    text + "    }\n    return odeon::ARGUMENTS;\n}\n"
}

/// The compiled file, made if this text was not compiled before by anybody.
fn compiled(text: &str) -> Result<PathBuf, EmulatedError> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let mut hasher = DefaultHasher::new();
    (text, &compiler).hash(&mut hasher);
    let folder = crate::cuda::cache::folder("ODEON_EMULATED_CACHE", "emulated");
    let path = folder.join(format!("{:016x}.so", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    let io = |error: io::Error| unusable(&path, &error);
    fs::create_dir_all(&folder).map_err(io)?;
    // One compiles, the others wait for it.
    let lock = fs::File::create(folder.join("lock")).map_err(io)?;
    lock.lock().map_err(io)?;
    if path.exists() {
        return Ok(path);
    }
    let source = path.with_extension("cpp");
    fs::write(&source, text).map_err(io)?;
    let made = path.with_extension("made");
    let output = Process::new(&compiler)
        .args([
            "-std=c++17",
            "-O2",
            "-shared",
            "-fPIC",
            "-fno-strict-aliasing",
        ])
        .args(["-ffp-contract=off", "-w", "-o"])
        .args([&made, &source])
        .output()
        .map_err(|error| EmulatedError::NoCompiler {
            compiler: compiler.clone(),
            reason: error.to_string(),
        })?;
    if !output.status.success() {
        return Err(EmulatedError::Refused {
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    fs::rename(&made, &path).map_err(io)?;
    Ok(path)
}
