# Sourced by the scripts beside it: paths, ports, messages, processes. Starts nothing.
# shellcheck shell=bash
# shellcheck disable=SC2034  # most of these variables are used by the sourcing script

export LC_ALL=C
# runuser lives in /usr/sbin, which not every login has in its PATH.
PATH=$PATH:/usr/sbin:/sbin
# The checked SQL is compiled from .sqlx, whatever DATABASE_URL says.
export SQLX_OFFLINE=${SQLX_OFFLINE:-true}

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
HERE=$ROOT/deploy/local
TARGET=$ROOT/target
LOCAL=$TARGET/local
CHECKOUT_ID=$(printf '%s' "$ROOT" | sha256sum | cut -c1-10)

# Ports. All stay below 32768, where the kernel begins to hand out ports of its own.
# A checkout keeps the base that it was first started with.
if [[ -z ${FENCEPOST_PORT_BASE:-} && -r $LOCAL/port-base ]]; then
  FENCEPOST_PORT_BASE=$(<"$LOCAL/port-base")
fi
BASE=${FENCEPOST_PORT_BASE:-18080}
if ! [[ $BASE =~ ^[0-9]{4,5}$ ]] || ((BASE < 1024 || BASE + 32 > 32767)); then
  echo "FENCEPOST_PORT_BASE must be a number from 1024 to 32735, not '$BASE'" >&2
  exit 1
fi
GATEWAY_PORTS=([1]=$BASE [2]=$((BASE + 2)))
ADMIN_PORTS=([1]=$((BASE + 1)) [2]=$((BASE + 3)))
KAFKA_PORT=$((BASE + 12))
KAFKA_CONTROLLER_PORT=$((BASE + 13))
# The broker listens on the first of each pair and advertises the second, where a test's proxy may
# stand.
CHAOS_PORTS=($((BASE + 14)) $((BASE + 16)) $((BASE + 18)) $((BASE + 20)))
PG_PORT=$((BASE + 32))

# Postgres cannot run as root nor reach into a private clone, so its data lives here.
STATE=/var/tmp/fencepost-$CHECKOUT_ID-$BASE
KAFKA_DIR=$LOCAL/kafka
DEMO_TOPIC=demo.records
LEDGER_TOPIC=fencepost.ledger

# Messages.
say() { printf '%s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }

seconds_since() { # MICROSECONDS
  local ms=$((($(now_us) - $1) / 1000))
  printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# Says what it does, does it, says how long it took. Never call it in a condition: that would
# switch `set -e` off inside.
step() { # TEXT COMMAND...
  local text=$1 from
  shift
  from=$(now_us)
  say "$text ..."
  "$@"
  say "  done in $(seconds_since "$from")"
}

# Waits until the command succeeds. False when the deadline has passed.
wait_until() { # SECONDS COMMAND...
  local deadline=$(($(now_us) + $1 * 1000000))
  shift
  until "$@"; do
    (($(now_us) < deadline)) || return 1
    sleep 0.1
  done
}

# Files. True if the file was written, false if it already stood there word for word.
write_if_changed() { # FILE <CONTENT
  local file=$1 content
  content=$(cat)
  if [[ -f $file && $(<"$file") == "$content" ]]; then
    return 1
  fi
  (umask 077 && printf '%s\n' "$content" >"$file.new")
  mv -f "$file.new" "$file"
}

# One `up` or `down` at a time in a checkout. What they start must not inherit the lock (9>&-).
take_lock() {
  mkdir -p "$TARGET"
  exec 9>"$TARGET/local.lock"
  flock -n 9 || { say "waiting for another up or down of this checkout"; flock 9; }
}

# Processes.
running_as() { # PID TEXT: alive, no zombie, and TEXT is part of its command line
  [[ $1 =~ ^[0-9]+$ && -r /proc/$1/cmdline ]] || return 1
  # A pid may have been given to another process since its file was written.
  [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") == *"$2"* ]]
}

pid_from() { # PID_FILE TEXT: prints the pid if that process runs and is the one meant
  local pid
  [[ -r $1 ]] && pid=$(head -n 1 "$1") && running_as "$pid" "$2" && printf '%s\n' "$pid"
}

gone() { # PID
  local state
  state=$(process_state "$1")
  [[ -z $state || $state == Z ]]
}

process_state() { # PID: R, S, T (stopped), Z (zombie), nothing if there is none
  sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null || true
}

stop_process() { # PID SECONDS: asks, waits, insists
  kill -TERM "$1" 2>/dev/null || return 0
  kill -CONT "$1" 2>/dev/null || true
  if ! wait_until "$2" gone "$1"; then
    say "  pid $1 did not stop within $2 s: killed"
    kill -KILL "$1" 2>/dev/null || true
    wait_until 10 gone "$1" || die "pid $1 does not die"
  fi
}

process_cwd() { # PID
  local cwd
  cwd=$(readlink "/proc/$1/cwd" 2>/dev/null) || return 0
  printf '%s\n' "${cwd% (deleted)}"
}

listener_pid() { # PORT: prints the pid, `unknown` if it is another user's, nothing if it is free
  local line
  line=$(ss -ltnpH "sport = :$1" | head -n 1)
  if [[ $line =~ pid=([0-9]+) ]]; then
    printf '%s\n' "${BASH_REMATCH[1]}"
  elif [[ -n $line ]]; then
    echo unknown
  fi
}

# Tools.
pg_bin() { # prints the newest PostgreSQL's bin directory; these are not in PATH on Debian
  local dir
  dir=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -t/ -k5 -n | tail -n 1)
  [[ -n $dir ]] && dirname "$dir"
}

find_java() { # prints a java of version 17 or newer
  local java version
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(type -P java)" /usr/lib/jvm/*/bin/java; do
    [[ -n $java && -x $java ]] || continue
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    if [[ $version =~ ^[0-9]+$ ]] && ((version >= 17)); then
      printf '%s\n' "$java"
      return
    fi
  done
  return 1
}

need_cargo() {
  if ! type -P cargo >/dev/null && [[ -x $HOME/.cargo/bin/cargo ]]; then
    PATH=$HOME/.cargo/bin:$PATH
  fi
  type -P cargo >/dev/null ||
    die "cargo not found: install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")" \
      "or newer with rustup, open a new shell and run this again"
}
