//! Every answer that a store can owe us is lost once, at every step; then the worker tries again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    dead_code,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

mod support {
    pub(crate) mod gateway;
    pub(crate) mod memory;
}

use fencepost::engine::api::{Granted, Produced};
use fencepost::protocol::lease::RequestId;
use fencepost::protocol::refusal::Refusal;
use std::time::Duration;
use support::gateway::{Gateway, assert_log, copies, credential, request, until_granted};
use support::memory::{Fault, World};
use tokio::time::sleep;

/// Every step of an open and of a batch, each with its answer lost in every way.
const STEPS: &[(&str, &[Fault])] = &[
    ("lock", &[Fault::Refuse]),
    ("lock_lease", &[Fault::Fail]),
    ("draw", &[Fault::Fail]),
    ("init", &[Fault::Fail, Fault::Lost, Fault::Late]),
    ("ledger.barrier", &[Fault::Fail]),
    ("end.barrier", &[Fault::Fail, Fault::Lost, Fault::Late, Fault::Dirty, Fault::Fenced]),
    ("barrier", &[Fault::Fail]),
    ("read", &[Fault::Fail]),
    ("find", &[Fault::Fail]),
    ("ledger.state", &[Fault::Fail]),
    ("end.state", &[Fault::Fail, Fault::Lost, Fault::Late, Fault::Dirty, Fault::Fenced]),
    ("commit.install", &[Fault::Fail, Fault::Refuse, Fault::Lost, Fault::Late]),
    ("commit.reopen", &[Fault::Fail, Fault::Refuse, Fault::Lost, Fault::Late]),
    ("send", &[Fault::Fail, Fault::Fenced]),
    ("ledger.batch", &[Fault::Fail]),
    ("end.batch", &[Fault::Fail, Fault::Lost, Fault::Late, Fault::Dirty, Fault::Fenced]),
    ("commit.record", &[Fault::Fail, Fault::Refuse, Fault::Lost, Fault::Late]),
    ("commit.nonce", &[Fault::Fail, Fault::Lost]),
    ("commit.release", &[Fault::Fail, Fault::Refuse, Fault::Lost, Fault::Late]),
];

/// The faults that leave a batch in doubt, so that what follows meets the redo.
const DOUBT: &[Option<(&str, Fault)>] =
    &[None, Some(("end.batch", Fault::Lost)), Some(("commit.record", Fault::Fail))];

#[tokio::test(start_paused = true)]
async fn whatever_answer_is_lost_a_retry_with_the_same_id_gives_one_copy_and_a_definite_answer() {
    let mut met = 0;
    for (step, faults) in STEPS {
        for (fault, doubt, skip) in faults.iter().flat_map(|fault| {
            DOUBT.iter().flat_map(move |doubt| (0..3).map(move |skip| (*fault, *doubt, skip)))
        }) {
            let world = World::new();
            let (first, second) = (Gateway::new(&world, 1), Gateway::new(&world, 2));
            world.fault(step, skip, fault);
            if let Some((step, fault)) = doubt {
                world.fault(step, 0, fault);
            }
            let scripted = world.unused_faults();
            one_life(&world, &first, &second).await;
            met += usize::from(world.unused_faults() < scripted);
            let (copies, context) = (copies(&world, "a"), (step, fault, doubt, skip));
            assert_eq!(copies, 1, "{context:?}");
            assert_eq!(world.quarantines(), Vec::<String>::new(), "{context:?}");
            assert_log(&world);
        }
    }
    assert!(met > 300, "{met}");
}

/// Acquire, post until it is definite, release, take over, post again.
async fn one_life(world: &World, first: &Gateway, second: &Gateway) {
    let mut asks = request("w");
    asks.request_id = Some(RequestId::parse("r1").unwrap());
    let held = until_granted(first, asks).await;
    let answer = until_definite(first, &held, "a").await;
    // Whether it was told so or not, the lease is given back or runs out.
    drop(first.engine.release(credential(&held)).await);
    let next = until_granted(second, request("x")).await;
    assert!(next.token > held.token);
    if let Some(answer) = answer {
        let again = until_definite(second, &next, "a").await.unwrap();
        assert_eq!(again, Produced { replayed: true, ..answer });
    } else {
        until_definite(second, &next, "a").await.unwrap();
    }
    assert_eq!(copies(world, "a"), 1);
}

/// Posts until the answer is a success or a final no.
async fn until_definite(gateway: &Gateway, held: &Granted, id: &str) -> Option<Produced> {
    for _ in 0..20 {
        match gateway.post(held, id).await {
            Ok(produced) => return Some(produced),
            Err(
                Refusal::StaleToken { .. }
                | Refusal::LeaseExpired { .. }
                | Refusal::LeaseReleased { .. },
            ) => return None,
            Err(_) => sleep(Duration::from_millis(300)).await,
        }
    }
    panic!("no definite answer")
}
