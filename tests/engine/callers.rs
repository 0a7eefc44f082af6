//! Callers that leave, come in crowds or come too late, and what is kept for them.

use super::two;
use crate::support::gateway::{Gateway, assert_log, copies, credential, post, request, settings};
use crate::support::memory::{Fault, World};
use fencepost::engine::Settings;
use fencepost::engine::api::{Kept, Post};
use fencepost::protocol::lease::InstanceId;
use fencepost::protocol::refusal::Refusal;
use fencepost::telemetry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_cancels_nothing_half_way() {
    for after in 0..12 {
        let (world, first, _) = two();
        let held = first.acquire("w").await.unwrap();
        let left = timeout(Duration::from_millis(after), first.post(&held, "a")).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(copies(&world, "a"), 1, "{left:?}");
        assert!(first.post(&held, "a").await.unwrap().replayed);
        assert_log(&world);
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_the_queue_takes_is_refused_as_busy_even_while_the_lease_is_in_doubt() {
    let world = World::new();
    let gateway = Gateway::with(&world, Settings { queue: 4, ..settings(InstanceId([1; 16])) });
    let held = gateway.acquire("w").await.unwrap();
    world.fault("end.batch", 0, Fault::Fail);
    (0..200).for_each(|_| world.fault("init", 0, Fault::Fail));
    let mut posts = Vec::new();
    for n in 0..100 {
        let (engine, post) = (gateway.engine.clone(), post(&credential(&held), &format!("op{n}")));
        posts.push(telemetry::spawn("post", async move { engine.produce(post).await }));
        sleep(Duration::from_millis(20)).await;
    }
    let mut busy = 0;
    for post in posts {
        busy += usize::from(post.await.unwrap() == Err(Refusal::Busy));
    }
    assert!(busy >= 20, "{busy}");
}

#[tokio::test(start_paused = true)]
async fn what_an_operation_takes_is_kept_until_it_is_answered_though_its_caller_has_left() {
    let (world, first, _) = two();
    let held = first.acquire("w").await.unwrap();
    world.fault("end.batch", 0, Fault::Fail);
    (0..4).for_each(|_| world.fault("init", 0, Fault::Fail));
    let share = Arc::new(());
    let mine = Post { kept: Kept::new(Arc::clone(&share)), ..post(&credential(&held), "a") };
    // A caller that leaves: its future is dropped.
    let left = timeout(Duration::from_millis(100), first.engine.produce(mine)).await;
    assert!(left.is_err());
    assert_eq!(Arc::strong_count(&share), 2, "given back while its records are on their way");
    first.post(&held, "a").await.unwrap();
    assert_eq!(copies(&world, "a"), 1);
    assert_eq!(Arc::strong_count(&share), 1, "still kept after the answer");
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_accepted_work_finish_and_refuses_what_comes_after() {
    let (world, first, _) = two();
    let held = first.acquire("w").await.unwrap();
    let (engine, mine) = (first.engine.clone(), post(&credential(&held), "a"));
    let accepted = telemetry::spawn("post", async move { engine.produce(mine).await });
    sleep(Duration::from_millis(1)).await;
    assert!(first.engine.shut_down(Duration::from_secs(5)).await);
    assert!(accepted.await.unwrap().is_ok());
    assert_eq!(first.post(&held, "b").await, Err(Refusal::ShuttingDown));
    assert_eq!(first.engine.leases_open(), 0);
    assert_log(&world);
}

/// Callers that ask again and again for a held lease come in turns with its holder.
#[tokio::test(start_paused = true)]
async fn a_stampede_for_a_held_lease_does_not_keep_its_holder_from_writing_or_releasing() {
    let (world, first, _) = two();
    const ASKED: usize = 40 * 200;
    let held = first.acquire("w").await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let stampede: Vec<_> = (0..40)
        .map(|k| {
            let (engine, asked) = (first.engine.clone(), Arc::clone(&asked));
            telemetry::spawn("stampede", async move {
                for _ in 0..200 {
                    drop(engine.acquire(request(&format!("x{k}"))).await);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(1)).await;
    for k in 0..20 {
        first.post(&held, &format!("op-{k}")).await.unwrap();
    }
    first.engine.release(credential(&held)).await.unwrap();
    let so_far = asked.load(Ordering::Relaxed);
    assert!(so_far < ASKED / 2, "the holder waited for {so_far} of {ASKED} to be refused");
    for caller in stampede {
        caller.await.unwrap();
    }
    assert_eq!(copies(&world, "op-19"), 1);
    assert_log(&world);
}

/// A lease for somebody who has gone would only keep others out.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_still_waits_when_its_caller_leaves_takes_nothing() {
    let (world, first, _) = two();
    let held = first.acquire("w").await.unwrap();
    // The actor is busy with a batch while the acquire waits behind it.
    first.ports.freeze(Duration::from_secs(2));
    let busy = {
        let (engine, post) = (first.engine.clone(), post(&credential(&held), "busy"));
        telemetry::spawn("busy", async move { engine.produce(post).await })
    };
    sleep(Duration::from_millis(100)).await;
    let mut mine = request("w");
    mine.replace = true;
    let left = timeout(Duration::from_millis(100), first.engine.acquire(mine)).await;
    assert!(left.is_err(), "the caller left before an answer");
    drop(busy.await.unwrap());
    first.post(&held, "after").await.unwrap();
    assert_log(&world);
}

/// An idle producer is closed with its actor, and the next use opens the lease again.
#[tokio::test(start_paused = true)]
async fn an_idle_lease_is_closed_and_its_next_use_opens_it_under_the_same_token() {
    let world = World::new();
    let idle = Duration::from_secs(5);
    let short = Settings { idle, ..settings(InstanceId([1; 16])) };
    let first = Gateway::with(&world, short);
    let held = first.acquire("w").await.unwrap();
    first.post(&held, "a").await.unwrap();
    assert_eq!(first.engine.leases_open(), 1);
    sleep(idle + Duration::from_secs(1)).await;
    assert_eq!(first.engine.leases_open(), 0);
    let written = first.post(&held, "b").await.unwrap();
    assert_eq!((written.token, written.replayed), (held.token, false));
    assert_log(&world);
}
