#!/usr/bin/env bash
# Walks the API of a running gateway with curl and jq only. `deploy/local/test` runs it; by hand:
#   set -a; . target/local/env; set +a; bash tests/smoke.sh
set -euo pipefail
: "${FENCEPOST_URL:?run deploy/local/up and source target/local/env}"
: "${FENCEPOST_ADMIN_URL:?}" "${WORKER_TOKEN:?}" "${OPS_TOKEN:?}" "${DEMO_TOPIC:?}"

passed=0 failed=0
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
run=$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
lease=smoke.$run

# expect WHAT STATUS JQ_FILTER -- CURL_ARGUMENTS...
expect() {
  local what=$1 status=$2 filter=$3 got
  shift 4
  got=$(curl -sS -m 60 -o "$answer" -w '%{http_code}' "$@") || got=none
  if [[ $got == "$status" ]] && jq -e "$filter" "$answer" >/dev/null; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED %s: status %s, expected %s and %s\n' "$what" "$got" "$status" "$filter"
    cat "$answer"
    echo
  fi
}

json=(-H 'Content-Type: application/json')
worker=(-H "Authorization: Bearer $WORKER_TOKEN")
path=$FENCEPOST_URL/v1/leases/$lease
records() { jq -nc --arg topic "$DEMO_TOPIC" --arg value "$1" '{records: [{topic: $topic, value: $value}]}'; }

expect "the process lives" 200 '.live' -- "$FENCEPOST_ADMIN_URL/livez"
expect "every dependency answers" 200 '.postgres and .kafka and .ledger' -- "$FENCEPOST_ADMIN_URL/readyz"
expect "the version is told" 200 '.version and .instance' -- "$FENCEPOST_ADMIN_URL/version"

expect "a lease that nobody took" 404 '.code == "lease_not_found"' -- \
  "$path" -H "Authorization: Bearer $OPS_TOKEN"
expect "an acquire" 200 '.token and .credential and .expires_in_ms <= 60000' -- \
  "$path/acquire" "${worker[@]}" "${json[@]}" -d '{"owner": "w1", "ttl_ms": 60000}'
holder=(-H "Authorization: Bearer $(jq -r .credential "$answer")")
token=$(jq -r .token "$answer")
expect "a lease that is held" 409 '.code == "lease_held" and .holder == "w1" and .retry == "later"' -- \
  "$path/acquire" "${worker[@]}" "${json[@]}" -d '{"owner": "w2", "ttl_ms": 60000}'
expect "records" 200 '.replayed == false and (.offsets | length) == 1' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: a' -d "$(records a)"
offsets=$(jq -c .offsets "$answer")
expect "the same records again" 200 ".replayed and .offsets == $offsets" -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: a' -d "$(records a)"
expect "other records with the same key" 422 '.code == "operation_conflict"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: a' -d "$(records b)"
expect "a renew" 200 ".token == \"$token\" and .expires_in_ms > 60000" -- \
  "$path/renew" "${holder[@]}" "${json[@]}" -d '{"ttl_ms": 120000}'
expect "what became of an operation" 200 ".state == \"committed\" and .answer.offsets == $offsets" -- \
  "$path/operations/a" "${holder[@]}"
expect "an operation that is not there yet" 200 '.state == "unknown"' -- \
  "$path/operations/b" "${holder[@]}"
expect "an identical acquire" 409 '.code == "lease_held" and .retry_after_ms > 0' -- \
  "$path/acquire" "${worker[@]}" "${json[@]}" -d '{"owner": "w1", "ttl_ms": 60000, "wait_ms": 50}'
expect "the lease's state" 200 '.state == "held" and .batch_seq == 1' -- "$path" "${holder[@]}"

ops=(-H "Authorization: Bearer $OPS_TOKEN")
expect "leases by prefix" 200 ".items | length == 1 and .[0].lease == \"$lease\"" -- \
  "$FENCEPOST_URL/v1/leases?prefix=$lease&limit=10" "${ops[@]}"
expect "a lease's history" 200 '.items[0].event == "install" and .next == null' -- \
  "$path/history" "${ops[@]}"
