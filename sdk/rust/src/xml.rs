//! XML answers of APIs that speak it, read into a tree.
//!
//! A small reader for machine-made documents: elements, text, CDATA, entities. Attributes, comments, processing instructions and
//! document types are passed over; names lose their prefix. Nothing is fetched and no entity is defined by a document.

use crate::{Error, Result};

/// Elements within one another.
const DEEPEST: usize = 64;

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name, without a prefix.
    pub name: String,
    /// Its own text, without white space around it.
    pub text: String,
    /// The elements in it.
    pub children: Vec<Element>,
}

impl Element {
    /// The root element of a document.
    ///
    /// # Errors
    /// Where the document ends early or is none: such an answer may be whole another time.
    pub fn parse(document: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(document);
        let mut reader = Reader { rest: &text };
        reader.root().ok_or_else(|| {
            let start: String = text.trim().chars().take(120).collect();
            Error::transient("UnexpectedAnswer", format!("the answer is no XML: {start:?}"))
        })
    }

    /// The first element at a path of names, such as `reservationSet/item`.
    pub fn at(&self, path: &str) -> Option<&Self> {
        path.split('/').try_fold(self, |at, name| at.children.iter().find(|child| child.name == name))
    }

    /// All elements at a path; only its last name may be there more than once.
    pub fn all<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Self> {
        let (parent, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (self.at(parent), name),
            None => (Some(self), path),
        };
        parent.into_iter().flat_map(|parent| &parent.children).filter(move |child| child.name == name)
    }

    /// The text of the first element at a path; empty where there is none.
    pub fn text(&self, path: &str) -> &str {
        self.at(path).map_or("", |found| found.text.as_str())
    }

    /// The same as an owned text, where there is one that is not empty.
    pub fn found(&self, path: &str) -> Option<String> {
        Some(self.text(path).to_owned()).filter(|text| !text.is_empty())
    }
}

struct Reader<'a> {
    rest: &'a str,
}

enum Markup<'a> {
    Open { name: &'a str, empty: bool },
    Close(&'a str),
    Text(&'a str),
    Raw(&'a str),
    Skipped,
}

impl<'a> Reader<'a> {
    /// Takes up to a mark, and the mark.
    fn until(&mut self, mark: &str) -> Option<&'a str> {
        let (before, after) = self.rest.split_once(mark)?;
        self.rest = after;
        Some(before)
    }

    fn next(&mut self) -> Option<Markup<'a>> {
        let Some(inner) = self.rest.strip_prefix('<') else {
            let end = self.rest.find('<').unwrap_or(self.rest.len());
            let (text, rest) = self.rest.split_at_checked(end)?;
            if text.is_empty() {
                return None;
            }
            self.rest = rest;
            return Some(Markup::Text(text));
        };
        for (open, close) in [("![CDATA[", "]]>"), ("!--", "-->"), ("?", "?>"), ("!", ">")] {
            if let Some(after) = inner.strip_prefix(open) {
                self.rest = after;
                let content = self.until(close)?;
                return Some(if close == "]]>" { Markup::Raw(content) } else { Markup::Skipped });
            }
        }
        // A `>` may stand within an attribute's quotes.
        let mut quote = None;
        let end = inner.char_indices().find(|(_, letter)| match (quote, letter) {
            (None, '>') => true,
            (None, '"' | '\'') => {
                quote = Some(*letter);
                false
            }
            (Some(open), close) if open == *close => {
                quote = None;
                false
            }
            _ => false,
        });
        let (tag, rest) = inner.split_at_checked(end?.0)?;
        self.rest = rest.strip_prefix('>')?;
        let empty = tag.ends_with('/');
        let closes = tag.starts_with('/');
        let name = tag.trim_matches('/').split(|letter: char| letter.is_whitespace()).next()?;
        let name = name.rsplit(':').next().filter(|name| !name.is_empty())?;
        Some(if closes { Markup::Close(name) } else { Markup::Open { name, empty } })
    }

    fn root(&mut self) -> Option<Element> {
        let mut open: Vec<Element> = Vec::new();
        loop {
            let finished = match self.next()? {
                Markup::Open { name, empty } => {
                    if open.len() >= DEEPEST {
                        return None;
                    }
                    let element = Element { name: name.to_owned(), ..Element::default() };
                    if !empty {
                        open.push(element);
                        continue;
                    }
                    element
                }
                Markup::Close(name) => {
                    let mut element = open.pop().filter(|element| element.name == name)?;
                    element.text = element.text.trim().to_owned();
                    element
                }
                Markup::Text(text) => {
                    if let Some(element) = open.last_mut() {
                        unescape(text, &mut element.text);
                    } else if !text.trim_matches(['\u{feff}', ' ', '\r', '\n', '\t']).is_empty() {
                        return None;
                    }
                    continue;
                }
                Markup::Raw(text) => {
                    open.last_mut()?.text.push_str(text);
                    continue;
                }
                Markup::Skipped => continue,
            };
            match open.last_mut() {
                Some(parent) => parent.children.push(finished),
                None => return Some(finished),
            }
        }
    }
}

fn unescape(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let known = after.split_once(';').and_then(|(name, after)| Some((entity(name)?, after)));
        match known {
            Some((letter, after)) => {
                out.push(letter);
                rest = after;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
}

fn entity(name: &str) -> Option<char> {
    match name {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Element {
        Element::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn elements_text_and_what_is_passed_over() {
        let root = read(
            "\u{feff}<?xml version=\"1.0\"?>\n<!DOCTYPE a [ ]>\n<n:a xmlns:n=\"x>y\"><!-- <b> --><set><item><id>1</id></item>\
             <item><id> 2 &lt;&amp;&#x41;&#66;&unknown; </id><e a='/'/></item></set><raw><![CDATA[<&amp;]]></raw></n:a>",
        );
        assert_eq!(root.name, "a");
        let ids: Vec<&str> = root.all("set/item").map(|item| item.text("id")).collect();
        assert_eq!(ids, ["1", "2 <&AB&unknown;"]);
        assert_eq!(root.text("raw"), "<&amp;");
        assert_eq!(root.at("set/item/e"), None, "the first of several is asked");
        assert_eq!((root.text("nothing/here"), root.found("set")), ("", None));
        assert_eq!(root.all("nothing/item").count(), 0);
    }

    #[test]
    fn what_is_no_whole_document_is_an_error() {
        let deep = "<a>".repeat(100_000);
        for text in
            ["", "  ", "hello", "<a>", "<a><b></a></b>", "<a", "<a></b>", "<a><![CDATA[x</a>", "{\"a\": 1}", &deep]
        {
            let error = Element::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Transient(_)), "{text:.20}: {error}");
        }
        assert_eq!(read("<a/>").name, "a");
        assert!(Element::parse(&[0xff, 0xfe, b'<']).is_err());
    }
}
