//! Orders of people about the ranks of a run's models, over all lives of these.

use futures::future::{BoxFuture, FutureExt, join_all};
use odeon::{Failure, Ref, System};
use odeon_diagnosis::ladder::LadderPolicy;

use super::placement::Model;
use crate::ranks::board::{Orders, RecoveryBoard};
use crate::ranks::desk::{OpenBoard, RecoveryDesk};
use crate::ranks::recovery::record_order;

/// The models whose ranks may be ordered about, with the role that each has for people.
const ROLES: [(Model, &str); 5] = [
    (Model::Policy, "trainer"),
    (Model::Critic, "critic"),
    (Model::CostCritic, "cost-critic"),
    (Model::Reference, "reference"),
    (Model::Reward, "reward-model"),
];

/// The boards of all models whose ranks share them, each with its desk.
#[derive(Debug)]
pub(super) struct Recoveries {
    boards: Vec<(Model, RecoveryBoard)>,
    open: Vec<(OpenBoard, Ref<RecoveryDesk>)>,
    orders: Vec<(RecoveryBoard, Orders)>,
}

impl Recoveries {
    /// Opens those of these models.
    ///
    /// # Errors
    /// A desk does not start.
    pub(super) async fn open(
        system: &System,
        models: &[Model],
        policy: &LadderPolicy,
    ) -> Result<Self, Failure> {
        let mut all = Self {
            boards: vec![],
            open: vec![],
            orders: vec![],
        };
        for (model, role) in ROLES
            .into_iter()
            .filter(|(model, _)| models.contains(model))
        {
            let admin = system.admin().clone();
            let (board, orders) = RecoveryBoard::new((admin, role), policy.clone(), None);
            let open = OpenBoard::new(board.clone());
            let desk = system.spawn::<RecoveryDesk>(open.of_role(role)).await;
            all.open.push((open, desk.map_err(Failure::error)?));
            all.orders.push((board.clone(), orders));
            all.boards.push((model, board));
        }
        Ok(all)
    }

    /// The board of a model.
    pub(super) fn board(&self, model: Model) -> Option<&RecoveryBoard> {
        let found = self.boards.iter().find(|(known, _)| *known == model);
        found.map(|(_, board)| board)
    }

    /// Takes that a process was ended for a person since it was last asked.
    pub(super) fn take_ended_for_person(&self) -> bool {
        let boards = self.boards.iter();
        let ended =
            boards.map(|(_, board)| board.with(|it| std::mem::take(&mut it.ended_for_person)));
        ended.fold(false, |any, ended| any | ended)
    }

    /// Tells what is ordered, for as long as it is polled.
    pub(super) fn told(&mut self) -> BoxFuture<'static, ()> {
        let orders = std::mem::take(&mut self.orders).into_iter();
        let told = orders.map(async |(board, orders)| {
            let never = std::future::pending::<()>();
            orders
                .beside(|acted| record_order(&board, &acted), never)
                .await;
        });
        join_all(told).map(drop).boxed()
    }

    /// Ends the desks.
    pub(super) async fn close(self) {
        for (open, desk) in self.open {
            if let Err(error) = desk.stop().await {
                tracing::debug!(%error, "a desk was gone already");
            }
            drop(open);
        }
    }
}
