//! Makes credentials as the gateway would, and as it never would.

use crate::client::Holder;
use crate::world::World;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use std::fs;

/// What stands before an Ed25519 public key in its DER form (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The world's signing key, and a true credential's header and claims to start from.
pub struct Forge {
    key: Ed25519KeyPair,
    pub header: Value,
    pub claims: Value,
}

pub fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// One part of a credential, read.
pub fn read(credential: &str, index: usize) -> Value {
    let bytes = URL_SAFE_NO_PAD.decode(credential.split('.').nth(index).unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The object with these members set, and without those that are set to null.
pub fn with(base: &Value, members: Value) -> Value {
    let mut object = base.as_object().unwrap().clone();
    for (name, value) in members.as_object().unwrap() {
        match value {
            Value::Null => drop(object.remove(name)),
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(object)
}

impl Forge {
    pub fn new(world: &World, holder: &Holder) -> Self {
        let pem = fs::read_to_string(world.key_file()).unwrap();
        let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        Self {
            key: Ed25519KeyPair::from_pkcs8(&STANDARD.decode(body).unwrap()).unwrap(),
            header: read(&holder.credential, 0),
            claims: read(&holder.credential, 1),
        }
    }

    /// Signed with the world's key, whatever it says.
    pub fn signed(&self, header: &Value, claims: &Value) -> String {
        self.signed_text(&header.to_string(), &claims.to_string())
    }

    pub fn signed_text(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.key.sign(message.as_bytes());
        format!("{message}.{}", part(signature.as_ref()))
    }

    /// A true credential, but for these claims.
    pub fn claiming(&self, members: Value) -> String {
        self.signed(&self.header, &with(&self.claims, members))
    }

    /// A true credential, but for these members of its header.
    pub fn headed(&self, members: Value) -> String {
        self.signed(&with(&self.header, members), &self.claims)
    }

    /// Well signed, valid from `issued_s` on and over at `expires_s`.
    pub fn timed(&self, issued_s: i64, expires_s: i64) -> String {
        self.claiming(json!({ "iat": issued_s, "nbf": issued_s, "exp": expires_s }))
    }

    /// Signed by a key that nobody here knows, under the true key's id.
    pub fn by_a_stranger(&self) -> String {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        Self { key, header: self.header.clone(), claims: self.claims.clone() }.claiming(json!({}))
    }

    /// With `alg` HS256, and the public key as the secret, in each form that it is known in.
    pub fn hmac_with_the_public_key(&self) -> Vec<String> {
        let raw = self.key.public_key().as_ref().to_vec();
        let der = [&SPKI[..], &raw].concat();
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            STANDARD.encode(&der)
        );
        let header = with(&self.header, json!({ "alg": "HS256" }));
        let message = format!("{}.{}", part(header.to_string()), part(self.claims.to_string()));
        [raw, der, pem.into_bytes()]
            .iter()
            .map(|secret| {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                let tag = hmac::sign(&key, message.as_bytes());
                format!("{message}.{}", part(tag.as_ref()))
            })
            .collect()
    }

    /// Everything that is no credential of this installation, with a word on what is wrong.
    pub fn bad(&self) -> Vec<(&'static str, String)> {
        [self.other_signatures(), self.other_headers(), self.other_claims(), self.other_texts()]
            .concat()
    }

    fn other_signatures(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for alg in ["none", "None", "NONE", ""] {
            let header = with(&self.header, json!({ "alg": alg }));
            let message = format!("{}.{}", part(header.to_string()), part(self.claims.to_string()));
            all.push(("alg none", format!("{message}.")));
            all.push(("alg none, two parts", message));
            all.push(("alg none, signed", self.signed(&header, &self.claims)));
        }
        for credential in self.hmac_with_the_public_key() {
            all.push(("HS256 with the public key", credential));
        }
        for alg in ["HS256", "RS256", "ES256", "Ed25519", "eddsa"] {
            all.push(("another alg, well signed", self.headed(json!({ "alg": alg }))));
        }
        all.push(("another key", self.by_a_stranger()));
        all
    }

    fn other_headers(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for kid in ["../../x", "0000000000000000", "", "' OR 1=1 --"] {
            all.push(("another kid", self.headed(json!({ "kid": kid }))));
        }
        for typ in ["JWT", "fence+JWT", "at+jwt", "application/fence+jwt", ""] {
            all.push(("another typ", self.headed(json!({ "typ": typ }))));
        }
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": part(self.key.public_key()) });
        for (name, value) in [
            ("jku", json!("https://keys.example/x")),
            ("jwk", jwk),
            ("x5u", json!("https://keys.example/x")),
            ("x5c", json!(["MA=="])),
            ("crit", json!(["exp"])),
            ("crit", json!([])),
            ("b64", json!(false)),
            ("zip", json!("DEF")),
            ("more", json!(1)),
        ] {
            all.push(("one header member more", self.headed(json!({ (name): value }))));
        }
        for name in ["alg", "typ", "kid"] {
            all.push(("one header member less", self.headed(json!({ (name): null }))));
        }
        all
    }

    fn other_claims(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for name in ["iss", "aud", "iat", "nbf", "exp", "sub", "lease", "token", "inc"] {
            all.push(("one claim less", self.claiming(json!({ (name): null }))));
        }
        for members in [
            json!({ "aud": "another" }),
            json!({ "aud": ["fencepost"] }),
            json!({ "aud": ["another", "fencepost"] }),
            json!({ "aud": "" }),
            json!({ "iss": "another" }),
            json!({ "iss": ["fencepost"] }),
            json!({ "nbf": 0 }),
            json!({ "exp": 0 }),
            json!({ "exp": "9999999999" }),
            json!({ "exp": 1.5 }),
            json!({ "iat": -1, "nbf": -1 }),
            json!({ "admin": true }),
        ] {
            all.push(("a wrong claim", self.claiming(members)));
        }
        let claims = self.claims.to_string();
        let twice = format!("{},\"exp\":9999999999}}", claims.trim_end_matches('}'));
        all.push(("a claim twice", self.signed_text(&self.header.to_string(), &twice)));
        all
    }

    fn other_texts(&self) -> Vec<(&'static str, String)> {
        let good = self.claiming(json!({}));
        let (message, signature) = good.rsplit_once('.').unwrap();
        vec![
            ("no signature", format!("{message}.")),
            ("half a signature", format!("{message}.{}", &signature[..40])),
            ("one part more", format!("{good}.x")),
            ("padded", format!("{good}==")),
            ("no token at all", "x".to_owned()),
            ("as long as is looked at", "a".repeat(4_096)),
            ("longer than is looked at", "a".repeat(4_097)),
        ]
    }
}
