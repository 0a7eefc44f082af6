//! The file of the key that signs credentials.
//!
//! Owns its format (PKCS#8 in PEM) and its mode. Never overwrites a key and never prints one.

use crate::config::Credentials;
use crate::http::credential::Signer;
use anyhow::Context as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const LINE_BYTES: usize = 64;
const MODE: u32 = 0o600;

/// Reads the key that the configuration names.
pub fn load(credentials: &Credentials) -> anyhow::Result<Signer> {
    let path = &credentials.signing_key_file;
    let named = || format!("signing key {}", path.display());
    let pem = std::fs::read_to_string(path).with_context(named)?;
    let der = decode(&pem).with_context(named)?;
    Signer::from_pkcs8(&der, &credentials.issuer, &credentials.audience).with_context(named)
}

/// Makes a key, writes it to a new file and returns its id.
pub fn generate(path: &Path) -> anyhow::Result<String> {
    let named = || format!("signing key {}", path.display());
    let mut file = create(path).with_context(named)?;
    let key = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new())
        .map_err(|_| anyhow::anyhow!("no key could be made"))?;
    let signer = Signer::from_pkcs8(key.as_ref(), "", "")?;
    file.write_all(encode(key.as_ref()).as_bytes()).with_context(named)?;
    file.sync_all().with_context(named)?;
    Ok(signer.kid().to_owned())
}

/// A file that nobody else can read, and that was not there before.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)
}

fn encode(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("{BEGIN}\n");
    for (index, c) in text.chars().enumerate() {
        if index > 0 && index.is_multiple_of(LINE_BYTES) {
            pem.push('\n');
        }
        pem.push(c);
    }
    format!("{pem}\n{END}\n")
}

fn decode(pem: &str) -> anyhow::Result<Vec<u8>> {
    let body = pem.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
    let body = body.context("is not one PKCS#8 key in PEM")?;
    let text: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(text).context("is not one PKCS#8 key in PEM")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_generated_key_is_private_is_never_overwritten_and_signs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credential.pem");
        let kid = generate(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(generate(&path).is_err());
        let credentials = Credentials { signing_key_file: path.clone(), ..Credentials::default() };
        assert_eq!(load(&credentials).unwrap().kid(), kid);
        std::fs::write(&path, "x").unwrap();
        let error = format!("{:#}", load(&credentials).unwrap_err());
        assert!(error.contains("credential.pem") && error.contains("PEM"), "{error}");
    }
}
