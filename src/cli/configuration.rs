//! The configuration on the command line: found, checked, printed.
//!
//! Owns where it is looked for and what is said of it. Knows no key.

use crate::config::{Config, ConfigError, DEFAULT_PATH, Effective};
use anyhow::Context as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

/// A configuration, unchecked, and how messages name it.
struct Found {
    effective: Effective,
    name: String,
}

/// Reads what `--config` names. Without it, the file at the default path need not be there: a
/// container may be configured by its environment alone. A file that was asked for must be.
fn find(file: Option<&Path>, default: &Path) -> anyhow::Result<Found> {
    let path = file.unwrap_or(default);
    let name = format!("configuration {}", path.display());
    match Effective::read(path) {
        Err(ConfigError::Read(error)) if file.is_none() && error.kind() == ErrorKind::NotFound => {
            let name = format!("{name} (not there, so defaults and environment alone)");
            let effective = Effective::without_file().with_context(|| name.clone())?;
            Ok(Found { effective, name })
        }
        read => Ok(Found { effective: read.with_context(|| name.clone())?, name }),
    }
}

/// Reads and checks it, for a command that works with it.
pub(super) fn load(file: Option<&Path>) -> anyhow::Result<Config> {
    let Found { effective, name } = find(file, Path::new(DEFAULT_PATH))?;
    effective.config.check().context(name)?;
    Ok(effective.config)
}

/// Prints it and says on standard error whether the check passes, which is also the answer.
pub(super) fn print(file: Option<&Path>, json: bool) -> anyhow::Result<bool> {
    let Found { effective, name } = find(file, Path::new(DEFAULT_PATH))?;
    let problem = effective.config.check().err().map(|error| error.to_string());
    let text = if json { effective.to_json(problem.as_deref()) } else { effective.to_toml() };
    super::print(&text.context("printing the configuration")?)?;
    let verdict = problem.as_deref().unwrap_or("the check passes");
    writeln!(std::io::stderr(), "fencepost: {name}: {verdict}").context("standard error")?;
    Ok(problem.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_nobody_asked_for_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fencepost.toml");
        let found = find(None, &path).unwrap();
        assert!(found.name.contains("fencepost.toml (not there"), "{}", found.name);
        let error = format!("{:#}", find(Some(&path), &path).err().unwrap());
        assert!(error.contains("fencepost.toml: cannot be read: No such file"), "{error}");
        std::fs::write(&path, "installation = 'x'\n").unwrap();
        for file in [None, Some(path.as_path())] {
            assert_eq!(find(file, &path).unwrap().effective.config.installation, "x");
        }
        std::fs::write(&path, "installation = 5\n").unwrap();
        let error = format!("{:#}", find(None, &path).err().unwrap());
        assert!(error.contains("fencepost.toml: line 1: "), "{error}");
    }
}
