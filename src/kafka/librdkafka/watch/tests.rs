//! What a producer's events and log lines are taken for.

use super::*;

const CLEAN: &str =
    "[thrd:main]: EndTxn returned NO_ERROR in state CommittingTransaction (may_retry=true)";
const RETRIED: &str =
    "[thrd:main]: EndTxn returned _TRANSPORT in state CommittingTransaction (may_retry=true)";
const RETURNED: &str = "[thrd:app]: Transactional API commit_transaction return at \
                        rd_kafka_commit_transaction:2595: Success";

fn verdict(lines: &[(&str, &str)]) -> EndTxn {
    let watch = Watch::default();
    watch.log(RDKafkaLogLevel::Debug, "ENDTXN", CLEAN);
    watch.arm();
    for (fac, line) in lines {
        watch.log(RDKafkaLogLevel::Debug, fac, line);
    }
    watch.end_txn(Duration::ZERO)
}

#[test]
fn a_commit_is_clean_only_with_exactly_one_good_answer() {
    let returned = ("TXNAPI", RETURNED);
    assert_eq!(verdict(&[("ENDTXN", CLEAN), returned]), EndTxn::Clean);
    assert_eq!(verdict(&[returned]), EndTxn::Dirty);
    assert_eq!(verdict(&[("ENDTXN", CLEAN)]), EndTxn::Dirty);
    assert_eq!(verdict(&[("ENDTXN", CLEAN), ("ENDTXN", CLEAN), returned]), EndTxn::Dirty);
    assert_eq!(verdict(&[("ENDTXN", RETRIED), ("ENDTXN", CLEAN), returned]), EndTxn::Dirty);
    assert_eq!(verdict(&[("ENDTXN", RETRIED), returned]), EndTxn::Dirty);
}

const NOW_MS: i64 = 1_700_000_000_000;

