#!/usr/bin/env bash
# Creates the ledger topic and, if DEMO_TOPIC is set, the demo topic. A topic that exists is left
# as it is.
#
#   deploy/kafka/topics.sh BOOTSTRAP
#
# LEDGER_TOPIC        fencepost.ledger
# LEDGER_PARTITIONS   16; fixed for ever: the partition of a lease is computed from it
# DEMO_TOPIC          none
# DEMO_PARTITIONS     4
# REPLICATION         3
# MIN_ISR             2
# KAFKA_TOPICS        kafka-topics.sh; may hold arguments, such as --command-config FILE
set -euo pipefail

bootstrap=${1:?usage: topics.sh BOOTSTRAP}
replication=${REPLICATION:-3}
min_isr=${MIN_ISR:-2}
read -r -a kafka_topics <<<"${KAFKA_TOPICS:-kafka-topics.sh}"

create() { # NAME PARTITIONS [CONFIG...]
  local name=$1 partitions=$2 config args=()
  shift 2
  for config in "min.insync.replicas=$min_isr" "$@"; do
    args+=(--config "$config")
  done
  "${kafka_topics[@]}" --bootstrap-server "$bootstrap" --create --if-not-exists --topic "$name" \
    --partitions "$partitions" --replication-factor "$replication" "${args[@]}"
}

# Each creation is a JVM of its own (about two seconds), so the two run side by side.
#
# The ledger: a record of up to 256 KiB must always fit, so twice that and more is allowed; and
# compaction must not touch a record before every open that may need it has ended.
create "${LEDGER_TOPIC:-fencepost.ledger}" "${LEDGER_PARTITIONS:-16}" cleanup.policy=compact \
  min.compaction.lag.ms=60000 max.message.bytes=1048576 &
ledger=$!
if [[ -n ${DEMO_TOPIC:-} ]]; then
  create "$DEMO_TOPIC" "${DEMO_PARTITIONS:-4}"
fi
wait "$ledger"
