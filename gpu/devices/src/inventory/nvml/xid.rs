//! The critical events of one device, taken without waiting.

use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

use crate::inventory::Xid;

/// Listens to one device. A set of its own for each device, since a failed registration consumes
/// the set, and a lost device makes every wait on a shared one fail.
#[derive(Debug)]
pub(super) struct XidWatch {
    // Before the library, so that it is dropped first.
    set: EventSet<'static>,
    _library: Arc<Nvml>,
}

impl XidWatch {
    /// Begins to listen. Events from before are not seen.
    pub(super) fn new(library: &Arc<Nvml>, index: u32) -> Result<Self, NvmlError> {
        // SAFETY: the reference is valid while any clone of the `Arc` lives. One clone lies in the
        // same value as the set and is dropped after it; neither the set nor an event borrowed from
        // it leaves this file.
        let forever: &'static Nvml = unsafe { &*Arc::as_ptr(library) };
        let device = forever.device_by_index(index)?;
        let set = device
            .register_events(EventTypes::CRITICAL_XID_ERROR, forever.create_event_set()?)
            .map_err(|failed| failed.error)?;
        Ok(Self {
            set,
            _library: Arc::clone(library),
        })
    }

    /// The events since the last call, at most `max` of them.
    pub(super) fn take(&self, max: usize) -> Result<Vec<Xid>, NvmlError> {
        let mut xids = vec![];
        while xids.len() < max {
            match self.set.wait(0) {
                Ok(event) => xids.extend(event.event_data.map(|error| Xid {
                    code: match error {
                        XidError::Value(code) => Some(code),
                        XidError::Unknown => None,
                    },
                })),
                Err(NvmlError::Timeout) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(xids)
    }
}
