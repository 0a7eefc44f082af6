//! Request bodies: what they must be, how long they may take, and how large they may be.
//!
//! Owns the limits while a body is read. Nothing is decompressed, and nothing is read before the
//! caller's credential was found good. A refusal is given only after the rest of the body was read
//! and thrown away (within bounds), because closing a socket on unread data destroys the answer.

use crate::http::Gateway;
use crate::http::identity::on_its_lease;
use crate::http::problem::{self, Code, Problem};
use crate::protocol::refusal::Refusal;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most that is read and thrown away of a refused body.
const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest that reading it may take.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The bytes of a JSON body, with their share of the memory. They are empty if there was no body:
/// which calls allow that is for the handler to say.
pub(super) struct JsonBytes(pub(super) Vec<u8>, pub(super) Share);

/// A part of the memory for bodies; given back when it is dropped. It goes where the bytes go: what
/// was read of a body lives on as records.
pub(super) struct Share {
    memory: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Nobody waits for memory with a connection open: there is some now, or the answer is 429.
    fn cover(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.saturating_sub(held)).ok();
        let taken = more.and_then(|n| Arc::clone(&self.memory).try_acquire_many_owned(n).ok());
        let more = taken.ok_or_else(|| Problem::from(Refusal::Busy))?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}

/// The memory for bodies of all requests together.
pub struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    /// So many bytes in all.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    fn share(&self) -> Share {
        Share { memory: Arc::clone(&self.0), permit: None }
    }
}

impl FromRequest<Arc<Gateway>> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        match from_body(&parts.headers, body, gateway).await {
            Ok(bytes) => Ok(bytes),
            Err(problem) => Err(on_its_lease(problem, &mut parts, gateway).await),
        }
    }
}

async fn from_body(
    headers: &HeaderMap,
    body: Body,
    gateway: &Gateway,
) -> Result<JsonBytes, Problem> {
    let mut share = gateway.body_memory.share();
    if !headers.contains_key(CONTENT_TYPE) && body.is_end_stream() {
        return Ok(JsonBytes(Vec::new(), share));
    }
    check_media_type(headers)?;
    let settings = &gateway.settings;
    let read = read(body, settings.body_bytes_max, settings.body_timeout, &mut share);
    let bytes = read.await?;
    Ok(JsonBytes(bytes, share))
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let refuse = |detail: &'static str| Problem::new(Code::UnsupportedMediaType, detail);
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let json = match (types.next(), types.next()) {
        (Some(one), None) => one.to_str().is_ok_and(is_json),
        _ => false,
    };
    if !json {
        return Err(refuse("send one header `Content-Type: application/json`"));
    }
    if headers.get_all(CONTENT_ENCODING).iter().any(|coding| coding != "identity") {
        return Err(refuse("send the body without a Content-Encoding"));
    }
    Ok(())
}

fn is_json(content_type: &str) -> bool {
    let (media, parameter) = match content_type.split_once(';') {
        Some((media, parameter)) => (media, Some(parameter.trim())),
        None => (content_type, None),
    };
    let is = |text: &str, other: &str| text.eq_ignore_ascii_case(other);
    is(media.trim(), "application/json")
        && parameter.is_none_or(|p| is(p, "charset=utf-8") || is(p, "charset=\"utf-8\""))
}

