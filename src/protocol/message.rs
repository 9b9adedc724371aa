//! JSON-RPC envelopes: requests, responses, notifications, and their bytes.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::error::{ErrorCode, ErrorObject, brief};
use super::fields::{Members, describe, shorten};

/// Longest text id; each token notification repeats it.
pub const ID_BYTES_MAX: usize = 256;

/// Id of a request, chosen by the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    /// An integer.
    Number(i64),
    /// A text of at most [`ID_BYTES_MAX`] bytes.
    Text(String),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A request as it came, its parameters not parsed yet.
#[derive(Clone, Debug)]
pub struct RpcRequest<'a> {
    /// Request id; a notification has none and gets no reply.
    pub id: Option<RequestId>,
    /// Name of the method.
    pub method: String,
    /// Raw parameters.
    pub params: Option<&'a RawValue>,
}

/// A frame that holds no request, and the id to answer it with.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestError {
    /// The id, where one could be read.
    pub id: Option<RequestId>,
    /// Fault found.
    pub error: Box<ErrorObject>,
}

/// Reads one frame as a request.
///
/// # Errors
/// `PARSE` with the byte position for invalid UTF-8 or JSON; `INVALID_REQUEST` for JSON that is no
/// request, including batches.
pub fn decode_request(frame: &[u8]) -> Result<RpcRequest<'_>, RequestError> {
    let text = str::from_utf8(frame).map_err(|error| {
        let position = error.valid_up_to();
        parse_error(format!("the frame is not UTF-8: byte {position} is invalid"), position)
    })?;
    if text.trim_start().starts_with('[') {
        return Err(invalid(
            None,
            "batches are not served; send the requests one by one, several may be in flight",
        ));
    }
    let members: Members<'_> = serde_json::from_str(text).map_err(|error| {
        if error.is_data() {
            return invalid(None, format!("the frame is no request: {}", brief(&error)));
        }
        let position = byte_position(text, &error);
        let error = brief(&error);
        parse_error(format!("the frame is not JSON: {error} (byte {position})"), position)
    })?;
    let id = members.get("id").map(read_id).transpose()?;
    if let Some(key) = members.duplicate() {
        return Err(invalid(id, format!("{:?} is given twice", shorten(key))));
    }
    let version = members.get("jsonrpc");
    if version.and_then(as_text).as_deref() != Some("2.0") {
        let found = version.map_or_else(|| "nothing".to_owned(), describe);
        return Err(invalid(id, format!("\"jsonrpc\": wanted \"2.0\", found {found}")));
    }
    let raw = members.get("method");
    let Some(method) = raw.and_then(as_text) else {
        let found = raw.map_or_else(|| "nothing".to_owned(), describe);
        return Err(invalid(id, format!("\"method\": wanted a string, found {found}")));
    };
    Ok(RpcRequest { id, method, params: members.get("params") })
}

fn as_text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn read_id(raw: &RawValue) -> Result<RequestId, RequestError> {
    let id = serde_json::from_str(raw.get()).ok();
    id.filter(|id| !matches!(id, RequestId::Text(text) if text.len() > ID_BYTES_MAX)).ok_or_else(
        || {
            let found = describe(raw);
            let wanted = format!("an integer or a string of at most {ID_BYTES_MAX} bytes");
            invalid(None, format!("\"id\": wanted {wanted}, found {found}"))
        },
    )
}

fn invalid(id: Option<RequestId>, message: impl Into<String>) -> RequestError {
    RequestError { id, error: Box::new(ErrorObject::new(ErrorCode::INVALID_REQUEST, message)) }
}

fn parse_error(message: String, position: usize) -> RequestError {
    let error =
        ErrorObject::new(ErrorCode::PARSE, message).with_data(json!({"position": position}));
    RequestError { id: None, error: Box::new(error) }
}

/// Byte offset of an error, from serde_json's line and column (both from 1, columns in bytes).
fn byte_position(text: &str, error: &serde_json::Error) -> usize {
    let line_start: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    (line_start + error.column().saturating_sub(1)).min(text.len())
}

/// The bytes of a request, without framing.
///
/// # Errors
/// `params` does not serialise.
pub fn encode_request<P: Serialize>(
    id: &RequestId,
    method: &str,
    params: &P,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Request<'a, P> {
        jsonrpc: &'static str,
        id: &'a RequestId,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Request { jsonrpc: "2.0", id, method, params })
}

/// The bytes of a notification, without framing.
///
/// # Errors
/// `params` does not serialise.
pub fn encode_notification<P: Serialize>(
    method: &str,
    params: &P,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Notification<'a, P> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Notification { jsonrpc: "2.0", method, params })
}

/// The bytes of a reply, without framing. Without an id (the request's could not be read) it is
/// null, as JSON-RPC has it.
///
/// # Errors
/// `result` does not serialise.
pub fn encode_response<R: Serialize>(
    id: Option<&RequestId>,
    result: &Result<R, ErrorObject>,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Response<'a, R> {
        jsonrpc: &'static str,
        id: Option<&'a RequestId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a R>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a ErrorObject>,
    }
    let (result, error) = match result {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    serde_json::to_vec(&Response { jsonrpc: "2.0", id, result, error })
}

/// Data sent by a server.
#[derive(Debug)]
pub enum ServerMessage {
    /// The reply to a request.
    Response {
        /// Id of the request; `None` where the server could not read it.
        id: Option<RequestId>,
        /// Result, to be parsed with [`serde_json::from_str`], or error.
        result: Result<Box<RawValue>, ErrorObject>,
    },
    /// A notification, such as `generate.token`.
    Notification {
        /// Name.
        method: String,
        /// Parameters of the method.
        params: Box<RawValue>,
    },
}

