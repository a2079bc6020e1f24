//! `#[actor]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::{Error, ImplItem, Item, ItemImpl, LitStr, Result, ReturnType, Signature, Type};

use crate::handler::{self, Handler};
use crate::message;
use crate::params::{Params, awaited, refuse_generics};

/// Keeps the block even when something is wrong with it, so that one mistake gives one diagnostic.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut block = match syn::parse2::<Item>(item) {
        Ok(Item::Impl(block)) if block.trait_.is_none() => block,
        Ok(item) => {
            let why = "`#[actor]` goes on the `impl` block that has the actor's methods";
            let error = Error::new(Span::call_site(), why).into_compile_error();
            return quote!(#item #error);
        }
        Err(error) => return error.into_compile_error(),
    };
    let mut trouble = Trouble::default();
    let name = trouble.note(stable_name(options));
    if !block.generics.params.is_empty() {
        trouble.add(Error::new_spanned(
            &block.generics.params,
            "an actor cannot be generic: its name stands for one type",
        ));
    }
    let handlers = read_handlers(&mut block, &mut trouble);
    let lifecycle = trouble.note(Lifecycle::read(&block));

    if let Some(error) = trouble.0 {
        let error = error.into_compile_error();
        return quote!(#block #error);
    }
    let lifecycle = lifecycle.expect("no trouble was noted").implement(name.as_ref());
    let actor = &block.self_ty;
    let messages = handlers.iter().map(|handler| &handler.message);
    let items = handlers.iter().map(|handler| &handler.items);
    quote! {
        #block
        #lifecycle
        #(#items)*
        ::odeon::register!(#actor: #(#messages),*);
    }
}

/// All that is wrong, to be told at once.
#[derive(Default)]
struct Trouble(Option<Error>);

impl Trouble {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }
}

fn stable_name(options: TokenStream) -> Result<LitStr> {
    let mut name = None;
    syn::meta::parser(|option| {
        if option.path.is_ident("name") {
            name = Some(message::stable_name(&option)?);
            return Ok(());
        }
        Err(option.error("expected `name = \"..\"`"))
    })
    .parse2(options)?;
    let why = "an actor needs a name that stays: `#[actor(name = \"area.Type\")]`";
    name.ok_or_else(|| Error::new(Span::call_site(), why))
}

fn read_handlers(block: &mut ItemImpl, trouble: &mut Trouble) -> Vec<Handler> {
    let actor = &block.self_ty;
    let mut handlers = vec![];
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        let Some(options) = handler::Options::take(method) else { continue };
        let handler = options.and_then(|options| Handler::read(method, options, actor));
        handlers.extend(trouble.note(handler));
    }
    handlers
}

/// What the block says about the trait `Actor`.
struct Lifecycle<'a> {
    actor: &'a Type,
    start: &'a Signature,
    stop: Option<&'a Signature>,
    supervision: Option<&'a Signature>,
    args: TokenStream,
    start_is_fallible: bool,
}
