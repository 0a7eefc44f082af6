//! The HTTP client of the cluster tests: a worker as it would be written, and nothing clever.

use serde_json::{Value, json};
use std::time::Duration;

/// What came back. Status 0: no answer at all (the connection broke).
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    #[track_caller]
    pub fn expect_problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.body);
        self.body
    }
}

/// An answer as it came, for tests that look at bytes and headers.
#[derive(Debug, Clone)]
pub struct Raw {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Raw {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn answer(&self) -> Answer {
        Answer { status: self.status, body: self.json() }
    }
}

#[derive(Clone)]
pub struct Client {
    url: String,
    agent: ureq::Agent,
}

impl Client {
    pub fn new(url: String) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .max_idle_connections(64)
            .max_idle_connections_per_host(64)
            .build();
        Self { url, agent: config.into() }
    }

    pub fn get(&self, path: &str, token: Option<&str>) -> Answer {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Self::answer(request.call())
    }

    pub fn post(
        &self,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = self.agent.post(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::answer(request.send_json(body))
    }

    /// Sends exactly these bytes and headers. The path is sent as it is written.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Raw {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = self.agent.run(request.body(body).unwrap()).unwrap();
        let headers = response.headers().iter();
        let headers = headers.map(|(n, v)| {
            (n.as_str().to_owned(), String::from_utf8_lossy(v.as_bytes()).into_owned())
        });
        Raw {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: response.body_mut().read_to_vec().unwrap(),
        }
    }

    fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
        match result {
            Ok(mut response) => {
                let status = response.status().as_u16();
                match response.body_mut().read_to_string() {
                    Ok(text) => {
                        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
                        Answer { status, body }
                    }
                    Err(error) => Answer { status: 0, body: json!(error.to_string()) },
                }
            }
            Err(error) => Answer { status: 0, body: json!(error.to_string()) },
        }
    }

    pub fn acquire(&self, lease: &str, owner: &str, more: Value) -> Answer {
        let mut body = json!({ "owner": owner, "ttl_ms": 2500 });
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        self.post(&format!("/v1/leases/{lease}/acquire"), Some(crate::world::WORKER), &[], &body)
    }

    /// Acquires for a short time (2.5 s), again on every retryable answer, until it has it.
    #[track_caller]
    pub fn take(&self, lease: &str, owner: &str, within: Duration) -> Holder {
        self.take_for(lease, owner, 2_500, within)
    }

    /// Acquires for longer than any test takes.
    #[track_caller]
    pub fn hold(&self, lease: &str, owner: &str, within: Duration) -> Holder {
        self.take_for(lease, owner, 600_000, within)
    }

    #[track_caller]
    fn take_for(&self, lease: &str, owner: &str, ttl_ms: u64, within: Duration) -> Holder {
        let body = crate::world::wait_for("the lease is acquired", within, || {
            let answer = self.acquire(lease, owner, json!({ "ttl_ms": ttl_ms, "wait_ms": 2_000 }));
            match answer.status {
                200 => Some(answer.body),
                0 | 409 | 429 | 503 | 504 => None,
                _ => panic!("acquire: {answer:?}"),
            }
        });
        Holder::of(&body)
    }

    pub fn records(&self, holder: &Holder, id: &str, records: &Value) -> Answer {
        let path = format!("/v1/leases/{}/records", holder.lease);
        let headers = [("Idempotency-Key", id)];
        self.post(&path, Some(&holder.credential), &headers, &json!({ "records": records }))
    }

    /// Posts the same operation until the answer is definite.
    #[track_caller]
    pub fn insist(&self, holder: &Holder, id: &str, records: &Value, within: Duration) -> Answer {
        crate::world::wait_for("a definite answer", within, || {
            let answer = self.records(holder, id, records);
            (!matches!(answer.status, 0 | 409 | 429 | 503 | 504)).then_some(answer)
        })
    }

    pub fn renew(&self, holder: &Holder) -> Answer {
        let path = format!("/v1/leases/{}/renew", holder.lease);
        self.post(&path, Some(&holder.credential), &[], &json!({}))
    }

    pub fn release(&self, holder: &Holder) -> Answer {
        let path = format!("/v1/leases/{}/release", holder.lease);
        self.post(&path, Some(&holder.credential), &[], &json!({}))
    }
}

/// A worker's lease.
#[derive(Debug, Clone)]
pub struct Holder {
    pub lease: String,
    pub token: u64,
    pub credential: String,
}

impl Holder {
    /// By the answer to an acquire.
    pub fn of(body: &Value) -> Self {
        let text = |member: &str| body[member].as_str().unwrap().to_owned();
        let token = text("token").parse().unwrap();
        Self { lease: text("lease"), token, credential: text("credential") }
    }
}
