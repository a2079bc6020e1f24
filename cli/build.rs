//! Has the linker fold functions that are compiled to the same code into one.
//!
//! Most are destructors and parts of collections, of types that are laid out alike. Nothing in the
//! command tells functions apart by their address: Rust promises nothing about it, and its lint
//! `unpredictable_function_pointer_comparisons` finds who relies on it. Data is never folded, so that
//! tables of methods and statics keep addresses of their own.

#![allow(clippy::print_stdout, reason = "cargo reads it")]

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};

const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") && linker_folds() {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Returns true if an empty program links with the flag. rustc brings lld for this target, which knows
/// it; who has chosen another linker, such as that of GNU, goes without.
fn linker_folds() -> bool {
    let given = |name: &str| env::var(name).unwrap_or_default();
    let mut rustc = Command::new(given("RUSTC"));
    let flags = given("CARGO_ENCODED_RUSTFLAGS");
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc
        .args(["--crate-name", "probe", "--crate-type", "bin", "--target"])
        .arg(given("TARGET"))
        .arg(format!("-Clink-arg={FOLD}"))
        .args(["-o", &format!("{}/probe", given("OUT_DIR")), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let probed = rustc.spawn().and_then(|mut probe| {
        if let Some(mut source) = probe.stdin.take() {
            source.write_all(b"fn main() {}")?;
        }
        probe.wait()
    });
    probed.is_ok_and(|status| status.success())
}
