//! A chain's order, links between its members, and whole chains: through faults, and against the
//! formula of the pipeline.

use super::*;
use crate::trajectory::Version;

mod faults;
mod links;
mod order;
mod pipeline;
mod world;

fn chain_of(relays: std::ops::Range<RelayId>) -> Chain {
    let mut chain = Chain::new(0);
    for relay in relays {
        let _ = chain.join(relay).unwrap();
    }
    chain
}

const fn holding(
    relay: RelayId,
    complete: Option<Version>,
    incoming: Option<(Version, u32)>,
) -> Holding {
    Holding {
        relay,
        complete,
        incoming,
    }
}
