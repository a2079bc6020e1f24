//! The text of a panic in an actor: its supervisor says it, with the actor's name and the place, where the
//! usual text would say it a second time and without the name.

use std::sync::Once;

use crate::actor::{console, task_context};
use crate::base::panic_place;

/// Takes the place of the usual text for panics of actors in this process, which has no log and wants no
/// backtraces. Other panics are told as before.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_told = task_context::is_in_actor() && !console::has_log();
            if is_told && let Some(place) = panic.location() {
                panic_place::note(place.to_string());
                if !wants_backtrace() {
                    return;
                }
            }
            usual(panic);
        }));
    });
}

fn wants_backtrace() -> bool {
    std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0")
}
