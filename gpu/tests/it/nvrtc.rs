//! Every kernel compiles for Hopper and Ampere, without a card. Skipped by name where NVIDIA's
//! run-time compiler is not there; `ODEON_NVRTC` names it.

use odeon_gpu::conformance::TwoMoments;
use odeon_gpu::cuda::cache::KernelCache;
use odeon_gpu::cuda::kernel::{Kernel, Source};
use odeon_gpu::cuda::{CudaError, Nvrtc, compile_cached};
use odeon_gpu::{RuleText, UpdateRule};

use crate::lacking::or_skipped;

fn compiler() -> Option<Nvrtc> {
    or_skipped(Nvrtc::load())
}

/// Returns true when the machine code names the kernel, as the driver will look it up.
fn holds(code: &[u8], kernel: Kernel) -> bool {
    let name = kernel.name().as_bytes();
    code.windows(name.len() + 2)
        .any(|part| part[0] == 0 && part[part.len() - 1] == 0 && &part[1..=name.len()] == name)
}

fn check(arch: &str) {
    let Some(nvrtc) = compiler() else { return };
    for source in Source::ALL {
        let code = nvrtc
            .compile(*source, arch)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(code.starts_with(b"\x7fELF"), "{source:?} is machine code");
        for kernel in Kernel::ALL
            .iter()
            .filter(|kernel| kernel.source() == *source)
        {
            assert!(holds(&code, *kernel), "{} for {arch}", kernel.name());
        }
    }
}

#[test]
fn the_text_of_a_rule_compiles_for_cards() {
    let Some(nvrtc) = compiler() else { return };
    for arch in ["sm_80", "sm_90a"] {
        let code = nvrtc.compile_rule(TwoMoments::TEXT, arch);
        let code = code.unwrap_or_else(|error| panic!("{error}"));
        assert!(code.starts_with(b"\x7fELF"), "machine code");
        let name = b"\0update_two_moments\0";
        assert!(code.windows(name.len()).any(|part| part == name), "{arch}");
    }
    let wrong = RuleText {
        body: "p = q;",
        ..TwoMoments::TEXT
    };
    let error = nvrtc.compile_rule(wrong, "sm_80").unwrap_err();
    assert!(
        error.to_string().contains("update_two_moments.cu"),
        "{error}"
    );
}

#[test]
fn every_kernel_compiles_for_hopper() {
    check("sm_90a");
}

#[test]
fn every_kernel_compiles_for_ampere() {
    check("sm_80");
}

#[test]
fn a_kernel_is_compiled_once_and_again_when_its_entry_is_damaged() {
    let Some(nvrtc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = KernelCache::at(folder.path());
    let compiled = || compile_cached(&nvrtc, &cache, Source::Vocab, "sm_80").unwrap();
    let code = compiled();
    let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
    let path = path.unwrap().path();
    let entry = std::fs::read(&path).unwrap();
    assert!(entry.ends_with(&code), "the entry holds the code");
    assert_eq!(compiled(), code);
    std::fs::write(&path, &entry[..entry.len() / 2]).unwrap();
    assert_eq!(compiled().len(), code.len(), "compiled again");
    assert_eq!(
        std::fs::read(&path).unwrap().len(),
        entry.len(),
        "and kept again"
    );
}

#[test]
fn a_compiler_that_is_not_there_is_an_error_that_says_what_to_do() {
    let missing = CudaError::NoLibrary {
        name: "libnvrtc",
        tried: "libnvrtc.so.13".to_owned(),
        advice: "install it",
    };
    assert_eq!(
        missing.to_string(),
        "libnvrtc is not on this machine (libnvrtc.so.13): install it"
    );
}
