//! The place in the source of a panic, from the hook that sees it to whoever catches it on the same thread.

use std::cell::RefCell;

thread_local!(static PLACE: RefCell<Option<String>> = const { RefCell::new(None) });

/// Notes where the present panic is.
pub(crate) fn note(place: String) {
    // A panic while this thread ends is nobody's.
    let _ = PLACE.try_with(|noted| noted.replace(Some(place)));
}

/// The place of the panic that was just caught, if one was noted.
pub(crate) fn take() -> Option<String> {
    PLACE.try_with(RefCell::take).ok().flatten()
}
