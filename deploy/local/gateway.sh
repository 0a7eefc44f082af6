# Sourced after lib.sh, kafka.sh and postgres.sh: secrets, configuration, and the gateways.
# shellcheck shell=bash disable=SC2164  # the sourcing scripts run under set -e

SECRETS=$LOCAL/secrets
KEY_FILE=$LOCAL/keys/credential.pem
BINARY=$LOCAL/bin/fencepost

gateway_name() { [[ $1 == 1 ]] && echo gateway || echo "gateway-$1"; }
gateway_config() { [[ $1 == 1 ]] && echo "$LOCAL/fencepost.toml" || echo "$LOCAL/fencepost-$1.toml"; }
gateway_pid_file() { echo "$LOCAL/$(gateway_name "$1").pid"; }
gateway_url() { echo "http://127.0.0.1:${GATEWAY_PORTS[$1]}"; }
admin_url() { echo "http://127.0.0.1:${ADMIN_PORTS[$1]}"; }

gateway_pid() { # NUMBER
  pid_from "$(gateway_pid_file "$1")" "serve --config $(gateway_config "$1")" || true
}

random_hex() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

hash_of() { printf '%s' "$1" | sha256sum | cut -d' ' -f1; }

# Made once, so that a restart leaves every URL and token as it was.
secrets_load() {
  local name
  if [[ ! -e $SECRETS ]]; then
    for name in INSTANCE_ID OWNER_PASSWORD GATEWAY_PASSWORD WORKER_TOKEN OPS_TOKEN; do
      printf '%s=%s\n' "$name" "$(random_hex)"
    done | write_if_changed "$SECRETS"
  fi
  # shellcheck disable=SC1090
  . "$SECRETS"
  DATABASE_URL=postgres://fencepost_gateway:$GATEWAY_PASSWORD@127.0.0.1:$PG_PORT/fencepost
  DATABASE_OWNER_URL=postgres://fencepost_owner:$OWNER_PASSWORD@127.0.0.1:$PG_PORT/fencepost
}

config_text() { # NUMBER
  cat <<EOF
# Written by deploy/local/up. What is not said here has its default.
installation = "local"

[http]
listen = "127.0.0.1:${GATEWAY_PORTS[$1]}"
admin_listen = "127.0.0.1:${ADMIN_PORTS[$1]}"
advertised_url = "$(gateway_url "$1")"

[postgres]
url = "$DATABASE_URL"

[kafka]
bootstrap = "$KAFKA_BOOTSTRAP"
topics = ["demo.*"]
ledger_topic = "$LEDGER_TOPIC"

[credentials]
signing_key_file = "$KEY_FILE"

[[workers]]
name = "local-worker"
token_sha256 = "$(hash_of "$WORKER_TOKEN")"
leases = ["*"]
owners = ["*"]

[ops]
token_sha256 = "$(hash_of "$OPS_TOKEN")"
EOF
}

# KEY=VALUE for the shell; only a checkout whose path holds a space needs the quoting.
env_line() { printf '%s=%q\n' "$1" "$2"; }

env_text() { # SECOND: true or false
  local port chaos=
  for port in "${CHAOS_PORTS[@]}"; do
    chaos+=${chaos:+,}$port:$((port + 1))
  done
  env_line FENCEPOST_URL "$(gateway_url 1)"
  env_line FENCEPOST_ADMIN_URL "$(admin_url 1)"
  env_line FENCEPOST_PID_FILE "$(gateway_pid_file 1)"
  env_line FENCEPOST_CONFIG "$(gateway_config 1)"
  env_line DATABASE_URL "$DATABASE_URL"
  env_line DATABASE_OWNER_URL "$DATABASE_OWNER_URL"
  env_line POSTGRES_DATA "$PG_DATA"
  env_line KAFKA_BOOTSTRAP "$KAFKA_BOOTSTRAP"
  env_line KAFKA_PID_FILE "$KAFKA_PID_FILE"
  # For tests that start a broker of their own.
  env_line KAFKA_JARS "$KAFKA_JARS"
  env_line KAFKA_JAVA "$(find_java)"
  # Pairs bound:advertised.
  printf 'KAFKA_CHAOS=%s\n' "$chaos"
  env_line WORKER_TOKEN "$WORKER_TOKEN"
  env_line OPS_TOKEN "$OPS_TOKEN"
  env_line DEMO_TOPIC "$DEMO_TOPIC"
  if [[ $1 == true ]]; then
    env_line FENCEPOST_URL_2 "$(gateway_url 2)"
    env_line FENCEPOST_ADMIN_URL_2 "$(admin_url 2)"
    env_line FENCEPOST_PID_FILE_2 "$(gateway_pid_file 2)"
  fi
}

