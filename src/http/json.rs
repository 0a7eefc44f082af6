//! Strict JSON: one document, every member known and given once, values exactly of their type.
//!
//! Owns reading a body level by level with a JSON Pointer at hand for whatever is wrong. A part
//! that nobody interprets is kept as the bytes that were sent. Never shows a parser's own words.

use crate::http::problem::{Code, Problem};
use crate::protocol::lease::is_printable;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Deepest nesting that is read, what stands under `json` in a payload included.
const DEPTH_MAX: usize = 100;
/// Longest name of an unknown member that is repeated in an answer, if all of it can be seen.
const NAME_SHOWN_MAX: usize = 100;

/// A place in the document.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Member(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    pub(super) const ROOT: At<'static> = At { parent: None, step: Step::Root };

    pub(super) fn member(&'p self, name: &'p str) -> At<'p> {
        At { parent: Some(self), step: Step::Member(name) }
    }

    pub(super) fn index(&'p self, index: usize) -> At<'p> {
        At { parent: Some(self), step: Step::Index(index) }
    }

    /// The refusal of what stands here.
    pub(super) fn refuse(&self, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::member(self.to_string(), detail)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Member(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Index(index) => write!(f, "/{index}"),
        }
    }
}

/// Reads a body as one JSON document and nothing after it.
pub(super) fn document(body: &[u8]) -> Result<&RawValue, Problem> {
    let malformed = |detail: Cow<'static, str>| Problem::new(Code::MalformedBody, detail);
    if body.is_empty() {
        return Err(malformed("the body is empty".into()));
    }
    let text = std::str::from_utf8(body).map_err(|_| malformed("the body is not UTF-8".into()))?;
    if is_too_deep(text) {
        return Err(malformed(format!("nested deeper than {DEPTH_MAX}").into()));
    }
    serde_json::from_str(text).map_err(|e| {
        malformed(format!("not one JSON document: line {}, column {}", e.line(), e.column()).into())
    })
}

fn is_too_deep(text: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth = depth.saturating_add(1),
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

/// The members of one object, all of them known and given once.
pub(super) struct Object<'a> {
    members: Vec<(String, &'a RawValue)>,
}

impl<'a> Object<'a> {
    /// Reads an object that may have these members and no others.
    pub(super) fn read(
        raw: &'a RawValue,
        at: &At<'_>,
        known: &[&'static str],
    ) -> Result<Self, Problem> {
        if !raw.get().starts_with('{') {
            return Err(at.refuse("must be an object"));
        }
        let mut reader = serde_json::Deserializer::from_str(raw.get());
        let (members, fault) = reader
            .deserialize_map(Members { known })
            .map_err(|_| at.refuse("a member's name is not valid text"))?;
        match fault {
            None => Ok(Self { members }),
            Some(Fault::Repeated(name)) => Err(at.member(&name).refuse("given more than once")),
            Some(Fault::Unknown(name)) => {
                let detail = format!("unknown member; known are: {}", known.join(", "));
                if name.len() > NAME_SHOWN_MAX || !is_printable(&name) {
                    return Err(at.refuse(detail));
                }
                Err(at.member(&name).refuse(detail))
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.members.iter().find(|(known, _)| known == name).map(|(_, raw)| *raw)
    }

    pub(super) fn require(&self, name: &str, at: &At<'_>) -> Result<&'a RawValue, Problem> {
        self.get(name).ok_or_else(|| at.member(name).refuse("is required"))
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}

enum Fault {
    Unknown(String),
    Repeated(String),
}

struct Members<'k> {
    known: &'k [&'static str],
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = (Vec<(String, &'de RawValue)>, Option<Fault>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(String, &'de RawValue)> = Vec::with_capacity(self.known.len());
        let mut fault = None;
        while let Some(name) = map.next_key::<String>()? {
            if fault.is_some() {
                map.next_value::<IgnoredAny>()?;
            } else if members.iter().any(|(given, _)| *given == name) {
                map.next_value::<IgnoredAny>()?;
                fault = Some(Fault::Repeated(name));
            } else if self.known.contains(&name.as_str()) {
                members.push((name, map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
                fault = Some(Fault::Unknown(name));
            }
        }
        Ok((members, fault))
    }
}

/// The items of an array; `None` if there are more than `max`.
pub(super) fn list<'a>(
    raw: &'a RawValue,
    at: &At<'_>,
    max: usize,
) -> Result<Option<Vec<&'a RawValue>>, Problem> {
    if !raw.get().starts_with('[') {
        return Err(at.refuse("must be an array"));
    }
    serde_json::Deserializer::from_str(raw.get())
        .deserialize_seq(Items { max })
        .map_err(|_| at.refuse("must be an array"))
}

struct Items {
    max: usize,
}

impl<'de> Visitor<'de> for Items {
    type Value = Option<Vec<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < self.max {
            match seq.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(Some(items)),
            }
        }
        if seq.next_element::<IgnoredAny>()?.is_none() {
            return Ok(Some(items));
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string. An escape that is half a surrogate pair is no text and is refused.
pub(super) fn text<'a>(raw: &'a RawValue, at: &At<'_>) -> Result<Cow<'a, str>, Problem> {
    if !is_text(raw) {
        return Err(at.refuse("must be a string"));
    }
    match serde_json::from_str::<Text<'a>>(raw.get()) {
        Ok(Text(text)) => Ok(text),
        Err(_) => Err(at.refuse("is not valid Unicode")),
    }
}

pub(super) fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// A whole number written as a JSON integer (no fraction, no exponent, no string).
pub(super) fn integer(raw: &RawValue) -> Option<i64> {
    raw.get().parse().ok()
}

/// `true` or `false`.
pub(super) fn boolean(raw: &RawValue, at: &At<'_>) -> Result<bool, Problem> {
    match raw.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(at.refuse("must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_one_document_is_malformed() {
        let deep = "[".repeat(10_000);
        let utf16 = b"\xff\xfe{\0}\0";
        let bodies = [&b""[..], b" ", b"{} {}", b"{}x", b"{\"a\":}", deep.as_bytes(), utf16];
        for bad in bodies.into_iter().chain([&b"\xef\xbb\xbf{}"[..], b"[1,]", b"NaN", b"01"]) {
            assert_eq!(document(bad).unwrap_err().code(), Code::MalformedBody, "{bad:?}");
        }
        assert_eq!(document(b" {\"a\":[1]}\n").unwrap().get(), "{\"a\":[1]}");
    }

    #[test]
    fn brackets_inside_text_are_no_nesting() {
        let text = format!("[\"{}\\\"{}\"]", "[".repeat(500), "{".repeat(500));
        assert!(document(text.as_bytes()).is_ok());
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(document(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(document(nested(DEPTH_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_pointer_escapes_what_pointers_are_made_of() {
        let at = At::ROOT.member("a/b~c");
        assert_eq!(at.index(3).to_string(), "/a~1b~0c/3");
    }

    #[test]
    fn only_a_plain_integer_is_an_integer() {
        let read = |text: &str| integer(serde_json::from_str::<&RawValue>(text).unwrap());
        assert_eq!((read("30000"), read("-1")), (Some(30_000), Some(-1)));
        assert_eq!(read("9223372036854775807"), Some(i64::MAX));
        for bad in ["\"5\"", "5.0", "5e3", "null", "true", "9223372036854775808", "[5]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
