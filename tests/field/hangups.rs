//! Clients that hang up at any moment leave nothing open, lost or doubled.
