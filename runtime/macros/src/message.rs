//! `#[message]`, and the pieces of it that generated messages share.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{
    Attribute, Error, Expr, ExprLit, Fields, Generics, Ident, Item, Lit, LitStr, Result, Type,
    parse_quote,
};

use crate::check::Checks;
use crate::shape;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let Options { reply, name } = Options::parse(options)?;
    let item: Item = syn::parse2(item)?;
    let (ident, generics) = match &item {
        Item::Struct(item) => (&item.ident, &item.generics),
        Item::Enum(item) => (&item.ident, &item.generics),
        other => {
            return Err(Error::new_spanned(
                other,
                "a message is a struct or an enum",
            ));
        }
    };
    if let Some(lifetime) = generics.lifetimes().next() {
        return Err(Error::new_spanned(
            lifetime,
            "a message travels: it cannot borrow",
        ));
    }
    let mut checks = check_item(&item);
    if let Some(reply) = reply.as_ref()
        && generics.params.is_empty()
    {
        checks.travels(reply);
    }
    let reply = reply.map_or_else(|| quote!(()), ToTokens::into_token_stream);
    let derives = derives(ident, &checks);
    let implementation = implement(ident, generics, name.as_ref(), &reply, &checks);
    let checks = checks.implement(&quote!(#ident));
    Ok(quote! {
        #derives
        #item
        #checks
        #implementation
    })
}

#[derive(Default)]
struct Options {
    reply: Option<Type>,
    name: Option<LitStr>,
}

impl Options {
    fn parse(options: TokenStream) -> Result<Self> {
        let mut parsed = Self::default();
        syn::meta::parser(|option| {
            if option.path.is_ident("reply") {
                parsed.reply = Some(type_of(&option)?);
            } else if option.path.is_ident("name") {
                parsed.name = Some(stable_name(&option)?);
            } else {
                return Err(option.error("expected `reply = Type` or `name = \"..\"`"));
            }
            Ok(())
        })
        .parse2(options)?;
        Ok(parsed)
    }
}

/// The value of an option that is a type.
pub(crate) fn type_of(option: &ParseNestedMeta<'_>) -> Result<Type> {
    let value = option.value()?;
    if value.peek(LitStr) {
        return Err(value.error("write the type itself, without quotes"));
    }
    value.parse()
}

/// The value of a `name = ".."` option.
pub(crate) fn stable_name(option: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let mut value: Expr = option.value()?.parse()?;
    // A name that another macro was given comes in a group.
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    let Expr::Lit(ExprLit {
        lit: Lit::Str(name),
        ..
    }) = value
    else {
        let why = "a stable name is a text in quotes: `name = \"area.Type\"`";
        return Err(Error::new_spanned(value, why));
    };
    if name.value().trim().is_empty() {
        return Err(Error::new_spanned(name, "a stable name cannot be empty"));
    }
    Ok(name)
}

/// The derives that every message has.
pub(crate) fn derives(ident: &Ident, checks: &Checks) -> TokenStream {
    let span = Span::call_site().located_at(ident.span());
    let derives = quote_spanned! {span=>
        #[derive(::odeon::serde::Serialize, ::odeon::serde::Deserialize, ::odeon::Shape)]
    };
    if checks.is_empty() {
        return quote!(#derives #[serde(crate = "::odeon::serde")]);
    }
    let ident = quote!(#ident);
    let bound = |of| {
        let bound = checks.bound(&ident, &of).to_string();
        LitStr::new(&bound, Span::call_site())
    };
    let serialize = bound(quote!(::odeon::serde::Serialize));
    let deserialize = bound(quote!(::odeon::serde::Deserialize<'de>));
    quote! {
        #derives
        #[serde(
            crate = "::odeon::serde",
            bound(serialize = #serialize, deserialize = #deserialize)
        )]
        #[shape(checked)]
    }
}

/// The checks of the fields. A type with parameters has none: what is missing shows where it is used. Nor has
/// one with options for serde, which may say that a field is encoded by other means.
fn check_item(item: &Item) -> Checks {
    let mut checks = Checks::default();
    let (generics, attributes, fields): (_, _, Vec<&Fields>) = match item {
        Item::Struct(item) => (&item.generics, &item.attrs, vec![&item.fields]),
        Item::Enum(item) => {
            let fields = item.variants.iter().map(|variant| &variant.fields);
            (&item.generics, &item.attrs, fields.collect())
        }
        _ => return checks,
    };
    if generics.params.is_empty() && !attributes.iter().any(|it| it.path().is_ident("serde")) {
        for field in fields.into_iter().flatten() {
            check_field(
                &mut checks,
                &field.ty,
                &field.attrs.iter().collect::<Vec<_>>(),
            );
        }
    }
    checks
}

/// The checks of a field with its attributes.
pub(crate) fn check_field(checks: &mut Checks, ty: &Type, attributes: &[&Attribute]) {
    let has = |name: &str| attributes.iter().any(|it| it.path().is_ident(name));
    if has("shape") || attributes.iter().any(|it| shape::skips(it)) {
        return;
    }
    if has("serde") {
        checks.has_shape(ty);
    } else {
        checks.travels(ty);
    }
}

/// `#[wire]`.
pub(crate) fn expand_wire(options: &TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new_spanned(
            options,
            "`#[odeon::wire]` takes no options",
        ));
    }
    let item: Item = syn::parse2(item)?;
    let ident = match &item {
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        _ => {
            let why = "`#[odeon::wire]` goes on a struct or an enum";
            return Err(Error::new_spanned(item, why));
        }
    };
    let checks = check_item(&item);
    let derives = derives(ident, &checks);
    let checks = checks.implement(&quote!(#ident));
    Ok(quote!(#derives #item #checks))
}

/// `impl Message`. Type parameters must be able to travel.
pub(crate) fn implement(
    ident: &Ident,
    generics: &Generics,
    name: Option<&LitStr>,
    reply: &TokenStream,
    checks: &Checks,
) -> TokenStream {
    let name = name.map_or_else(|| ident.unraw().to_string(), LitStr::value);
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::odeon::Wire));
    }
    let bound = checks.bound(&quote!(#ident), &quote!(::odeon::Wire));
    if !bound.is_empty() {
        generics.where_clause = Some(parse_quote!(where #bound));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    quote_spanned! {Span::call_site().located_at(ident.span())=>
        impl #impl_generics ::odeon::Message for #ident #type_generics #where_clause {
            const NAME: &'static str = #name;
            type Reply = #reply;
        }
    }
}
