//! F22, F25, F26: frozen gateways, forgotten transactional ids, orphaned transactions.
