//! Predictions of what a change of the cluster would do, before anyone makes it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Demand, Health, Lease, Liveness, Node, Plan, Quota, Refusal, View, solve};

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A node joins, or takes the place of the one with its name.
    Add(Box<Node>),
    /// A node goes, with all that runs on it.
    Remove(String),
    /// A node takes no new work, and what runs on it is to move.
    Drain(String),
    /// A device goes out of service.
    Quarantine {
        /// Its node.
        node: String,
        /// Its number there.
        device: u32,
    },
    /// A holder ends.
    Release(String),
    /// A job gets other limits.
    Quota {
        /// The job.
        job: String,
        /// Its limits from then on.
        quota: Quota,
    },
}

/// The outlook of one demand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outlook {
    /// It has this place.
    Placed(Plan),
    /// It has none.
    Refused(Refusal),
}

/// The predicted effect of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Holders that lose a lease by the change, each with where it could go. A gang that loses a part
    /// starts anew as a whole. Unknown if its demand was not given.
    pub displaced: Vec<(String, Option<Outlook>)>,
    /// The demands that wait, each as it is now and as it would be, in the order given.
    pub waiting: Vec<WaitingDemand>,
}

/// A demand without a place, before and after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingDemand {
    /// The holder of the demand.
    pub holder: String,
    /// As it is now.
    pub now: Outlook,
    /// As it would be.
    pub then: Outlook,
}

/// Tells what a change would do to those who have places and to those who wait for one.
///
/// `demands` are those of both: whose holder has a lease has a place. They are looked at one after
/// the other in the order given, the displaced ones first; what is placed takes its room.
///
/// # Errors
/// If the change names a node, device or holder that is not there.
pub fn what_if(view: &View, change: &Change, demands: &[Demand]) -> Result<WhatIf, UnknownTarget> {
    let mut after = view.clone();
    let lost: BTreeSet<String> = apply(&mut after, change)?.into_iter().collect();
    for holder in &lost {
        after.release(holder);
    }
    let has_place = |demand: &&Demand| view.places_of(&demand.holder).next().is_some();
    let again = demands
        .iter()
        .filter(|demand| lost.contains(&demand.holder));
    let again = in_turn(&mut after, again);
    let outlook = |holder: String| {
        let known = again.iter().find(|(name, _)| *name == holder);
        (holder, known.map(|(_, outlook)| outlook.clone()))
    };
    let displaced = lost.into_iter().map(outlook).collect();
    let waits = || demands.iter().filter(|demand| !has_place(demand));
    let now = in_turn(&mut view.clone(), waits());
    let then = in_turn(&mut after, waits());
    let waiting = now.into_iter().zip(then);
    let waiting = waiting.map(|((holder, now), (_, then))| WaitingDemand { holder, now, then });
    Ok(WhatIf {
        displaced,
        waiting: waiting.collect(),
    })
}

/// A change that names something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster has no {0}")]
pub struct UnknownTarget(pub String);

/// Makes the change, and gives the holders that lose something by it.
fn apply(view: &mut View, change: &Change) -> Result<Vec<String>, UnknownTarget> {
    let holders = |view: &View, name: &str, lose: &dyn Fn(&Lease) -> bool| {
        let node = view.node(name);
        let node = node.ok_or_else(|| UnknownTarget(format!("node {name}")))?;
        let lost = node.leases().filter(|lease| lose(lease));
        Ok(lost.map(|lease| lease.holder.clone()).collect())
    };
    match change {
        Change::Add(node) => view.put(Node::clone(node)),
        Change::Remove(name) => {
            let lost = holders(view, name, &|_| true);
            view.remove(name);
            return lost;
        }
        Change::Drain(name) => {
            view.update(name, |node| node.liveness = Liveness::Draining);
            return holders(view, name, &|_| true);
        }
        Change::Quarantine { node: name, device } => {
            let mut known = false;
            view.update(name, |node| {
                for of in node.devices.iter_mut().filter(|of| of.index == *device) {
                    of.health = Health::Quarantined("out of service".into());
                    known = true;
                }
            });
            let uses = |lease: &Lease| lease.devices.iter().any(|grant| grant.index == *device);
            let lost = holders(view, name, &uses)?;
            if !known {
                return Err(UnknownTarget(format!("device {device} on {name}")));
            }
            return Ok(lost);
        }
        Change::Release(holder) => {
            if view.release(holder).is_empty() {
                return Err(UnknownTarget(format!("holder {holder}")));
            }
        }
        Change::Quota { job, quota } => view.set_quota(job, quota.clone()),
    }
    Ok(Vec::new())
}

