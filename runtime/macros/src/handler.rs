//! A `#[handler]` method: its message and its `impl Handler`.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, Generics, Ident, ImplItemFn, LitStr,
    Meta, Pat, PatIdent, PatType, Path, PathArguments, Result, ReturnType, Signature, Type,
};

use crate::check::{self, Checks, Subject};
use crate::message;
use crate::params::{Params, awaited, carried, refuse_generics};

/// The arguments of `#[handler(..)]`.
#[derive(Default)]
pub(crate) struct Options {
    message: Option<Type>,
    name: Option<LitStr>,
}

impl Options {
    /// Takes the `#[handler]` attribute off a method, when it has one.
    pub(crate) fn take(method: &mut ImplItemFn) -> Option<Result<Self>> {
        let at = method.attrs.iter().position(names_handler)?;
        Some(Self::parse(&method.attrs.remove(at)))
    }

    fn parse(attribute: &Attribute) -> Result<Self> {
        let mut options = Self::default();
        let tokens = match &attribute.meta {
            Meta::Path(_) => return Ok(options),
            Meta::List(list) => list.tokens.clone(),
            Meta::NameValue(meta) => {
                return Err(Error::new_spanned(
                    meta,
                    "expected `#[handler(message = Type)]`",
                ));
            }
        };
        syn::meta::parser(|option| {
            if option.path.is_ident("message") {
                options.message = Some(message::type_of(&option)?);
            } else if option.path.is_ident("name") {
                options.name = Some(message::stable_name(&option)?);
            } else {
                return Err(option.error("expected `message = Type` or `name = \"..\"`"));
            }
            Ok(())
        })
        .parse2(tokens)?;
        match &options {
            Self {
                message: Some(_),
                name: Some(name),
            } => Err(Error::new_spanned(
                name,
                "a message that exists has its name already",
            )),
            _ => Ok(options),
        }
    }
}

/// Keeps the method, so that one mistake gives one diagnostic.
pub(crate) fn refuse_outside(method: &TokenStream) -> TokenStream {
    let why = "`#[handler]` goes on a method in an `impl` block with `#[odeon::actor(name = \"area.Type\")]`";
    let error = Error::new(Span::call_site(), why).into_compile_error();
    quote!(#error #method)
}

/// Returns true where a method is marked as a handler.
pub(crate) fn is_handler(method: &ImplItemFn) -> bool {
    method.attrs.iter().any(names_handler)
}

fn names_handler(attribute: &Attribute) -> bool {
    let path: Vec<_> = attribute
        .path()
        .segments
        .iter()
        .map(|it| &it.ident)
        .collect();
    match path[..] {
        [name] => name == "handler",
        [package, name] => package == "odeon" && name == "handler",
        _ => false,
    }
}

/// Returns true where a method mentions a parameter of its block.
pub(crate) fn mentions(method: &ImplItemFn, generics: &Generics) -> bool {
    fn any(tokens: TokenStream, named: &[String]) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => named.contains(&ident.to_string()),
            TokenTree::Group(group) => any(group.stream(), named),
            _ => false,
        })
    }
    let named: Vec<_> = generics
        .params
        .iter()
        .map(|parameter| match parameter {
            GenericParam::Type(it) => it.ident.to_string(),
            GenericParam::Const(it) => it.ident.to_string(),
            GenericParam::Lifetime(it) => it.lifetime.ident.to_string(),
        })
        .collect();
    any(method.sig.to_token_stream(), &named)
}

/// The parts of the code that a handler method becomes.
pub(crate) struct Handler {
    /// The message type, for the list of registered ones.
    pub(crate) message: TokenStream,
    /// The items beside the block.
    pub(crate) items: TokenStream,
    /// The type that the program has to declare as a message.
    pub(crate) existing: Option<Type>,
}

impl Handler {
    /// Reads a method, and takes the attributes off its parameters that belong to fields.
    pub(crate) fn read(
        method: &mut ImplItemFn,
        options: Options,
        actor: &Subject<'_>,
    ) -> Result<Self> {
        let handler = check(method).and_then(|()| match options.message {
            Some(message) => delegate_existing(&method.sig, &message, actor),
            None => declare(method, options.name.as_ref(), actor),
        });
        for input in &mut method.sig.inputs {
            if let FnArg::Typed(typed) = input {
                typed.attrs.retain(|attribute| !belongs_to_field(attribute));
            }
        }
        handler
    }
}

