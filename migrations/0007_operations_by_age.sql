-- no-transaction
-- Purpose: the oldest operations are found without reading the others.
-- Lock cost: none that stops a write: built concurrently, in a time that grows with the table.
CREATE INDEX CONCURRENTLY operations_accepted_at ON operations (accepted_at);
