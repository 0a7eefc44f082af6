-- Purpose: who holds a lease and until when.
-- Lock cost: none; creates a table of its own.

CREATE TABLE leases (
    lease text PRIMARY KEY CHECK (lease ~ '^[A-Za-z0-9._-]{1,200}$' AND lease NOT IN ('.', '..')),
    owner text NOT NULL DEFAULT '' CHECK (octet_length(owner) <= 200),
    identity text NOT NULL DEFAULT '',
    -- 0 until the first acquire.
    token bigint NOT NULL DEFAULT 0 CHECK (token >= 0),
    -- The first instant at which the lease is over.
    expires_at timestamptz NOT NULL DEFAULT 'epoch' CHECK (isfinite(expires_at)),
    released boolean NOT NULL DEFAULT false,
    ttl_ms bigint NOT NULL DEFAULT 0 CHECK (ttl_ms >= 0),
    request_id text CHECK (octet_length(request_id) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((token > 0) = (owner <> ''))
)
-- Room on the page for the next version of a row: no column that changes is indexed, so a renew
-- then stays a heap-only update.
WITH (fillfactor = 70);

CREATE FUNCTION leases_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a lease row is never removed or renamed and its token never goes down'
        USING ERRCODE = 'restrict_violation';
END
$$;

-- The condition stands in WHEN, so that a lawful update calls no function. It holds for the owner
-- role too.
CREATE TRIGGER leases_monotonic BEFORE UPDATE ON leases FOR EACH ROW
    WHEN (NEW.token < OLD.token OR NEW.lease <> OLD.lease)
    EXECUTE FUNCTION leases_refuse();

CREATE TRIGGER leases_kept BEFORE DELETE OR TRUNCATE ON leases FOR EACH STATEMENT
    EXECUTE FUNCTION leases_refuse();
