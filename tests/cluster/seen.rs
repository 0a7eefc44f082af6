//! One record as a consumer gets it.

use rdkafka::message::{BorrowedMessage, Headers, Message};
use std::collections::HashMap;

/// One record as a read_committed consumer gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub token: u64,
    pub operation: String,
    pub batch: u64,
    pub value: Option<String>,
}

impl Seen {
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers: HashMap<String, String> = message
            .headers()
            .map(|h| {
                h.iter()
                    .map(|h| {
                        let value = h.value.map(String::from_utf8_lossy).unwrap_or_default();
                        (h.key.to_owned(), value.into_owned())
                    })
                    .collect()
            })
            .unwrap_or_default();
        let number = |key: &str| headers.get(key).and_then(|v| v.parse().ok()).unwrap_or(0);
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            token: number("fencepost-token"),
            operation: headers.get("fencepost-operation").cloned().unwrap_or_default(),
            batch: number("fencepost-batch"),
            value: message.payload().map(|v| String::from_utf8_lossy(v).into_owned()),
        }
    }
}
