-- Purpose: which installation this database belongs to, and which history of the database this is.
-- Lock cost: none; creates a table of its own.

CREATE TABLE installation (
    -- One row at most: its key can only be true.
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    name text NOT NULL CHECK (name ~ '^[A-Za-z0-9-]{1,40}$'),
    -- Raised by the owner role after a failover that may have lost commits.
    incarnation bigint NOT NULL DEFAULT 1 CHECK (incarnation >= 1),
    kafka_cluster_id text NOT NULL CHECK (kafka_cluster_id <> ''),
    ledger_topic text NOT NULL CHECK (ledger_topic <> ''),
    ledger_topic_id text NOT NULL CHECK (ledger_topic_id <> ''),
    -- The divisor of every lease's ledger partition.
    ledger_partitions integer NOT NULL CHECK (ledger_partitions >= 1),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION installation_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the installation row is never removed and its incarnation never goes down'
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER installation_incarnation BEFORE UPDATE ON installation FOR EACH ROW
    WHEN (NEW.incarnation < OLD.incarnation)
    EXECUTE FUNCTION installation_refuse();

CREATE TRIGGER installation_kept BEFORE DELETE OR TRUNCATE ON installation FOR EACH STATEMENT
    EXECUTE FUNCTION installation_refuse();
