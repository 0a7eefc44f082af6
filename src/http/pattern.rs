//! Patterns over names, as configured: `*` stands for any text, everything else for itself.
//!
//! Owns the match. Never knows what the names are names of.

/// A pattern over names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Takes a pattern as configured.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether a name fits, whole. A star takes as little as it can and gives way once, at the last
    /// part, so the work is bounded by the length of the name times the number of stars.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else {
            return self.0 == name;
        };
        let Some(mut name) = name.strip_prefix(head) else {
            return false;
        };
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*').filter(|part| !part.is_empty()) {
            match name.split_once(part) {
                Some((_, after)) => name = after,
                None => return false,
            }
        }
        name.ends_with(tail)
    }
}

/// Whether any of the patterns fits.
pub(super) fn any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_whole_names_only() {
        let fits = |pattern: &str, name: &str| Pattern::new(pattern).matches(name);
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "x"),
            ("demo.*", "demo.x"),
            ("*.x", "a.x"),
            ("a*c*e", "abcde"),
            ("a**e", "ae"),
            ("a*b*b", "abb"),
            ("*a*", "bab"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("a", "ab"),
            ("demo.*", "demo"),
            ("demo.*", "xdemo.y"),
            ("*.x", "a.xy"),
            ("a*a", "a"),
            ("a*b*b", "ab"),
            ("a*c*e", "aec"),
            ("A", "a"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