fn check(method: &ImplItemFn) -> Result<()> {
    let signature = &method.sig;
    match signature.receiver() {
        Some(receiver) if receiver.reference.is_some() => {}
        Some(receiver) => {
            return Err(Error::new_spanned(
                receiver,
                "a handler borrows its actor: take `&mut self`, or `&self`",
            ));
        }
        None => {
            return Err(Error::new_spanned(
                &signature.ident,
                "a handler works on its actor: take `&mut self` first",
            ));
        }
    }
    refuse_generics(
        signature,
        "a handler cannot be generic: its message has one layout",
    )?;
    if let Some(unsafety) = signature.unsafety {
        return Err(Error::new_spanned(
            unsafety,
            "a handler cannot be unsafe: anyone may call it",
        ));
    }
    match method
        .attrs
        .iter()
        .find(|attribute| attribute.path().is_ident("cfg"))
    {
        Some(cfg) => Err(Error::new_spanned(
            cfg,
            "a handler cannot be conditional: put `#[cfg]` into its body, or on the whole actor",
        )),
        None => Ok(()),
    }
}

/// `#[handler(message = Foo)]`.
fn delegate_existing(
    signature: &Signature,
    message: &Type,
    actor: &Subject<'_>,
) -> Result<Handler> {
    let params = Params::of(signature)?;
    if params
        .at_most_one("this handler takes its message and nothing else")?
        .is_none()
    {
        let why = "this handler takes its message: add an argument of that type";
        return Err(Error::new_spanned(&signature.ident, why));
    }
    let existing = syn::parse2(without_self(message.to_token_stream(), actor.ty))?;
    let message = quote!(#existing);
    let handling = Handling {
        message: &message,
        pattern: &quote!(message),
        reply: &quote!(<#message as ::odeon::Message>::Reply),
        arguments: &params.pass(|_| quote!(message)),
        declared: false,
    };
    let items = delegate(signature, &params, &handling, actor);
    Ok(Handler {
        message,
        items,
        existing: Some(existing),
    })
}

/// A `#[handler]` that declares its message.
fn declare(method: &ImplItemFn, name: Option<&LitStr>, actor: &Subject<'_>) -> Result<Handler> {
    let signature = &method.sig;
    let params = Params::of(signature)?;
    let fields = params
        .values()
        .map(|typed| Field::of(typed, actor.ty))
        .collect::<Result<Vec<_>>>()?;
    let reply = without_self(replied(&signature.output)?, actor.ty);

    let span = Span::call_site().located_at(signature.ident.span());
    let ident = message_ident(&signature.ident);
    let docs = method
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"));
    let visibility = &method.vis;
    let body = if fields.is_empty() {
        quote_spanned!(span=> ;)
    } else {
        let fields = fields.iter().map(
            |Field {
                 attributes,
                 ident,
                 ty,
             }| quote!(#(#attributes)* #visibility #ident: #ty),
        );
        quote_spanned!(span=> { #(#fields),* })
    };
    let mut checks = Checks::default();
    for field in &fields {
        message::check_field(&mut checks, &field.ty, &field.attributes);
    }
    check_reply(&mut checks, &signature.output, actor.ty)?;
    let derives = message::derives(&ident, &checks);
    let by_hand = debug_and_clone(&ident, &fields);
    let derived = by_hand.is_empty().then(|| quote!(#[derive(Debug, Clone)]));
    let implementation = message::implement(&ident, &Generics::default(), name, &reply, &checks);
    let checks = checks.implement(&quote!(#ident));
    let pattern = if fields.is_empty() {
        quote!(_)
    } else {
        quote!(message)
    };
    let arguments = params.pass(|typed| match &*typed.pat {
        Pat::Ident(PatIdent { ident, .. }) => quote!(message.#ident),
        _ => unreachable!("an argument that becomes a field has a plain name"),
    });
    let message = ident.to_token_stream();
    let handling = Handling {
        message: &message,
        pattern: &pattern,
        reply: &reply,
        arguments: &arguments,
        declared: true,
    };
    let handler = delegate(signature, &params, &handling, actor);
    let items = quote_spanned! {span=>
        #(#docs)*
        #[allow(missing_docs, reason = "an argument's name is often all there is to say")]
        #derived
        #derives
        #visibility struct #ident #body
        #checks
        #implementation
        #by_hand
        #handler
    };
    Ok(Handler {
        message,
        items,
        existing: None,
    })
}

/// The checks of what a method returns.
fn check_reply(checks: &mut Checks, output: &ReturnType, actor: &Type) -> Result<()> {
    let returned = match (later(output), output) {
        (Some(reply), _) => reply,
        (None, ReturnType::Type(_, ty)) => ty,
        (None, ReturnType::Default) => return Ok(()),
    };
    let reply = carried(returned).unwrap_or(returned);
    if !check::surely_travels(reply) {
        checks.travels(&syn::parse2(without_self(quote!(#reply), actor))?);
    }
    Ok(())
}

/// `impl Debug` and `impl Clone` for messages whose fields have them; nothing where they can be derived. The
/// lifetime, which nobody uses, has the compiler take a bound that does not hold for an impl that is not
/// there, rather than for a mistake.
fn debug_and_clone(ident: &Ident, fields: &[Field<'_>]) -> TokenStream {
    let types: Vec<_> = fields
        .iter()
        .map(|field| &field.ty)
        .filter(|ty| !check::surely_travels(ty))
        .collect();
    if types.is_empty() {
        return TokenStream::new();
    }
    let names: Vec<_> = fields.iter().map(|it| it.ident).collect();
    let texts = names.iter().map(|name| name.unraw().to_string());
    let text = ident.unraw().to_string();
    quote_spanned! {Span::call_site().located_at(ident.span())=>
        #[automatically_derived]
        impl ::core::fmt::Debug for #ident
        where
            #(for<'trivial> #types: ::core::fmt::Debug,)*
        {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#text)#(.field(#texts, &self.#names))*.finish()
            }
        }

        #[automatically_derived]
        impl ::core::clone::Clone for #ident
        where
            #(for<'trivial> #types: ::core::clone::Clone,)*
        {
            fn clone(&self) -> Self {
                Self { #(#names: ::core::clone::Clone::clone(&self.#names)),* }
            }
        }
    }
}

/// The pieces of `impl Handler` that depend on where its message is declared.
struct Handling<'a> {
    message: &'a TokenStream,
    /// Binds the message.
    pattern: &'a TokenStream,
    reply: &'a TokenStream,
    /// Those of the call.
    arguments: &'a TokenStream,
    /// The method declares the message, so that their replies agree.
    declared: bool,
}

/// `impl Handler` by a call of the method. It points at the method's name in diagnostics, such as
/// of a future that is not `Send`.
fn delegate(
    signature: &Signature,
    params: &Params<'_>,
    handling: &Handling<'_>,
    actor: &Subject<'_>,
) -> TokenStream {
    let Handling {
        message,
        pattern,
        reply,
        arguments,
        declared,
    } = handling;
    let method = &signature.ident;
    let awaited = awaited(signature);
    let context = params.context_pattern();
    let span = Span::call_site().located_at(method.span());
    let carry = |ty: &Type| carried(ty).map(|_| quote!(.map_err(::odeon::Failure::carry)));
    let (waited, answer) = match (later(&signature.output), &signature.output) {
        (None, ReturnType::Type(_, ty)) => (carry(ty).unwrap_or_default(), TokenStream::new()),
        (None, ReturnType::Default) => (TokenStream::new(), TokenStream::new()),
        (Some(ty), _) => {
            let carry = carry(ty).unwrap_or_default();
            let work = quote!(Self::#method(self, #arguments)#awaited);
            let work = match carry.is_empty() {
                true => work,
                false => quote! {{
                    let later = #work;
                    ::odeon::Later::new(async move { later.await #carry })
                }},
            };
            let answer = quote_spanned! {span=>
                async fn answer(
                    &mut self,
                    #pattern: #message,
                    #context: &mut ::odeon::Context<Self>,
                ) -> ::odeon::Answer<#reply> {
                    ::odeon::Answer::Later(#work)
                }
            };
            (quote!(.await #carry), answer)
        }
    };
    let mut call = quote!(Self::#method(self, #arguments)#awaited #waited);
    let mut bound = quote!(::core::marker::Send);
    if !declared {
        call = agree(signature, message, &call);
        bound = quote!(#bound + ::odeon::Message);
    }
    let head = actor.implement(
        span,
        &quote_spanned!(span=> ::odeon::Handler<#message>),
        &bound,
    );
    quote_spanned! {span=>
        #head
        {
            async fn handle(
                &mut self,
                #pattern: #message,
                #context: &mut ::odeon::Context<Self>,
            ) -> #reply {
                #call
            }

            #answer
        }
    }
}

/// The call of a method whose message is declared elsewhere, with a word where their replies differ.
fn agree(signature: &Signature, message: &TokenStream, call: &TokenStream) -> TokenStream {
    let at = match &signature.output {
        ReturnType::Type(_, ty) if matches!(**ty, Type::Never(_)) => return call.clone(),
        ReturnType::Type(_, ty) => ty.span(),
        ReturnType::Default => signature.ident.span(),
    };
    let at = Span::call_site().located_at(at);
    let returned = match (&signature.output, replied(&signature.output)) {
        (ReturnType::Default, _) => quote_spanned!(at=> ()),
        (_, Ok(returned)) => returned,
        (_, Err(_)) => return call.clone(),
    };
    quote_spanned! {at=>
        ::odeon::check::reply::<#returned, #message>(#call)
    }
}

/// An argument as a field of the declared message.
struct Field<'a> {
    attributes: Vec<&'a Attribute>,
    ident: &'a Ident,
    ty: Type,
}

impl<'a> Field<'a> {
    fn of(typed: &'a PatType, actor: &Type) -> Result<Self> {
        let Pat::Ident(PatIdent {
            by_ref: None,
            subpat: None,
            ident,
            ..
        }) = &*typed.pat
        else {
            return Err(Error::new_spanned(
                &typed.pat,
                "give this argument a plain name: it becomes a field of the message",
            ));
        };
        let ty = &*typed.ty;
        let why = match ty {
            Type::Reference(_) => "a message owns what it carries: take this argument by value",
            Type::ImplTrait(_) => "a message has one layout: name the type of this argument",
            _ => {
                let attributes = typed.attrs.iter().filter(|a| belongs_to_field(a)).collect();
                return Ok(Self {
                    attributes,
                    ident,
                    ty: syn::parse2(without_self(quote!(#ty), actor))?,
                });
            }
        };
        Err(Error::new_spanned(ty, why))
    }
}

fn belongs_to_field(attribute: &Attribute) -> bool {
    let path: &Path = attribute.path();
    path.is_ident("doc") || path.is_ident("serde") || path.is_ident("shape")
}

/// The type in `-> Later<T>`.
fn later(output: &ReturnType) -> Option<&Type> {
    let ReturnType::Type(_, ty) = output else {
        return None;
    };
    let Type::Path(path) = &**ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first()? {
        GenericArgument::Type(reply) if last.ident == "Later" && arguments.args.len() == 1 => {
            Some(reply)
        }
        _ => None,
    }
}

/// The type that a message is answered with in the end.
fn replied(output: &ReturnType) -> Result<TokenStream> {
    let returned = match (later(output), output) {
        (Some(reply), _) => reply,
        (None, ReturnType::Type(_, ty)) => ty,
        (None, ReturnType::Default) => return Ok(quote!(())),
    };
    match carried(returned) {
        Some(value) => Ok(quote!(::core::result::Result<#value, ::odeon::Failure>)),
        None => reply(returned),
    }
}

fn reply(ty: &Type) -> Result<TokenStream> {
    match ty {
        Type::Reference(_) => Err(Error::new_spanned(
            ty,
            "a reply travels: return it by value",
        )),
        Type::ImplTrait(_) => Err(Error::new_spanned(
            ty,
            "a reply has one layout: name the type it returns",
        )),
        _ => Ok(ty.to_token_stream()),
    }
}

/// `add_all` to `AddAll`.
fn message_ident(method: &Ident) -> Ident {
    let name: String = method
        .unraw()
        .to_string()
        .split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().into_iter().flat_map(char::to_uppercase);
            first.chain(letters).collect::<Vec<_>>()
        })
        .collect();
    format_ident!("{name}", span = method.span())
}

/// Puts the actor's type for `Self`, which means something else beside the block.
fn without_self(tokens: TokenStream, actor: &Type) -> TokenStream {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) if ident == "Self" => actor.to_token_stream(),
            TokenTree::Group(group) => {
                let inner = without_self(group.stream(), actor);
                let mut replaced = Group::new(group.delimiter(), inner);
                replaced.set_span(group.span());
                TokenTree::Group(replaced).into()
            }
            other => other.into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_message_is_called_like_its_method() {
        for (method, message) in [("add", "Add"), ("add_all", "AddAll"), ("step_2", "Step2")] {
            assert_eq!(message_ident(&format_ident!("{method}")), message);
        }
        assert_eq!(message_ident(&parse_quote!(r#move)), "Move");
    }

    #[test]
    fn self_is_replaced_at_any_depth() {
        let actor: Type = parse_quote!(Counter);
        let replaced = without_self(quote!(Vec<(Ref<Self>, [Self; 2])>), &actor);
        assert_eq!(
            replaced.to_string(),
            quote!(Vec<(Ref<Counter>, [Counter; 2])>).to_string()
        );
    }
}
