//! `#[derive(Shape)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Ident, LitStr, Result, parse_quote};

use crate::message;

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let DeriveInput {
        ident,
        mut generics,
        data,
        attrs,
        ..
    } = syn::parse2(item)?;
    let folds = match &data {
        Data::Struct(data) => fold_fields(&data.fields),
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = plain(&variant.ident);
                let fields = fold_fields(&variant.fields);
                quote! {
                    let shape = ::odeon::shape::text_into(shape, #name);
                    #fields
                }
            })
            .collect(),
        Data::Union(data) => {
            return Err(Error::new_spanned(
                data.union_token,
                "a union has no shape on the wire",
            ));
        }
    };
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::odeon::Shape));
    }
    if attrs.iter().any(is_checked) {
        generics.make_where_clause().predicates.push(parse_quote! {
            <Self as ::odeon::check::Checked<::odeon::check::TravellingValue>>::Sound: ::odeon::Shape
        });
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let name = plain(&ident);
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::odeon::Shape for #ident #type_generics #where_clause {
            const SHAPE: u64 = {
                let shape = ::odeon::shape::name(#name);
                #folds
                shape
            };
        }
    })
}

fn fold_fields(fields: &Fields) -> TokenStream {
    fields
        .iter()
        .enumerate()
        .filter(|(_, field)| !field.attrs.iter().any(skips))
        .map(|(i, field)| {
            let name = field.ident.as_ref().map_or_else(|| i.to_string(), plain);
            let ty = &field.ty;
            let of_field = match named(field) {
                Ok(Some(name)) => quote!(::odeon::shape::name(#name)),
                Ok(None) => quote!(<#ty as ::odeon::Shape>::SHAPE),
                Err(error) => error.into_compile_error(),
            };
            quote! {
                let shape = ::odeon::shape::mix(
                    ::odeon::shape::text_into(shape, #name),
                    #of_field,
                );
            }
        })
        .collect()
}

/// The name in `#[shape(name = "uuid.Uuid")]`, which stands for the shape of a type of another crate.
fn named(field: &Field) -> Result<Option<LitStr>> {
    let mut name = None;
    for attribute in field.attrs.iter().filter(|it| it.path().is_ident("shape")) {
        attribute.parse_nested_meta(|option| {
            if !option.path.is_ident("name") {
                return Err(option.error("expected `#[shape(name = \"crate.Type\")]`"));
            }
            name = Some(message::stable_name(&option)?);
            Ok(())
        })?;
    }
    Ok(name)
}

/// Returns true where this is `#[shape(checked)]`, which the other macros write on a type whose fields they check.
fn is_checked(attribute: &Attribute) -> bool {
    attribute.path().is_ident("shape")
        && attribute
            .parse_args::<Ident>()
            .is_ok_and(|option| option == "checked")
}

/// Returns true where this is `#[serde(skip)]`. What else serde is told is for serde to check.
pub(crate) fn skips(attribute: &Attribute) -> bool {
    let mut skips = false;
    if attribute.path().is_ident("serde") {
        // An option with a value ends the walk early, which is an error only to serde.
        let _ = attribute.parse_nested_meta(|option| {
            skips |= option.path.is_ident("skip");
            if option.input.peek(syn::Token![=]) {
                option.value()?.parse::<syn::Expr>()?;
            }
            Ok(())
        });
    }
    skips
}

fn plain(ident: &Ident) -> String {
    ident.unraw().to_string()
}
