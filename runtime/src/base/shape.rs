//! The shape of a type on the wire, folded into a number at compile time.
//!
//! A method's id mixes its message's name, shape and reply shape. Two builds that disagree about
//! any of them have different ids, so the receiver answers `NoSuchMethod` and never misreads bytes.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CString, OsString};
use std::hash::Hash;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8,
    NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize, Saturating, Wrapping,
};
use std::ops::{Bound, Range, RangeFrom, RangeInclusive, RangeTo};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::base::id::{ActorId, ProcessId, Ref};

/// The layout of a type as bytes. `#[odeon::wire]` on a type derives it, with serde's traits, and so does
/// `#[message]`. The types of the standard library that serde knows have one. A type of another crate has
/// none: a field of it says `#[shape(name = "uuid.Uuid")]`, and a message that is nothing but such a value
/// is a struct with that field.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel between actors: it has no `Shape`",
    label = "this type has no layout that both sides could compare",
    note = "on a type of your own write `#[odeon::wire]`",
    note = "a field or an argument of a type of another crate says `#[shape(name = \"crate.Type\")]`"
)]
pub trait Shape {
    /// A hash of the field names, their order and their shapes.
    const SHAPE: u64;
}

/// Starts a shape from a name.
#[must_use]
pub const fn name(text: &str) -> u64 {
    text_into(0xcbf2_9ce4_8422_2325, text)
}

/// Folds a name into a shape.
#[must_use]
pub const fn text_into(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash ^= bytes[i] as u64;
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    // A separator, so that ("ab", "c") and ("a", "bc") differ.
    hash ^= 0xff;
    hash.wrapping_mul(0x0000_0100_0000_01b3)
}

/// Folds another shape into a shape (the finaliser of splitmix64 over both).
#[must_use]
pub const fn mix(hash: u64, value: u64) -> u64 {
    let mut z = (hash ^ value.rotate_left(23)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

macro_rules! plain {
    ($($t:ty),* $(,)?) => { $(impl Shape for $t { const SHAPE: u64 = name(stringify!($t)); })* };
}
plain!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    i8,
    i16,
    i32,
    i64,
    i128,
    f32,
    f64,
    String,
    Bytes,
    CString,
    OsString,
    PathBuf,
    Duration,
    SystemTime,
    IpAddr,
    Ipv4Addr,
    Ipv6Addr,
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    NonZeroU8,
    NonZeroU16,
    NonZeroU32,
    NonZeroU64,
    NonZeroU128,
    NonZeroUsize,
    NonZeroI8,
    NonZeroI16,
    NonZeroI32,
    NonZeroI64,
    NonZeroI128,
    NonZeroIsize,
    ProcessId,
    ActorId
);
impl Shape for str {
    const SHAPE: u64 = String::SHAPE;
}
impl Shape for Path {
    const SHAPE: u64 = PathBuf::SHAPE;
}
// A `usize` travels as a `u64`.
impl Shape for usize {
    const SHAPE: u64 = u64::SHAPE;
}
impl Shape for isize {
    const SHAPE: u64 = i64::SHAPE;
}

macro_rules! wraps {
    ($($t:ident),*) => { $(impl<T: Shape> Shape for $t<T> {
        const SHAPE: u64 = mix(name("seq"), T::SHAPE);
    })* };
}
wraps!(Vec, VecDeque, BTreeSet, BinaryHeap, LinkedList);
impl<T: Shape> Shape for [T] {
    const SHAPE: u64 = mix(name("seq"), T::SHAPE);
}
impl<T: Shape, S> Shape for HashSet<T, S> {
    const SHAPE: u64 = mix(name("seq"), T::SHAPE);
}
impl<T: Shape> Shape for Range<T> {
    const SHAPE: u64 = mix(name("range"), T::SHAPE);
}
impl<T: Shape> Shape for RangeInclusive<T> {
    const SHAPE: u64 = mix(name("range inclusive"), T::SHAPE);
}
impl<T: Shape> Shape for RangeFrom<T> {
    const SHAPE: u64 = mix(name("range from"), T::SHAPE);
}
impl<T: Shape> Shape for RangeTo<T> {
    const SHAPE: u64 = mix(name("range to"), T::SHAPE);
}
impl<T: Shape> Shape for Bound<T> {
    const SHAPE: u64 = mix(name("bound"), T::SHAPE);
}
impl<T: ?Sized> Shape for PhantomData<T> {
    const SHAPE: u64 = <()>::SHAPE;
}
impl<T: Shape + ToOwned + ?Sized> Shape for Cow<'_, T> {
    const SHAPE: u64 = T::SHAPE;
}
impl<T: Shape> Shape for Option<T> {
    const SHAPE: u64 = mix(name("option"), T::SHAPE);
}
macro_rules! holds {
    ($($t:ident),*) => { $(impl<T: Shape + ?Sized> Shape for $t<T> {
        const SHAPE: u64 = T::SHAPE;
    })* };
}
holds!(Box, Arc);
macro_rules! holds_sized {
    ($($t:ident),*) => { $(impl<T: Shape> Shape for $t<T> {
        const SHAPE: u64 = T::SHAPE;
    })* };
}
holds_sized!(Cell, RefCell, Reverse, Wrapping, Saturating);
impl<T: Shape, E: Shape> Shape for Result<T, E> {
    const SHAPE: u64 = mix(mix(name("result"), T::SHAPE), E::SHAPE);
}
impl<T: Shape, const N: usize> Shape for [T; N] {
    const SHAPE: u64 = mix(mix(name("array"), T::SHAPE), N as u64);
}
impl<K: Shape, V: Shape> Shape for BTreeMap<K, V> {
    const SHAPE: u64 = mix(mix(name("map"), K::SHAPE), V::SHAPE);
}
impl<K: Shape + Hash + Eq, V: Shape, S> Shape for HashMap<K, V, S> {
    const SHAPE: u64 = mix(mix(name("map"), K::SHAPE), V::SHAPE);
}
impl Shape for odeon_mesh::Mesh {
    const SHAPE: u64 = name("odeon.Mesh");
}
impl Shape for odeon_mesh::Rank {
    const SHAPE: u64 = name("odeon.Rank");
}
impl<A: ?Sized> Shape for Ref<A> {
    const SHAPE: u64 = name("Ref");
}

macro_rules! tuples {
    ($($($t:ident)+;)*) => { $(impl<$($t: Shape),+> Shape for ($($t,)+) {
        const SHAPE: u64 = { let hash = name("tuple"); $(let hash = mix(hash, $t::SHAPE);)+ hash };
    })* };
}
tuples! {
    A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; A B C D E F G H I;
    A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_layouts_have_different_shapes() {
        let shapes = [
            <(u32, u64)>::SHAPE,
            <(u64, u32)>::SHAPE,
            <Vec<u32>>::SHAPE,
            <Vec<u64>>::SHAPE,
            <Option<u32>>::SHAPE,
            <[u32; 2]>::SHAPE,
            <[u32; 3]>::SHAPE,
            <Result<u32, String>>::SHAPE,
            <Result<String, u32>>::SHAPE,
            <Vec<Vec<u32>>>::SHAPE,
        ];
        for (i, a) in shapes.iter().enumerate() {
            for b in &shapes[i + 1..] {
                assert_ne!(a, b);
            }
        }
        assert_eq!(<HashMap<u8, u8>>::SHAPE, <BTreeMap<u8, u8>>::SHAPE);
    }
}
