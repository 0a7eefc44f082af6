//! Query parameters: known ones, each given once, values exactly of their type.
//!
//! Owns reading them. What is unknown, repeated or out of bounds is refused by its name.

use crate::http::identity::on_its_lease;
use crate::http::problem::Problem;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

/// The parameters of a call as they were sent.
pub(super) struct Parameters(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(pairs) = Query::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::parameter("query", "is not valid percent-encoded text"))?;
        Ok(Self(pairs))
    }
}

/// A call that takes none.
pub(super) struct NoParameters;

impl<S: Send + Sync> FromRequestParts<S> for NoParameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let parameters = Parameters::from_request_parts(parts, state).await;
        match parameters.and_then(|parameters| parameters.only(&[])) {
            Ok(_none) => Ok(Self),
            Err(problem) => Err(on_its_lease(problem, parts, state).await),
        }
    }
}

impl Parameters {
    /// Refuses all but these, and any given twice.
    pub(super) fn only(self, known: &[&'static str]) -> Result<Self, Problem> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            let Some(known) = known.iter().find(|k| *k == name) else {
                let takes = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let detail = format!("an unknown parameter; this call takes: {takes}");
                return Err(Problem::parameter("query", detail));
            };
            if self.0.iter().take(index).any(|(before, _)| before == name) {
                return Err(Problem::parameter(known, "given more than once"));
            }
        }
        Ok(self)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// `true` or `false`; absent means false.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::parameter(name, "must be true or false")),
        }
    }

    /// A whole number from 1 to `max`.
    pub(super) fn limit(&self, default: u16, max: u16) -> Result<u16, Problem> {
        let Some(text) = self.get("limit") else { return Ok(default) };
        digits(text)
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| (1..=max).contains(n))
            .ok_or_else(|| {
                Problem::parameter("limit", format!("must be a whole number from 1 to {max}"))
            })
    }

    /// A whole number from 0.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<i64>, Problem> {
        let refuse = || Problem::parameter(name, "must be a whole number from 0");
        self.get(name).map(|text| digits(text).ok_or_else(refuse)).transpose()
    }
}

/// Digits and nothing else: no sign, no spaces.
fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Parameters {
        Parameters(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn an_unknown_and_a_repeated_parameter_are_refused() {
        assert!(read(&[("a", "1"), ("b", "2")]).only(&["a", "b"]).is_ok());
        assert!(read(&[("a", "1"), ("c", "2")]).only(&["a", "b"]).is_err());
        assert!(read(&[("a", "1"), ("a", "1")]).only(&["a", "b"]).is_err());
        assert!(read(&[("a", "1")]).only(&[]).is_err());
    }

    #[test]
    fn a_limit_is_digits_within_its_bounds() {
        let limit = |text| read(&[("limit", text)]).limit(100, 1_000).ok();
        assert_eq!(read(&[]).limit(100, 1_000).ok(), Some(100));
        assert_eq!((limit("1"), limit("1000")), (Some(1), Some(1_000)));
        for bad in ["", "0", "1001", "-1", "+1", " 1", "1.0", "1e2", "99999999999999999999"] {
            assert_eq!(limit(bad), None, "{bad:?}");
        }
    }
}
