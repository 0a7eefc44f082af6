//! Who is let in where.

use crate::support::{Call, GOOD, OPERATOR, WORKER, acquire, credential, expect, gateway, refused};
use serde_json::json;

#[tokio::test]
async fn no_kind_of_token_is_taken_for_another() {
    let gateway = gateway();
    let own = credential(&gateway, "matter.7");
    let others = crate::support::gateway();
    let foreign = credential(&others, "matter.7");
    let call = |path: &str, token: &str| Call::new("POST", path).bearer(token).json("{}");
    let invalid = expect(401, "credential_invalid");
    for path in ["renew", "release", "records"] {
        let path = format!("/v1/leases/matter.7/{path}");
        for token in [WORKER, OPERATOR, &foreign, "x"] {
            assert_eq!(refused(&gateway, call(&path, token)).await, invalid, "{path}");
        }
        let nobody = Call::new("POST", &path).json("{}");
        assert_eq!(refused(&gateway, nobody).await, expect(401, "credential_missing"));
        let in_query = Call::new("POST", &format!("{path}?access_token={own}")).json("{}");
        assert_eq!(refused(&gateway, in_query).await, expect(401, "credential_missing"));
        let twice = call(&path, &own).bearer(&own);
        assert_eq!(refused(&gateway, twice).await, invalid);
    }
    for token in [own.as_str(), OPERATOR, "x"] {
        let call = call("/v1/leases/matter.7/acquire", token);
        assert_eq!(refused(&gateway, call).await, invalid);
    }
    let look = |token: &str| Call::new("GET", "/v1/leases/matter.7").bearer(token);
    assert_eq!(refused(&gateway, look(WORKER)).await, invalid);
    assert_eq!(refused(&gateway, look(OPERATOR)).await, expect(404, "lease_not_found"));
    assert_eq!(refused(&gateway, look(&own)).await, expect(404, "lease_not_found"));
}

#[tokio::test]
async fn a_credential_opens_its_own_lease_only() {
    let gateway = gateway();
    let other = credential(&gateway, "matter.8");
    for path in ["renew", "release", "records"] {
        let call = Call::new("POST", &format!("/v1/leases/matter.7/{path}"))
            .bearer(&other)
            .with("idempotency-key", "doc-1")
            .json(GOOD);
        assert_eq!(refused(&gateway, call).await, expect(403, "wrong_lease"), "{path}");
    }
    let look = Call::new("GET", "/v1/leases/matter.7").bearer(&other);
    assert_eq!(refused(&gateway, look).await, expect(403, "wrong_lease"));
}

#[tokio::test]
async fn an_identity_acquires_only_what_its_patterns_say() {
    let gateway = gateway();
    let body = |owner: &str| json!({"owner": owner, "ttl_ms": 30_000}).to_string();
    let lease = Call::new("POST", "/v1/leases/other/acquire").bearer(WORKER);
    let call = lease.json(body("indexer-17"));
    assert_eq!(refused(&gateway, call).await, expect(403, "not_allowed"));
    let call = acquire().json(body("somebody"));
    assert_eq!(refused(&gateway, call).await, expect(403, "not_allowed"));
}
