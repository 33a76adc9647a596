//! `#[derive(Kind)]`: what `#[kind(…)]` says about a custom resource, as one element of the `capstan:crds` section.

use proc_macro2::TokenStream;
use quote::quote;
use serde_json::{Value, json};
use syn::{DeriveInput, Error, LitStr, Path, Result};

use crate::schema::description;

pub fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let mut kind = None::<String>;
    let mut plural = None::<String>;
    let mut version = None::<String>;
    let mut short_names = Vec::<String>::new();
    let mut status = None::<Path>;
    let mut template = true;
    let mut older = false;
    let mut served_too = Vec::<Path>::new();
    let mut scope = "Namespaced";
    let mut columns = Vec::<Value>::new();
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("kind")) {
        attribute.parse_nested_meta(|meta| {
            let text =
                |meta: &syn::meta::ParseNestedMeta| -> Result<String> { Ok(meta.value()?.parse::<LitStr>()?.value()) };
            match meta.path.get_ident().map(ToString::to_string).unwrap_or_default().as_str() {
                "name" => kind = Some(text(&meta)?),
                "plural" => plural = Some(text(&meta)?),
                "version" => version = Some(text(&meta)?),
                "short" => short_names.push(text(&meta)?),
                "status" => status = Some(meta.value()?.parse::<Path>()?),
                "no_template" => template = false,
                "older" => older = true,
                "served_too" => served_too.push(meta.value()?.parse::<Path>()?),
                "identity" => (template, scope) = (false, "Cluster"),
                column @ ("column" | "wide_column") => {
                    let content;
                    syn::parenthesized!(content in meta.input);
                    let words = content.parse_terminated(<LitStr as syn::parse::Parse>::parse, syn::Token![,])?;
                    let mut words = words.iter().map(LitStr::value);
                    let (Some(name), Some(ty), Some(path)) = (words.next(), words.next(), words.next()) else {
                        return Err(meta.error("a column is its name, type, JSON path and, if you like, a description"));
                    };
                    let mut written = json!({"name": name, "type": ty, "jsonPath": path});
                    if let Some(map) = written.as_object_mut() {
                        map.extend(words.next().map(|about| ("description".to_owned(), about.into())));
                        if column == "wide_column" {
                            map.insert("priority".to_owned(), 10.into());
                        }
                    }
                    columns.push(written);
                }
                _ => return Err(meta.error("not an attribute of `kind`")),
            }
            Ok(())
        })?;
    }
    let kind = kind.ok_or_else(|| Error::new_spanned(name, "#[kind(name = \"…\")] is missing"))?;
    let version = version.ok_or_else(|| Error::new_spanned(name, "#[kind(version = \"…\")] is missing"))?;
    let singular = kind.to_lowercase();
    let plural = plural.unwrap_or_else(|| {
        match singular.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
            Some(stem) => format!("{stem}ies"),
            None => format!("{singular}s"),
        }
    });
    let about = description(&input.attrs)
        .ok_or_else(|| Error::new_spanned(name, "a kind needs a doc comment: users read it in `kubectl explain`"))?;

    let head = json!({"kind": kind, "plural": plural, "singular": singular, "shortNames": short_names,
        "scope": scope, "template": template})
    .to_string();
    let head = head.trim_end_matches('}');
    let crd = format!("{head},\"versions\":[");
    let open = format!(
        "{{\"name\":{},\"served\":true,\"storage\":{},\"printerColumns\":{},\
         \"schema\":{{\"type\":\"object\",\"description\":{},\"properties\":{{\"spec\":{{",
        json!(version),
        !older,
        Value::Array(columns),
        json!(about)
    );
    let schema = quote!(<#name as ::capstan_provider::Schema>);
    let status = match status {
        Some(status) => quote!("},\"status\":{", <#status as ::capstan_provider::Schema>::BODY),
        None => quote!("},\"status\":{\"type\":\"object\""),
    };
    Ok(quote! {
        impl ::capstan_provider::Kind for #name {
            const KIND: &'static str = #kind;
            const VERSION: &'static str = #version;
            const CRD: &'static str = ::capstan_provider::concat_text!(
                #crd,
                <#name as ::capstan_provider::Kind>::ENTRY,
                #(",", <#served_too as ::capstan_provider::Kind>::ENTRY,)*
                "]}"
            );
            fn older() -> ::std::vec::Vec<::capstan_provider::versions::Older> {
                ::std::vec![#(::capstan_provider::versions::Older {
                    version: <#served_too as ::capstan_provider::Kind>::VERSION,
                    up: <#served_too as ::capstan_provider::versions::OlderVersion>::up,
                    down: <#served_too as ::capstan_provider::versions::OlderVersion>::down,
                }),*]
            }
            const ENTRY: &'static str = ::capstan_provider::concat_text!(
                #open,
                #schema::BODY,
                ::capstan_provider::schema::rules_open("", #schema::RULES),
                #schema::RULES,
                ::capstan_provider::schema::rules_close("", #schema::RULES),
                #status,
                "}}}}"
            );
        }
    })
}
