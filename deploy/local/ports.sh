# Sourced after lib.sh, kafka.sh, postgres.sh and gateway.sh: whose process holds a port.
# shellcheck shell=bash

holder_checkout() { # PID: prints the checkout whose local stack the process belongs to, if any
  local cwd
  cwd=$(process_cwd "$1")
  case $cwd in
    /var/tmp/fencepost-*/pg) cat "${cwd%/pg}/checkout" 2>/dev/null || true ;;
    */target/local | */target/local/kafka) printf '%s\n' "${cwd%/target/local*}" ;;
  esac
}

known_pid() { # PID: one that a pid file of this checkout names
  local pid
  for pid in "$(kafka_pid)" "$(pg_pid)" "$(gateway_pid 1)" "$(gateway_pid 2)"; do
    [[ $pid != "$1" ]] || return 0
  done
  return 1
}

stack_ports() {
  printf '%s\n' "${GATEWAY_PORTS[@]}" "${ADMIN_PORTS[@]}" "$KAFKA_PORT" "$KAFKA_CONTROLLER_PORT" \
    "${CHAOS_PORTS[@]}" "$PG_PORT"
}

# A process of this checkout whose pid file is gone, because target/ was wiped while it ran.
stop_orphans() {
  local port pid
  for port in $(stack_ports); do
    pid=$(listener_pid "$port")
    if ! [[ $pid =~ ^[0-9]+$ ]] || known_pid "$pid"; then
      continue
    fi
    [[ $(holder_checkout "$pid") == "$ROOT" ]] || continue
    say "port $port: held by pid $pid, which this checkout started and lost track of: stopping it"
    stop_process "$pid" 15
  done
}

refuse_taken_ports() {
  local port pid owner taken=()
  for port in $(stack_ports); do
    pid=$(listener_pid "$port")
    if [[ -z $pid ]] || known_pid "$pid"; then
      continue
    fi
    if [[ $pid == unknown ]]; then
      taken+=("port $port is taken by a process of another user")
      continue
    fi
    owner=$(holder_checkout "$pid")
    if [[ -n $owner ]]; then
      owner="of the checkout $owner"
    else
      owner="with working directory $(process_cwd "$pid")"
    fi
    taken+=("port $port is taken by pid $pid ($(cat "/proc/$pid/comm" 2>/dev/null || true)) $owner")
  done
  ((${#taken[@]} == 0)) || {
    printf '%s\n' "${taken[@]}" >&2
    die "stop what holds the ports (deploy/local/down in that checkout)," \
      "or choose other ports here: FENCEPOST_PORT_BASE=$((BASE < 32000 ? BASE + 100 : 18080)) $0"
  }
}
