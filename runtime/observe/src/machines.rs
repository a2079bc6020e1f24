//! Machines as they are measured, and compared with each other.

pub(crate) mod alike;
mod heat;
pub(crate) mod history;

pub use self::alike::{AlikeMachines, COMPARED, Host};
pub use self::heat::{HEAT_OVER, HEAT_POINTS, HeatCell, HeatColumn};
pub use self::history::{MachineHistory, MachinePart};
