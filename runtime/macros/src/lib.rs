//! Attribute and derive macros of odeon. Use them through the `odeon` crate, which re-exports them
//! and shows examples.
//!
//! Each macro writes what one would write by hand and nothing else: [`macro@Shape`] implements the
//! trait of that name, [`macro@message`] a message, [`macro@actor`] an actor with its handlers.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `actor`, `handler` | `#[actor]`, and each of its handlers |
//! | `message`, `params` | `#[message]`; the parameters of a method |
//! | `shape`, `boxed` | `#[derive(Shape)]`; `#[boxed]` |

#![forbid(unsafe_code)]

mod actor;
mod boxed;
mod handler;
mod message;
mod params;
mod shape;

use proc_macro::TokenStream;

/// Implements `odeon::Shape`: a hash of the type's name, its fields' or variants' names, their
/// order and their shapes.
///
/// Type parameters must have a shape. A field under `#[serde(skip)]` does not travel and does not
/// count. A type that contains itself has no finite shape; implement the trait by hand.
#[proc_macro_derive(Shape, attributes(serde))]
pub fn derive_shape(item: TokenStream) -> TokenStream {
    shape::expand(item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a struct or an enum a message: derives serde's traits and `Shape`, implements
/// `odeon::Message`.
///
/// | option | meaning | without it |
/// | --- | --- | --- |
/// | `reply = Type` | what the handler answers | `()` |
/// | `name = "counter.add"` | the stable name | the type's name |
#[proc_macro_attribute]
pub fn message(options: TokenStream, item: TokenStream) -> TokenStream {
    message::expand(options.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a type an actor from one `impl` block. `name` is the actor's stable name.
///
/// | in the block | meaning |
/// | --- | --- |
/// | `fn start(args: T, cx: &mut Context<Self>) -> Result<Self, Failure>` | required; `args`, `cx` and the `Result` may be left out |
/// | `fn stop(self, reason: &Reason)` | called before an orderly end; `reason` may be left out |
/// | `fn supervision() -> Supervision` | how it supervises its children |
/// | `fn needs() -> Needs` | what it needs of a node, unless its spawn says otherwise |
/// | `#[handler] fn add(&mut self, n: u64) -> u64` | declares the message `Add { n: u64 }`, answered by a `u64` |
/// | `#[handler(name = "counter.add")]` | the same, with a stable name other than `Add` |
/// | `#[handler(message = Foo)] fn foo(&mut self, foo: Foo) -> R` | handles a message that exists |
/// | anything else | stays as it is |
///
/// All of them may be `async`, and a handler may take the context (`&mut Context<Self>`) at any
/// place. A message gets the visibility and the documentation of its method; documentation and
/// `#[serde(..)]` attributes of an argument go to its field.
///
/// The messages are listed too, as by `odeon::register!`.
#[proc_macro_attribute]
pub fn actor(options: TokenStream, block: TokenStream) -> TokenStream {
    actor::expand(options.into(), block.into()).into()
}

/// Boxes the future of an `async fn`, so that its body is compiled in its own crate alone.
///
/// The future of an `async fn` is a type of its own, and whichever crate polls it compiles it and all
/// that it awaits. For a function that others call across crates, and that does more than an
/// allocation costs, that is paid once with this attribute. The future must be `Send`.
#[proc_macro_attribute]
pub fn boxed(_options: TokenStream, function: TokenStream) -> TokenStream {
    boxed::expand(function.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
