//! `#[derive(Schema)]`: a struct's fields, doc comments and attributes as an OpenAPI v3 schema in JSON.
//!
//! The schema is a constant made of string pieces, because a custom section's bytes must be known when the
//! component is compiled and a field's type may come from another crate. `BODY` has no outer braces, so that the
//! field that uses a type can add its description, bounds and default beside it.

use proc_macro2::TokenStream;
use quote::quote;
use serde_json::{Value, json};
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, Field, Fields, GenericArgument, Lit, PathArguments, Result,
    Type,
};

/// A piece of JSON text: known now, or a constant of another type.
enum Piece {
    Text(String),
    Constant(TokenStream),
}

/// Pieces, with neighbouring texts joined.
#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.0.push(Piece::Text(text.to_owned())),
        }
    }

    fn constant(&mut self, constant: TokenStream) {
        self.0.push(Piece::Constant(constant));
    }

    fn tokens(&self) -> TokenStream {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => quote!(#text),
            Piece::Constant(constant) => constant.clone(),
        });
        quote!(::capstan_provider::concat_text!(#(#pieces),*))
    }
}

/// What `#[schema(…)]` says about a field or a type.
#[derive(Default)]
struct Constraints {
    keys: Vec<(String, Value)>,
    rules: Vec<Value>,
    has_default: bool,
    optional: bool,
    hidden: bool,
    required: bool,
}

impl Constraints {
    fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("schema")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                let key = match name.as_str() {
                    "min" => "minimum",
                    "max" => "maximum",
                    "multiple_of" => "multipleOf",
                    "min_length" => "minLength",
                    "max_length" => "maxLength",
                    "min_items" => "minItems",
                    "max_items" => "maxItems",
                    "min_properties" => "minProperties",
                    "max_properties" => "maxProperties",
                    "pattern" => "pattern",
                    "format" => "format",
                    "default" => "default",
                    "default_json" => {
                        let text: syn::LitStr = meta.value()?.parse()?;
                        let value = serde_json::from_str(&text.value())
                            .map_err(|error| Error::new(text.span(), format!("not JSON: {error}")))?;
                        found.keys.push(("default".to_owned(), value));
                        found.has_default = true;
                        return Ok(());
                    }
                    "immutable" => {
                        found.rules.push(json!({"rule": "self == oldSelf", "message": "is immutable"}));
                        return Ok(());
                    }
                    "optional" => {
                        found.optional = true;
                        return Ok(());
                    }
                    "required" => {
                        found.required = true;
                        return Ok(());
                    }
                    "hidden" => {
                        found.hidden = true;
                        return Ok(());
                    }
                    "preserve_unknown" => {
                        found.keys.push(("x-kubernetes-preserve-unknown-fields".to_owned(), true.into()));
                        return Ok(());
                    }
                    "set" | "atomic" => {
                        found.keys.push(("x-kubernetes-list-type".to_owned(), name.into()));
                        return Ok(());
                    }
                    "map_key" => {
                        let text: syn::LitStr = meta.value()?.parse()?;
                        found.keys.push(("x-kubernetes-list-type".to_owned(), "map".into()));
                        found.keys.push(("x-kubernetes-list-map-keys".to_owned(), json!([text.value()])));
                        return Ok(());
                    }
                    "values" => {
                        let content;
                        syn::parenthesized!(content in meta.input);
                        let values =
                            content.parse_terminated(<syn::LitStr as syn::parse::Parse>::parse, syn::Token![,])?;
                        let values: Vec<Value> = values.iter().map(|value| value.value().into()).collect();
                        found.keys.push(("enum".to_owned(), values.into()));
                        return Ok(());
                    }
                    "rule" => {
                        let content;
                        syn::parenthesized!(content in meta.input);
                        let cel: syn::LitStr = content.parse()?;
                        content.parse::<syn::Token![,]>()?;
                        let message: syn::LitStr = content.parse()?;
                        found.rules.push(json!({"rule": cel.value(), "message": message.value()}));
                        return Ok(());
                    }
                    _ => return Err(meta.error("not an attribute of `schema`")),
                };
                let value = literal(&meta.value()?.parse::<Expr>()?)?;
                found.has_default |= key == "default";
                found.keys.push((key.to_owned(), value));
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn rules(&self) -> String {
        self.rules.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
    }
}

