-- Purpose: the database knows up to when it may have forgotten operations, so that a longer
-- retention (or a clock that was set back) cannot make a forgotten one look new.
-- Lock cost: a column with a constant default on a table of one row; a trigger on operations needs a
-- short lock that waits for running inserts and makes new ones wait.

-- No operation that was accepted later than this was ever removed.
ALTER TABLE installation ADD COLUMN forgotten_to timestamptz NOT NULL DEFAULT 'epoch';

-- What was removed before this column was there: oldest first, so nothing that is younger than the
-- oldest that is left, and nothing younger than the ten minutes that are always kept. The stored
-- retention alone says too little: it may have been raised since. For a retention after this, an id
-- without a time that is not found is unknown rather than absent in a database that had operations.
UPDATE installation
    SET forgotten_to = GREATEST(
        clock_timestamp() - pg_catalog.make_interval(secs => retention_s::float8),
        LEAST(
            clock_timestamp() - interval '600 s',
            COALESCE((SELECT min(accepted_at) FROM operations), 'infinity')
        )
    )
    WHERE retention_s > 0;

CREATE FUNCTION installation_keep_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what was forgotten stays forgotten' USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER installation_forgotten BEFORE UPDATE ON installation FOR EACH ROW
    WHEN (NEW.forgotten_to < OLD.forgotten_to)
    EXECUTE FUNCTION installation_keep_forgotten();

-- Whoever removes operations, by whatever statement, moves it on in the same transaction. To the
-- next whole minute: every look at a lease reads this row, and a purge in small steps would leave a
-- dead version of it with each. With the owner's rights: nobody else may write the column.
CREATE FUNCTION operations_forget() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE public.installation SET forgotten_to = removed.to_at
        FROM (
            SELECT date_trunc('minute', max(gone.accepted_at)) + interval '1 minute' AS to_at
            FROM gone
        ) AS removed
        WHERE removed.to_at > forgotten_to;
    RETURN NULL;
END
$$;

CREATE TRIGGER operations_forgotten AFTER DELETE ON operations
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    EXECUTE FUNCTION operations_forget();

REVOKE EXECUTE ON FUNCTION installation_keep_forgotten(), operations_forget() FROM PUBLIC;
