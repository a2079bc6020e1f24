//! Which machine instructions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::elf::Elf;

/// The instructions that a program is made of, or that a node executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Architecture {
    /// The number of the machine in ELF.
    pub machine: u16,
    /// Of an address: 32 or 64.
    pub bits: u8,
    /// True where numbers begin with their lowest byte.
    pub little_endian: bool,
}

impl Architecture {
    /// The one that this program was built for, so that it runs here.
    #[must_use]
    pub fn here() -> Self {
        let named = |row: &&Row| row.name == std::env::consts::ARCH;
        let machine = TABLE.iter().find(named).map_or(0, |row| row.machine);
        Self {
            machine,
            bits: if cfg!(target_pointer_width = "64") {
                64
            } else {
                32
            },
            little_endian: cfg!(target_endian = "little"),
        }
    }

    pub(crate) const fn of(elf: &Elf) -> Self {
        Self {
            machine: elf.machine,
            bits: elf.bits,
            little_endian: elf.little_endian,
        }
    }

    /// Where systems of this architecture keep their loaders.
    pub(crate) fn loaders(self) -> &'static [&'static str] {
        self.row().map_or(&[], |row| row.loaders)
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| {
            (row.machine, row.bits, row.little_endian)
                == (self.machine, self.bits, self.little_endian)
        })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(row) = self.row() {
            return f.write_str(row.name);
        }
        let order = if self.little_endian { "little" } else { "big" };
        write!(
            f,
            "machine {} of ELF ({} bits, {order}-endian)",
            self.machine, self.bits
        )
    }
}

struct Row {
    name: &'static str,
    machine: u16,
    bits: u8,
    little_endian: bool,
    loaders: &'static [&'static str],
}

const fn row(
    name: &'static str,
    machine: u16,
    bits: u8,
    little_endian: bool,
    loaders: &'static [&'static str],
) -> Row {
    Row {
        name,
        machine,
        bits,
        little_endian,
        loaders,
    }
}

/// As Rust names them, where it does. Of rows of one name the first is the usual one.
const TABLE: &[Row] = &[
    row(
        "x86_64",
        62,
        64,
        true,
        &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"],
    ),
    row(
        "aarch64",
        183,
        64,
        true,
        &["/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"],
    ),
    row(
        "riscv64",
        243,
        64,
        true,
        &[
            "/lib/ld-linux-riscv64-lp64d.so.1",
            "/lib/ld-musl-riscv64.so.1",
        ],
    ),
    row(
        "powerpc64",
        21,
        64,
        true,
        &["/lib64/ld64.so.2", "/lib/ld-musl-powerpc64le.so.1"],
    ),
    row(
        "powerpc64 (big-endian)",
        21,
        64,
        false,
        &["/lib64/ld64.so.1"],
    ),
    row(
        "s390x",
        22,
        64,
        false,
        &["/lib/ld64.so.1", "/lib/ld-musl-s390x.so.1"],
    ),
    row(
        "loongarch64",
        258,
        64,
        true,
        &[
            "/lib64/ld-linux-loongarch-lp64d.so.1",
            "/lib/ld-musl-loongarch64.so.1",
        ],
    ),
    row(
        "x86",
        3,
        32,
        true,
        &["/lib/ld-linux.so.2", "/lib/ld-musl-i386.so.1"],
    ),
    row(
        "arm",
        40,
        32,
        true,
        &[
            "/lib/ld-linux-armhf.so.3",
            "/lib/ld-linux.so.3",
            "/lib/ld-musl-armhf.so.1",
        ],
    ),
    row(
        "x86_64 with 32-bit addresses",
        62,
        32,
        true,
        &["/libx32/ld-linux-x32.so.2"],
    ),
    row(
        "aarch64 (big-endian)",
        183,
        64,
        false,
        &["/lib/ld-linux-aarch64_be.so.1"],
    ),
];
