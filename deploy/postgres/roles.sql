-- The two roles of Fencepost and its database. Run by a superuser with psql; may be run again.
--
--   OWNER_PASSWORD=... GATEWAY_PASSWORD=... psql -d postgres -f roles.sql
--
-- fencepost_owner    owns the schema, runs `fencepost migrate`, raises the incarnation.
-- fencepost_gateway  what the gateways log in as: no rights here at all; the migrations grant them
--                    column by column.
--
-- With `-v owner_createdb=1` the owner may create databases, which only the tests need.
-- Passwords come by the environment so that no process list shows them.
\set ON_ERROR_STOP on
\getenv owner_password OWNER_PASSWORD
\getenv gateway_password GATEWAY_PASSWORD
-- A statement with a password in it belongs in no log.
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SET password_encryption = 'scram-sha-256';

SELECT format('CREATE ROLE %I', wanted.name)
FROM (VALUES ('fencepost_owner'), ('fencepost_gateway')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted.name)
\gexec

ALTER ROLE fencepost_owner LOGIN NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD :'owner_password';
\if :{?owner_createdb}
ALTER ROLE fencepost_owner CREATEDB;
\else
ALTER ROLE fencepost_owner NOCREATEDB;
\endif
ALTER ROLE fencepost_gateway LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD :'gateway_password';

SELECT 'CREATE DATABASE fencepost OWNER fencepost_owner'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'fencepost')
\gexec

\connect fencepost
-- The default since PostgreSQL 15; said here for those before it.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT CREATE, USAGE ON SCHEMA public TO fencepost_owner;
