//! `fencepost audit`: reads a topic and Postgres, and holds one against the other.
//!
//! Owns the reading order: the topic first, up to where it stood when the audit began, then the
//! operations whose records stand before that. Never writes.

use crate::audit::{Audit, Recorded, Report, Seen};
use crate::config::Config;
use crate::kafka::scan;
use crate::postgres::scan as rows;
use crate::protocol::lease::InstanceId;
use crate::protocol::machine::header;
use crate::protocol::operation::unfold_runs;
use crate::serve::kafka_options;
use anyhow::Context as _;
use std::io::Write as _;

/// Audits one topic and prints what it found; true if that is nothing.
pub async fn run(config: Config, topic: String) -> anyhow::Result<bool> {
    let instance = InstanceId(uuid::Uuid::new_v4().into_bytes());
    let options = kafka_options(&config, instance);
    let of = topic.clone();
    let mut audit = Audit::default();
    let read = tokio::task::spawn_blocking(move || {
        scan::topic(&options, &of, |record| match seen(&record) {
            Some(seen) => audit.record(seen),
            None => audit.foreign(),
        })
        .map(|stood| (audit, stood))
    });
    let (mut audit, ends) = read.await?.with_context(|| format!("reading {topic}"))?;
    let url = config.postgres.url.expose();
    rows::operations(url, |lease, stored| {
        let places: Vec<(i32, i64)> = unfold_runs(&stored.accepted.runs)
            .into_iter()
            .filter(|p| *p.topic == *topic)
            .map(|p| (p.partition, p.offset))
            .collect();
        // Accepted while we read: the next audit sees it.
        let before = |(p, o): &(i32, i64)| ends.get(p).is_some_and(|end| o < end);
        if places.iter().all(before) {
            audit.recorded(Recorded {
                lease,
                operation: stored.accepted.id.to_string(),
                token: stored.token.0,
                batch: stored.seq.0,
                places,
            });
        }
    })
    .await
    .context("reading the operations")?;
    let report = audit.finish();
    print(&topic, &report).context("standard output")?;
    Ok(report.findings.is_empty())
}

fn seen(record: &scan::Scanned) -> Option<Seen> {
    let find = |name: &str| {
        let found = record.headers.iter().rev().find(|(n, _)| n == name)?;
        String::from_utf8(found.1.clone()?).ok()
    };
    Some(Seen {
        partition: record.partition,
        offset: record.offset,
        lease: find(header::LEASE)?,
        token: find(header::TOKEN)?.parse().ok()?,
        operation: find(header::OPERATION)?,
        batch: find(header::BATCH)?.parse().ok()?,
    })
}

fn print(topic: &str, report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{topic}: {} records, {} leases, {} operations, of which {} are not in Postgres",
        report.records, report.leases, report.operations, report.unrecorded
    )?;
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    writeln!(out, "{} findings", report.findings.len())
}
