# Sourced after lib.sh: the local Kafka broker (KRaft, broker and controller in one process).
# shellcheck shell=bash disable=SC2164  # the sourcing scripts run under set -e

KAFKA_VERSION=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$ROOT/deploy/kafka/pom.xml")
# Outside target/, so that a wipe does not fetch it again; a changed pom.xml is another directory.
KAFKA_JARS=${XDG_CACHE_HOME:-$HOME/.cache}/fencepost/kafka-$KAFKA_VERSION-$(
  sha256sum <"$ROOT/deploy/kafka/pom.xml" | cut -c1-8
)
KAFKA_PID_FILE=$LOCAL/kafka.pid
KAFKA_BOOTSTRAP=127.0.0.1:$KAFKA_PORT

kafka_pid() { pid_from "$KAFKA_PID_FILE" "-Dfencepost.kafka.dir=$KAFKA_DIR" || true; }

kafka_fetch() {
  local parent temporary try
  parent=$(dirname "$KAFKA_JARS")
  mkdir -p "$parent"
  temporary=$(mktemp -d "$parent/fetch.XXXXXX")
  for try in 1 2 3; do
    if mvn -q -B -f "$ROOT/deploy/kafka/pom.xml" dependency:copy-dependencies \
      -DincludeScope=runtime "-DoutputDirectory=$temporary" >"$TARGET/local-maven.log" 2>&1; then
      # Another checkout may have been faster; then its copy stays.
      mv -T "$temporary" "$KAFKA_JARS" 2>/dev/null || rm -rf "$temporary"
      return
    fi
    say "  attempt $try failed"
  done
  rm -rf "$temporary"
  tail -n 20 "$TARGET/local-maven.log" >&2
  die "Maven could not fetch Kafka $KAFKA_VERSION (whole log: $TARGET/local-maven.log)"
}

kafka_properties() {
  local i listeners advertised protocols
  listeners=CLIENT://$KAFKA_BOOTSTRAP,CONTROLLER://127.0.0.1:$KAFKA_CONTROLLER_PORT
  advertised=CLIENT://$KAFKA_BOOTSTRAP
  protocols=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
  for i in "${!CHAOS_PORTS[@]}"; do
    listeners+=,CHAOS$((i + 1))://127.0.0.1:${CHAOS_PORTS[i]}
    advertised+=,CHAOS$((i + 1))://127.0.0.1:$((CHAOS_PORTS[i] + 1))
    protocols+=,CHAOS$((i + 1)):PLAINTEXT
  done
  cat <<EOF
# Written by deploy/local/up for Kafka $KAFKA_VERSION.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$KAFKA_CONTROLLER_PORT
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
listeners=$listeners
advertised.listeners=$advertised
listener.security.protocol.map=$protocols
log.dirs=$KAFKA_DIR/data
auto.create.topics.enable=false
# A takeover waits for this sweep when the old holder left a transaction open.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
default.replication.factor=1
min.insync.replicas=1
group.initial.rebalance.delay.ms=0
# A killed broker may register again only when its last session has run out: 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# Small, for a heap of 512 MB: every listener has network threads of its own, and the cleaner's
# buffer comes out of the heap.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
EOF
}