fn in_turn<'d>(
    view: &mut View,
    demands: impl Iterator<Item = &'d Demand>,
) -> Vec<(String, Outlook)> {
    let outlook = |demand: &Demand| match solve(view, std::slice::from_ref(demand)) {
        Ok(plan) => {
            view.grant(&plan);
            (demand.holder.clone(), Outlook::Placed(plan))
        }
        Err(refusal) => (demand.holder.clone(), Outlook::Refused(refusal)),
    };
    demands.map(outlook).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resources;

    fn named(name: &str, gpus: u32) -> Demand {
        Demand::new("job", name, Resources::new())
            .gpus(1)
            .gang(gpus)
    }

    fn node(name: &str, gpus: u32) -> Node {
        Node::new(name, Resources::new()).gpus(gpus, "H200", 1 << 30)
    }

    fn places(outlook: &Outlook) -> String {
        match outlook {
            Outlook::Placed(plan) => {
                let nodes: Vec<&str> = plan.leases.iter().map(|lease| &*lease.node).collect();
                nodes.join(" ")
            }
            Outlook::Refused(refusal) => refusal.to_string(),
        }
    }

    /// `a` and `b` have four devices each; `runs` holds three of `a`, `waits` asks for six.
    fn scene() -> (View, [Demand; 2]) {
        let mut view = View::new([node("a", 4), node("b", 4)]);
        let demands = [named("runs", 3), named("waits", 6)];
        view.grant(&solve(&view, &demands[..1]).unwrap());
        (view, demands)
    }

    #[test]
    fn a_node_more_gives_those_who_wait_a_place() {
        let (view, demands) = scene();
        let change = Change::Add(Box::new(node("c", 2)));
        let told = what_if(&view, &change, &demands).unwrap();
        assert!(told.displaced.is_empty());
        let [waiting] = &told.waiting[..] else {
            panic!("{told:?}")
        };
        assert!(places(&waiting.now).starts_with("no place for waits"));
        assert_eq!(places(&waiting.then), "b b b b c c");
    }

    #[test]
    fn whoever_loses_a_place_is_told_where_it_could_go() {
        let (view, demands) = scene();
        for change in [Change::Drain("a".into()), Change::Remove("a".into())] {
            let told = what_if(&view, &change, &demands).unwrap();
            let [(holder, Some(outlook))] = &told.displaced[..] else {
                panic!("{told:?}")
            };
            assert_eq!((&**holder, &*places(outlook)), ("runs", "b b b"));
        }
        let change = Change::Quarantine {
            node: "a".into(),
            device: 3,
        };
        assert!(
            what_if(&view, &change, &demands)
                .unwrap()
                .displaced
                .is_empty()
        );
        let told = what_if(&view, &Change::Drain("a".into()), &[]).unwrap();
        assert_eq!(
            told.displaced,
            [("runs".to_owned(), None)],
            "its demand is not known"
        );
        let ends = Change::Release("runs".into());
        let told = what_if(&view, &ends, &demands).unwrap();
        assert_eq!(places(&told.waiting[0].then), "a a a a b b");
        let quota = Quota {
            gpu_milli: Some(3_000),
            ..Quota::default()
        };
        let limit = Change::Quota {
            job: "job".into(),
            quota,
        };
        let told = what_if(&view, &limit, &demands).unwrap();
        assert!(places(&told.waiting[0].then).contains("job may hold 3 gpu"));
    }

    #[test]
    fn a_change_of_something_unknown_is_refused() {
        let (view, demands) = scene();
        let device = |node: &str, device| Change::Quarantine {
            node: node.into(),
            device,
        };
        for (change, reason) in [
            (Change::Drain("x".into()), "the cluster has no node x"),
            (Change::Remove("x".into()), "the cluster has no node x"),
            (device("x", 0), "the cluster has no node x"),
            (device("a", 9), "the cluster has no device 9 on a"),
            (Change::Release("x".into()), "the cluster has no holder x"),
        ] {
            let error = what_if(&view, &change, &demands).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }
}
