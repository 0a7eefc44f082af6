//! F36: a stop with work in flight.
