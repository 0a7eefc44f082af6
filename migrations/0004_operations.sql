-- Purpose: accepted operations, so that a repeat is answered instead of sent.
-- Lock cost: none; creates a table of its own.

CREATE TABLE operations (
    lease text NOT NULL,
    -- Its scope is the lease, not the token.
    operation_id text NOT NULL CHECK (octet_length(operation_id) BETWEEN 1 AND 200),
    -- SHA-256 of the decoded records.
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    token bigint NOT NULL CHECK (token > 0),
    incarnation bigint NOT NULL CHECK (incarnation > 0),
    batch_seq bigint NOT NULL CHECK (batch_seq > 0),
    -- Where its records stand, in the ledger's encoding.
    runs bytea NOT NULL,
    -- Retention counts from here: the clock of the statement that inserted it.
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lease, operation_id)
);

CREATE FUNCTION operations_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an accepted operation never changes' USING ERRCODE = 'restrict_violation';
END
$$;

-- Deletion is left open to the owner role: rows older than the retention may go.
CREATE TRIGGER operations_kept BEFORE UPDATE ON operations FOR EACH STATEMENT
    EXECUTE FUNCTION operations_refuse();
