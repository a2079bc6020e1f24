//! `#[message]`, and the pieces of it that generated messages share.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{Error, Generics, Ident, Item, LitStr, Result, Type, parse_quote};

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
    let reply = reply.map_or_else(|| quote!(()), ToTokens::into_token_stream);
    let derives = derives();
    let implementation = implement(ident, generics, name.as_ref(), &reply);
    Ok(quote! {
        #derives
        #item
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
                parsed.reply = Some(option.value()?.parse()?);
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

/// The value of a `name = ".."` option.
pub(crate) fn stable_name(option: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let name: LitStr = option.value()?.parse()?;
    if name.value().trim().is_empty() {
        return Err(Error::new_spanned(name, "a stable name cannot be empty"));
    }
    Ok(name)
}

/// The derives that every message has.
pub(crate) fn derives() -> TokenStream {
    quote! {
        #[derive(::odeon::serde::Serialize, ::odeon::serde::Deserialize, ::odeon::Shape)]
        #[serde(crate = "::odeon::serde")]
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
    if !matches!(item, Item::Struct(_) | Item::Enum(_)) {
        let why = "`#[odeon::wire]` goes on a struct or an enum";
        return Err(Error::new_spanned(item, why));
    }
    let derives = derives();
    Ok(quote!(#derives #item))
}

/// `impl Message`. Type parameters must be able to travel.
pub(crate) fn implement(
    ident: &Ident,
    generics: &Generics,
    name: Option<&LitStr>,
    reply: &TokenStream,
) -> TokenStream {
    let name = name.map_or_else(|| ident.unraw().to_string(), LitStr::value);
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::odeon::Wire));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    quote! {
        impl #impl_generics ::odeon::Message for #ident #type_generics #where_clause {
            const NAME: &'static str = #name;
            type Reply = #reply;
        }
    }
}
