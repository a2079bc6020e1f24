//! The table of what is measured once a second of a machine, its devices, its processes, and the ranks on it.

use serde::{Deserialize, Serialize};

/// The part of a node that a metric is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetricOf {
    /// The machine.
    Machine,
    /// Each of its devices.
    Device,
    /// Each of its processes.
    Process,
    /// The ranks of a job there.
    Ranks,
}

/// Metrics: what one is of, its name in the API, its name for people, and its unit; and if it counts up.
macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident $of:ident $name:literal $title:literal $unit:literal $kind:ident;)*) => {
        /// A number that is measured once a second of a machine, a device, a process, or the ranks of a job there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Metric {
            $($(#[$doc])* $variant,)*
        }

        impl Metric {
            /// All of them, in the order in which people are shown them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The part of a node that it is of.
            #[must_use]
            pub const fn of(self) -> MetricOf {
                match self { $(Self::$variant => MetricOf::$of,)* }
            }

            /// Its name in the API.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Its name for people.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Its unit; of one that counts up, that of its rate.
            #[must_use]
            pub const fn unit(self) -> &'static str {
                match self { $(Self::$variant => $unit,)* }
            }

            /// Returns true where what is measured counts up from some begin, so that its rate is what is shown.
            #[must_use]
            pub const fn counts_up(self) -> bool {
                match self { $(Self::$variant => metrics!(@ $kind),)* }
            }
        }
    };
    (@ level) => { false };
    (@ count) => { true };
}

metrics! {
    /// The part of the machine's processors that was in use.
    Cpu Machine "cpu" "processors" "share" level;
    /// Threads that run or want to, over a minute.
    Load Machine "load" "load" "" level;
    /// Bytes of the machine's memory in use.
    Memory Machine "memory" "memory" "bytes" level;
    /// Pages that a program waited for, since they had to be read from a disk.
    MajorFaults Machine "major_faults" "page-ins" "/s" count;
    /// Bytes that came in over network cards.
    Received Machine "net_received" "network in" "B/s" count;
    /// Bytes that went out over network cards.
    Sent Machine "net_sent" "network out" "B/s" count;
    /// Packets that network cards dropped or found broken.
    NetErrors Machine "net_errors" "network errors" "/s" count;
    /// Segments that TCP sent again.
    Retransmits Machine "retransmits" "TCP retransmits" "/s" count;
    /// Bytes that came in over InfiniBand or RoCE.
    RdmaReceived Machine "rdma_received" "RDMA in" "B/s" count;
    /// Bytes that went out over InfiniBand or RoCE.
    RdmaSent Machine "rdma_sent" "RDMA out" "B/s" count;
    /// Packets that RDMA cards missed, or sent again.
    RdmaRetries Machine "rdma_retries" "RDMA retries" "/s" count;
    /// Bytes read from disks.
    DiskRead Machine "disk_read" "disk reads" "B/s" count;
    /// Bytes written to disks.
    DiskWritten Machine "disk_written" "disk writes" "B/s" count;
    /// Bytes that the node sent to other nodes of its system.
    LinkSent Machine "link_sent" "sent to other nodes" "B/s" level;
    /// Connections to other nodes that broke and were taken up again.
    LinkResumed Machine "link_resumed" "links resumed" "/s" count;
    /// The part of the time in which a device computed.
    DeviceBusy Device "utilisation" "utilisation" "share" level;
    /// Bytes of a device's memory that are allocated.
    DeviceMemory Device "device_memory" "memory" "bytes" level;
    /// Draw of a device's board.
    Power Device "power" "power" "W" level;
    /// Temperature of a device's chip.
    Temperature Device "temperature" "temperature" "\u{b0}C" level;
    /// Clock of a device's multiprocessors.
    Clock Device "clock" "clock" "Hz" level;
    /// Clock of a device's memory.
    MemoryClock Device "memory_clock" "memory clock" "Hz" level;
    /// Transfers over a device's PCIe that were sent again.
    PcieReplays Device "pcie_replays" "PCIe replays" "/s" count;
    /// Processors that a process uses: 1 for one all the time.
    ProcessCpu Process "process_cpu" "processors" "" level;
    /// Bytes of memory that a process has.
    Resident Process "resident" "memory" "bytes" level;
    /// Seconds of a step in which ranks computed.
    Compute Ranks "compute" "compute" "s" level;
    /// Seconds of a step in which ranks exchanged with others, for whom they wait there.
    Exchange Ranks "exchange" "exchange" "s" level;
    /// Seconds of a step in which ranks waited for their batch.
    Wait Ranks "wait" "wait for data" "s" level;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Metric;

    #[test]
    fn names_are_told_apart() {
        let names: BTreeSet<_> = Metric::ALL.iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Metric::ALL.len());
        assert!(Metric::ALL.iter().all(|it| !it.title().is_empty()));
        assert!(Metric::Retransmits.counts_up() && !Metric::Cpu.counts_up());
    }
}
