//! What texts must look like: addresses, URLs and names.
//!
//! Owns their syntax. Never resolves or connects.

use axum::http::Uri;
use axum::http::uri::Scheme;
use std::net::IpAddr;

/// Longest name of a topic.
const TOPIC_BYTES_MAX: usize = 249;

/// Why a URL is none that others may be told; says nothing if it is one.
pub(super) fn check_advertised_url(url: &str) -> Result<(), &'static str> {
    const RULE: &str = "must be http://host:port or https://host:port, without user, path or query";
    let parsed: Uri = url.parse().map_err(|_| RULE)?;
    let (Some(scheme), Some(authority)) = (parsed.scheme(), parsed.authority()) else {
        return Err(RULE);
    };
    let known = *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS;
    // A path of "/" is as none to the parser, but not to what will be put behind it.
    let nothing_else = url == format!("{scheme}://{authority}");
    let host = authority.host();
    let port_is_one = match authority.as_str().strip_prefix(host) {
        Some("") => true,
        Some(port) => port.strip_prefix(':').is_some_and(is_port),
        // A user stands before the host.
        None => false,
    };
    if !(known && nothing_else && port_is_one && !host.is_empty()) {
        return Err(RULE);
    }
    match bare(host).parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err("must be an address that others can connect to"),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// A broker's address: name, IPv4 or IPv6 in brackets, and a port.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let is_host = match bare(host).parse::<IpAddr>() {
        Ok(ip) => ip.is_ipv6() == host.starts_with('['),
        Err(_) => !host.is_empty() && host.bytes().all(name),
    };
    is_host && is_port(port)
}

/// A name that Kafka takes for a topic.
pub(super) fn is_topic(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let length = (1..=TOPIC_BYTES_MAX).contains(&text.len());
    length && text.bytes().all(allowed) && text != "." && text != ".."
}

/// Parameters that the Postgres client takes in a URL. It would pass over any other and log it.
const POSTGRES_PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];

/// Why a text is no URL of a database. It shows nothing of it: all of it is secret. A parameter
/// that is unknown may be the end of a password with a `?` in it.
pub fn check_postgres_url(url: &str) -> Result<(), String> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err("must begin with postgres:// or postgresql://".to_owned());
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let known = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        POSTGRES_PARAMETERS.contains(&name) || name.starts_with("options[")
    };
    if query.split('&').all(|pair| pair.is_empty() || known(pair)) {
        return Ok(());
    }
    let names = POSTGRES_PARAMETERS.join(" ");
    Err(format!("has a parameter behind the ? that is none of: {names} options[...]"))
}

#[cfg(test)]
mod tests;