/// Reads a whole body within a deadline and a size. One that says how long it is has its memory
/// from the start; one that does not, takes it as it comes.
async fn read(
    body: Body,
    max: usize,
    within: Duration,
    share: &mut Share,
) -> Result<Vec<u8>, Problem> {
    let too_large = || {
        let detail = format!("a body may have {max} bytes");
        Problem::new(Code::BodyTooLarge, detail).limit_bytes(max)
    };
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > max {
        return Err(too_large());
    }
    share.cover(declared)?;
    let collect = async {
        let (mut body, mut bytes) = (body, Vec::with_capacity(declared));
        while let Some(chunk) = next_chunk(&mut body).await {
            let chunk = chunk
                .map_err(|()| Problem::new(Code::MalformedBody, "the body ended before its end"))?;
            let length = bytes.len().saturating_add(chunk.len());
            if length > max {
                return Err(too_large());
            }
            share.cover(length)?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    tokio::time::timeout(within, collect).await.unwrap_or_else(|_| {
        let detail = format!("a whole body must arrive within {} ms", within.as_millis());
        Err(Problem::new(Code::SlowBody, detail))
    })
}

/// The next bytes; trailers are passed over.
async fn next_chunk(body: &mut Body) -> Option<Result<Bytes, ()>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame.map(Frame::into_data) {
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            Ok(Err(_trailers)) => {}
            Err(_) => return Some(Err(())),
        }
    }
}

/// A body that can still be read after the handler that it was given to has answered.
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// The layer that reads what a handler left unread. Not after a body that was too slow, and not
/// from a client that waits for our word before it sends any.
pub(super) async fn drain_unread(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key(EXPECT) || body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let rest = Shared(Arc::new(Mutex::new(body)));
    let shared = Body::new(Shared(Arc::clone(&rest.0)));
    let response = next.run(Request::from_parts(parts, shared)).await;
    if !problem::is_slow_body(&response) {
        let drained = tokio::time::timeout(DRAIN_TIME, drain(Body::new(rest))).await;
        tracing::trace!(whole = drained.is_ok(), "body read to its end");
    }
    response
}

async fn drain(mut body: Body) {
    let mut bytes = 0usize;
    while !body.is_end_stream() && bytes <= DRAIN_BYTES_MAX {
        match next_chunk(&mut body).await {
            Some(Ok(chunk)) => bytes = bytes.saturating_add(chunk.len()),
            Some(Err(())) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_json_is_a_media_type_that_is_read() {
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json ;charset=utf-8",
        ] {
            assert!(is_json(good), "{good}");
        }
        for bad in [
            "",
            "text/plain",
            "application/json; charset=utf-16",
            "application/jsonx",
            "application/json; charset=utf-8; x=y",
            "application/problem+json",
        ] {
            assert!(!is_json(bad), "{bad}");
        }
    }

    /// A body in one chunk that does not say how long it is.
    struct Chunked(Option<Bytes>);

    impl HttpBody for Chunked {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    #[test]
    fn bodies_share_one_memory_and_give_it_back_when_they_are_gone() {
        let memory = BodyMemory::new(10);
        let (mut first, mut second) = (memory.share(), memory.share());
        first.cover(4).unwrap();
        first.cover(6).unwrap();
        first.cover(5).unwrap();
        assert_eq!(second.cover(5).unwrap_err().code(), Code::Busy);
        second.cover(4).unwrap();
        drop(first);
        second.cover(10).unwrap();
    }

    #[tokio::test]
    async fn a_body_that_does_not_say_how_long_it_is_takes_no_more_than_it_has() {
        let memory = BodyMemory::new(10);
        let chunked = |bytes: &'static [u8]| Body::new(Chunked(Some(Bytes::from(bytes))));
        let mut shares = [(); 3].map(|()| memory.share());
        let [first, second, third] = &mut shares;
        let within = Duration::from_secs(1);
        read(chunked(b"abcdef"), 10, within, first).await.unwrap();
        let surplus = read(chunked(b"abcde"), 10, within, second).await;
        assert_eq!(surplus.unwrap_err().code(), Code::Busy);
        read(chunked(b"abcd"), 10, within, third).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_one_byte_over_its_limit_is_too_large() {
        let read = async |n: usize| {
            let mut share = BodyMemory::new(100).share();
            read(Body::from(vec![b' '; n]), 10, Duration::from_secs(1), &mut share).await
        };
        assert_eq!(read(10).await.unwrap().len(), 10);
        assert_eq!(read(11).await.unwrap_err().code(), Code::BodyTooLarge);
    }
}
