//! The documented default, the syntax of the file, and that nothing secret is shown.

use super::*;

pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    Effective::of(text, []).map(|effective| effective.config)
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Every path of a table and its value; no path leads to a table.
fn flat(prefix: &str, table: &toml::Table) -> Vec<(String, toml::Value)> {
    let mut all = Vec::new();
    for (name, value) in table {
        match value.as_table() {
            Some(inner) => all.extend(flat(&format!("{prefix}{name}."), inner)),
            None => all.push((format!("{prefix}{name}"), value.clone())),
        }
    }
    all
}

#[test]
fn the_documented_default_is_the_default_and_says_every_key() {
    assert_eq!(parse(DEFAULT_TOML).unwrap(), Config::default());
    let documented = flat("", &DEFAULT_TOML.parse().unwrap());
    let mut of_the_type = flat("", &toml::Table::try_from(Config::default()).unwrap());
    // Written in another way: `[[workers]]`, of which there is none.
    of_the_type.retain(|(path, _)| path != "workers");
    let paths = |all: &[(String, toml::Value)]| -> Vec<String> {
        all.iter().map(|(path, _)| path.clone()).collect()
    };
    assert_eq!(paths(&documented), paths(&of_the_type));
}

#[test]
fn an_unknown_key_is_refused_in_every_section_with_its_line() {
    for section in
        ["", "[http]", "[postgres]", "[kafka]", "[credentials]", "[ops]", "[limits]", "[timeouts]"]
    {
        let error = message(&format!("\n{section}\nenforec = 1\n"));
        assert!(error.contains("enforec") && error.starts_with("line 3: "), "{error}");
    }
    assert!(message("[limit]\n").contains("line 1: unknown field `limit`"));
    // Only secrets may stand in files of their own.
    assert!(message("[http]\nlisten_file = 'x'\n").contains("listen_file"));
    let worker = "[[workers]]\nname='a'\ntoken_sha256='x'\nleases=[]\nowners=[]\n";
    let error = message(worker);
    assert!(error.contains("line 3") && error.contains("64 hex digits"), "{error}");
    assert!(parse("[[workers]]\nname='a'\n").is_err());
    assert!(message("[http]\nlisten = 'localhost:8080'\n").contains("127.0.0.1:8080"));
}

/// A slip of the pen: a secret where a table, a path or an address belongs.
#[test]
fn a_secret_in_the_wrong_place_is_not_shown_either() {
    const URL: &str = "postgres://u:hunter2@h/d";
    let complete = "installation = 'x'\n[postgres]\nurl = 'postgres://h/d'\n";
    for text in [
        format!("postgres = '{URL}'\n"),
        format!("[kafka]\nclient = '{URL}'\n"),
        format!("workers = '{URL}'\n"),
        format!("[limits]\nidle_ms = '{URL}'\n"),
        format!("[[workers]]\nname = 'a'\nleases = '{URL}'\n"),
        format!("[http]\nlisten = '{URL}'\n"),
        format!("[postgres]\nurl_file = '{URL}'\n"),
        "[postgres]\nurl_file = 'hunter2'\n".to_owned(),
        format!("{complete}[http]\nadvertised_url = 'http://u:hunter2@h:1'\n"),
        format!("{complete}[kafka]\nbootstrap = 'u:p,hunter2@h:1'\n"),
        format!("{complete}[credentials]\nsigning_key_file = '-----BEGIN hunter2'\n"),
        "installation = 'x'\n[postgres]\nurl = 'postgres://u:12?hunter2@h/d'\n".to_owned(),
    ] {
        let (said, shown) = match Effective::of(&text, []) {
            Err(error) => (error.to_string(), String::new()),
            Ok(effective) => {
                let problem = effective.config.check().unwrap_err().to_string();
                let printed = effective.to_toml().unwrap();
                let json = effective.to_json(Some(&problem)).unwrap();
                (problem, printed + &json)
            }
        };
        assert!(!said.contains("hunter2") && !shown.contains("hunter2"), "{text}{said}\n{shown}");
    }
}

#[test]
fn no_secret_is_shown() {
    let (operator, worker) = ("2".repeat(64), "1".repeat(64));
    let text = format!(
        "[postgres]\nurl = 'postgres://u:hunter2@h/d'\n\
         [kafka.client]\n'sasl.password' = 'hunter2'\n\
         [ops]\ntoken_sha256 = '{operator}'\n\
         [[workers]]\nname = 'a'\nleases = []\nowners = []\n\
         token_sha256 = '{worker}'\n"
    );
    let config = parse(&text).unwrap();
    for text in [format!("{config:?}"), serde_json::to_string(&config).unwrap()] {
        assert!(text.contains("hidden"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!text.contains("1111") && !text.contains("2222"), "{text}");
    }
}

#[test]
fn a_message_about_a_secret_names_its_line_and_does_not_show_it() {
    for text in [
        "[postgres]\nurl = \"hunter2\" x\n",
        "[postgres]\nurl = hunter2\n",
        "[postgres]\nurl = [\"hunter2\"]\n",
        "[postgres]\nurl = { hunter2 = \"hunter2\" }\n",
        "[ops]\ntoken_sha256 = 'hunter2'\n",
    ] {
        let error = message(text);
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
    for number in ["4711", "47.11", "4711-11-11", "47110000000000000000"] {
        for key in ["[postgres]\nurl", "[ops]\ntoken_sha256", "[kafka.client]\n'sasl.password'"] {
            let error = message(&format!("{key} = {number}\n"));
            assert!(error.contains("line 2") && !error.contains("47"), "{error}");
        }
    }
    let error = message("[kafka.client]\nsasl.password = 'hunter2'\n");
    assert!(error.contains("needs quotes") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_hash_is_64_hex_digits() {
    let parse = |text: &str| Sha256Hex::try_from(text.to_owned());
    assert_eq!(parse(&"aF".repeat(32)).unwrap().0, [0xaf; 32]);
    for bad in [String::new(), "a".repeat(63), "a".repeat(65), "g".repeat(64), "a".repeat(66)] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}
