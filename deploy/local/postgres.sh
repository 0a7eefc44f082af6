# Sourced after lib.sh: a private Postgres cluster, never the machine's own.
# shellcheck shell=bash

PG_DATA=$STATE/pg
PG_SOCKET=$STATE/run
PG_LOG=$STATE/postgres.log
# Postgres refuses to run as root. Whoever runs it is also the name of its superuser.
if ((EUID == 0)); then
  PG_USER=postgres
else
  PG_USER=$(id -un)
fi

as_pg() { # COMMAND...: the programs of Postgres, from a directory that their user may enter
  if ((EUID == 0)); then
    (cd / && exec runuser -u "$PG_USER" -- "$@" 9>&-)
  else
    (cd / && exec "$@" 9>&-)
  fi
}

pg_pid() { pid_from "$PG_DATA/postmaster.pid" "$PG_DATA" || true; }

pg_init() {
  local bin
  bin=$(pg_bin)
  if [[ -e $STATE && ! $(stat -c %U "$STATE") =~ ^(root|$PG_USER)$ ]]; then
    die "$STATE belongs to $(stat -c %U "$STATE"); remove it"
  fi
  mkdir -p "$STATE"
  chmod 755 "$STATE"
  printf '%s\n' "$ROOT" >"$STATE/checkout"
  ((EUID != 0)) || chown "$PG_USER" "$STATE"
  as_pg mkdir -p -m 700 "$PG_SOCKET"
  as_pg "$bin/initdb" -D "$PG_DATA" -U "$PG_USER" --auth-local=peer --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C --no-instructions >"$LOCAL/initdb.log" 2>&1 ||
    { cat "$LOCAL/initdb.log" >&2; die "initdb failed"; }
  # All else is the default; above all fsync and synchronous_commit stay on.
  as_pg tee -a "$PG_DATA/postgresql.conf" >/dev/null <<EOF

# Added by deploy/local/up.
listen_addresses = '127.0.0.1'
port = $PG_PORT
unix_socket_directories = '$PG_SOCKET'
unix_socket_permissions = 0700
max_connections = 300
log_line_prefix = '%m [%p] %u@%d '
EOF
  # Last, so that half an initialisation is not taken for one.
  printf '%s\n' "$INSTANCE_ID" >"$STATE/instance"
}

pg_launch() {
  as_pg "$(pg_bin)/pg_ctl" -D "$PG_DATA" -l "$PG_LOG" -w -t 60 start >/dev/null </dev/null || {
    tail -n 10 "$PG_LOG" >&2
    die "Postgres did not start; its log is $PG_LOG"
  }
  ln -sfn "$PG_LOG" "$LOCAL/postgres.log"
}

pg_answers() { "$(pg_bin)/pg_isready" -q -h 127.0.0.1 -p "$PG_PORT" -t 2; }

pg_start() {
  local pid
  pid=$(pg_pid)
  if [[ -n $pid ]]; then
    [[ $(process_state "$pid") != T ]] || { say "postgres: pid $pid was paused"; pg_signal CONT; }
    wait_until 60 pg_answers || die "Postgres runs (pid $pid) but does not answer; its log is $PG_LOG"
    say "postgres: running, pid $pid"
    return
  fi
  [[ -e $STATE/instance ]] || die "there is no Postgres cluster yet; run deploy/local/up"
  step "postgres: starting on 127.0.0.1:$PG_PORT" pg_launch
}

pg_stop() { # MODE: fast or immediate
  [[ -n $(pg_pid) ]] || return 0
  pg_signal CONT
  as_pg "$(pg_bin)/pg_ctl" -D "$PG_DATA" -m "$1" -w -t 30 stop >/dev/null ||
    die "Postgres did not stop; its log is $PG_LOG"
}

# Every backend is a process group of its own, so the postmaster and its children are told one by
# one: the postmaster first when stopping, so that no child is added, and last when going on.
pg_signal() { # STOP | CONT
  local pid children
  pid=$(pg_pid)
  [[ -n $pid ]] || return 0
  [[ $1 != STOP ]] || kill -STOP "$pid"
  children=$(ps -o pid= --ppid "$pid" || true)
  # shellcheck disable=SC2086  # one word a pid
  [[ -z $children ]] || kill -"$1" $children 2>/dev/null || true
  [[ $1 != CONT ]] || kill -CONT "$pid"
}

pg_superuser() { # PSQL_ARG...
  as_pg "$(pg_bin)/psql" -X -q -h "$PG_SOCKET" -p "$PG_PORT" -U "$PG_USER" -d postgres "$@"
}

pg_roles() {
  OWNER_PASSWORD=$OWNER_PASSWORD GATEWAY_PASSWORD=$GATEWAY_PASSWORD \
    pg_superuser -v owner_createdb=1 -f - <"$ROOT/deploy/postgres/roles.sql" >/dev/null
}

# The fences in Postgres and the ledger in Kafka are two halves of one history. If one of them is
# gone (target/ wiped, /var/tmp cleaned), the other is worth nothing and is dropped too.
pg_drop_strays() {
  if [[ -e $STATE && $(cat "$STATE/instance" 2>/dev/null) != "$INSTANCE_ID" ]]; then
    say "postgres: $STATE has no counterpart in $LOCAL: dropped"
    pg_stop immediate
    rm -rf "$STATE"
  fi
  if [[ ! -e $STATE && -e $KAFKA_DIR ]]; then
    say "kafka: $KAFKA_DIR has no counterpart in $STATE: dropped"
    kafka_stop
    rm -rf "$KAFKA_DIR"
  fi
}
