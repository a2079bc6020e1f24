//! Counts that the kernel keeps of a machine: of its network, its disks and its paging, from `/proc` and `/sys`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Metric;
use crate::base::clock::{Clock, Timestamp};

/// Reads what the kernel counts. Which cards and disks there are is looked at now and then.
#[derive(Debug)]
pub(super) struct Counters {
    proc: PathBuf,
    sys: PathBuf,
    parts: Option<(Timestamp, Parts)>,
}

/// The parts of a machine of which something is counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    /// Network cards, by name.
    cards: Vec<String>,
    /// Disks, by name, without their partitions.
    disks: Vec<String>,
    /// Ports of RDMA cards, by their folders.
    ports: Vec<PathBuf>,
}

/// The time after which it is looked again which parts there are.
const PARTS_EVERY: Duration = Duration::from_secs(30);
/// Disks count in these, whatever theirs are.
const SECTOR: f64 = 512.0;
/// Ports of RDMA cards count bytes in fours.
const RDMA_WORD: f64 = 4.0;
/// Counts of an RDMA port that say that something was lost on the way or sent again, as mlx5 names them.
const RDMA_RETRIES: [&str; 4] = [
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
];

impl Default for Counters {
    fn default() -> Self {
        Self::at("/proc", "/sys")
    }
}

