-- Purpose: operations past the retention may be removed, and nothing younger.
-- Lock cost: a column with a constant default on a table of one row; triggers on operations need a
-- short lock that waits for running inserts and makes new ones wait.

-- The longest retention that any gateway of this database was ever started with: a gateway raises
-- it, only the owner lowers it.
ALTER TABLE installation ADD COLUMN retention_s bigint NOT NULL DEFAULT 0
    CHECK (retention_s BETWEEN 0 AND 3153600000);

CREATE FUNCTION installation_keep_retention() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.pg_has_role(
        current_user,
        (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = TG_RELID),
        'USAGE'
    ) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the retention is lowered by the owner role only'
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER installation_retention BEFORE UPDATE ON installation FOR EACH ROW
    WHEN (NEW.retention_s < OLD.retention_s)
    EXECUTE FUNCTION installation_keep_retention();

-- For the owner role too. Names are given in full: a temporary table of the same name would come
-- first.
CREATE FUNCTION operations_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.accepted_at < clock_timestamp() - (
        SELECT pg_catalog.make_interval(secs => i.retention_s::float8) FROM public.installation i
    )) IS TRUE THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'an operation is kept for the retention' USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER operations_retention BEFORE DELETE ON operations FOR EACH ROW
    EXECUTE FUNCTION operations_keep();

CREATE TRIGGER operations_never_emptied BEFORE TRUNCATE ON operations FOR EACH STATEMENT
    EXECUTE FUNCTION operations_refuse();

GRANT UPDATE (retention_s) ON installation TO fencepost_gateway;
GRANT DELETE ON operations TO fencepost_gateway;

REVOKE EXECUTE ON FUNCTION installation_keep_retention(), operations_keep() FROM PUBLIC;
