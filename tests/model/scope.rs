//! How much may happen in one search, and which rule is switched off in it.

use super::kafka::Ends;
use fencepost::protocol::bug::Bugs;

/// Not counted: everywhere and always.
pub const ANY: u8 = u8::MAX;

/// How many times each thing may happen. Delays and reordering are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Left {
    /// Acquires that callers ask for.
    pub acquires: u8,
    /// InitProducerId requests.
    pub inits: u8,
    /// POSTs, of each operation.
    pub posts: [u8; 2],
    /// Sessions that the server ends.
    pub kills: u8,
    /// Gateways that end or give up what they are doing.
    pub crashes: u8,
    /// Requests to Kafka and COMMITs whose answers are lost; the requests may come late.
    pub lost: u8,
    pub settles: u8,
    pub releases: u8,
    /// A lease's end by the clock.
    pub expiries: u8,
    pub renews: u8,
    /// Ends of a transaction that the client library repeats without telling.
    pub repeats: u8,
    /// Records that a broker refuses for good.
    pub refusals: u8,
    pub compactions: u8,
    /// Barriers that the tail does not show in time.
    pub blind: u8,
    /// The deadlines of all that waits pass.
    pub deadlines: u8,
    /// Postgres goes back to an earlier state.
    pub regresses: u8,
    /// Two halves of a database go on by themselves.
    pub splits: u8,
    /// The owner role raises the incarnation.
    pub raises: u8,
    /// The database's clock steps back: an expired lease lives again.
    pub steps_back: u8,
}

impl Left {
    pub const NOTHING: Self = Self {
        acquires: 0,
        inits: 0,
        posts: [0, 0],
        kills: 0,
        crashes: 0,
        lost: 0,
        settles: 0,
        releases: 0,
        expiries: 0,
        renews: 0,
        repeats: 0,
        refusals: 0,
        compactions: 0,
        blind: 0,
        deadlines: 0,
        regresses: 0,
        splits: 0,
        raises: 0,
        steps_back: 0,
    };
}

/// Counts one down.
pub fn spend(left: &mut u8) {
    if *left != ANY {
        *left -= 1;
    }
}

/// A rule of the protocol, switched off: by showing the machine what lets it pass, or by taking its
/// word for more than it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Without {
    /// C1: a refusal for expiry says `none`.
    MaybeAfterExpiry,
    /// C1: an operation is looked up before it is refused as stale.
    LookupBeforeRefusal,
    /// C2: an acquire finds the lease over.
    TakeoverOfAnEndedLease,
    /// C3: an abort proves something only while the lock is still held after it.
    ConfirmAfterAbort,
    /// C4: a producer goes after an end that was not clean.
    RebuildAfterDirtyBatch,
    /// C5: the same for the transactions of an open.
    RebuildAfterDirtyOpen,
    /// C6: the ledger's last batch is redone.
    Redo,
    /// C7, C10, C12: the ledger's tokens are compared.
    CompareTokens,
    /// C8, C9: a handle comes to be only by a COMMIT that is known.
    KnownCommit,
    /// C11: the row's seq is the handle's.
    CompareSeq,
    /// The row's nonce is the handle's.
    CompareNonce,
    /// The row's home is this gateway.
    CompareHome,
    /// C13: a token above the row's proves nothing.
    MaybeAboveTheRow,
    /// C14: an incarnation below the database's is fine.
    LowerIncarnation,
    /// C15: operations are looked up under the lock that sends.
    LookupUnderTheLock,
    /// C16: barriers have a key of their own.
    BarrierKey,
    /// C18: an operation is absent only after a release or a settle.
    AbsentWhenDecided,
    /// H2: barrier and decision are of one generation.
    OneGeneration,
    /// H3: the redo does not compete with the retirement.
    RedoBesideRetire,
    /// H4: a settle locks the lease row, too.
    SettleLocksLease,
    /// H7: under a live token `none` is not final.
    NoneIsFinalOnlyWhenOver,
    /// A settle ends the token.
    SettleEndsTheToken,
    /// H5: redo and release are one COMMIT.
    OneCommitOfRelease,
    /// H6: a re-open touches neither expiry nor `released`, and opens no released lease.
    ReopenLeavesTheLease,
    /// B5, row 4: an open waits for its own barrier.
    WaitForTheBarrier,
}

/// One search.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    pub gateways: u8,
    pub left: Left,
    pub ends: Ends,
    pub without: &'static [Without],
    /// A defect of the machine.
    pub bugs: Bugs,
    /// Acquires carry a request id, one of each owner.
    pub request_ids: bool,
    /// One in so many states is healed and must come to rest; 0: none.
    pub heal: u64,
}

impl Scope {
    /// Transactions v1, two gateways, markers with the decision.
    pub fn of(left: Left) -> Self {
        let ends = Ends { bump: false, apart: false };
        Self {
            gateways: 2,
            left,
            ends,
            without: &[],
            bugs: Bugs::default(),
            request_ids: false,
            heal: 0,
        }
    }

    pub fn lacks(&self, rule: Without) -> bool {
        self.without.contains(&rule)
    }
}