fn literal(expr: &Expr) -> Result<Value> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.value().into()),
        Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => Ok(value.value.into()),
        Expr::Lit(ExprLit { lit: Lit::Int(value), .. }) => Ok(value.base10_parse::<i64>()?.into()),
        Expr::Unary(negative) if matches!(negative.op, syn::UnOp::Neg(_)) => match literal(&negative.expr)? {
            Value::Number(number) => Ok((-number.as_i64().unwrap_or_default()).into()),
            _ => Err(Error::new_spanned(expr, "a literal is needed")),
        },
        other => Err(Error::new_spanned(other, "a literal is needed")),
    }
}

/// What serde makes of a field's or variant's name.
#[derive(Default)]
struct Serde {
    rename: Option<String>,
    rename_all: Option<String>,
    default: bool,
    skip: bool,
    /// It may be left out of what is written, so it is not always there.
    left_out: bool,
}

impl Serde {
    fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                match name.as_str() {
                    "rename" => found.rename = Some(meta.value()?.parse::<syn::LitStr>()?.value()),
                    "rename_all" => found.rename_all = Some(meta.value()?.parse::<syn::LitStr>()?.value()),
                    "default" => {
                        found.default = true;
                        if meta.input.peek(syn::Token![=]) {
                            meta.value()?.parse::<Expr>()?;
                        }
                    }
                    "skip" => found.skip = true,
                    "skip_serializing_if" => {
                        found.left_out = true;
                        meta.value()?.parse::<Expr>()?;
                    }
                    "flatten" | "tag" | "untagged" => {
                        return Err(meta.error("derive(Schema) knows no schema for this serde attribute"));
                    }
                    _ => {
                        if meta.input.peek(syn::Token![=]) {
                            meta.value()?.parse::<Expr>()?;
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(found)
    }
}

pub fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let container = Serde::of(&input.attrs)?;
    let constraints = Constraints::of(&input.attrs)?;
    let mut body = Pieces::default();
    match &input.data {
        Data::Struct(data) => {
            let Fields::Named(fields) = &data.fields else {
                return Err(Error::new_spanned(name, "derive(Schema) needs named fields"));
            };
            object(&mut body, &container, &constraints, &fields.named)?;
        }
        Data::Enum(data) => {
            let mut values = Vec::new();
            for variant in &data.variants {
                if !matches!(variant.fields, Fields::Unit) {
                    return Err(Error::new_spanned(variant, "derive(Schema) needs variants without fields"));
                }
                let serde = Serde::of(&variant.attrs)?;
                let word = variant.ident.to_string();
                values.push(match (serde.rename, container.rename_all.as_deref()) {
                    (Some(name), _) => name,
                    (None, None) => word,
                    (None, Some("lowercase")) => word.to_lowercase(),
                    (None, Some("camelCase")) => lower_first(&word),
                    (None, Some("kebab-case")) => kebab(&word),
                    (None, Some(_)) => {
                        return Err(Error::new_spanned(name, "derive(Schema) does not know this rename_all"));
                    }
                });
            }
            body.text(&format!("\"type\":\"string\",\"enum\":{}", json!(values)));
        }
        Data::Union(_) => return Err(Error::new_spanned(name, "derive(Schema) knows no unions")),
    }
    let (body, rules) = (body.tokens(), constraints.rules());
    Ok(quote! {
        impl ::capstan_provider::Schema for #name {
            const BODY: &'static str = #body;
            const RULES: &'static str = #rules;
        }
    })
}

fn object<'a>(
    body: &mut Pieces,
    container: &Serde,
    constraints: &Constraints,
    fields: impl IntoIterator<Item = &'a Field>,
) -> Result<()> {
    body.text("\"type\":\"object\"");
    for (key, value) in &constraints.keys {
        body.text(&format!(",{}:{value}", json!(key)));
    }
    body.text(",\"properties\":{");
    let mut required = Vec::new();
    let mut first = true;
    for field in fields {
        let serde = Serde::of(&field.attrs)?;
        if serde.skip {
            continue;
        }
        let ident = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        let ident = ident.trim_start_matches("r#");
        let name = match (&serde.rename, container.rename_all.as_deref()) {
            (Some(name), _) => name.clone(),
            (None, Some("camelCase")) => camel(ident),
            (None, None) if !ident.contains('_') => ident.to_owned(),
            _ => {
                return Err(Error::new_spanned(
                    field,
                    "Kubernetes fields are camelCase: put #[serde(rename_all = \"camelCase\")] on the struct",
                ));
            }
        };
        let constraints = Constraints::of(&field.attrs)?;
        if constraints.hidden {
            continue;
        }
        if !first {
            body.text(",");
        }
        first = false;
        body.text(&format!("{}:{{", json!(name)));
        if let Some(description) = description(&field.attrs) {
            body.text(&format!("\"description\":{},", json!(description)));
        }
        let mut bounded = false;
        for (key, value) in &constraints.keys {
            bounded |= key == "minimum";
            body.text(&format!("{}:{value},", json!(key)));
        }
        schema_of(body, &field.ty, bounded, &constraints.rules())?;
        body.text("}");
        let optional = is_option(&field.ty)
            || serde.default
            || serde.left_out
            || container.default
            || constraints.has_default
            || constraints.optional;
        if !optional || constraints.required {
            required.push(name);
        }
    }
    body.text("}");
    if !required.is_empty() {
        body.text(&format!(",\"required\":{}", json!(required)));
    }
    Ok(())
}

