//! The commands: what may be asked on the command line, and what it is answered.
//!
//! Owns arguments, output and exit codes: 0 done, 1 found something (audit, print-config), 2
//! failed. Never does a command's work itself.

mod configuration;
mod tokens;

use crate::config::{DEFAULT_PATH, check_postgres_url};
use crate::{serve, telemetry};
use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const FOUND: u8 = 1;

/// An exclusive produce gateway for Kafka.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version)]
pub struct Cli {
    #[arg(long, global = true, value_name = "FILE", help = config_help())]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves the gateway until it is told to stop.
    Serve,
    /// Prints the configuration as it is in force, secrets hidden, each value with its origin; exit
    /// code 1 if the check fails.
    PrintConfig(PrintConfig),
    /// Prints the OpenAPI document of the data listener.
    Openapi,
    /// Brings the database's schema up to date, as its owner.
    Migrate(Migrate),
    /// Keys and hashes.
    #[command(subcommand)]
    Keys(Keys),
    /// Bearer tokens.
    #[command(subcommand)]
    Token(Token),
    /// Reads a topic back and reports what must never be in it; exit code 1 if there is any.
    Audit(Audit),
}

#[derive(Debug, Args)]
struct PrintConfig {
    /// As JSON: `config`, `origins` and `problem`, what the check says.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Migrate {
    /// URL of the database's owner role, not the gateway's.
    #[arg(long, env = "DATABASE_OWNER_URL", hide_env_values = true, value_name = "URL")]
    database_url: String,
}

#[derive(Debug, Subcommand)]
enum Keys {
    /// Makes an Ed25519 key that signs credentials, writes it to a new file, prints its id.
    Generate {
        /// Where to; never overwritten.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Reads a token from standard input and prints its SHA-256, as the configuration wants it.
    Hash,
}

#[derive(Debug, Subcommand)]
enum Token {
    /// Prints a new random token for a worker and the hash of it for the configuration.
    Worker,
}

#[derive(Debug, Args)]
struct Audit {
    /// The topic.
    #[arg(long)]
    topic: String,
}

/// Does what was asked.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let config = cli.config.as_deref();
    match cli.command {
        Command::Serve => {
            telemetry::init()?;
            let config = configuration::load(config)?;
            block_on(serve::run(config))?
        }
        Command::PrintConfig(how) => return Ok(exit(configuration::print(config, how.json)?)),
        Command::Openapi => print(&serve::http::openapi()),
        Command::Migrate(migrate) => {
            telemetry::init()?;
            let url = migrate.database_url;
            check_postgres_url(&url).map_err(|rule| anyhow::anyhow!("the database URL {rule}"))?;
            block_on(async move { serve::migrate(&url).await })?
        }
        Command::Keys(Keys::Generate { out }) => {
            let kid = serve::signing::generate(&out)?;
            print(&format!("kid {kid}"))
        }
        Command::Keys(Keys::Hash) => print(&tokens::hash_of(std::io::stdin().lock())?),
        Command::Token(Token::Worker) => {
            let token = tokens::random()?;
            let hash = tokens::hash(&token);
            print(&format!("token        {token}\ntoken_sha256 {hash}"))
        }
        Command::Audit(audit) => {
            telemetry::init()?;
            let config = configuration::load(config)?;
            return Ok(exit(block_on(serve::audit::run(config, audit.topic))??));
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

fn config_help() -> String {
    format!("Configuration file [default: {DEFAULT_PATH}, if it is there]")
}

fn exit(clean: bool) -> ExitCode {
    if clean { ExitCode::SUCCESS } else { ExitCode::from(FOUND) }
}

fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    Ok(runtime.context("the async runtime")?.block_on(future))
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("standard output")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_command_takes_a_configuration() {
        Cli::command().debug_assert();
        for command in [
            &["serve"][..],
            &["print-config"],
            &["print-config", "--json"],
            &["migrate", "--database-url", "postgres://x"],
            &["keys", "generate", "--out", "x"],
            &["keys", "hash"],
            &["token", "worker"],
            &["openapi"],
            &["audit", "--topic", "t"],
        ] {
            let line = ["fencepost"].iter().chain(command).chain(&["--config", "c"]);
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.config, Some(PathBuf::from("c")));
        }
    }
}
