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
//! | `check` | the checks that make a mistake one error at its place |
//! | `shape`, `boxed` | `#[derive(Shape)]`; `#[boxed]` |
//! | `test` | `#[test]` |

#![forbid(unsafe_code)]

mod actor;
mod boxed;
mod check;
mod handler;
mod message;
mod params;
mod shape;
mod test;

use proc_macro::TokenStream;

/// Implements `odeon::Shape`: a hash of the type's name, its fields' or variants' names, their
/// order and their shapes.
///
/// Type parameters must have a shape. A field under `#[serde(skip)]` does not travel and does not
/// count. A type that contains itself has no finite shape; implement the trait by hand.
/// A field of a type of another crate, which has none, is given a name in the place of its shape:
/// `#[shape(name = "uuid.Uuid")]`. Name another one when that type's layout changes.
#[proc_macro_derive(Shape, attributes(serde, shape))]
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

/// Makes a struct or an enum a value that travels, as an argument, a part of a message or an answer:
/// derives serde's traits and `Shape`.
#[proc_macro_attribute]
pub fn wire(options: TokenStream, item: TokenStream) -> TokenStream {
    message::expand_wire(&options.into(), item.into())
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
/// `start` and handlers may use `?`. A `Result<T>` of one type (`anyhow::Result`, `std::io::Result`,
/// `odeon::Result`), and one with `anyhow::Error`, `std::io::Error` or a boxed error, is answered as
/// `Result<T, Failure>` with the text and the causes of the error. Any other error is a type of the
/// program's own, and travels as it is: give it `#[odeon::wire]`.
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

/// Marks a method of an `#[actor]` block as a handler. Anywhere else it is an error, which says so.
#[proc_macro_attribute]
pub fn handler(_options: TokenStream, method: TokenStream) -> TokenStream {
    handler::refuse_outside(&method.into()).into()
}

/// Makes an `async fn` a test that is given a system of its own, with worker processes.
///
/// ```text
/// #[odeon::test(actors(Counter))]
/// async fn counts_in_another_process(system: System) {
///     let counter = system.spawn::<Counter>(40).isolated().await.unwrap();
///     assert_eq!(counter.ask(Add { n: 2 }).await.unwrap(), 42);
/// }
/// ```
///
/// | option | meaning | without it |
/// | --- | --- | --- |
/// | `actors(Counter, Store)` | the actors that its worker processes can host | none |
/// | `worker_threads = 4` | threads of its runtime | 2 |
///
/// A worker process is the test binary again, which runs this one test, and that serves as a worker in
/// place of its body. The system ends with the test, also with one that panics. The function may take no
/// system, may return a `Result`, and keeps its other attributes, as `#[ignore]`. It works under the
/// harness of the standard library, by `cargo test` and `cargo nextest`.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    test::expand(options.into(), function.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
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
