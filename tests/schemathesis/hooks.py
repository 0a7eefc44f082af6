"""What JSON Schema cannot say of Fencepost's requests."""
import itertools
import os
import re

import schemathesis

WAIT_MS_MAX = 30_000
NOW_MS = 1_700_000_000_000
NUMBER = itertools.count()


def whole(value):
    """JSON Schema calls 5000.0 an integer; the gateway takes integers written as such only."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return value


def is_topic(value):
    return isinstance(value, str) and TOPIC.fullmatch(value) and value not in (".", "..")


@schemathesis.hook
def map_body(context, body):
    body = whole(body)
    if isinstance(body, dict):
        wait = body.get("wait_ms")
        # A valid wait stays valid but is not sat out.
        if type(wait) is int and 0 <= wait <= WAIT_MS_MAX:
            body["wait_ms"] = wait % 50
        records = body.get("records")
        if isinstance(records, list) and next(NUMBER) % 4:
            # Most go to a topic that is there, so that they get as far as Kafka.
            for record in records:
                if isinstance(record, dict) and is_topic(record.get("topic")):
                    record["topic"] = os.environ["DEMO_TOPIC"]
                    if type(record.get("partition")) is int and record["partition"] >= 0:
                        record["partition"] %= 3
                    if type(record.get("timestamp")) is int and record["timestamp"] > NOW_MS:
                        record["timestamp"] %= NOW_MS
                        record["timestamp"] += 1
    return body


KEY = "Idempotency-Key"
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
VALID_KEY = re.compile(r"[!-~]{1,180}")


@schemathesis.hook
def map_headers(context, headers):
    """Small keys come again and again with other records: each valid one gets a number."""
    key = (headers or {}).get(KEY)
    if isinstance(key, str) and VALID_KEY.fullmatch(key):
        headers[KEY] = f"{key}{next(NUMBER)}"
    return headers


# Refusals of well-formed requests that depend on what was posted before, or on the broker.
EXPECTED = {"operation_conflict", "operation_too_old"}


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """False drops the failure."""
    if type(failure).__name__ != "RejectedPositiveData":
        return True
    try:
        problem = response.json()
    except ValueError:
        return True
    if problem.get("code") in EXPECTED:
        return False
    # Bytes instead of characters, what is invisible, what the topic allows.
    pointer = str(problem.get("pointer", ""))
    return not (pointer == "/owner" or pointer.endswith("/timestamp") or "/headers/" in pointer)
