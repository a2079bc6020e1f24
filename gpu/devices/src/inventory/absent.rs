//! The source of inventories of a program that is built without NVIDIA's management library.

use std::path::PathBuf;

use super::{Inventory, Probe, sysfs};

/// In place of the reader of NVIDIA's management library, in a program that is built without it:
/// finds no devices, and says why. Cards of other makers are found as with it.
#[derive(Debug)]
pub struct Nvml {
    sys: PathBuf,
}

impl Default for Nvml {
    fn default() -> Self {
        Self::new()
    }
}

impl Nvml {
    /// The kernel's tree where it is on every machine.
    #[must_use]
    pub fn new() -> Self {
        Self::at("", "/sys")
    }

    /// The kernel's tree at this place. The library is not looked for.
    #[must_use]
    pub fn at(_library: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Self {
        Self { sys: sys.into() }
    }
}

impl Probe for Nvml {
    fn inventory(&mut self) -> Inventory {
        Inventory {
            unusable: sysfs::unusable_cards(&self.sys),
            ..Inventory::empty(
                "this program is built without NVIDIA's management library: build it with the \
                 feature `gpu` of odeon, or `nvml` of odeon-devices",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_read_without_the_library_says_how_it_is_read_with_it() {
        let inventory = Nvml::at("libnvidia-ml.so.1", "/nowhere").inventory();
        assert!(inventory.devices.is_empty() && inventory.unusable.is_empty());
        assert!(inventory.driver.why().unwrap().contains("`gpu` of odeon"));
    }
}
