//! The company of an actor: nodes where another is, or is not.

use odeon_placement::Level;

use crate::actor::handler::Actor;
use crate::base::id::Ref;
use crate::base::needs::{Company, Needs};

impl Needs {
    /// On the node of this actor. A member of a gang stands for all of it.
    pub fn near<A>(self, other: &Ref<A>) -> Self
    where
        A: Actor,
    {
        self.near_at(other, Level::Node)
    }

    /// In the same group of a topology level as this actor, such as its rack or NVLink domain.
    pub fn near_at<A: Actor>(mut self, other: &Ref<A>, level: Level) -> Self {
        self.company.push(Company {
            actor: other.id,
            name: A::NAME.to_owned(),
            level,
            apart: false,
            wish: false,
        });
        self
    }

    /// On a node where this actor is not.
    pub fn apart_from<A: Actor>(mut self, other: &Ref<A>) -> Self {
        self.company.push(Company {
            actor: other.id,
            name: A::NAME.to_owned(),
            level: Level::Node,
            apart: true,
            wish: true,
        });
        self
    }
}
