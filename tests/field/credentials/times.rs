//! F31: credentials before and after their time, by the database's clock and without leeway.

use super::forge::Forge;
use crate::client::{Client, Holder};
use crate::rows;
use crate::world::World;
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// How long ago the expired ones ended. The last is past the minute that libraries forgive.
const AGO_S: [i64; 3] = [1, 30, 61];

/// One lease with one operation in the topic, and the hand that makes credentials for it.
struct Case<'w> {
    world: &'w World,
    client: Client,
    holder: Holder,
    forge: Forge,
    records: Value,
}

impl<'w> Case<'w> {
    fn new(world: &'w World, client: Client, lease: &str) -> Self {
        let holder = client.hold(lease, "w", SOON);
        let records = json!([{ "topic": world.topic, "value": "v" }]);
        client.records(&holder, "stored", &records).expect(200);
        let forge = Forge::new(world, &holder);
        Self { world, client, holder, forge, records }
    }

    /// The holder with a credential that ended `ago_s` ago and has no other fault.
    fn expired(&self, ago_s: i64) -> Holder {
        let now = rows::now_s(self.world);
        let credential = self.forge.timed(now - 600, now - ago_s);
        Holder { credential, ..self.holder.clone() }
    }

    /// That nothing new is written with it, that what is stored is answered, and that no row moves.
    fn refuses(&self, status: u16, code: &str, side_effect: &str, release: u16) {
        for ago_s in AGO_S {
            let (before, old) = (rows::of(self.world, &self.holder.lease), self.expired(ago_s));
            let client = &self.client;
            let problem = client.records(&old, "new", &self.records).expect_problem(status, code);
            assert_eq!(problem["retry"], "reacquire", "{ago_s}");
            assert_eq!(problem["side_effect"], side_effect, "{ago_s}");
            let renew = client.renew(&old).expect_problem(status, code);
            assert_eq!(renew["retry"], "reacquire", "{ago_s}");
            let released = client.release(&old);
            assert_eq!(released.status, release, "{ago_s}: {released:?}");
            let path = format!("/v1/leases/{}", old.lease);
            client.get(&path, Some(&old.credential)).expect_problem(401, "credential_expired");
            let replay = client.records(&old, "stored", &self.records).expect(200);
            assert_eq!(replay["replayed"], true, "{ago_s}");
            let other = json!([{ "topic": self.world.topic, "value": "another" }]);
            client.records(&old, "stored", &other).expect_problem(422, "operation_conflict");
            assert_eq!(rows::of(self.world, &old.lease), before, "{ago_s}: a row moved");
        }
    }
}

/// F31.
#[test]
fn an_expired_credential_is_told_what_is_stored_and_never_writes() {
    let world = World::new("expired");
    let gateway = world.gateway("g1");
    let live = Case::new(&world, gateway.client(), "shard.live");
    live.refuses(401, "credential_expired", "maybe", 401);
    live.client.records(&live.holder, "good", &live.records).expect(200);

    let over = Case::new(&world, gateway.client(), "shard.over");
    rows::expire(&world, "shard.over");
    over.refuses(412, "lease_expired", "maybe", 412);

    let released = Case::new(&world, gateway.client(), "shard.released");
    released.client.release(&released.holder).expect(200);
    released.refuses(412, "lease_released", "none", 200);

    for old in [over, released] {
        let new = old.client.hold(&old.holder.lease, "successor", SOON);
        old.refuses(412, "stale_token", "none", 412);
        old.client.records(&new, "good", &old.records).expect(200);
    }
    let seen = world.read();
    assert!(seen.iter().all(|s| s.operation != "new"), "{seen:?}");
    world.audit();
}

/// F31. Exactly at `exp`, in the second that it names, a credential is over.
#[test]
fn a_credential_ends_with_the_second_that_it_names_and_not_a_minute_later() {
    let world = World::new("leeway");
    let gateway = world.gateway("g1");
    let case = Case::new(&world, gateway.client(), "shard.7");
    let now = rows::now_s(&world);
    let short = case.forge.timed(now, now + 3);
    let short = Holder { credential: short, ..case.holder.clone() };
    let mut accepted = 0;
    let refused = crate::world::wait_for("the credential is over", SOON, || {
        let before = rows::now_s(&world);
        let answer = case.client.records(&short, &format!("op-{accepted}"), &case.records);
        let after = rows::now_s(&world);
        match answer.status {
            200 => assert!(before < now + 3, "written at {before}, over at {}", now + 3),
            _ => assert!(after >= now + 3, "refused at {after}: {answer:?}"),
        }
        accepted += usize::from(answer.status == 200);
        (answer.status != 200).then_some(answer)
    });
    refused.expect_problem(401, "credential_expired");
    assert!(accepted > 0);
    case.client.records(&case.holder, "good", &case.records).expect(200);
}

/// F31.
#[test]
fn a_credential_that_is_not_valid_yet_is_refused_on_every_call_and_told_nothing() {
    let world = World::new("early");
    let gateway = world.gateway("g1");
    let case = Case::new(&world, gateway.client(), "shard.7");
    let (client, before) = (&case.client, rows::of(&world, "shard.7"));
    let token = case.holder.token;
    for (token, wait_s) in [(token, 30), (token, 3_600), (token + 1, 30)] {
        let now = rows::now_s(&world);
        let times = json!({ "iat": now + wait_s, "nbf": now + wait_s, "exp": now + 7_200 });
        let claims = super::forge::with(&case.forge.claims, times);
        let claims = super::forge::with(&claims, json!({ "token": token.to_string() }));
        let credential = case.forge.signed(&case.forge.header, &claims);
        let early = Holder { credential, ..case.holder.clone() };
        let path = "/v1/leases/shard.7";
        // Also not what is stored: only `exp` is forgiven.
        for answer in [
            client.records(&early, "new", &case.records),
            client.records(&early, "stored", &case.records),
            client.renew(&early),
            client.release(&early),
            client.get(path, Some(&early.credential)),
        ] {
            let problem = answer.expect_problem(401, "credential_invalid");
            assert_eq!(
                (&problem["detail"], &problem["retry"]),
                (&json!("not valid yet"), &json!("never"))
            );
            assert_eq!(problem["side_effect"], "maybe");
        }
    }
    // Nor one whose times contradict each other.
    let now = rows::now_s(&world);
    let apart = json!({ "nbf": now + 30, "iat": now, "exp": now + 600 });
    let apart = Holder { credential: case.forge.claiming(apart), ..case.holder.clone() };
    client.records(&apart, "new", &case.records).expect_problem(401, "credential_invalid");
    assert_eq!(rows::of(&world, "shard.7"), before, "no row moved");
    client.records(&case.holder, "good", &case.records).expect(200);
    // A lease that is free, or held by a successor, tells it no more.
    client.release(&case.holder).expect(200);
    let early = case.forge.timed(now + 600, now + 7_200);
    let early = Holder { credential: early, ..case.holder.clone() };
    client.release(&early).expect_problem(401, "credential_invalid");
    client.renew(&early).expect_problem(401, "credential_invalid");
    let new = client.hold("shard.7", "successor", SOON);
    client.records(&early, "new", &case.records).expect_problem(401, "credential_invalid");
    client.records(&new, "good-2", &case.records).expect(200);
    let ids: Vec<String> = world.read().into_iter().map(|s| s.operation).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    world.audit();
}
