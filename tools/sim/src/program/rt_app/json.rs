//! Json: a JSON value whose objects keep the order of keys, and keys that occur twice.
//!
//! rt-app's events happen in the order of their keys, and workgen, the script that prepares its files, lets a key occur
//! again; a map would lose both. Comments between `/*` and `*/` are replaced by blanks (`without_comments`).

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool,
    Int(i64),
    Other,
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The kind of value, for error messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Int(_) => "an integer",
            Self::Other => "a number that is no integer",
            Self::Text(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

/// Replaces each character of a comment except line ends by a blank, so that the lines of errors stay correct.
pub(super) fn without_comments(text: &str) -> String {
    let (mut out, mut rest, mut in_text) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        if !in_text && rest.starts_with("/*") {
            let end = rest[2..].find("*/").map_or(rest.len(), |end| end + 4);
            out.extend(rest[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[end..];
            continue;
        }
        let len = if in_text && c == '\\' {
            1 + rest[1..].chars().next().map_or(0, char::len_utf8)
        } else {
            c.len_utf8()
        };
        in_text ^= c == '"';
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Bool)
    }

    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(Json::Int(n))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(i64::try_from(n).map_or(Json::Other, Json::Int))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = seq.next_element()? {
            all.push(item);
        }
        Ok(Json::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(entry) = map.next_entry()? {
            all.push(entry);
        }
        Ok(Json::Object(all))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}