config_write() { # SECOND: true or false
  local file
  for file in 1 $([[ $1 == false ]] || echo 2); do
    config_text "$file" | write_if_changed "$(gateway_config "$file")" || true
  done
  env_text "$1" | write_if_changed "$LOCAL/env" || true
}

gateway_build() {
  # shellcheck disable=SC2031
  (cd "$ROOT" && cargo build --release --locked --bin fencepost 9>&-)
}

# The running gateway has a binary of its own: test builds, which have other features, replace the
# one under release/.
gateway_install() {
  local built=${CARGO_TARGET_DIR:-$TARGET}/release/fencepost
  mkdir -p "$(dirname "$BINARY")"
  cmp -s "$built" "$BINARY" && return
  cp "$built" "$BINARY.new"
  mv -f "$BINARY.new" "$BINARY"
}

keys_generate() {
  (umask 077 && mkdir -p "$(dirname "$KEY_FILE")" && "$BINARY" keys generate --out "$KEY_FILE")
}

migrate() { DATABASE_OWNER_URL=$DATABASE_OWNER_URL "$BINARY" migrate --config "$(gateway_config 1)"; }

# What a running gateway was started from: its binary, its configuration, its key.
gateway_fingerprint() { cat "$BINARY" "$(gateway_config "$1")" "$KEY_FILE" | sha256sum; }

gateway_ready() { # NUMBER PID
  [[ $(listener_pid "${ADMIN_PORTS[$1]}") == "$2" ]] && curl -sf -m 2 -o /dev/null "$(admin_url "$1")/readyz"
}

gateway_ready_or_died() { gone "$2" || gateway_ready "$1" "$2"; }

gateway_launch() { # NUMBER
  local pid log
  log=$LOCAL/$(gateway_name "$1").log
  ulimit -n "$(ulimit -Hn)"
  cd "$LOCAL"
  # It needs no secret but those in its configuration, so it gets none by the environment.
  env -u DATABASE_URL -u DATABASE_OWNER_URL -u WORKER_TOKEN -u OPS_TOKEN \
    setsid nohup "$BINARY" serve --config "$(gateway_config "$1")" \
    >>"$log" 2>&1 </dev/null 9>&- &
  pid=$!
  cd "$ROOT"
  echo "$pid" >"$(gateway_pid_file "$1")"
  gateway_fingerprint "$1" >"$LOCAL/$(gateway_name "$1").started"
  if ! wait_until 60 gateway_ready_or_died "$1" "$pid" || gone "$pid"; then
    tail -n 20 "$log" >&2
    curl -s -m 2 "$(admin_url "$1")/readyz" >&2 || true
    die "$(gateway_name "$1") is not ready; its log is $log"
  fi
}

gateway_start() { # NUMBER
  local pid name
  name=$(gateway_name "$1")
  pid=$(gateway_pid "$1")
  if [[ -n $pid && $(gateway_fingerprint "$1") != "$(cat "$LOCAL/$name.started" 2>/dev/null)" ]]; then
    step "$name: its binary or configuration changed; stopping pid $pid" gateway_stop "$1"
    pid=
  fi
  if [[ -n $pid ]]; then
    if [[ $(process_state "$pid") == T ]]; then
      say "$name: pid $pid was paused"
      kill -CONT "$pid"
    fi
    wait_until 30 gateway_ready "$1" "$pid" ||
      die "$name runs (pid $pid) but is not ready; its log is $LOCAL/$name.log"
    say "$name: running, pid $pid"
    return
  fi
  step "$name: starting on $(gateway_url "$1")" gateway_launch "$1"
}

gateway_stop() { # NUMBER
  local pid
  pid=$(gateway_pid "$1")
  [[ -z $pid ]] || stop_process "$pid" 20
  rm -f "$(gateway_pid_file "$1")"
}