java_tool() { # HEAP CLASS ARG...: a short run of one of Kafka's tools
  local heap=$1
  shift
  "$(find_java)" "-Xmx$heap" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$KAFKA_JARS/*" "$@"
}

kafka_format() {
  local id
  mkdir -p "$KAFKA_DIR"
  kafka_properties | write_if_changed "$KAFKA_DIR/server.properties" || true
  # A cluster id is 16 bytes in URL-safe base64, and must not look like an option.
  id=$(head -c 16 /dev/urandom | base64 | tr -- '+/-' '__A' | tr -d '=')
  java_tool 128m kafka.tools.StorageTool format -t "$id" -c "$KAFKA_DIR/server.properties" \
    >"$KAFKA_DIR/format.log" 2>&1 || { cat "$KAFKA_DIR/format.log" >&2; die "formatting failed"; }
}

kafka_answers() { # PID: it has the port, a broker is registered, every partition has a leader
  [[ $(listener_pid "$KAFKA_PORT") == "$1" ]] &&
    kcat -b "$KAFKA_BOOTSTRAP" -L -J -m 2 2>/dev/null |
    jq -e '(.brokers | length > 0) and all(.topics[].partitions[]; .leader >= 0)' >/dev/null 2>&1
}

kafka_launch() {
  local pid
  ulimit -n "$(ulimit -Hn)"
  cd "$KAFKA_DIR"
  setsid nohup "$(find_java)" -Xms512m -Xmx512m -XX:+ExitOnOutOfMemoryError \
    "-Dfencepost.kafka.dir=$KAFKA_DIR" \
    "-Dlog4j2.configurationFile=$ROOT/deploy/kafka/log4j2.properties" \
    -cp "$KAFKA_JARS/*" kafka.Kafka "$KAFKA_DIR/server.properties" \
    >>"$KAFKA_DIR/stdout.log" 2>&1 </dev/null 9>&- &
  pid=$!
  cd "$ROOT"
  echo "$pid" >"$KAFKA_PID_FILE"
  if ! wait_until 60 kafka_answers_or_died "$pid" || gone "$pid"; then
    tail -n 5 "$KAFKA_DIR/stdout.log" "$KAFKA_DIR/server.log" >&2 || true
    die "the broker did not come up; its logs are in $KAFKA_DIR"
  fi
}

kafka_answers_or_died() { gone "$1" || kafka_answers "$1"; }

kafka_start() {
  local pid changed=false
  [[ -d $KAFKA_JARS && -e $KAFKA_DIR/data/meta.properties ]] ||
    die "there is no Kafka broker yet; run deploy/local/up"
  if kafka_properties | write_if_changed "$KAFKA_DIR/server.properties"; then
    changed=true
  fi
  pid=$(kafka_pid)
  if [[ -n $pid && $changed == true ]]; then
    step "kafka: its configuration changed; stopping pid $pid" kafka_stop
    pid=
  fi
  if [[ -n $pid ]]; then
    [[ $(process_state "$pid") != T ]] || { say "kafka: pid $pid was paused"; kafka_signal CONT; }
    wait_until 60 kafka_answers "$pid" ||
      die "kafka runs (pid $pid) but does not answer; see $KAFKA_DIR/server.log"
    say "kafka: running, pid $pid"
    return
  fi
  step "kafka: starting the broker on $KAFKA_BOOTSTRAP" kafka_launch
}

kafka_signal() { # SIGNAL: true also where nothing runs
  local pid
  pid=$(kafka_pid)
  [[ -n $pid ]] || return 0
  kill -"$1" "$pid"
  if [[ $1 == KILL ]]; then
    wait_until 10 gone "$pid" || die "kafka: pid $pid does not die"
  fi
}

kafka_stop() {
  local pid
  pid=$(kafka_pid)
  [[ -z $pid ]] || stop_process "$pid" 20
  rm -f "$KAFKA_PID_FILE"
}

topics_exist() {
  local names
  names=$(kcat -b "$KAFKA_BOOTSTRAP" -L -J -m 5 | jq -r '.topics[].topic')
  grep -qxF "$DEMO_TOPIC" <<<"$names" && grep -qxF "$LEDGER_TOPIC" <<<"$names"
}

topics_create() {
  local command
  # topics.sh takes a command and its arguments in one string, and paths may hold spaces.
  command=$LOCAL/kafka-topics
  printf '#!/bin/sh\nexec "%s" -Xmx128m -XX:TieredStopAtLevel=1 -cp "%s/*" %s "$@"\n' \
    "$(find_java)" "$KAFKA_JARS" org.apache.kafka.tools.TopicCommand >"$command"
  chmod 700 "$command"
  cd "$LOCAL"
  DEMO_TOPIC=$DEMO_TOPIC LEDGER_TOPIC=$LEDGER_TOPIC REPLICATION=1 MIN_ISR=1 \
    KAFKA_TOPICS=./kafka-topics "$ROOT/deploy/kafka/topics.sh" "$KAFKA_BOOTSTRAP" \
    >"$KAFKA_DIR/topics.log" 2>&1 || { cat "$KAFKA_DIR/topics.log" >&2; die "no topics"; }
  cd "$ROOT"
}
