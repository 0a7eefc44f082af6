-- Purpose: what the gateway role may do, and nothing else: no DELETE, no TRUNCATE, no setval.
-- Lock cost: none to speak of; grants change the catalogue only.

GRANT SELECT ON installation, leases, fences, fence_history, operations TO fencepost_gateway;

-- Not the incarnation: the first one is the default, and raising it is the owner's.
GRANT INSERT (name, kafka_cluster_id, ledger_topic, ledger_topic_id, ledger_partitions)
    ON installation TO fencepost_gateway;

-- A missing row can only be made empty.
GRANT INSERT (lease) ON leases TO fencepost_gateway;
GRANT INSERT (lease, ledger_partition) ON fences TO fencepost_gateway;
GRANT UPDATE (owner, identity, token, expires_at, released, ttl_ms, request_id, updated_at)
    ON leases TO fencepost_gateway;
GRANT UPDATE (token, owner, incarnation, batch_seq, nonce, home, home_url, quarantine, updated_at)
    ON fences TO fencepost_gateway;

-- Neither the id nor the time: those are the database's.
GRANT INSERT (lease, event, token, owner, incarnation, batch_seq, home, note)
    ON fence_history TO fencepost_gateway;
GRANT INSERT (lease, operation_id, fingerprint, token, incarnation, batch_seq, runs)
    ON operations TO fencepost_gateway;

-- USAGE allows nextval and denies setval; UPDATE would allow both.
GRANT USAGE ON SEQUENCE fencing_tokens TO fencepost_gateway;

-- So that a gateway can tell whether the schema is the one it was built for.
GRANT SELECT ON _sqlx_migrations TO fencepost_gateway;

REVOKE EXECUTE ON FUNCTION installation_refuse(), leases_refuse(), fences_refuse(),
    fences_keep_quarantine(), fence_history_refuse(), operations_refuse() FROM PUBLIC;
