//! NVIDIA's run-time compiler, loaded when a kernel is first compiled. It needs no card.

use std::ffi::{CString, c_char, c_int, c_void};

use libloading::Library;

use crate::cuda::cache::{CacheKey, KernelCache};
use crate::cuda::error::CudaError;
use crate::cuda::kernel::{Source, rule_name, rule_text};
use crate::cuda::places::{Places, unusable};
use crate::update_rule::RuleText;

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    library: Library,
    version: (i32, i32),
}

type Program = *mut c_void;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// Where it may lie.
const PLACES: Places = Places {
    variable: "ODEON_NVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    wheels: &["cu13", "cuda_nvrtc"],
};

impl Nvrtc {
    /// Loads it: from `$ODEON_NVRTC` (the file, or a folder that holds it somewhere), by the
    /// loader, from `$CUDA_HOME` or `/usr/local/cuda`, or from the virtual environment of Python
    /// into which the wheel `nvidia-cuda-nvrtc` was installed.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoLibrary`].
    pub fn load() -> Result<Self, CudaError> {
        let mut tried = Vec::new();
        for candidate in PLACES.candidates() {
            // SAFETY: NVRTC's constructors need nothing of this process.
            let library = unsafe { Library::new(&candidate) };
            match library
                .map_err(|error| unusable(&candidate, &error))
                .and_then(Self::of)
            {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(error) => tried.push(error),
            }
        }
        if tried.is_empty() {
            tried.push("no file of that name where ODEON_NVRTC points".to_owned());
        }
        Err(CudaError::NoLibrary {
            name: "libnvrtc",
            tried: tried.join("; "),
            advice: "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and set \
                     ODEON_NVRTC if the loader does not find it",
        })
    }

    fn of(library: Library) -> Result<Self, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the type is that of the function in `nvrtc.h`; both places outlive the call.
        let outcome = unsafe {
            let version = library.get::<Version>(b"nvrtcVersion");
            let version = version.map_err(|error| error.to_string())?;
            version(&raw mut major, &raw mut minor)
        };
        if outcome != 0 {
            return Err(format!("nvrtcVersion ends with {outcome}"));
        }
        Ok(Self {
            library,
            version: (major, minor),
        })
    }

    /// Major and minor number.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The source as machine code for an architecture such as `sm_90a`.
    ///
    /// # Errors
    ///
    /// [`CudaError::Compile`] with the compiler's words.
    pub fn compile(&self, source: Source, arch: &str) -> Result<Vec<u8>, CudaError> {
        self.compile_for(source.name(), &source.text(), arch)
    }

    /// The same of an update rule's kernel.
    ///
    /// # Errors
    ///
    /// [`CudaError::Compile`] with the compiler's words.
    pub fn compile_rule(&self, rule: RuleText, arch: &str) -> Result<Vec<u8>, CudaError> {
        self.compile_for(&rule_name(rule), &rule_text(rule), arch)
    }

    fn compile_for(&self, name: &str, text: &str, arch: &str) -> Result<Vec<u8>, CudaError> {
        let compiled = self.compile_text(name, text, &options(arch));
        compiled.map_err(|log| CudaError::Compile {
            name: name.to_owned(),
            arch: arch.to_owned(),
            log,
        })
    }

    /// The text as machine code, or what the compiler says against it.
    fn compile_text(&self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>, String> {
        let c_string = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (text, name) = (c_string(text)?, c_string(name)?);
        let options: Vec<CString> = options
            .iter()
            .map(|option| c_string(option))
            .collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: types are those of `nvrtc.h`. All strings outlive the program, which is destroyed
        // on every path below; sizes are asked for before texts are written.
        unsafe {
            let made = self.function::<Create>(b"nvrtcCreateProgram")?(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            );
            if made != 0 {
                return Err(format!("nvrtcCreateProgram ends with {made}"));
            }
            let compiled = self.compiled(program, &options);
            self.function::<Destroy>(b"nvrtcDestroyProgram")?(&raw mut program);
            compiled
        }
    }

    /// # Safety
    ///
    /// The program is one of this library, and the options are strings.
    unsafe fn compiled(
        &self,
        program: Program,
        options: &[*const c_char],
    ) -> Result<Vec<u8>, String> {
        // SAFETY: as the caller promises.
        unsafe {
            let compile = self.function::<Compile>(b"nvrtcCompileProgram")?;
            let outcome = compile(program, options.len() as c_int, options.as_ptr());
            if outcome != 0 {
                let log = self.text(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog")?;
                let log = String::from_utf8_lossy(&log);
                return Err(log.trim_end_matches('\0').to_owned());
            }
            self.text(program, b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN")
        }
    }

    /// # Safety
    ///
    /// The program is one of this library, the names are those of a size and its text.
    unsafe fn text(&self, program: Program, size: &[u8], text: &[u8]) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: as the caller promises; the second call writes as much as the first one said.
        unsafe {
            let outcome = self.function::<Size>(size)?(program, &raw mut length);
            if outcome != 0 {
                return Err(format!("the compiler ends with {outcome}"));
            }
            let mut bytes = vec![0u8; length];
            let outcome = self.function::<Text>(text)?(program, bytes.as_mut_ptr().cast());
            if outcome != 0 {
                return Err(format!("the compiler ends with {outcome}"));
            }
            Ok(bytes)
        }
    }

    /// # Safety
    ///
    /// The type is that of the function.
    unsafe fn function<T: Copy>(&self, name: &[u8]) -> Result<T, String> {
        // SAFETY: as the caller promises.
        let symbol = unsafe { self.library.get::<T>(name) };
        symbol
            .map(|symbol| *symbol)
            .map_err(|error| error.to_string())
    }
}

/// Machine code of a source: from the cache, or made and kept there. A cache that cannot be written
/// costs time, not correctness.
///
/// # Errors
///
/// [`CudaError::Compile`].
pub fn compile_cached(
    nvrtc: &Nvrtc,
    cache: &KernelCache,
    source: Source,
    arch: &str,
) -> Result<Vec<u8>, CudaError> {
    cached(nvrtc, cache, source.name(), &source.text(), arch)
}

/// The same of an update rule's kernel.
///
/// # Errors
///
/// [`CudaError::Compile`].
pub fn rule_cached(
    nvrtc: &Nvrtc,
    cache: &KernelCache,
    rule: RuleText,
    arch: &str,
) -> Result<Vec<u8>, CudaError> {
    cached(nvrtc, cache, &rule_name(rule), &rule_text(rule), arch)
}

fn cached(
    nvrtc: &Nvrtc,
    cache: &KernelCache,
    name: &str,
    text: &str,
    arch: &str,
) -> Result<Vec<u8>, CudaError> {
    let options = options(arch);
    let key = CacheKey {
        name,
        text,
        options: &options,
        version: nvrtc.version(),
    };
    if let Some(code) = cache.get(key) {
        return Ok(code);
    }
    let code = nvrtc.compile_for(name, text, arch)?;
    drop(cache.put(key, &code));
    Ok(code)
}

fn options(arch: &str) -> Vec<String> {
    vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        // Functions of the common head that a source does not call.
        "-diag-suppress=177".to_owned(),
    ]
}
