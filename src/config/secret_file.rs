//! Secrets that stand in files of their own.
//!
//! Owns how such a file is read. Never shows what is in it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Longest secret with its line end; a certificate chain is far below it.
const BYTES_MAX: u64 = 65_536;

/// Why a file holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// Not there, not ours to read, or no file.
    #[error("cannot be read")]
    Read(#[source] std::io::Error),
    /// Nothing but a line end, or not even that.
    #[error("is empty")]
    Empty,
    /// Hardly a secret.
    #[error("is larger than {BYTES_MAX} bytes")]
    TooLarge,
    /// Not text.
    #[error("is not UTF-8")]
    NotText,
    /// The key takes no such value.
    #[error("{0}")]
    Refused(String),
}

/// A file's text without the one line end that editors and `echo` put behind it.
pub(super) fn read(path: &Path) -> Result<String, SecretFileError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(SecretFileError::Read)?;
    file.take(BYTES_MAX.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(SecretFileError::Read)?;
    if u64::try_from(bytes.len()).map_or(true, |length| length > BYTES_MAX) {
        return Err(SecretFileError::TooLarge);
    }
    let text = String::from_utf8(bytes).map_err(|_| SecretFileError::NotText)?;
    let line = text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    match line.unwrap_or(&text) {
        "" => Err(SecretFileError::Empty),
        secret => Ok(secret.to_owned()),
    }
}
