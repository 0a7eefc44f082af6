//! Bearer tokens on the command line: new ones, and their hashes.
//!
//! Owns how long a token is and how its hash is written. Never stores one.

use anyhow::Context as _;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::io::BufRead;

const TOKEN_BYTES: usize = 32;
const LINE_BYTES_MAX: u64 = 8_192;

/// 256 random bits as text that needs no quoting.
pub(super) fn random() -> anyhow::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow::anyhow!("no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// SHA-256 as hex digits.
pub(super) fn hash(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of the first line, without its end.
pub(super) fn hash_of(input: impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    input.take(LINE_BYTES_MAX).read_line(&mut line).context("standard input")?;
    let token = line.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!token.is_empty(), "give the token on standard input");
    Ok(hash(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_line_is_the_hash_of_the_token_in_it() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for input in ["abc", "abc\n", "abc\r\n", "abc\nrest"] {
            assert_eq!(hash_of(input.as_bytes()).unwrap(), expected);
        }
        assert!(hash_of(&b"\n"[..]).is_err());
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 43);
    }
}
