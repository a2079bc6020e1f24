//! A person's hand on recovery: what is forbidden is told, what is forced is done, while a run goes on.

use odeon_actors::ranks::desk::{
    OrderRecovery, OrderRefused, RecoveryDesk, RecoveryOrder, RecoveryOrdered, ShowRecovery,
    desk_name,
};
use odeon_diagnosis::ladder::{Forbidden, OrderedAction, OrderedBy};

use super::recovery::{of_ranks, pid_of, recovered};
use super::*;

/// Orders something of the run of a system.
async fn ordered(system: &System, order: RecoveryOrder) -> Result<RecoveryOrdered, OrderRefused> {
    let desk = system.lookup::<RecoveryDesk>(&desk_name("")).await.unwrap();
    let order = OrderRecovery {
        order,
        by: "bob".to_owned(),
        why: "it is my turn".to_owned(),
    };
    desk.ask(order).await.unwrap()
}

/// A node that takes no process for dead that is only stopped, however long people take.
fn patient() -> SystemBuilder {
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    limits.link_idle_timeout = Duration::from_mins(5);
    node().limits(limits)
}

/// SEMANTICS 198, 199, 202. The rank stands still, which an earlier try's order has nothing done about, until a person
/// has its process ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_forbids_is_left_alone_until_it_is_forced() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&of_ranks(folder.path(), 2), |_, _, _, _| {}).await;
    let other = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(other.path(), 2);
    plan.forbidden = vec![Forbidden {
        action: OrderedAction::EndProcess,
        by: OrderedBy {
            name: "ann".to_owned(),
            why: "a debugger is there".to_owned(),
        },
    }];
    // Once where others wait for it in a step, and once before it saves, where nobody calls it.
    let mut at = vec![9, 5];
    let mut orders = vec![1; 2].into_iter().map(|rank| RecoveryOrder::Force {
        action: "end-process".to_owned(),
        rank: Some(rank),
    });
    let (mut refused, mut sent) = (None, vec![]);
    let system = patient().start().await.unwrap();
    let disturbed = told_on(&system, &plan, |report, system, members, _| match report {
        Report::Step(step) if at.last().is_some_and(|it| step.step >= *it) => {
            at.pop();
            kill_process(pid_of(&[system], members, "rank-1"), Signal::STOP).unwrap();
        }
        Report::Recovery { action, .. } if action == "tell" => {
            let (system, order) = (system.clone(), orders.next().unwrap());
            let wrong = RecoveryOrder::Force {
                action: "end_process".to_owned(),
                rank: Some(7),
            };
            sent.push(tokio::spawn(async move {
                let wrong = ordered(&system, wrong).await;
                let desk = system.lookup::<RecoveryDesk>(&desk_name("")).await.unwrap();
                let shown = desk.ask(ShowRecovery).await.unwrap();
                (wrong, shown, ordered(&system, order).await)
            }));
        }
        _ => {}
    });
    let disturbed = disturbed.await;
    for answer in sent {
        let (wrong, shown, done) = answer.await.unwrap();
        let forbids = ("end_process".to_owned(), "ann".to_owned());
        let told = shown.forbidden.into_iter().map(|it| (it.0, it.1));
        assert_eq!(told.collect::<Vec<_>>(), [forbids]);
        assert!(shown.at_work && shown.ranks.len() == 2 && shown.restarts == 0);
        done.unwrap();
        refused = Some(wrong.unwrap_err().to_string());
    }
    system.shutdown().await;
    let refused = refused.unwrap();
    assert_eq!(refused, "there is no rank 7: the run has ranks 0 to 1");
    let done = recovered(&disturbed);
    let actions: Vec<_> = done.iter().map(|it| it.0).collect();
    let both = ["tell", "end_process"].repeat(2);
    assert_eq!(actions, both, "{done:?}");
    let says = [
        "nothing is done: ann forbids it: a debugger is there",
        "bob asked for it: it is my turn; it is made again in its place (not counted)",
    ];
    for (it, says) in done.iter().zip(says.repeat(2)) {
        assert!(it.3.contains(says), "{done:?}");
    }
    assert_eq!(disturbed.lives().len(), 3);
    assert_eq!(disturbed.made(), undisturbed.made());
}
