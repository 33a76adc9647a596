//! JSON written as Rust tokens, and the few facts about the contract's text that the glue needs.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::quote;
use syn::{Error, Result};

/// `"role" { …JSON object… }` → a literal with `version`, `contract` and `role` in front.
pub fn manifest(input: TokenStream) -> Result<TokenStream> {
    let mut tokens = input.into_iter();
    let role = match tokens.next().map(bare) {
        Some(TokenTree::Literal(role)) => string(&role)?,
        _ => return Err(Error::new(proc_macro2::Span::call_site(), "a role is needed before the manifest")),
    };
    let body = match tokens.next().map(bare) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => group,
        _ => return Err(Error::new(proc_macro2::Span::call_site(), "the manifest is a JSON object: { … }")),
    };
    let serde_json::Value::Object(written) = object(body.stream())? else {
        return Err(Error::new(body.span(), "the manifest is a JSON object"));
    };
    let mut manifest = serde_json::Map::new();
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    for (key, value) in [("version", version), ("contract", "0.1".to_owned()), ("role", role)] {
        if written.contains_key(key) {
            return Err(Error::new(body.span(), format!("`{key}` is filled in by the macro: leave it out")));
        }
        manifest.insert(key.to_owned(), value.into());
    }
    for needed in ["name", "kinds", "contractLabels"] {
        if !written.contains_key(needed) {
            return Err(Error::new(body.span(), format!("the manifest lacks `{needed}`")));
        }
    }
    manifest.extend(written);
    let text = serde_json::Value::Object(manifest).to_string();
    Ok(quote!(#text))
}

/// A fragment of a macro (`$role:literal`) without its invisible group.
fn bare(token: TokenTree) -> TokenTree {
    match &token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            let mut inner = group.stream().into_iter();
            match (inner.next(), inner.next()) {
                (Some(only), None) => bare(only),
                _ => token,
            }
        }
        _ => token,
    }
}

/// What `{ "key": value, … }` holds.
fn object(stream: TokenStream) -> Result<serde_json::Value> {
    let mut map = serde_json::Map::new();
    let mut tokens = stream.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let key = match &token {
            TokenTree::Literal(key) => string(key)?,
            other => return Err(Error::new(other.span(), "a key in double quotes is needed here")),
        };
        match tokens.next() {
            Some(TokenTree::Punct(colon)) if colon.as_char() == ':' => {}
            _ => return Err(Error::new(token.span(), "`:` is missing after this key")),
        }
        let found = value(tokens.next().ok_or_else(|| Error::new(token.span(), "this key has no value"))?)?;
        if map.insert(key, found).is_some() {
            return Err(Error::new(token.span(), "this key is there twice"));
        }
        comma(tokens.next())?;
    }
    Ok(serde_json::Value::Object(map))
}

fn array(stream: TokenStream) -> Result<serde_json::Value> {
    let mut items = Vec::new();
    let mut tokens = stream.into_iter();
    while let Some(token) = tokens.next() {
        items.push(value(token)?);
        comma(tokens.next())?;
    }
    Ok(serde_json::Value::Array(items))
}

fn value(token: TokenTree) -> Result<serde_json::Value> {
    match token {
        TokenTree::Group(group) => match group.delimiter() {
            Delimiter::Brace => object(group.stream()),
            Delimiter::Bracket => array(group.stream()),
            _ => Err(Error::new(group.span(), "not JSON")),
        },
        TokenTree::Ident(word) => match word.to_string().as_str() {
            "true" => Ok(true.into()),
            "false" => Ok(false.into()),
            "null" => Ok(serde_json::Value::Null),
            _ => Err(Error::new(word.span(), "not JSON")),
        },
        TokenTree::Literal(literal) => {
            let text = literal.to_string();
            if text.starts_with('"') {
                return Ok(string(&literal)?.into());
            }
            serde_json::from_str(&text).map_err(|_| Error::new(literal.span(), "not a JSON number"))
        }
        TokenTree::Punct(punct) => Err(Error::new(punct.span(), "not JSON")),
    }
}

fn comma(token: Option<TokenTree>) -> Result<()> {
    match token {
        None => Ok(()),
        Some(TokenTree::Punct(comma)) if comma.as_char() == ',' => Ok(()),
        Some(other) => Err(Error::new(other.span(), "`,` is missing before this")),
    }
}

fn string(literal: &proc_macro2::Literal) -> Result<String> {
    Ok(syn::parse2::<syn::LitStr>(TokenTree::Literal(literal.clone()).into())?.value())
}

/// The interfaces that `world` imports, and those whose types they use: all of them are bound by the SDK.
pub fn imports_of(wit: &str, world: &str) -> Vec<String> {
    let mut imports = vec!["types".to_owned()];
    let Some((_, rest)) = wit.split_once(&format!("world {world} {{")) else {
        return imports;
    };
    let body = rest.split_once('}').map_or(rest, |(body, _)| body);
    imports.extend(
        body.lines()
            .filter_map(|line| Some(line.trim().strip_prefix("import ")?.trim_end_matches(';').trim().to_owned())),
    );
    imports
}

/// `0.1.0` of `package capstan:provider@0.1.0;`.
pub fn package_version(wit: &str) -> String {
    wit.lines()
        .find_map(|line| line.strip_prefix("package capstan:provider@"))
        .map(|version| version.trim_end_matches(';').trim().to_owned())
        .unwrap_or_default()
}
