//! The model: the machine that every gateway runs, in a world in which everything may go wrong.
//!
//! `LeaseMachine::apply` is the product's own. Around it stand two or three gateways, one lease, a
//! database, and Kafka with one transactional.id, small enough to be searched whole. What may
//! happen how often is in `scope`; what the searches found is in `tests/README.md`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a model that is wrong about a value fails, which is what it is for"
)]

#[cfg(feature = "seeded-bugs")]
mod bugs;
mod gateway;
mod kafka;
mod rows;
mod rules;
mod scope;
mod search;
mod shown;
mod steps;
mod world;

use kafka::Ends;
use scope::{ANY, Left, Scope};
use stateright::{Checker, Model};
use std::time::Instant;

const PROMISES: [&str; 3] =
    ["the promise holds", "the stores are in step", "every state comes to rest"];

/// Searches all of a scope; nothing may break, and an operation must have been acknowledged in it.
fn holds(name: &str, scope: Scope) {
    let began = Instant::now();
    let checker = scope.checker().threads(2).spawn_bfs().join();
    let (unique, all) = (checker.unique_state_count(), checker.state_count());
    let (depth, took) = (checker.max_depth(), began.elapsed().as_secs_f32());
    println!("{name}: {unique} unique states of {all}, depth {depth}, {took:.1} s");
    for property in PROMISES {
        if let Some(path) = checker.discovery(property) {
            println!("{property}: {:?}", path.last_state().told.broken);
            path.into_actions().iter().for_each(|action| println!("  {action:?}"));
        }
    }
    checker.assert_properties();
}

/// Sessions die, gateways end and answers are lost wherever they can be, any number of times.
const BASE: Left = Left {
    acquires: 1,
    inits: 2,
    posts: [2, 0],
    expiries: 1,
    kills: ANY,
    crashes: ANY,
    lost: ANY,
    ..Left::NOTHING
};
/// Few faults, so that more of the rest fits in.
const FEW: Left = Left { kills: 1, crashes: 0, lost: 1, ..BASE };
/// Nothing goes wrong by itself.
const CALM: Left = Left { kills: 0, crashes: 0, lost: 0, ..BASE };

const V2: Ends = Ends { bump: true, apart: false };
const APART: Ends = Ends { bump: false, apart: true };

#[test]
fn whatever_dies_or_is_lost_the_promise_holds_and_every_state_comes_to_rest() {
    holds("faults everywhere, each state healed", Scope { heal: 1, ..Scope::of(BASE) });
}

#[test]
fn the_promise_holds_where_every_transaction_has_an_epoch_of_its_own() {
    holds("transactions v2", Scope { ends: V2, ..Scope::of(BASE) });
}

#[test]
fn the_promise_holds_however_late_a_request_or_a_marker_comes() {
    let base = Scope::of(FEW);
    holds("markers apart and one by one", Scope { ends: APART, ..base });
    holds("an end repeated", Scope::of(Left { repeats: 1, crashes: 0, ..BASE }));
    holds("deadlines pass", Scope::of(Left { deadlines: 1, ..FEW }));
    holds("compaction at any time", Scope::of(Left { compactions: 1, ..FEW }));
    holds("the tail is late", Scope::of(Left { blind: 1, crashes: 0, ..BASE }));
}

#[test]
fn the_promise_holds_for_batches_refusals_releases_settles_and_renews() {
    let posts = [1, 1];
    holds("batches of two, a refusal", Scope::of(Left { posts, refusals: 1, ..FEW }));
    holds("a release", Scope::of(Left { releases: 1, ..FEW }));
    let one = Left { posts: [1, 0], crashes: 0, ..BASE };
    holds("a settle", Scope::of(Left { settles: 1, ..one }));
    holds("a settle, a renew", Scope::of(Left { settles: 1, renews: 1, ..one }));
    let three = Left { posts: [1, 0], inits: 3, ..FEW };
    holds("three gateways", Scope { gateways: 3, ..Scope::of(three) });
}

#[test]
fn the_promise_holds_where_postgres_goes_back_or_apart() {
    holds("Postgres goes back", Scope::of(Left { regresses: 1, ..FEW }));
    let split = Left { splits: 1, acquires: 2, posts: [1, 0], kills: 0, ..FEW };
    holds("Postgres in two halves", Scope::of(split));
}

/// More of everything: minutes, and gigabytes.
#[test]
#[ignore = "a campaign of its own: see tests/README.md"]
fn the_promise_holds_in_larger_scopes() {
    holds("a takeover", Scope { heal: 16, ..Scope::of(Left { acquires: 2, ..FEW }) });
    holds("a takeover, faults everywhere", Scope::of(Left { acquires: 2, posts: [1, 0], ..BASE }));
    holds("a release, faults everywhere", Scope::of(Left { releases: 1, crashes: 0, ..BASE }));
    holds("deadlines, faults everywhere", Scope::of(Left { deadlines: 1, crashes: 0, ..BASE }));
    let three = Left { acquires: 2, inits: 3, posts: [1, 0], ..FEW };
    holds("a takeover among three", Scope { gateways: 3, ..Scope::of(three) });
}