impl Counters {
    /// The kernel's files, at these places.
    fn at(proc: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Self {
        Self {
            proc: proc.into(),
            sys: sys.into(),
            parts: None,
        }
    }

    /// All that is told: a file that is not there is left out.
    pub(super) fn read(&mut self) -> Vec<(Metric, f64)> {
        let now = Clock::now();
        let known = self.parts.take();
        let known = known.filter(|(at, _)| now.since(*at) < PARTS_EVERY);
        let (at, parts) = known.unwrap_or_else(|| (now, Parts::of(&self.sys)));
        let text = |path: &str| fs::read_to_string(self.proc.join(path)).unwrap_or_default();
        let mut told: Vec<(Metric, f64)> = vec![];
        told.extend(load(&text("loadavg")).map(|it| (Metric::Load, it)));
        let faults = number_after(&text("vmstat"), "pgmajfault ");
        told.extend(faults.map(|it| (Metric::MajorFaults, it)));
        told.extend(network(&text("net/dev"), &parts.cards));
        let again = tcp_retransmits(&text("net/snmp"));
        told.extend(again.map(|it| (Metric::Retransmits, it)));
        told.extend(disks(&text("diskstats"), &parts.disks));
        told.extend(rdma(&parts.ports));
        self.parts = Some((at, parts));
        told
    }
}

impl Parts {
    fn of(sys: &Path) -> Self {
        // What is made of software, such as a bridge, has no device, and counts what a card counts again.
        let with_device = |folder: &str| {
            let all = names(&sys.join(folder));
            let (real, made): (Vec<_>, Vec<_>) = (all.into_iter())
                .partition(|name| sys.join(folder).join(name).join("device").exists());
            (real, made)
        };
        let (real, made) = with_device("class/net");
        let cards = match real.is_empty() {
            // In a container there is but an end of a pair.
            true => made.into_iter().filter(|it| it != "lo").collect(),
            false => real,
        };
        let rdma = sys.join("class/infiniband");
        let ports = names(&rdma).into_iter().flat_map(|card| {
            let ports = rdma.join(card).join("ports");
            names(&ports).into_iter().map(move |it| ports.join(it))
        });
        Self {
            cards,
            disks: with_device("block").0,
            ports: ports.collect(),
        }
    }
}

/// The names in a folder, in their order; none where it is not there.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The mean over a minute, from `/proc/loadavg`.
fn load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The number behind the word that a line begins with.
fn number_after(text: &str, word: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.trim().parse().ok()
}

/// Bytes, and packets that were lost, of cards in `/proc/net/dev`.
fn network(text: &str, cards: &[String]) -> Vec<(Metric, f64)> {
    let (mut received, mut sent, mut lost, mut some) = (0.0, 0.0, 0.0, false);
    for line in text.lines() {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        if !cards.iter().any(|card| card == name.trim()) {
            continue;
        }
        let counts = counts.split_whitespace().map_while(|it| it.parse().ok());
        let counts: Vec<f64> = counts.collect();
        // Of both ways: bytes, packets, broken, dropped, and four more.
        if let [
            bytes_in,
            _,
            broken_in,
            dropped_in,
            _,
            _,
            _,
            _,
            bytes_out,
            _,
            broken_out,
            dropped_out,
            ..,
        ] = counts[..]
        {
            received += bytes_in;
            sent += bytes_out;
            lost += broken_in + dropped_in + broken_out + dropped_out;
            some = true;
        }
    }
    match some {
        true => vec![
            (Metric::Received, received),
            (Metric::Sent, sent),
            (Metric::NetErrors, lost),
        ],
        false => vec![],
    }
}

/// `RetransSegs` of `/proc/net/snmp`: a line of names, then one of numbers.
fn tcp_retransmits(text: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|it| it.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let place = names
        .split_whitespace()
        .position(|it| it == "RetransSegs")?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

/// Bytes of disks in `/proc/diskstats`.
fn disks(text: &str, disks: &[String]) -> Vec<(Metric, f64)> {
    let mut sums: BTreeMap<Metric, f64> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let of_disk = fields
            .get(2)
            .is_some_and(|name| disks.iter().any(|it| it == name));
        // Reads, merged, sectors, ms; then the same of writes.
        for (metric, place) in [(Metric::DiskRead, 5), (Metric::DiskWritten, 9)] {
            let sectors = fields.get(place).and_then(|it| it.parse::<f64>().ok());
            if let Some(sectors) = sectors.filter(|_| of_disk) {
                *sums.entry(metric).or_default() += sectors * SECTOR;
            }
        }
    }
    sums.into_iter().collect()
}

/// Bytes and retries of RDMA ports.
fn rdma(ports: &[PathBuf]) -> Vec<(Metric, f64)> {
    let mut sums: BTreeMap<Metric, f64> = BTreeMap::new();
    for port in ports {
        let mut add = |metric, path: &str, times: f64| {
            let count = fs::read_to_string(port.join(path)).ok();
            if let Some(count) = count.and_then(|it| it.trim().parse::<f64>().ok()) {
                *sums.entry(metric).or_default() += count * times;
            }
        };
        add(Metric::RdmaReceived, "counters/port_rcv_data", RDMA_WORD);
        add(Metric::RdmaSent, "counters/port_xmit_data", RDMA_WORD);
        for path in RDMA_RETRIES {
            add(Metric::RdmaRetries, path, 1.0);
        }
    }
    sums.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn folder() -> PathBuf {
        std::env::temp_dir().join(format!("odeon-{:016x}", rand::random::<u64>()))
    }

    /// Two cards, a bridge above one, a disk with a partition and a loop, and an RDMA card.
    fn machine(root: &Path) -> Counters {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
        write(&proc, "loadavg", "3.25 1.00 0.50 2/99 7\n");
        write(&proc, "vmstat", "pgpgin 9\npgmajfault 12\n");
        let card = |name: &str, times: u64| {
            format!(
                "{name}: {} 1 {times} 1 0 0 0 0 {} 1 1 0 0 0 0 0\n",
                100 * times,
                10 * times
            )
        };
        let dev = format!(
            "Inter-| Receive | Transmit\n face |bytes packets\n{}{}{}{}",
            card("    lo", 9),
            card("  eth0", 1),
            card("  eth1", 2),
            card("   br0", 5)
        );
        write(&proc, "net/dev", &dev);
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 41 0\n";
        write(&proc, "net/snmp", snmp);
        let disks = "259 0 nvme0n1 1 0 4 9 1 0 8 9 0 0 0\n259 1 nvme0n1p1 1 0 4 9 1 0 8 9 0\n7 0 loop0 1 0 5 1 1 0 5\n";
        write(&proc, "diskstats", disks);
        for folder in ["class/net/lo", "class/net/br0", "block/loop0"] {
            fs::create_dir_all(sys.join(folder)).unwrap();
        }
        for folder in ["class/net/eth0", "class/net/eth1", "block/nvme0n1"] {
            fs::create_dir_all(sys.join(folder)).unwrap();
            symlink("/", sys.join(folder).join("device")).unwrap();
        }
        let port = "class/infiniband/mlx5_0/ports/1";
        write(&sys, &format!("{port}/counters/port_rcv_data"), "25\n");
        write(&sys, &format!("{port}/counters/port_xmit_data"), "50\n");
        write(&sys, &format!("{port}/hw_counters/out_of_sequence"), "3\n");
        write(&sys, &format!("{port}/hw_counters/packet_seq_err"), "4\n");
        Counters::at(proc, sys)
    }

    #[test]
    fn cards_and_disks_are_counted_once_and_nothing_is_made_up() {
        let root = folder();
        let told = machine(&root).read();
        let expect = [
            (Metric::Load, 3.25),
            (Metric::MajorFaults, 12.0),
            (Metric::Received, 300.0),
            (Metric::Sent, 30.0),
            (Metric::NetErrors, 7.0),
            (Metric::Retransmits, 41.0),
            (Metric::DiskRead, 2048.0),
            (Metric::DiskWritten, 4096.0),
            (Metric::RdmaReceived, 100.0),
            (Metric::RdmaSent, 200.0),
            (Metric::RdmaRetries, 7.0),
        ];
        assert_eq!(told, expect);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(Counters::at(&root, &root).read(), []);
    }

    #[test]
    fn what_is_cut_is_left_out() {
        assert_eq!(load(""), None);
        assert_eq!(tcp_retransmits("Tcp: RetransSegs\n"), None);
        assert_eq!(tcp_retransmits("Tcp: RetransSegs\nTcp: \n"), None);
        assert_eq!(network("eth0: 1 2 3\n", &["eth0".to_owned()]), []);
        assert_eq!(disks("8 0 sda 1 2\n", &["sda".to_owned()]), []);
    }
}
