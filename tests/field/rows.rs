//! What the field cases ask the database for: rows whole, its clock, and locks held by another.

use crate::world::{World, wait_for};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Both rows of a lease, every column, and how much history it has.
pub fn of(world: &World, lease: &str) -> String {
    let rows = world.sql(&format!(
        "SELECT row_to_json(l), row_to_json(f), \
             (SELECT count(*) FROM fence_history h WHERE h.lease = l.lease), \
             (SELECT count(*) FROM operations o WHERE o.lease = l.lease) \
         FROM leases l JOIN fences f USING (lease) WHERE lease = '{lease}'"
    ));
    assert!(!rows.is_empty(), "{lease} has no rows");
    rows
}

/// The database's clock in whole seconds.
pub fn now_s(world: &World) -> i64 {
    world.sql("SELECT floor(extract(epoch FROM clock_timestamp()))").parse().unwrap()
}

/// The database's clock in milliseconds, rounded down.
pub fn now_ms(world: &World) -> i64 {
    world.sql("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)").parse().unwrap()
}

/// A lease's expiry in milliseconds, rounded down.
pub fn expires_ms(world: &World, lease: &str) -> i64 {
    let sql = "SELECT floor(extract(epoch FROM expires_at) * 1000) FROM leases";
    world.sql(&format!("{sql} WHERE lease = '{lease}'")).parse().unwrap()
}

/// Ends a lease at this instant of the database's clock.
pub fn expire(world: &World, lease: &str) {
    let set = "UPDATE leases SET expires_at = clock_timestamp()";
    world.sql(&format!("{set} WHERE lease = '{lease}'"));
}

/// Returns once no more than this is left of a lease, by the database's clock.
pub fn wait_left(world: &World, lease: &str, left_ms: u64) {
    let left = format!("interval '{left_ms} milliseconds'");
    let rest = format!("extract(epoch FROM expires_at - {left} - clock_timestamp())");
    world.sql(&format!("SELECT pg_sleep(greatest(0, {rest})) FROM leases WHERE lease = '{lease}'"));
}

/// A session of psql with a transaction open.
pub struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Begins and locks a lease's row.
    pub fn locking(world: &World, lease: &str) -> Self {
        let mut child = Command::new("psql")
            .args([&world.owner_url, "-qXAt", "-v", "ON_ERROR_STOP=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut other = Self { child, input, output };
        other.run("BEGIN");
        other.run(&format!("SELECT token FROM leases WHERE lease = '{lease}' FOR UPDATE"));
        other
    }

    /// Runs one statement, waits for its end and gives what it printed.
    pub fn run(&mut self, sql: &str) -> String {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{sql};\n\\echo done").unwrap();
        let mut printed = String::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "psql ended in {sql}");
            if line.trim() == "done" {
                return printed.trim().to_owned();
            }
            printed.push_str(&line);
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.input.take());
        drop(self.child.wait());
    }
}

/// Waits until this many sessions of the world's database wait for a lock.
pub fn wait_blocked(world: &World, sessions: usize) {
    // Not by what they wait for, which only a superuser sees of others.
    let sql = "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid) \
               WHERE NOT granted AND datname = current_database()";
    let what = format!("{sessions} sessions wait for a lock");
    wait_for(&what, Duration::from_secs(10), || {
        (world.sql(sql) == sessions.to_string()).then_some(())
    });
}
