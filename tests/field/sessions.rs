//! The gateways' database sessions, as the server lists them.

use crate::world::{World, stack};
use std::process::Command;

/// Runs a statement as the gateways' own role, which alone is told what its sessions do.
pub fn ask(world: &World, sql: &str) -> String {
    let (server, database) = (stack("DATABASE_URL"), world.owner_url.rsplit_once('/').unwrap().1);
    let url = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
    let out = Command::new("psql").args([url.as_str(), "-qXAtc", sql]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// How many sessions of the gateways are like that.
pub fn count(world: &World, which: &str) -> usize {
    let sql = |which: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name LIKE 'fencepost:%' AND ({which})"
        )
    };
    assert_eq!(ask(world, &sql("state IS NULL")), "0", "what a session does is not told");
    ask(world, &sql(which)).parse().unwrap()
}
