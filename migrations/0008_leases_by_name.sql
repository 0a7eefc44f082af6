-- no-transaction
-- Purpose: leases are listed by name and prefix in byte order, whatever the database's collation.
-- Lock cost: none that stops a write: built concurrently, in a time that grows with the table.
CREATE INDEX CONCURRENTLY leases_by_name ON leases (lease COLLATE "C");
