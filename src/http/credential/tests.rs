//! Forged, foreign, repeated and oversized credentials.

use super::*;
use crate::protocol::lease::DbTime;
use aws_lc_rs::rand::SystemRandom;
use serde_json::{Value, json};

fn key() -> Vec<u8> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap().as_ref().to_vec()
}

fn signer(key: &[u8]) -> Signer {
    Signer::from_pkcs8(key, "fencepost", "fencepost").unwrap()
}

fn granted() -> Granted {
    Granted {
        lease: LeaseName::parse("matter.7").unwrap(),
        owner: Owner::parse("indexer-17").unwrap(),
        token: FencingToken(9_223_372_036_854_775_807),
        incarnation: Incarnation(3),
        ttl_ms: 30_000,
        expires_at: DbTime(1_700_000_029_999_999),
        now: DbTime(1_700_000_000_500_000),
    }
}

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn signed(key: &[u8], header: &str, claims: &str) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = Ed25519KeyPair::from_pkcs8(key).unwrap().sign(message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

fn claims() -> Value {
    json!({
        "iss": "fencepost", "aud": "fencepost", "iat": 1_700_000_000, "nbf": 1_700_000_000,
        "exp": 1_700_000_030, "sub": "indexer-17", "lease": "matter.7", "token": "402", "inc": 1,
    })
}

fn header(signer: &Signer) -> Value {
    json!({"alg": "EdDSA", "typ": "fence+jwt", "kid": signer.kid()})
}

#[test]
fn a_credential_says_exactly_what_was_granted() {
    let signer = signer(&key());
    let minted = signer.mint(&granted()).unwrap();
    assert_eq!(
        signer.verify(&minted),
        Some(Credential {
            lease: granted().lease,
            owner: granted().owner,
            token: granted().token,
            incarnation: Incarnation(3),
            expires_s: 1_700_000_029,
            issued_s: 1_700_000_000,
        })
    );
    assert!(minted.len() < CREDENTIAL_BYTES_MAX / 2);
}

#[test]
fn the_longest_names_still_fit_into_a_credential() {
    let signer = signer(&key());
    let long = Granted {
        lease: LeaseName::parse(&"a".repeat(200)).unwrap(),
        owner: Owner::parse(&"\"".repeat(200)).unwrap(),
        ..granted()
    };
    let minted = signer.mint(&long).unwrap();
    assert!(minted.len() < CREDENTIAL_BYTES_MAX, "{}", minted.len());
    assert!(signer.verify(&minted).is_some());
}

#[test]
fn times_are_never_judged_here() {
    let key = key();
    let signer = signer(&key);
    for (iat, exp) in [(1, 2), (4_000_000_000i64, 4_000_000_001i64)] {
        let claims = json!({"iat": iat, "nbf": iat, "exp": exp});
        let mut all = self::claims();
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let token = signed(&key, &header(&signer).to_string(), &all.to_string());
        assert_eq!(signer.verify(&token).unwrap().expires_s, exp);
    }
}

#[test]
fn a_header_that_is_not_exactly_ours_is_refused() {
    let key = key();
    let signer = signer(&key);
    let claims = claims().to_string();
    assert!(signer.verify(&signed(&key, &header(&signer).to_string(), &claims)).is_some());
    let with = |name: &str, value: Value| {
        let mut header = header(&signer);
        header[name] = value;
        header.to_string()
    };
    let mut bad = vec![
        with("alg", json!("none")),
        with("alg", json!("HS256")),
        with("typ", json!("JWT")),
        with("kid", json!("../../x")),
        with("kid", json!("0000000000000000")),
        with("crit", json!([])),
        with("jku", json!("https://example.org/keys")),
        with("jwk", json!({})),
        with("x5u", json!("https://example.org/cert")),
        with("x5c", json!([])),
        with("cty", json!("JWT")),
        with("zip", json!("DEF")),
        json!({"alg": "EdDSA", "kid": signer.kid()}).to_string(),
        json!({"alg": "EdDSA", "typ": "fence+jwt"}).to_string(),
    ];
    bad.push(header(&signer).to_string().replacen('{', "{\"alg\":\"EdDSA\",", 1));
    for header in bad {
        assert_eq!(signer.verify(&signed(&key, &header, &claims)), None, "{header}");
    }
}

#[test]
fn claims_that_are_not_exactly_ours_are_refused() {
    let key = key();
    let signer = signer(&key);
    let header = header(&signer).to_string();
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        claims.to_string()
    };
    let mut bad = vec![
        with("iss", json!("somebody")),
        with("aud", json!("somebody")),
        with("aud", json!(["fencepost", "somebody"])),
        with("nbf", json!(1_700_000_030)),
        with("exp", json!("1700000030")),
        with("exp", json!(1.5)),
        with("exp", json!(1)),
        with("token", json!(402)),
        with("token", json!("0402")),
        with("token", json!("0")),
        with("token", json!("-1")),
        with("token", json!("9223372036854775808")),
        with("lease", json!("a/b")),
        with("sub", json!("")),
        with("inc", json!(-1)),
        with("jti", json!("x")),
    ];
    bad.push(claims().to_string().replacen('{', "{\"lease\":\"other\",", 1));
    for name in ["iss", "aud", "iat", "nbf", "exp", "sub", "lease", "token", "inc"] {
        let mut without = claims();
        without.as_object_mut().unwrap().remove(name);
        bad.push(without.to_string());
    }
    for claims in bad {
        assert_eq!(signer.verify(&signed(&key, &header, &claims)), None, "{claims}");
    }
}

#[test]
fn a_token_that_this_key_has_not_signed_is_refused() {
    let (key, other) = (key(), key());
    let signer = signer(&key);
    let header = header(&signer);
    let forged = signed(&other, &header.to_string(), &claims().to_string());
    assert_eq!(signer.verify(&forged), None);
    let unsigned = format!("{}.{}.", encoded(&header), encoded(&claims()));
    assert_eq!(signer.verify(&unsigned), None);
    let good = signer.mint(&granted()).unwrap();
    let nested = format!("{good}.x");
    let long = "a".repeat(64 * 1024);
    for bad in [
        "",
        ".",
        "..",
        "a.b.c",
        nested.as_str(),
        long.as_str(),
        good.trim_end_matches(char::is_alphanumeric),
    ] {
        assert_eq!(signer.verify(bad), None);
    }
}

#[test]
fn a_key_of_another_kind_is_refused() {
    assert_eq!(Signer::from_pkcs8(b"", "a", "b").unwrap_err(), BadKey);
    assert_eq!(Signer::from_pkcs8(&[0; 48], "a", "b").unwrap_err(), BadKey);
    assert_eq!(signer(&key()).kid().len(), 2 * KID_BYTES);
}