expect "a list for a worker" 403 '.code == "not_allowed"' -- "$FENCEPOST_URL/v1/leases" "${worker[@]}"
expect "an unknown parameter" 422 '.parameter == "query"' -- "$path/history?limits=1" "${ops[@]}"
expect "the document" 200 '.openapi == "3.1.0" and (.paths | length) == 8' -- "$FENCEPOST_URL/openapi.json"
type=$(curl -sS -m 60 "$path" | jq -r .type)
if curl -sS -m 60 "$FENCEPOST_URL$type" | grep -q '^# credential_missing'; then
  passed=$((passed + 1))
else
  failed=$((failed + 1))
  echo "FAILED a problem's page at its type"
fi
expect "an unknown path" 404 '.code == "path_not_found"' -- "$FENCEPOST_URL/v1/lease"
expect "a wrong method" 405 '.code == "method_not_allowed"' -- "$path/records"

expect "no credential" 401 '.code == "credential_missing"' -- \
  "$path/records" "${json[@]}" -H 'Idempotency-Key: b' -d "$(records b)"
expect "a worker's token as credential" 401 '.code == "credential_invalid"' -- \
  "$path/records" "${worker[@]}" "${json[@]}" -H 'Idempotency-Key: b' -d "$(records b)"
expect "the credential of another lease" 403 '.code == "wrong_lease"' -- \
  "$FENCEPOST_URL/v1/leases/other.$run/records" "${holder[@]}" "${json[@]}" \
  -H 'Idempotency-Key: b' -d "$(records b)"
expect "no key" 400 '.code == "missing_idempotency_key"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -d "$(records b)"
expect "half a document" 400 '.code == "malformed_body"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: b' -d '{"records": ['
expect "a misspelt member" 422 '.code == "invalid_member" and .pointer == "/recods"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: b' -d '{"recods": []}'
expect "another media type" 415 '.code == "unsupported_media_type"' -- \
  "$path/records" "${holder[@]}" -H 'Content-Type: text/plain' -H 'Idempotency-Key: b' -d x
expect "a topic that is not there" 404 '.code == "topic_not_found"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: b' \
  -d '{"records": [{"topic": "demo.absent", "value": "v"}]}'
expect "a partition that is not there" 404 '.code == "partition_not_found"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: b' \
  -d "{\"records\": [{\"topic\": \"$DEMO_TOPIC\", \"partition\": 99, \"value\": \"v\"}]}"
expect "the ledger" 403 '.code == "topic_not_allowed"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: b' \
  -d '{"records": [{"topic": "fencepost.ledger", "value": "v"}]}'

expect "a release" 200 '.released' -- -X POST "$path/release" "${holder[@]}"
expect "an operation that is absent for good" 200 \
  ".state == \"absent\" and .up_to_token == \"$token\"" -- "$path/operations/b" "${ops[@]}"
expect "a second release" 200 '.released' -- -X POST "$path/release" "${holder[@]}"
expect "records after it" 412 '.code == "lease_released" and .side_effect == "none"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: c' -d "$(records c)"
expect "the next holder" 200 "(.token | tonumber) > $token" -- \
  "$path/acquire" "${worker[@]}" "${json[@]}" -d '{"owner": "w2", "ttl_ms": 60000}'
next=(-H "Authorization: Bearer $(jq -r .credential "$answer")")
expect "the old holder's new records" 412 '.code == "stale_token" and .retry == "reacquire"' -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: d' -d "$(records d)"
expect "the old holder's accepted records" 200 ".replayed and .offsets == $offsets" -- \
  "$path/records" "${holder[@]}" "${json[@]}" -H 'Idempotency-Key: a' -d "$(records a)"
expect "the next holder's records" 200 '.batch_seq == 2' -- \
  "$path/records" "${next[@]}" "${json[@]}" -H 'Idempotency-Key: e' -d "$(records e)"
expect "its release" 200 '.released' -- -X POST "$path/release" "${next[@]}"

echo "smoke: $passed passed, $failed failed"
((failed == 0))
