//! What each rule of the protocol is for: without it, the search finds what it keeps out.
//!
//! C1 to C18 and H1 to H7 are the counterexamples of the models that the protocol was made with. A
//! rule whose absence breaks nothing here is a second line behind another: said so, and held to it.

use super::scope::{Left, Scope, Without as W};
use super::{BASE, CALM, PROMISES};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

/// What breaks first without these rules; `None` if nothing does.
pub fn broken(scope: Scope, without: &'static [W]) -> Option<String> {
    let began = Instant::now();
    let scope = Scope { without, ..scope };
    let checker =
        scope.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = PROMISES.iter().find_map(|name| checker.discovery(name).map(|path| (*name, path)));
    let (what, steps) = match path {
        Some((name, path)) => {
            let what = path.last_state().told.broken.unwrap_or(name);
            (Some(what.to_owned()), path.into_actions().len())
        }
        None => (None, 0),
    };
    let (states, took) = (checker.unique_state_count(), began.elapsed().as_secs_f32());
    println!("without {without:?}: {what:?} in {steps} steps, {states} states, {took:.1} s");
    what
}

#[track_caller]
fn breaks(without: &'static [W], left: Left, what: &str) {
    assert_eq!(broken(Scope::of(left), without).as_deref(), Some(what), "{without:?}");
}

const TWICE: &str = "G2: an operation is there twice";
const AFTER_A_NONE: &str = "G2: there after a final none";
const TORN: &str = "a batch is torn from its ledger record";
const OVER: &str = "a batch commits after its token was over";
const AGAIN: &str = "G4: a token is installed again or goes down";
const FALSE_QUARANTINE: &str = "a healthy lease is quarantined";
const RETIRED: &str = "the holder of a live lease is retired";

#[test]
fn without_a_rule_of_what_a_refusal_may_say_a_none_is_wrong() {
    breaks(&[W::MaybeAfterExpiry], Left { inits: 1, ..BASE }, AFTER_A_NONE);
    breaks(&[W::LookupBeforeRefusal], Left { acquires: 2, ..CALM }, AFTER_A_NONE);
    let refusals = Left { refusals: 1, expiries: 0, kills: 1, ..CALM };
    breaks(&[W::ConfirmAfterAbort], refusals, "G2: there when none was said");
    breaks(&[W::NoneIsFinalOnlyWhenOver], Left { kills: 0, ..refusals }, AFTER_A_NONE);
    let regress = Left { regresses: 1, acquires: 2, posts: [1, 0], ..CALM };
    breaks(&[W::MaybeAboveTheRow], regress, AFTER_A_NONE);
    let live = Left { regresses: 1, expiries: 0, inits: 1, ..CALM };
    breaks(&[W::AbsentWhenDecided], live, AFTER_A_NONE);
}

#[test]
fn without_the_rebuild_after_an_unclean_end_a_batch_is_torn() {
    let repeats = Left { repeats: 1, posts: [1, 1], expiries: 0, inits: 1, ..CALM };
    breaks(&[W::RebuildAfterDirtyBatch], repeats, TORN);
    breaks(&[W::RebuildAfterDirtyOpen], Left { posts: [1, 0], ..repeats }, TORN);
}

#[test]
fn without_a_rule_of_the_open_its_decision_is_wrong() {
    let in_doubt = Left { kills: 1, expiries: 0, ..CALM };
    breaks(&[W::Redo], in_doubt, "G3: a batch out of its order");
    breaks(&[W::LookupUnderTheLock], in_doubt, TWICE);
    let again = Left { acquires: 2, kills: 1, ..CALM };
    breaks(&[W::WaitForTheBarrier], again, FALSE_QUARANTINE);
    breaks(&[W::OneGeneration], again, FALSE_QUARANTINE);
    breaks(&[W::KnownCommit], again, FALSE_QUARANTINE);
    breaks(&[W::LowerIncarnation], Left { raises: 1, acquires: 2, ..CALM }, FALSE_QUARANTINE);
    breaks(&[W::BarrierKey], Left { compactions: 1, ..CALM }, FALSE_QUARANTINE);
    let takeover = Left { acquires: 2, inits: 3, expiries: 0, posts: [1, 0], kills: 1, ..CALM };
    breaks(&[W::TakeoverOfAnEndedLease], takeover, RETIRED);
    let burnt = Left { settles: 1, posts: [1, 0], acquires: 2, inits: 3, kills: 2, ..CALM };
    breaks(&[W::RedoBesideRetire], burnt, AFTER_A_NONE);
}

#[test]
fn without_the_comparison_with_the_ledger_a_database_that_went_back_is_believed() {
    let two = Left { acquires: 2, inits: 3, posts: [1, 0], ..CALM };
    breaks(&[W::CompareTokens], Left { splits: 1, expiries: 2, ..two }, AGAIN);
    breaks(&[W::CompareTokens], Left { regresses: 1, ..two }, AGAIN);
    breaks(&[W::CompareSeq], Left { regresses: 1, expiries: 0, inits: 1, ..CALM }, TWICE);
}

#[test]
fn without_a_rule_of_the_end_a_token_lives_on() {
    let settle = Left { settles: 1, inits: 3, ..CALM };
    breaks(&[W::SettleEndsTheToken], Left { steps_back: 1, ..settle }, OVER);
    let renewed = Left { renews: 1, ..settle };
    breaks(&[W::SettleLocksLease, W::SettleEndsTheToken], renewed, OVER);
    let release =
        Left { releases: 1, expiries: 0, inits: 3, posts: [1, 0], kills: 1, lost: 1, ..CALM };
    breaks(&[W::OneCommitOfRelease], release, OVER);
    let by_request_id = Left { releases: 1, expiries: 0, acquires: 2, posts: [1, 0], ..CALM };
    let scope = Scope { request_ids: true, ..Scope::of(by_request_id) };
    assert_eq!(broken(scope, &[W::ReopenLeavesTheLease]).as_deref(), Some(OVER));
}

/// Kept all the same: each is the first thing to fail where the other one is wrong.
#[test]
fn three_rules_are_a_second_line_behind_others() {
    let renewed = Left { settles: 1, inits: 3, renews: 1, ..CALM };
    assert_eq!(broken(Scope::of(renewed), &[W::SettleLocksLease]), None);
    let few = Left { kills: 1, lost: 1, regresses: 1, ..CALM };
    assert_eq!(broken(Scope::of(few), &[W::CompareNonce, W::CompareHome]), None);
}
