//! F16: a release that comes while a batch of the same lease is frozen on its way.

use super::{LEASE, SOON, Sent, records};
use crate::client::Holder;
use crate::world::{Seen, World, wait_for};
use nix::sys::signal::Signal;

/// Where the batch stands when its gateway freezes, what its client is told in the end, and whether
/// its records are in the topic: from `after_end` on they were there before the release.
const POINTS: [(&str, u16, bool); 6] = [
    ("after_auth", 412, false),
    ("after_check", 412, false),
    ("after_first_send", 412, false),
    ("before_end", 412, false),
    ("after_end", 200, true),
    ("before_reply", 200, true),
];

/// The data topic in one order.
fn read(world: &World) -> Vec<Seen> {
    let mut seen = world.read();
    seen.sort_by_key(|s| (s.partition, s.offset));
    seen
}

/// F16.
#[test]
fn after_an_acknowledged_release_no_record_of_that_token_becomes_visible() {
    let world = World::new("release-frozen");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let (c1, c2) = (g1.client(), g2.client());
    let records = records(&world);
    for (point, status, there) in POINTS {
        let lease = format!("shard.{point}");
        let own = c1.hold(&lease, "w", SOON);
        c1.records(&own, "first", &records).expect(200);
        g1.arm(point, &lease, "stop", 0);
        let id = format!("at-{point}");
        let answer = std::thread::scope(|scope| {
            let producing = scope.spawn(|| c1.records(&own, &id, &records));
            g1.wait_stopped();
            wait_for("the release is acknowledged", SOON, || {
                let released = c2.release(&own);
                assert!(matches!(released.status, 200 | 503 | 504), "{point}: {released:?}");
                (released.status == 200).then_some(())
            });
            let seen = read(&world);
            assert_eq!(seen.iter().any(|s| s.operation == id), there, "{point}: {seen:?}");
            g1.signal(Signal::SIGCONT);
            let answer = producing.join().unwrap();
            assert_eq!(read(&world), seen, "{point}: visible after the release");
            answer
        });
        assert_eq!(answer.status, status, "{point}: {answer:?}");
        if status == 412 {
            let problem = answer.expect_problem(412, "lease_released");
            assert_eq!(problem["side_effect"], "none", "{point}");
        }
        for client in [&c1, &c2] {
            client.records(&own, "late", &records).expect_problem(412, "lease_released");
        }
        let new = c1.hold(&lease, "successor", SOON);
        let good = c1.records(&new, &id, &records).expect(200);
        assert_eq!(good["replayed"], there, "{point}");
    }
    assert!(world.read().iter().all(|seen| seen.operation != "late"));
    world.audit();
}

/// F16. Through the batch's own gateway the two keep the order in which they came.
#[test]
fn a_release_behind_a_batch_lets_it_end_and_stops_the_next() {
    let world = World::new("release-behind");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let records = records(&world);
    let address = format!("127.0.0.1:{}", gateway.port);
    for (n, point) in ["after_check", "after_first_send", "before_end"].into_iter().enumerate() {
        let own = client.hold(LEASE, &format!("w-{n}"), SOON);
        gateway.arm(point, LEASE, "stop", 0);
        let ids = [format!("before-{n}"), format!("behind-{n}")];
        let (answer, release) = std::thread::scope(|scope| {
            let producing = scope.spawn(|| client.records(&own, &ids[0], &records));
            gateway.wait_stopped();
            let release = Sent::new(&address, "release", &own);
            gateway.signal(Signal::SIGCONT);
            (producing.join().unwrap(), release.answer())
        });
        answer.expect(200);
        release.expect(200);
        let late = client.records(&own, &ids[1], &records);
        late.expect_problem(412, "lease_released");
        let old: &Holder = &own;
        client.renew(old).expect_problem(412, "lease_released");
    }
    let new = client.hold(LEASE, "successor", SOON);
    client.records(&new, "good", &records).expect(200);
    let mut ids: Vec<String> = world.read().into_iter().map(|seen| seen.operation).collect();
    ids.sort();
    assert_eq!(ids, ["before-0", "before-1", "before-2", "good"]);
    world.audit();
}
