//! F08: names and the transactional ids that are made of them.
