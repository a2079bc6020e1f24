//! Errors for models that do not fit into memory, with the bytes that are needed and there.

use super::{error::MappingError, pool::Pool, pricing::Pricing};

/// Why this model fits nowhere; or a price that is none.
pub(super) fn no_fit(
    pricing: &mut Pricing<'_>,
    model: usize,
) -> Result<MappingError, MappingError> {
    let pools = 0..pricing.pools.len();
    let largest = pools
        .rev()
        .max_by_key(|&at| usable_in_all(pricing, pricing.pools[at]));
    let at = largest.unwrap_or(0);
    let (needs_bytes, devices) = least_bytes(pricing, model, at)?;
    let pool = pricing.pools[at];
    Ok(MappingError::NoFit {
        model: pricing.models[model].model.name.clone(),
        pool: pool.name.clone(),
        devices,
        needs_bytes,
        usable_bytes: pricing.cost.usable_bytes(&pool.device),
        pool_bytes: usable_in_all(pricing, pool),
    })
}

/// Why the models do not fit all at once; or a price that is none.
pub(super) fn no_room_together(pricing: &mut Pricing<'_>) -> Result<MappingError, MappingError> {
    let mut needs_bytes = 0u64;
    for model in 0..pricing.models.len() {
        let mut least = u64::MAX;
        for (pool, devices) in pricing.places() {
            for home in pricing.homes(model, pool, devices)?.iter() {
                least = least.min(home.least_bytes().saturating_mul(u64::from(devices)));
            }
        }
        needs_bytes = needs_bytes.saturating_add(least);
    }
    let pools = pricing.pools.iter();
    Ok(MappingError::NoRoomTogether {
        needs_bytes,
        usable_bytes: pools.fold(0, |sum, pool| {
            sum.saturating_add(usable_in_all(pricing, pool))
        }),
    })
}

/// Memory of all devices of a pool that models may use, bytes.
fn usable_in_all(pricing: &Pricing<'_>, pool: &Pool) -> u64 {
    let each = pricing.cost.usable_bytes(&pool.device);
    each.saturating_mul(u64::from(pool.devices))
}

/// The fewest bytes of each device that the model needs in the pool, and over how many.
fn least_bytes(
    pricing: &mut Pricing<'_>,
    model: usize,
    pool: usize,
) -> Result<(u64, u32), MappingError> {
    let mut least = (u64::MAX, 0);
    for devices in pricing.pools[pool].allotments() {
        for home in pricing.homes(model, pool, devices)?.iter() {
            least = least.min((home.least_bytes(), devices));
        }
    }
    Ok(least)
}