/// Reads one frame that a server sent.
///
/// # Errors
/// The frame is not JSON, or neither a reply nor a notification.
pub fn decode_server_message(frame: &[u8]) -> Result<ServerMessage, serde_json::Error> {
    use serde::de::Error as _;

    #[derive(Deserialize)]
    struct Message {
        id: Option<RequestId>,
        method: Option<String>,
        params: Option<Box<RawValue>>,
        result: Option<Box<RawValue>>,
        error: Option<ErrorObject>,
    }
    let message: Message = serde_json::from_slice(frame)?;
    match message {
        Message { method: Some(method), params: Some(params), .. } => {
            Ok(ServerMessage::Notification { method, params })
        }
        Message { id, error: Some(error), .. } => {
            Ok(ServerMessage::Response { id, result: Err(error) })
        }
        Message { id, result: Some(result), .. } => {
            Ok(ServerMessage::Response { id, result: Ok(result) })
        }
        _ => Err(serde_json::Error::custom("neither a reply nor a notification")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{GenerateParams, Params, SessionRef, StopTexts};

    fn code(frame: &[u8]) -> (Option<RequestId>, ErrorCode) {
        let error = decode_request(frame).expect_err("no request");
        (error.id, error.error.code)
    }

    #[test]
    fn broken_bytes_are_named_by_position() {
        let error = decode_request(b"{\"a\": \xff}").expect_err("not UTF-8").error;
        assert_eq!((error.code, error.data), (ErrorCode::PARSE, Some(json!({"position": 6}))));
        let error = decode_request(b"{\"a\": 1,\n \"b\": x}").expect_err("not JSON").error;
        assert_eq!((error.code, error.data), (ErrorCode::PARSE, Some(json!({"position": 15}))));
        let error = decode_request(b"{\"jsonrpc\"").expect_err("not JSON").error;
        assert_eq!(error.code, ErrorCode::PARSE);
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_id() {
        let seven = Some(RequestId::Number(7));
        assert_eq!(code(b"[]"), (None, ErrorCode::INVALID_REQUEST));
        assert_eq!(code(b"7"), (None, ErrorCode::INVALID_REQUEST));
        for (frame, id) in [
            (r#"{"id":7,"method":"status"}"#, seven.clone()),
            (r#"{"id":7,"jsonrpc":"1.0","method":"status"}"#, seven.clone()),
            (r#"{"id":7,"jsonrpc":"2.0"}"#, seven.clone()),
            (r#"{"id":7,"jsonrpc":"2.0","method":3}"#, seven.clone()),
            (r#"{"id":7,"jsonrpc":"2.0","method":"status","method":"status"}"#, seven),
            (r#"{"id":null,"jsonrpc":"2.0","method":"status"}"#, None),
            (r#"{"id":1.5,"jsonrpc":"2.0","method":"status"}"#, None),
            (r#"{"id":{},"jsonrpc":"2.0","method":"status"}"#, None),
        ] {
            assert_eq!(code(frame.as_bytes()), (id, ErrorCode::INVALID_REQUEST), "{frame}");
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let head = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"generate\",\"params\":";
        let frame = [&head[..], &vec![b'['; 1 << 20], &vec![b']'; 1 << 20], b"}"].concat();
        let request = decode_request(&frame).expect("valid JSON");
        let error = GenerateParams::read(request.params).expect_err("an array");
        assert!(error.to_string().contains("found an array"), "{error}");
        assert_eq!(code(&vec![b'['; 1 << 20]).1, ErrorCode::INVALID_REQUEST);
    }

    #[test]
    fn a_request_survives_the_wire() {
        let params = GenerateParams {
            session: Some(SessionRef::Name("a \"b\"".to_owned())),
            prompt: Some("x\ny".to_owned()),
            stop: Some(StopTexts(vec!["\n".to_owned()])),
            temperature: Some(0.5),
            seed: Some(u64::MAX),
            ..GenerateParams::default()
        };
        let id = RequestId::Text("é".to_owned());
        let bytes = encode_request(&id, "generate", &params).expect("serialises");
        assert!(!bytes.contains(&b'\n'));
        let request = decode_request(&bytes).expect("a request");
        assert_eq!((request.id, request.method.as_str()), (Some(id), "generate"));
        assert_eq!(GenerateParams::read(request.params), Ok(params));
    }

    #[test]
    fn replies_and_notifications_survive_the_wire() {
        let id = RequestId::Number(-3);
        let bytes = encode_response(Some(&id), &Ok(json!({"a": 1}))).expect("serialises");
        let message = decode_server_message(&bytes).expect("a reply");
        assert!(matches!(&message, ServerMessage::Response { id: Some(i), result: Ok(raw) }
            if *i == id && raw.get() == r#"{"a":1}"#));
        let error = ErrorObject::new(ErrorCode::PARSE, "no");
        let bytes = encode_response::<()>(None, &Err(error.clone())).expect("serialises");
        let message = decode_server_message(&bytes).expect("a reply");
        assert!(matches!(message, ServerMessage::Response { id: None, result: Err(e) }
            if e == error));
        let bytes = encode_notification("generate.token", &json!({"id": 1})).expect("serialises");
        let message = decode_server_message(&bytes).expect("a notification");
        assert!(matches!(message, ServerMessage::Notification { method, .. }
            if method == "generate.token"));
    }
}
