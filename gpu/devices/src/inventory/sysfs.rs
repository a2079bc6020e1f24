//! Cards as the kernel shows them under `/sys`, without any vendor's library.
//!
//! Every function takes the root, so that tests bring a tree of their own.

use std::fs;
use std::path::Path;

use super::{Reading, UnusableCard};

/// PCI vendor of NVIDIA.
pub const NVIDIA: u16 = 0x10de;
/// PCI vendor of AMD.
pub const AMD: u16 = 0x1002;

/// Graphics cards of makers other than NVIDIA, by bus address, with why they are not used.
///
/// Displays of virtual machines and of boards are left out: only AMD, whose cards compute, is
/// listed. An empty list where `/sys` holds no such folder.
#[must_use]
pub fn unusable_cards(sys: &Path) -> Vec<UnusableCard> {
    let Ok(entries) = fs::read_dir(sys.join("class/drm")) else {
        return vec![];
    };
    let mut cards: Vec<UnusableCard> = entries
        .filter_map(Result::ok)
        .filter(|entry| is_card(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| {
            let device = entry.path().join("device");
            let vendor = hexadecimal(&fs::read_to_string(device.join("vendor")).ok()?)?;
            let name = fs::canonicalize(&device).ok().and_then(|path| {
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
            });
            (vendor == AMD).then(|| UnusableCard {
                bus_id: name.unwrap_or_else(|| entry.file_name().to_string_lossy().into_owned()),
                vendor,
                why: "an AMD card (vendor 0x1002): this build computes on NVIDIA cards only"
                    .to_owned(),
            })
        })
        .collect();
    cards.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
    cards.dedup();
    cards
}

/// The NUMA node of the device at this bus address.
#[must_use]
pub fn numa_node(sys: &Path, bus_id: &str) -> Reading<u32> {
    let path = device_path(sys, bus_id).join("numa_node");
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse::<i64>() {
            Ok(node) if node >= 0 => u32::try_from(node).map_or_else(
                |_| Reading::unmeasured(format!("{}: {node} is no node", path.display())),
                Reading::Measured,
            ),
            Ok(_) => Reading::unmeasured("the machine does not say to which NUMA node it belongs"),
            Err(error) => Reading::unmeasured(format!("{}: {error}", path.display())),
        },
        Err(error) => Reading::unmeasured(format!("{}: {error}", path.display())),
    }
}

/// Bus address of the upstream port of the PCIe switch nearest above the device.
#[must_use]
pub fn pcie_switch(sys: &Path, bus_id: &str) -> Reading<String> {
    let path = device_path(sys, bus_id);
    match fs::canonicalize(&path) {
        Ok(real) => match switch_above(&real) {
            Some(switch) => Reading::Measured(switch),
            None => Reading::unmeasured("no PCIe switch is visible above the device"),
        },
        Err(error) => Reading::unmeasured(format!("{}: {error}", path.display())),
    }
}

/// The switch on a path such as
/// `/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0`:
/// root port, upstream port, downstream port, device. The upstream port stands for the switch.
fn switch_above(path: &Path) -> Option<String> {
    let ports: Vec<&str> = path
        .iter()
        .filter_map(|part| part.to_str())
        .filter(|part| is_bus_id(part))
        .collect();
    (ports.len() >= 4).then(|| ports[ports.len() - 3].to_owned())
}

fn device_path(sys: &Path, bus_id: &str) -> std::path::PathBuf {
    sys.join("bus/pci/devices").join(kernel_bus_id(bus_id))
}

/// A bus address as the kernel writes it: NVML has eight digits of domain and upper case.
#[must_use]
pub(super) fn kernel_bus_id(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            let keep = domain.len() - 4;
            let (high, low) = domain.split_at_checked(keep).unwrap_or(("", domain));
            if high.bytes().all(|digit| digit == b'0') {
                format!("{low}:{rest}")
            } else {
                lower
            }
        }
        _ => lower,
    }
}

fn is_bus_id(part: &str) -> bool {
    let fields: Vec<&str> = part.split([':', '.']).collect();
    fields.len() == 4
        && fields
            .iter()
            .all(|field| !field.is_empty() && field.bytes().all(|c| c.is_ascii_hexdigit()))
}

fn is_card(name: &str) -> bool {
    name.strip_prefix("card").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

fn hexadecimal(text: &str) -> Option<u16> {
    u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let real = sys
            .path()
            .join("devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0");
        fs::create_dir_all(&real).unwrap();
        fs::write(real.join("numa_node"), "1\n").unwrap();
        fs::write(real.join("vendor"), "0x1002\n").unwrap();
        let devices = sys.path().join("bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        symlink(&real, devices.join("0000:18:00.0")).unwrap();
        for card in ["card0", "renderD128"] {
            let card = sys.path().join("class/drm").join(card);
            fs::create_dir_all(&card).unwrap();
            symlink(&real, card.join("device")).unwrap();
        }
        sys
    }

    #[test]
    fn the_bus_address_of_nvml_finds_the_node_and_the_switch_of_the_kernel() {
        let sys = tree();
        assert_eq!(
            numa_node(sys.path(), "00000000:18:00.0"),
            Reading::Measured(1)
        );
        assert_eq!(
            pcie_switch(sys.path(), "00000000:18:00.0"),
            Reading::Measured("0000:16:00.0".to_owned())
        );
        assert_eq!(kernel_bus_id("00000000:1A:00.0"), "0000:1a:00.0");
        assert_eq!(kernel_bus_id("00010000:1A:00.0"), "00010000:1a:00.0");
    }

    #[test]
    fn a_device_on_the_root_port_has_no_switch_and_a_missing_file_is_a_reason() {
        let direct = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
        assert_eq!(switch_above(direct), None);
        let sys = tempfile::tempdir().unwrap();
        for text in ["-1\n", "4294967296\n", "none\n", ""] {
            let device = sys.path().join("bus/pci/devices/0000:01:00.0");
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("numa_node"), text).unwrap();
            assert_eq!(numa_node(sys.path(), "0000:01:00.0").value(), None);
        }
        assert_eq!(pcie_switch(sys.path(), "0000:02:00.0").value(), None);
        assert_eq!(numa_node(sys.path(), "é:ü").value(), None);
    }

    #[test]
    fn a_machine_with_an_amd_card_says_so_and_one_without_cards_says_nothing() {
        let sys = tree();
        let cards = unusable_cards(sys.path());
        assert_eq!(cards.len(), 1, "the render node is the same card");
        assert_eq!(cards[0].bus_id, "0000:18:00.0");
        assert!(cards[0].why.contains("AMD"));
        assert!(unusable_cards(Path::new("/nowhere")).is_empty());
    }
}
