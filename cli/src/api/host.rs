//! The names by which this host may be called.

use std::net::IpAddr;

/// Returns true if a request that names this host is for this one: by an address, as `localhost`,
/// by the name in its certificate, or by a name that it was given.
pub(crate) fn is_own(host: &str, given: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    let usual = ["localhost", "member.odeon"].contains(&name);
    usual || name.parse::<IpAddr>().is_ok() || given.iter().any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_its_own() {
        let given = ["head.lab".to_owned()];
        for host in [
            "127.0.0.1:7433",
            "[::1]:7433",
            "localhost",
            "10.0.0.1",
            "head.lab:80",
        ] {
            assert!(is_own(host, &given), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "",
            "[evil]:1",
            "head.lab.example",
        ] {
            assert!(!is_own(host, &given), "{host}");
        }
    }
}
