//! The truth of the gateway, pure: names, tokens, the ledger's codec, the decisions, the machine.
//!
//! Owns every rule of the protocol as a value or a function. Never waits, reads a clock, draws a
//! random number or touches a store: those come in as arguments and go out as effects.
//!
//! Invariants, by number, wherever a file says that it carries one:
//! - I1 an operation is sent only while its own credential's token, owner and incarnation are the
//!   fence row's and the lease is held, under the row's lock.
//! - I2 an operation is looked up under the same lock before it is sent or refused.
//! - I3 a handle exists only after a COMMIT known to have succeeded, and is used only while nonce
//!   and seq of the row are the handle's.
//! - I4 no token is opened that the ledger before the barrier contradicts.
//! - I5 after any error or doubt the producer is dropped before the lock is given up, and the next
//!   use goes through an open.
//! - I6 a success is answered only after the Kafka commit and the Postgres COMMIT are both known.
//! - I7 at most one awaited effect is under way for a lease in a gateway.

pub mod batch;
pub mod bug;
pub mod fence;
pub mod lease;
pub mod ledger;
pub mod machine;
pub mod operation;
pub mod outcome;
pub mod reconcile;
pub mod refusal;
pub mod transactional_id;
