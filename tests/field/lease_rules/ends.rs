//! F16: the instant of expiry, late renews, double and foreign releases.

mod frozen;

use super::{LEASE, SOON, call, holder, instant_ms};
use crate::chaos_proxy::{ChaosProxy, Framing, Mode};
use crate::client::{Answer, Client, Holder};
use crate::credentials::forge::Forge;
use crate::rows::{self, Other};
use crate::world::{OPS, WORKER, World, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

fn records(world: &World) -> Value {
    json!([{ "topic": world.topic, "value": "v" }])
}

fn row(world: &World, lease: &str) -> String {
    world.sql(&format!("SELECT row_to_json(leases) FROM leases WHERE lease = '{lease}'"))
}

/// A request that is written at once and answered later, on a connection of its own.
struct Sent(TcpStream);

impl Sent {
    fn new(address: &str, call: &str, holder: &Holder) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let request = format!(
            "POST /v1/leases/{}/{call} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Bearer {}\r\nContent-Length: 0\r\n\r\n",
            holder.lease, holder.credential
        );
        stream.write_all(request.as_bytes()).unwrap();
        Self(stream)
    }

    fn answer(mut self) -> Answer {
        let mut text = String::new();
        self.0.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        Answer { status, body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }
}

/// Sends a renew that the lease row's lock holds up, moves the expiry to `from_now` meanwhile, and
/// lets it go on. Gives the answer, the row as it was then, and its expiry.
fn renew_at(world: &World, client: &Client, own: &Holder, from_now: &str) -> (Answer, String, i64) {
    let lease = &own.lease;
    let mut other = Other::locking(world, lease);
    let (answer, moved) = std::thread::scope(|scope| {
        let renew = scope.spawn(|| client.renew(own));
        rows::wait_blocked(world, 1);
        let moved = other.run(&format!(
            "UPDATE leases SET expires_at = clock_timestamp() + interval '{from_now}' \
             WHERE lease = '{lease}' RETURNING row_to_json(leases)"
        ));
        other.run("COMMIT");
        (renew.join().unwrap(), moved)
    });
    let row: Value = serde_json::from_str(&moved).unwrap();
    (answer, moved, instant_ms(&row["expires_at"]))
}

/// F16.
#[test]
fn a_renew_counts_only_before_the_instant_of_expiry_and_revives_nothing_after_it() {
    let world = World::new("late-renew");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let own = client.hold(LEASE, "w", SOON);
    // 50 ms before: judged by the clock that the row's lock was got at, whatever came before.
    wait_for("a renew in the last 50 ms", SOON, || {
        let (answer, _, expired_ms) = renew_at(&world, &client, &own, "50 milliseconds");
        if answer.status == 200 {
            let (expires, rest) = (&answer.body["expires_at"], &answer.body["expires_in_ms"]);
            assert!(instant_ms(expires) - rest.as_i64().unwrap() <= expired_ms, "{answer:?}");
            return Some(());
        }
        // The machine was too slow for it; then it must be over by the database's clock.
        assert!(rows::now_ms(&world) >= expired_ms, "{answer:?}");
        answer.expect_problem(412, "lease_expired");
        world.sql("UPDATE leases SET expires_at = clock_timestamp() + interval '10 minutes'");
        None
    });
    // At it, 1 ms after it, 10 s after it, with nobody else there.
    for from_now in ["0", "-1 milliseconds", "-10 seconds"] {
        let (answer, moved, _) = renew_at(&world, &client, &own, from_now);
        let problem = answer.expect_problem(412, "lease_expired");
        assert_eq!(problem["retry"], "reacquire", "{from_now}");
        assert_eq!(row(&world, LEASE), moved, "{from_now}: the row changed");
        client.renew(&own).expect_problem(412, "lease_expired");
        assert_eq!(row(&world, LEASE), moved, "{from_now}: the row changed");
        world.sql("UPDATE leases SET expires_at = clock_timestamp() + interval '10 minutes'");
    }
    // As it comes by itself, and again when it is long over and somebody else has come.
    let short = client.take("shard.short", "w", SOON);
    let before = rows::of(&world, "shard.short");
    rows::wait_left(&world, "shard.short", 0);
    client.renew(&short).expect_problem(412, "lease_expired");
    assert_eq!(rows::of(&world, "shard.short"), before);
    let new = client.hold("shard.short", "successor", SOON);
    let before = rows::of(&world, "shard.short");
    client.renew(&short).expect_problem(412, "stale_token");
    assert_eq!(rows::of(&world, "shard.short"), before);
    client.records(&new, "good", &records(&world)).expect(200);
    client.records(&own, "good", &records(&world)).expect(200);
}

/// What a call says of a lease: held, or over and by which code.
fn says(client: &Client, world: &World, own: &Holder, what: &str, id: &str) -> Option<String> {
    let path = format!("/v1/leases/{}", own.lease);
    let over = |answer: Answer| {
        assert!(matches!(answer.status, 200 | 412), "{what}: {answer:?}");
        (answer.status == 412).then(|| answer.code().to_owned())
    };
    match what {
        "produce" => over(client.records(own, id, &records(world))),
        "release" => over(client.release(own)),
        "renew" => over(client.renew(own)),
        _ => {
            let state = client.get(&path, Some(OPS)).expect(200)["state"].clone();
            (state != "held").then(|| format!("lease_{}", state.as_str().unwrap()))
        }
    }
}

/// F16. Holder valid or reclaim allowed, at every instant, through every gateway and every call.
#[test]
fn every_call_and_every_gateway_agree_on_the_instant_at_which_a_lease_is_over() {
    let world = World::new("boundary");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let clients = [g1.client(), g2.client()];
    for (round, first) in ["produce", "inspect", "acquire"].into_iter().cycle().take(6).enumerate()
    {
        let lease = format!("shard.{round}");
        let own = clients[0].hold(&lease, "w", SOON);
        let soon = "UPDATE leases SET expires_at = clock_timestamp() + interval '250 milliseconds'";
        world.sql(&format!("{soon} WHERE lease = '{lease}'"));
        let (expires, mut count) = (rows::expires_ms(&world, &lease), 0);
        let mut taken = None;
        wait_for("the lease is over", SOON, || {
            let (client, before) = (&clients[count % 2], rows::now_ms(&world));
            count += 1;
            let over = if first == "acquire" {
                let answer = client.acquire(&lease, "other", json!({ "ttl_ms": 60_000 }));
                assert!(matches!(answer.status, 200 | 409), "{answer:?}");
                taken = (answer.status == 200).then_some(answer.body);
                taken.is_some()
            } else {
                let said = says(client, &world, &own, first, &format!("op-{count}"));
                assert!(said.as_deref().is_none_or(|s| s == "lease_expired"), "{said:?}");
                said.is_some()
            };
            if over {
                assert!(rows::now_ms(&world) >= expires, "{first}: over too early");
            } else {
                assert!(before <= expires, "{first}: held at {before}, over at {expires}");
            }
            over.then_some(())
        });
        let code = if taken.is_some() { "stale_token" } else { "lease_expired" };
        for client in &clients {
            for what in ["renew", "produce", "release"] {
                let said = says(client, &world, &own, what, "late");
                assert_eq!(said.as_deref(), Some(code), "{first}, then {what}");
            }
            let state = says(client, &world, &own, "inspect", "");
            let expected = if taken.is_some() { None } else { Some("lease_expired") };
            assert_eq!(state.as_deref(), expected, "{first}");
        }
        let new = taken.unwrap_or_else(|| {
            clients[1].acquire(&lease, "other", json!({ "ttl_ms": 60_000 })).expect(200)
        });
        clients[0].insist(&holder(&new), "good", &records(&world), SOON).expect(200);
    }
    assert!(world.read().iter().all(|seen| seen.operation != "late"));
    world.audit();
}

/// F16.
#[test]
fn a_second_release_is_harmless_and_a_foreign_one_frees_nobodys_lease() {
    let world = World::new("release");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let (c1, c2) = (g1.client(), g2.client());
    let records = records(&world);
    let first = c1.hold(LEASE, "w", SOON);
    let neighbour = c1.hold("shard.8", "v", SOON);
    let before = rows::of(&world, LEASE);
    // By a stranger: another lease's holder, another owner, a worker without a credential.
    let stranger = Holder { lease: LEASE.to_owned(), ..neighbour };
    c1.release(&stranger).expect_problem(403, "wrong_lease");
    let forged = Forge::new(&world, &first).claiming(json!({ "sub": "v" }));
    let forged = Holder { credential: forged, ..first.clone() };
    for client in [&c1, &c2] {
        client.release(&forged).expect_problem(412, "stale_token");
        call(client, LEASE, "release", WORKER, "").expect_problem(401, "credential_invalid");
    }
    assert_eq!(rows::of(&world, LEASE), before, "a foreign release moved a row");
    c1.records(&first, "1", &records).expect(200);
    // Twice, through either gateway; the second one writes nothing.
    c1.release(&first).expect(200);
    let before = rows::of(&world, LEASE);
    for client in [&c1, &c2, &c1] {
        let again = client.release(&first).expect(200);
        assert_eq!(
            (&again["released"], &again["token"]),
            (&json!(true), &json!(first.token.to_string()))
        );
    }
    assert_eq!(rows::of(&world, LEASE), before, "a second release moved a row");
    // With an older token: after a takeover by another, after one by the same owner.
    let second = c2.hold(LEASE, "other", SOON);
    let refused = |old: &Holder, new: &Holder, id: &str| {
        let before = rows::of(&world, LEASE);
        for client in [&c1, &c2] {
            let problem = client.release(old).expect_problem(412, "stale_token");
            assert_eq!(problem["current_token"], new.token.to_string());
        }
        assert_eq!(rows::of(&world, LEASE), before, "an old release moved a row");
        c2.insist(new, id, &records, SOON).expect(200);
    };
    refused(&first, &second, "2");
    let again = c1.acquire(LEASE, "other", json!({ "replace": true, "ttl_ms": 600_000 }));
    let third = holder(&again.expect(200));
    assert!(third.token > second.token);
    refused(&second, &third, "3");
    refused(&first, &third, "4");
    // After it is over, with nobody else there: no more than told.
    rows::expire(&world, LEASE);
    let before = rows::of(&world, LEASE);
    c1.release(&third).expect_problem(412, "lease_expired");
    c2.release(&third).expect_problem(412, "lease_expired");
    assert_eq!(rows::of(&world, LEASE), before, "a late release moved a row");
    let last = c1.hold(LEASE, "w", SOON);
    c1.records(&last, "good", &records).expect(200);
    world.audit();
}

/// F16.
#[test]
fn a_renew_sent_before_a_release_and_delivered_after_it_revives_nothing() {
    let world = World::new("crossed");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let address = format!("127.0.0.1:{}", gateway.port);
    // Held up on its way to the gateway.
    let proxy = ChaosProxy::start(0, &address, Framing::Raw).unwrap();
    for (lease, taken, code) in [("way.1", false, "lease_released"), ("way.2", true, "stale_token")]
    {
        let own = client.hold(lease, "w", SOON);
        proxy.set_mode(Mode::Freeze);
        let renew = Sent::new(&proxy.address(), "renew", &own);
        client.release(&own).expect(200);
        let new = taken.then(|| client.hold(lease, "successor", SOON));
        let before = rows::of(&world, lease);
        proxy.set_mode(Mode::Pass);
        renew.answer().expect_problem(412, code);
        assert_eq!(rows::of(&world, lease), before, "{lease}: the late renew changed a row");
        let new = new.unwrap_or_else(|| client.hold(lease, "successor", SOON));
        client.records(&new, "good", &records(&world)).expect(200);
    }
    // Held up in Postgres, behind the release that waits for the same row.
    let own = client.hold("row.1", "w", SOON);
    let mut other = Other::locking(&world, "row.1");
    let release = Sent::new(&address, "release", &own);
    rows::wait_blocked(&world, 1);
    let renew = Sent::new(&address, "renew", &own);
    rows::wait_blocked(&world, 2);
    other.run("COMMIT");
    assert_eq!(release.answer().expect(200)["released"], true);
    renew.answer().expect_problem(412, "lease_released");
    let held = "SELECT released, ttl_ms FROM leases WHERE lease = 'row.1'";
    assert_eq!(world.sql(held), "t|600000");
    // And in front of it: then it counts, and the release counts after it.
    let own = client.hold("row.2", "w", SOON);
    let mut other = Other::locking(&world, "row.2");
    let renew = Sent::new(&address, "renew", &own);
    rows::wait_blocked(&world, 1);
    let release = Sent::new(&address, "release", &own);
    rows::wait_blocked(&world, 2);
    other.run("COMMIT");
    renew.answer().expect(200);
    release.answer().expect(200);
    client.renew(&own).expect_problem(412, "lease_released");
    for lease in ["row.1", "row.2"] {
        let new = client.hold(lease, "successor", SOON);
        client.records(&new, "good", &records(&world)).expect(200);
    }
    world.audit();
}
