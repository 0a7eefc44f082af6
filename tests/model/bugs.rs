//! The seeded bugs of the machine: each is found, and by what it is bound to break.

use super::rules::broken;
use super::scope::{Left, Scope};
use super::{BASE, CALM, FEW};
use fencepost::protocol::bug::{Bug, Bugs};

#[track_caller]
fn finds(bug: Bug, left: Left, what: &str) {
    let scope = Scope { bugs: Bugs::with(bug), ..Scope::of(left) };
    println!("{bug:?}:");
    assert_eq!(broken(scope, &[]).as_deref(), Some(what), "{bug:?}");
}

#[test]
fn every_seeded_bug_of_the_machine_is_found() {
    let two = Left { acquires: 2, inits: 3, ..CALM };
    let another = "G1: sent under another token than it was asked for with";
    finds(Bug::NoTokenCheck, Left { posts: [1, 0], ..two }, another);
    let repeats = Left { repeats: 1, posts: [1, 1], ..CALM };
    finds(Bug::DirtyEndIgnored, repeats, "a batch is torn from its ledger record");
    finds(Bug::NoDedup, CALM, "G2: an operation is there twice");
    finds(Bug::EarlyAnswer, CALM, "G2: acknowledged, and not there once");
    finds(Bug::NoRedo, FEW, "G3: a batch out of its order");
    finds(Bug::DoubtIsNo, BASE, "G2: there when none was said");
    let again = "G4: a token is installed again or goes down";
    finds(Bug::RegressIgnored, Left { regresses: 1, ..two }, again);
}
