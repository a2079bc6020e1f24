//! Flags for what a job asks for, and the quantities that they take.

use std::time::Duration;

use anyhow::{Result, bail};
use odeon_client::types::{Allotment, JobResources};
use odeon_cluster::DiskBound;

use super::{RankArgs, RankRange};

/// The resources that a job reserves before it begins: all of them, or it waits.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ResourceArgs {
    /// Devices that it reserves, all on one node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) gpus: Option<u32>,
    /// So many ranks, each of which reserves that; else its driver does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "gang")]
    pub(crate) ranks: Option<u32>,
    /// The longest time that a try of it may take, with the bringing of its files: 90s, 30m, 2h, 1d12h. One that says so may go ahead
    /// of others while they wait for room
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) time_limit: Option<Duration>,
    /// A try that has neither printed anything nor used a processor for so long is ended: 30m, 2h
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) idle_limit: Option<Duration>,
}

impl ResourceArgs {
    /// The resources that the flags ask for, with those of a gang's ranks; nothing, where they say nothing.
    pub(crate) fn asked(
        &self,
        gang: Option<RankRange>,
        each: &RankArgs,
    ) -> Result<Option<JobResources>> {
        let devices = match (self.gpus, each.devices_per_rank) {
            (Some(_), Some(_)) => bail!("--gpus and --devices-per-rank say the same: give one"),
            (gpus, per_rank) => gpus.or(per_rank),
        };
        let allotment = Allotment {
            // Checked when it was read: a thousandth at least, and a thousand at most.
            cpu_milli: each.cpus.map_or(0, |cores| (cores * 1000.0).round() as u64),
            memory_bytes: each.memory.unwrap_or(0),
            devices: devices.unwrap_or(0),
            device_memory_bytes: each.device_memory.unwrap_or(0),
        };
        if allotment.device_memory_bytes > 0 && allotment.devices == 0 {
            bail!("--device-memory is of devices: say how many (--gpus)");
        }
        if allotment == Allotment::default() {
            if self.ranks.is_some() {
                bail!(
                    "--ranks says how many reserve something: say what (--cpus, --memory, --gpus)"
                );
            }
            return Ok(None);
        }
        let ranks = self.ranks.map(|ranks| RankRange {
            least: ranks,
            most: ranks,
        });
        Ok(Some(match gang.or(ranks) {
            Some(ranks) => JobResources {
                ranks: ranks.least,
                ranks_max: ranks.is_elastic().then_some(ranks.most),
                rank: allotment,
                ..JobResources::default()
            },
            None => JobResources {
                driver: allotment,
                ..JobResources::default()
            },
        }))
    }
}

/// A number of bytes: `4GiB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let refused = || {
        format!(
            "`{text}` is no size: write a number and KiB, MiB, GiB or TiB, such as 4GiB or 1.5GiB"
        )
    };
    let unit = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.ok_or_else(refused)?;
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let is_number = match number.split_once('.') {
        Some((whole, part)) => plain(whole) && plain(part),
        None => plain(number),
    };
    let number: f64 = number
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(refused)?;
    let bytes = number * 2f64.powi(shift as i32);
    // What fits exactly into the numbers that travel.
    if !(1024.0..=2f64.powi(50)).contains(&bytes) {
        return Err(format!(
            "`{text}` is no size that a node has: at least 1KiB, at most 1024TiB"
        ));
    }
    Ok(bytes as u64)
}

/// A time: `1h30m`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
    let refused = || {
        format!(
            "`{text}` is no time: write numbers with d, h, m or s, largest first, such as 2h or 1h30m"
        )
    };
    let (mut rest, mut units, mut seconds) = (text, UNITS.as_slice(), 0u64);
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(refused)?;
        let number: u64 = rest[..end].parse().map_err(|_| refused())?;
        let unit = rest[end..].chars().next().ok_or_else(refused)?;
        let at = units.iter().position(|(known, _)| *known == unit);
        let at = at.ok_or_else(refused)?;
        let part = number.checked_mul(units[at].1).ok_or_else(refused)?;
        seconds = seconds.checked_add(part).ok_or_else(refused)?;
        units = &units[at + 1..];
        rest = &rest[end + 1..];
    }
    match seconds {
        1..=YEAR_S => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "`{text}` is no time that is possible here: at least 1s, at most 366d"
        )),
    }
}

/// The room that a disk is to have: `5%` or `20GiB`.
pub(super) fn disk_bound(text: &str) -> Result<DiskBound, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return size(text).map(DiskBound::Bytes);
    };
    let percent = percent.parse().ok().filter(|percent| *percent <= 100);
    percent.map(DiskBound::Share).ok_or_else(|| {
        format!("`{text}` is no part of a disk: write 0% to 100%, or a size such as 20GiB")
    })
}

/// A grace: a time, or a number of seconds.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => span(text)?,
    };
    match time.as_secs() {
        ..=GRACE_MAX_S => Ok(time),
        _ => Err(format!(
            "`{text}` is no grace: at most 1h, since a node that ends waits for it"
        )),
    }
}

/// The longest grace.
pub(super) const GRACE_MAX_S: u64 = 3600;
/// The longest time limit.
const YEAR_S: u64 = 366 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_strictly() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("1.5GiB", 3 << 29),
            ("512MiB", 512 << 20),
            ("1KiB", 1 << 10),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "4", "GiB", "4GB", "4G", "4gib", "-1GiB", "+1GiB", "1e3GiB", "1.GiB", ".5GiB",
            "4 GiB", "nanGiB", "infGiB", "0GiB", "2048TiB", "1.2.3GiB",
        ] {
            let why = size(text).unwrap_err();
            assert!(why.contains(&format!("`{text}`")), "{why}");
        }
    }

    #[test]
    fn the_room_of_a_disk_is_a_part_or_a_size() {
        assert_eq!(disk_bound("5%"), Ok(DiskBound::Share(5)));
        assert_eq!(disk_bound("0%"), Ok(DiskBound::Share(0)));
        assert_eq!(disk_bound("2GiB"), Ok(DiskBound::Bytes(2 << 30)));
        for text in ["", "%", "5", "101%", "-1%", "5 %", "1.5%"] {
            let why = disk_bound(text).unwrap_err();
            assert!(why.contains(&format!("`{text}`")), "{why}");
        }
    }

    #[test]
    fn times_are_read_strictly() {
        for (text, seconds) in [
            ("2h", 7200),
            ("90s", 90),
            ("1h30m", 5400),
            ("1d12h", 129_600),
            ("1d1h1m1s", 90_061),
        ] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "2",
            "h",
            "2 h",
            "30m1h",
            "1h1h",
            "-1h",
            "1.5h",
            "0s",
            "400d",
            "2w",
            "2hours",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            let why = span(text).unwrap_err();
            assert!(why.contains(&format!("`{text}`")), "{why}");
        }
    }
}
