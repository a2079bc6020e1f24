//! `#[actor]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::parse_quote;
use syn::{Error, ImplItem, Item, ItemImpl, LitStr, Result, ReturnType, Signature, Type};

use crate::check::{self, Checks, Subject};
use crate::handler::{self, Handler, is_handler};
use crate::message;
use crate::params::{Params, awaited, carried, refuse_generics};

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
    let refused = || LitStr::new("refused", Span::call_site());
    let name = trouble.note(stable_name(options)).unwrap_or_else(refused);
    if let Some(generics) = block.generics.params.first() {
        trouble.add(Error::new_spanned(
            generics,
            "an actor cannot be generic: its name stands for one type",
        ));
    }
    let (ty, generics) = (block.self_ty.clone(), block.generics.clone());
    let lifecycle = trouble.note(Lifecycle::read(&block));
    let args = lifecycle.as_ref().and_then(|it| it.args.clone());
    let actor = Subject {
        ty: &ty,
        generics: &generics,
        args: args.as_ref(),
    };
    let mut checks = Checks::default();
    checks.moves(&ty);
    if let Some(args) = actor.args
        && !check::surely_travels(args)
    {
        checks.arguments(args);
    }
    let lifecycle = lifecycle.and_then(|it| trouble.note(it.implement(&actor, &name)));
    let handlers = read_handlers(&mut block, &actor, &mut trouble);
    for message in handlers.iter().filter_map(|it| it.existing.as_ref()) {
        checks.message(message);
    }
    // What is right stands all the same, so that one mistake is not followed by others at its uses.
    let error = trouble.0.map(Error::into_compile_error);
    let lifecycle = lifecycle.unwrap_or_else(|| {
        checks.refuse(&quote!(#error));
        no_lifecycle(&actor)
    });
    let items = handlers.iter().map(|handler| &handler.items);
    let (checks, registration) = match actor.is_generic() {
        true => (TokenStream::new(), no_registration(&actor)),
        false => (checks.implement_actor(&ty), register(&actor, &handlers)),
    };
    quote! {
        #block
        #error
        #checks
        #lifecycle
        #(#items)*
        #registration
    }
}

/// The list of the messages.
fn register(actor: &Subject<'_>, handlers: &[Handler]) -> TokenStream {
    let bounds = actor.bounds(&quote!(::core::marker::Send + ::odeon::Message));
    let messages = handlers.iter().map(|handler| &handler.message);
    let ty = actor.ty;
    quote!(::odeon::register!(@where [#bounds] #ty: #(#messages),*);)
}

/// Stands for the list of the messages of an actor that was refused.
fn no_registration(actor: &Subject<'_>) -> TokenStream {
    let head = actor.implement(
        Span::call_site(),
        &quote!(::odeon::Registered),
        &TokenStream::new(),
    );
    quote! {
        #head
        {
            const MESSAGES: &'static [(&'static str, u64)] = &[];

            fn actor_type() -> &'static ::odeon::ActorType {
                ::core::unreachable!("it was refused")
            }
        }
    }
}

/// Stands for a lifecycle that was refused.
fn no_lifecycle(actor: &Subject<'_>) -> TokenStream {
    // With arguments of a type that the compiler has given up on, so that it says nothing of those of a spawn.
    let args = match actor.is_generic() {
        true => quote!(()),
        false => actor.sound(),
    };
    let head = actor.implement(
        Span::call_site(),
        &quote!(::odeon::Actor),
        &lifecycle_bound(),
    );
    quote! {
        #head
        {
            const NAME: &'static str = "refused";
            type Args = #args;

            async fn start(
                _: Self::Args,
                _: &mut ::odeon::Context<Self>,
            ) -> ::core::result::Result<Self, ::odeon::Failure> {
                ::core::unreachable!("it was refused")
            }
        }
    }
}

/// The bound of `impl Actor` on the checks.
fn lifecycle_bound() -> TokenStream {
    quote!(::core::marker::Send + ::odeon::ActorArgs)
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

fn read_handlers(block: &mut ItemImpl, actor: &Subject<'_>, trouble: &mut Trouble) -> Vec<Handler> {
    let mut handlers = vec![];
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        let Some(options) = handler::Options::take(method) else {
            continue;
        };
        if handler::mentions(method, actor.generics) {
            continue;
        }
        let handler = options.and_then(|options| Handler::read(method, options, actor));
        handlers.extend(trouble.note(handler));
        method.attrs.push(parse_quote! {
            #[allow(clippy::needless_pass_by_value, reason = "a handler is given its message")]
        });
    }
    handlers
}

/// The parts of the block that make up the trait `Actor`.
struct Lifecycle {
    start: Signature,
    args: Option<Type>,
    start_is_fallible: bool,
    stop: Option<Signature>,
    supervision: Option<Signature>,
    needs: Option<Signature>,
}

impl Lifecycle {
    /// Reads the methods that are not handlers.
    fn read(block: &ItemImpl) -> Result<Self> {
        let find = |name: &str| {
            block.items.iter().find_map(|item| match item {
                ImplItem::Fn(method) if method.sig.ident == name && !is_handler(method) => {
                    Some(method.sig.clone())
                }
                _ => None,
            })
        };
        let actor = &block.self_ty;
        let start = find("start").ok_or_else(|| {
            let why = "an actor needs `async fn start(args: Args) -> Result<Self, Failure>`";
            Error::new_spanned(actor, why)
        })?;
        let stop = find("stop");
        if let Some(stop) = &stop {
            check_stop(stop)?;
        }
        let supervision = find("supervision");
        if let Some(supervision) = &supervision {
            let why = "`supervision` is `fn supervision() -> Supervision`";
            check_declaration(supervision, why)?;
        }
        let needs = find("needs");
        if let Some(needs) = &needs {
            check_declaration(needs, "`needs` is `fn needs() -> Needs`")?;
        }
        let args = args_of_start(&start)?;
        let start_is_fallible = start_is_fallible(&start, actor)?;
        Ok(Self {
            start,
            args,
            start_is_fallible,
            stop,
            supervision,
            needs,
        })
    }

    /// `impl Actor` by calls of the methods.
    fn implement(&self, actor: &Subject<'_>, name: &LitStr) -> Result<TokenStream> {
        let args = self
            .args
            .as_ref()
            .map_or_else(|| quote!(()), |it| quote!(#it));
        let head = actor.implement(
            Span::call_site(),
            &quote!(::odeon::Actor),
            &lifecycle_bound(),
        );
        let start = self.implement_start()?;
        let stop = self.stop.as_ref().map(implement_stop);
        let supervision = self.supervision.as_ref().map(|_| {
            quote! {
                fn supervision() -> ::odeon::Supervision {
                    Self::supervision()
                }
            }
        });
        let needs = self.needs.as_ref().map(|_| {
            quote! {
                fn needs() -> ::odeon::Needs {
                    Self::needs()
                }
            }
        });
        Ok(quote! {
            #head
            {
                const NAME: &'static str = #name;
                type Args = #args;
                #supervision
                #needs
                #start
                #stop
            }
        })
    }

    fn implement_start(&self) -> Result<TokenStream> {
        let params = Params::of(&self.start)?;
        let pattern = if params.values().next().is_some() {
            quote!(args)
        } else {
            quote!(_)
        };
        let context = params.context_pattern();
        let arguments = params.pass(|_| quote!(args));
        let awaited = awaited(&self.start);
        let call = quote!(Self::start(#arguments)#awaited);
        let made = match &self.start.output {
            ReturnType::Type(_, output) if carried(output).is_some() => {
                quote!(#call.map_err(::odeon::Failure::carry))
            }
            _ if self.start_is_fallible => call,
            _ => quote!(::core::result::Result::Ok(#call)),
        };
        Ok(
            quote_spanned! {Span::call_site().located_at(self.start.ident.span())=>
                async fn start(
                    #pattern: <Self as ::odeon::Actor>::Args,
                    #context: &mut ::odeon::Context<Self>,
                ) -> ::core::result::Result<Self, ::odeon::Failure> {
                    #made
                }
            },
        )
    }
}

fn args_of_start(start: &Signature) -> Result<Option<Type>> {
    if let Some(receiver) = start.receiver() {
        return Err(Error::new_spanned(
            receiver,
            "`start` makes the actor: it has no `self` yet",
        ));
    }
    refuse_generics(
        start,
        "`start` cannot be generic: an actor has one type of arguments",
    )?;
    let many = "`start` takes one argument besides the context: put several into a struct or tuple";
    let Some(args) = Params::of(start)?.at_most_one(many)? else {
        return Ok(None);
    };
    let why = match &*args.ty {
        Type::Reference(_) => "an actor is made again after a failure: take the argument by value",
        Type::ImplTrait(_) => "an actor is made again after a failure: name the argument's type",
        ty => return Ok(Some(ty.clone())),
    };
    Err(Error::new_spanned(&args.ty, why))
}

fn start_is_fallible(start: &Signature, actor: &Type) -> Result<bool> {
    let why = "`start` returns `Result<Self, Failure>`, or `Self`";
    let ReturnType::Type(_, output) = &start.output else {
        return Err(Error::new_spanned(&start.ident, why));
    };
    if let Type::Path(path) = &**output
        && let Some(last) = path.path.segments.last()
    {
        if last.ident == "Result" {
            return Ok(true);
        }
        if last.ident == "Self" || same(output, actor) {
            return Ok(false);
        }
    }
    Err(Error::new_spanned(output, why))
}

fn same(one: &Type, other: &Type) -> bool {
    one.to_token_stream().to_string() == other.to_token_stream().to_string()
}

fn check_stop(stop: &Signature) -> Result<()> {
    let why = "`stop` takes the actor and the reason: `async fn stop(self, reason: &Reason)`";
    match stop.receiver() {
        Some(receiver) if receiver.reference.is_none() => {}
        _ => return Err(Error::new_spanned(&stop.ident, why)),
    }
    if stop.inputs.len() > 2 {
        return Err(Error::new_spanned(&stop.inputs, why));
    }
    refuse_generics(stop, why)
}

fn implement_stop(stop: &Signature) -> TokenStream {
    let (pattern, argument) = if stop.inputs.len() > 1 {
        (quote!(reason), quote!(reason))
    } else {
        (quote!(_), quote!())
    };
    let awaited = awaited(stop);
    quote_spanned! {Span::call_site().located_at(stop.ident.span())=>
        async fn stop(self, #pattern: &::odeon::Reason) {
            Self::stop(self, #argument)#awaited
        }
    }
}

/// Of what an actor type says of itself: no arguments, no waiting.
fn check_declaration(declaration: &Signature, why: &str) -> Result<()> {
    if let Some(asyncness) = declaration.asyncness {
        return Err(Error::new_spanned(asyncness, why));
    }
    if !declaration.inputs.is_empty() {
        return Err(Error::new_spanned(&declaration.inputs, why));
    }
    refuse_generics(declaration, why)
}
