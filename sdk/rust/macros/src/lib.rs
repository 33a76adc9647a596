//! Macros of `capstan-provider`; use them through that crate, which re-exports and documents them.
//!
//! - `#[derive(Schema)]` turns a struct or a unit enum into OpenAPI at compile time;
//! - `#[derive(Kind)]` makes a spec struct a custom resource;
//! - `json!` turns JSON tokens into a string literal, for the manifest;
//! - `world!` writes the bindings of one world of the contract into the provider's crate.
//!
//! What they promise: a mistake is a compile error at the attribute that caused it, never a bad schema.

mod json;
mod kind;
mod schema;

use proc_macro::TokenStream;
use quote::quote;
use syn::{DeriveInput, LitStr, parse_macro_input};

/// The OpenAPI schema of a type, as a constant. See `capstan_provider::Schema`.
#[proc_macro_derive(Schema, attributes(schema, serde))]
pub fn derive_schema(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    schema::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// A custom resource whose spec is this struct. See `capstan_provider::Kind`.
#[proc_macro_derive(Kind, attributes(kind))]
pub fn derive_kind(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    kind::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// The manifest section: JSON tokens become one string literal. `name`, `role`, `version` and `contract`
/// are put in front from the arguments: `manifest_json!("infrastructure" { … })`.
#[doc(hidden)]
#[proc_macro]
pub fn manifest_json(input: TokenStream) -> TokenStream {
    json::manifest(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// `bindings!("infrastructure-provider")`: the generated module of one world. Its imported interfaces are the
/// ones that `capstan-provider` has bound already.
#[doc(hidden)]
#[proc_macro]
pub fn world(input: TokenStream) -> TokenStream {
    let world = parse_macro_input!(input as LitStr);
    let wit = include_str!("../../../../wit/provider-0.1/provider.wit");
    let with = json::imports_of(wit, &world.value()).into_iter().map(|interface| {
        let name = format!("capstan:provider/{interface}@{}", json::package_version(wit));
        let module = quote::format_ident!("{}", interface.replace('-', "_"));
        quote!(#name: ::capstan_provider::bindings::capstan::provider::#module)
    });
    quote! {
        ::capstan_provider::private::wit_bindgen::generate!({
            inline: #wit,
            world: #world,
            runtime_path: "::capstan_provider::private::wit_bindgen::rt",
            with: { #(#with),* },
        });
    }
    .into()
}
