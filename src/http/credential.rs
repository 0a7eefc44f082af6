//! Fencing credentials: JSON Web Tokens that say who holds which token of which lease.
//!
//! Owns making and verifying them. A credential proves who, never whether still: its times are
//! handed on and judged by the database's clock, never here. The algorithm is fixed by the key and
//! never taken from the token; a header with any other member than ours is refused.

use crate::engine::api::Granted;
use crate::protocol::fence::Credential;
use crate::protocol::lease::{FencingToken, Incarnation, LeaseName, Owner};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// The explicit type that keeps other tokens of the same key from being taken for credentials.
const TYPE: &str = "fence+jwt";
const ALGORITHM: &str = "EdDSA";
/// Longest credential that is looked at; the longest that is made has less than half of it.
const CREDENTIAL_BYTES_MAX: usize = 4_096;
const KID_BYTES: usize = 8;

/// A signing key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 key in PKCS#8")]
pub struct BadKey;

/// A credential that could not be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("signing failed")]
pub struct Unsigned;

/// The header. Unknown members (`crit`, `jku`, `jwk`, `x5u` and their like) and repeated ones are
/// refused by the way it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    alg: String,
    typ: String,
    kid: String,
}

/// The claims; none may be missing, unknown or repeated. The token is text, because a JSON number
/// above 2^53 does not survive every reader.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: String,
    aud: String,
    iat: i64,
    nbf: i64,
    exp: i64,
    sub: String,
    lease: String,
    token: String,
    inc: u64,
}

/// Makes and verifies credentials with one key.
pub struct Signer {
    issuer: String,
    audience: String,
    kid: String,
    signing: EncodingKey,
    verifying: DecodingKey,
    validation: Validation,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl Signer {
    /// Takes a key (PKCS#8, DER) and the names of who issues and who is meant to accept.
    pub fn from_pkcs8(der: &[u8], issuer: &str, audience: &str) -> Result<Self, BadKey> {
        let pair = Ed25519KeyPair::from_pkcs8(der).map_err(|_| BadKey)?;
        let public = pair.public_key().as_ref();
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        validation.set_issuer(&[issuer]);
        validation.set_audience(&[audience]);
        validation.leeway = 0;
        // The only clock that counts is the database's; the engine judges.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Ok(Self {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            kid: kid(public),
            signing: EncodingKey::from_ed_der(der),
            verifying: DecodingKey::from_ed_der(public),
            validation,
        })
    }

    /// The key's id: opaque, and no secret.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Makes the credential of a granted lease. It never outlives the lease: `exp` is rounded down.
    pub fn mint(&self, granted: &Granted) -> Result<String, Unsigned> {
        let header = Header {
            typ: Some(TYPE.to_owned()),
            kid: Some(self.kid.clone()),
            ..Header::new(Algorithm::EdDSA)
        };
        let claims = Claims {
            iss: self.issuer.clone(),
            aud: self.audience.clone(),
            iat: granted.now.seconds(),
            nbf: granted.now.seconds(),
            exp: granted.expires_at.seconds(),
            sub: granted.owner.as_str().to_owned(),
            lease: granted.lease.as_str().to_owned(),
            token: granted.token.to_string(),
            inc: granted.incarnation.0,
        };
        jsonwebtoken::encode(&header, &claims, &self.signing).map_err(|_| Unsigned)
    }

    /// Verifies everything but the times, which it hands on.
    #[must_use]
    pub fn verify(&self, token: &str) -> Option<Credential> {
        if token.len() > CREDENTIAL_BYTES_MAX || !self.is_ours(token) {
            return None;
        }
        let decoded = jsonwebtoken::decode::<Claims>(token, &self.verifying, &self.validation);
        let claims = decoded.ok()?.claims;
        // We never make one with other times than these.
        if claims.nbf != claims.iat || claims.iat < 0 || claims.exp < claims.iat {
            return None;
        }
        Some(Credential {
            lease: LeaseName::parse(&claims.lease).ok()?,
            owner: Owner::parse(&claims.sub).ok()?,
            token: FencingToken::parse(&claims.token).ok()?,
            incarnation: Incarnation(claims.inc),
            expires_s: claims.exp,
            issued_s: claims.iat,
        })
    }

    fn is_ours(&self, token: &str) -> bool {
        let head = token.split('.').next().unwrap_or_default();
        let Ok(json) = URL_SAFE_NO_PAD.decode(head) else {
            return false;
        };
        serde_json::from_slice::<Head>(&json)
            .is_ok_and(|head| head.alg == ALGORITHM && head.typ == TYPE && head.kid == self.kid)
    }
}

/// First 16 hex digits of the SHA-256 of the public key.
fn kid(public: &[u8]) -> String {
    Sha256::digest(public).iter().take(KID_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
