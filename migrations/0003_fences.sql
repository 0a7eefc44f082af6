-- Purpose: the row that a token is checked against, its history, and the source of tokens.
-- Lock cost: none; creates tables and a sequence of their own.

-- CACHE 1: a larger cache hands a session tokens that it may use after higher ones are installed.
-- NO CYCLE: no token a second time, even at the end of BIGINT.
CREATE SEQUENCE fencing_tokens AS bigint MINVALUE 1 START WITH 1 INCREMENT BY 1 CACHE 1 NO CYCLE;

CREATE TABLE fences (
    lease text PRIMARY KEY CHECK (lease ~ '^[A-Za-z0-9._-]{1,200}$' AND lease NOT IN ('.', '..')),
    -- 0 until the first acquire.
    token bigint NOT NULL DEFAULT 0 CHECK (token >= 0),
    owner text NOT NULL DEFAULT '' CHECK (octet_length(owner) <= 200),
    -- The incarnation that issued the token.
    incarnation bigint NOT NULL DEFAULT 0 CHECK (incarnation >= 0),
    -- The last batch that is known here.
    batch_seq bigint NOT NULL DEFAULT 0 CHECK (batch_seq >= 0),
    -- The mark of the last open.
    nonce uuid,
    -- The gateway of the last open: a hint.
    home uuid,
    home_url text,
    ledger_partition integer NOT NULL CHECK (ledger_partition >= 0),
    -- Why nobody may write, if so.
    quarantine text CHECK (quarantine <> ''),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((token > 0) = (owner <> '')),
    CHECK ((token > 0) = (incarnation > 0))
)
-- Every batch updates its row: room on the page keeps that a heap-only update.
WITH (fillfactor = 50);

CREATE FUNCTION fences_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a fence row is never removed or renamed, its token and batch seq never go '
        'down and its ledger partition never changes'
        USING ERRCODE = 'restrict_violation';
END
$$;

-- In WHEN, so that a lawful update calls no function; for the owner role too.
CREATE TRIGGER fences_monotonic BEFORE UPDATE ON fences FOR EACH ROW
    WHEN (NEW.token < OLD.token OR NEW.batch_seq < OLD.batch_seq
        OR NEW.ledger_partition <> OLD.ledger_partition OR NEW.lease <> OLD.lease)
    EXECUTE FUNCTION fences_refuse();

CREATE TRIGGER fences_kept BEFORE DELETE OR TRUNCATE ON fences FOR EACH STATEMENT
    EXECUTE FUNCTION fences_refuse();

-- Runs as the role that updates. Catalogues are named in full: a temporary table of the same name
-- would come first.
CREATE FUNCTION fences_keep_quarantine() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.pg_has_role(
        current_user,
        (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = TG_RELID),
        'USAGE'
    ) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a quarantine is lifted or changed by the owner role only'
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER fences_quarantine BEFORE UPDATE ON fences FOR EACH ROW
    WHEN (OLD.quarantine IS NOT NULL AND NEW.quarantine IS DISTINCT FROM OLD.quarantine)
    EXECUTE FUNCTION fences_keep_quarantine();

CREATE TABLE fence_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event text NOT NULL CHECK (event IN (
        'install', 'reopen', 'release', 'settle', 'retire', 'quarantine', 'expire', 'lift'
    )),
    token bigint NOT NULL,
    owner text NOT NULL,
    incarnation bigint NOT NULL,
    batch_seq bigint NOT NULL,
    home uuid,
    note text
);

CREATE INDEX fence_history_lease ON fence_history (lease, id);

CREATE FUNCTION fence_history_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the fence history is only ever appended to'
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER fence_history_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fence_history
    FOR EACH STATEMENT EXECUTE FUNCTION fence_history_refuse();