/// The keys of a type's schema, without braces.
fn schema_of(body: &mut Pieces, ty: &Type, bounded: bool, rules: &str) -> Result<()> {
    let Type::Path(path) = ty else {
        return Err(Error::new_spanned(ty, "derive(Schema) knows no schema for this type"));
    };
    let Some(last) = path.path.segments.last() else {
        return Err(Error::new_spanned(ty, "derive(Schema) knows no schema for this type"));
    };
    let unsigned = if bounded { "" } else { ",\"minimum\":0" };
    let plain = match last.ident.to_string().as_str() {
        "Option" | "Box" => return schema_of(body, argument(&last.arguments, 0, ty)?, bounded, rules),
        "Vec" => {
            body.text("\"type\":\"array\",\"items\":{");
            schema_of(body, argument(&last.arguments, 0, ty)?, false, "")?;
            body.text("}");
            known_rules(body, rules);
            return Ok(());
        }
        "BTreeMap" | "HashMap" => {
            body.text("\"type\":\"object\",\"additionalProperties\":{");
            schema_of(body, argument(&last.arguments, 1, ty)?, false, "")?;
            body.text("}");
            known_rules(body, rules);
            return Ok(());
        }
        "String" => "\"type\":\"string\"".to_owned(),
        "bool" => "\"type\":\"boolean\"".to_owned(),
        "f64" => "\"type\":\"number\"".to_owned(),
        "i32" => "\"type\":\"integer\",\"format\":\"int32\"".to_owned(),
        "i64" => "\"type\":\"integer\",\"format\":\"int64\"".to_owned(),
        "u8" | "u16" => format!("\"type\":\"integer\",\"format\":\"int32\"{unsigned}"),
        "u32" | "u64" => format!("\"type\":\"integer\",\"format\":\"int64\"{unsigned}"),
        "Value" => "\"x-kubernetes-preserve-unknown-fields\":true".to_owned(),
        _ => {
            body.constant(quote!(<#ty as ::capstan_provider::Schema>::BODY));
            let theirs = quote!(<#ty as ::capstan_provider::Schema>::RULES);
            body.constant(quote!(::capstan_provider::schema::rules_open(#rules, #theirs)));
            body.text(rules);
            body.constant(quote!(::capstan_provider::schema::rules_between(#rules, #theirs)));
            body.constant(theirs.clone());
            body.constant(quote!(::capstan_provider::schema::rules_close(#rules, #theirs)));
            return Ok(());
        }
    };
    body.text(&plain);
    known_rules(body, rules);
    Ok(())
}

fn known_rules(body: &mut Pieces, rules: &str) {
    if !rules.is_empty() {
        body.text(&format!(",\"x-kubernetes-validations\":[{rules}]"));
    }
}

fn argument<'a>(arguments: &'a PathArguments, index: usize, ty: &Type) -> Result<&'a Type> {
    if let PathArguments::AngleBracketed(arguments) = arguments
        && let Some(GenericArgument::Type(inner)) = arguments.args.iter().nth(index)
    {
        return Ok(inner);
    }
    Err(Error::new_spanned(ty, "derive(Schema) needs the type argument written out"))
}

fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

/// The doc comment as one paragraph.
pub fn description(attributes: &[Attribute]) -> Option<String> {
    let mut lines = Vec::new();
    for attribute in attributes {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &pair.value
        {
            lines.push(line.value().trim().to_owned());
        }
    }
    let text = lines.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        out.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        out.push_str(letters.as_str());
    }
    out
}

fn lower_first(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|letter| letter.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

fn kebab(word: &str) -> String {
    let mut out = String::new();
    for letter in word.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