fn record(topic: &str) -> Record {
    Record {
        topic: topic.into(),
        partition: None,
        key: Some([].into()),
        value: None,
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

fn begun(records: &[Record]) -> (Watch, oneshot::Receiver<Result<Vec<Placed>, Failure>>) {
    let (reply, answer) = oneshot::channel();
    let watch = Watch::default();
    watch.begin(Batch::new("send", records, NOW_MS, reply));
    (watch, answer)
}

/// Each larger than the one before.
fn batch(topics: &[&str]) -> (Watch, oneshot::Receiver<Result<Vec<Placed>, Failure>>) {
    let sized = |(size, topic): (usize, &&str)| Record {
        value: Some(vec![0; size].into()),
        ..record(topic)
    };
    begun(&topics.iter().enumerate().map(sized).collect::<Vec<_>>())
}

fn refused(failure: Failure) -> (usize, RecordRefused) {
    let Failure::Determinate { refused: Refused::Record { index, why }, .. } = failure else {
        panic!("{failure:?}")
    };
    (index, why)
}

#[test]
fn placements_come_in_the_order_given_whatever_the_order_of_reports() {
    let (watch, mut answer) = batch(&["a", "b"]);
    watch.report(1, Ok((3, 7)));
    assert!(answer.try_recv().is_err());
    watch.report(0, Ok((0, 9)));
    let placed = answer.try_recv().unwrap().unwrap();
    let seen: Vec<_> = placed.iter().map(|p| (&*p.topic, p.partition, p.offset)).collect();
    assert_eq!(seen, [("a", 0, 9), ("b", 3, 7)]);
}

#[test]
fn a_certain_refusal_is_named_by_the_first_index_and_anything_else_is_unknown() {
    let (watch, mut answer) = batch(&["a", "a", "a"]);
    watch.report(2, Err(Code::UnknownPartition));
    watch.report(0, Err(Code::MessageTimedOut));
    watch.report(1, Err(Code::UnknownPartition));
    let failure = answer.try_recv().unwrap().unwrap_err();
    assert_eq!(refused(failure), (1, RecordRefused::PartitionNotFound));

    let (watch, mut answer) = batch(&["a", "a"]);
    watch.report(0, Ok((0, 1)));
    watch.report(1, Err(Code::MessageTimedOut));
    let failure = answer.try_recv().unwrap().unwrap_err();
    assert!(matches!(failure, Failure::Indeterminate { .. }), "{failure:?}");

    let (watch, mut answer) = batch(&["a", "a"]);
    watch.report(0, Err(Code::MessageSizeTooLarge));
    watch.report(1, Err(Code::MessageSizeTooLarge));
    let failure = answer.try_recv().unwrap().unwrap_err();
    assert_eq!(refused(failure), (1, RecordRefused::TooLarge { limit_bytes: None }));
}

/// What is named if every record of a batch is reported with the same error.
fn blamed(records: &[Record], code: Code) -> (usize, RecordRefused) {
    let (watch, mut answer) = begun(records);
    (0..records.len()).for_each(|index| watch.report(index, Err(code)));
    refused(answer.try_recv().unwrap().unwrap_err())
}

#[test]
fn of_records_refused_together_the_one_without_a_key_is_named() {
    let keyless = Record { key: None, ..record("a") };
    let records = [record("a"), keyless.clone(), record("a"), keyless];
    assert_eq!(blamed(&records, Code::InvalidRecord), (1, RecordRefused::Invalid));
    assert_eq!(blamed(&records[..1], Code::InvalidRecord), (0, RecordRefused::Invalid));
}

#[test]
fn of_records_refused_together_for_a_timestamp_the_one_far_from_now_is_named() {
    const HOUR: i64 = 3_600_000;
    let at = |timestamp_ms: Option<i64>| Record { timestamp_ms, ..record("a") };
    let blamed = |stamps: &[Option<i64>]| {
        let records: Vec<Record> = stamps.iter().map(|stamp| at(*stamp)).collect();
        let (index, why) = blamed(&records, Code::InvalidTimestamp);
        assert_eq!(why, RecordRefused::Timestamp);
        index
    };
    assert_eq!(blamed(&[None, Some(NOW_MS - HOUR), None]), 1);
    assert_eq!(blamed(&[Some(1), Some(NOW_MS + 2 * HOUR), Some(NOW_MS + HOUR)]), 1);
    assert_eq!(blamed(&[Some(NOW_MS + 1_000), Some(NOW_MS - HOUR), Some(NOW_MS)]), 1);
    assert_eq!(blamed(&[Some(i64::MAX), Some(i64::MIN)]), 0);
}

#[test]
fn of_several_bad_timestamps_the_first_is_named_and_still_as_a_timestamp() {
    let line = "[thrd:localhost:9092/1]: Current transaction failed in state InTransaction: \
                ProduceRequest for a [0] with 3 message(s) failed: Broker: Invalid timestamp \
                (broker 1 PID{Id:2176,Epoch:0}, base seq 0): current transaction must be aborted \
                (INVALID_TIMESTAMP)";
    let late = Record { timestamp_ms: Some(i64::MAX), ..record("a") };
    let (watch, mut answer) = begun(&[record("a"), late.clone(), late]);
    watch.log(RDKafkaLogLevel::Error, "TXNERR", line);
    watch.report(0, Err(Code::InvalidDifferentRecord));
    watch.report(1, Err(Code::InvalidRecord));
    watch.report(2, Err(Code::InvalidRecord));
    let failure = answer.try_recv().unwrap().unwrap_err();
    assert_eq!(refused(failure), (1, RecordRefused::Timestamp));
}

#[test]
fn a_fenced_report_or_a_fatal_line_fences_the_batch() {
    let (watch, mut answer) = batch(&["a"]);
    watch.report(0, Err(Code::InvalidProducerEpoch));
    assert_eq!(answer.try_recv().unwrap().unwrap_err(), Failure::Fenced { stage: "send" });

    let (watch, mut answer) = batch(&["a"]);
    let line = "[thrd:main]: Fatal transaction error: Failed to add partitions to transaction: \
                Local: Producer fenced (_FENCED)";
    watch.log(RDKafkaLogLevel::Alert, "TXNERR", line);
    assert_eq!(answer.try_recv().unwrap().unwrap_err(), Failure::Fenced { stage: "send" });
}

#[test]
fn a_denied_topic_is_told_without_waiting_for_the_delivery_timeout() {
    let (watch, mut answer) = batch(&["a", "secret"]);
    let add = "[thrd:main]: localhost:9092/1: Failed to add partition \"secret\" [0] to \
               transaction: Broker: Topic authorization failed";
    let error = "[thrd:main]: Current transaction failed in state InTransaction: Failed to add \
                 partition(s) to transaction on broker localhost:9092/1: Broker: Topic \
                 authorization failed (after 2 ms) (TOPIC_AUTHORIZATION_FAILED)";
    watch.log(RDKafkaLogLevel::Error, "ADDPARTS", add);
    watch.log(RDKafkaLogLevel::Error, "TXNERR", error);
    let (index, why) = refused(answer.try_recv().unwrap().unwrap_err());
    assert_eq!(index, 1);
    assert_eq!(why, RecordRefused::Denied { resource: "WRITE on topic secret".to_owned() });
}
