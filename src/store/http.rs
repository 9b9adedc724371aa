//! GET requests: redirects followed one by one, the hub's token kept to the hub, stalls noticed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::error::StoreError;

/// Redirects of one request.
const REDIRECTS_MAX: usize = 8;

/// To reach a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A client of HTTP/1.1, with TLS by the system's certificates.
#[derive(Debug)]
pub(super) struct Http {
    agent: Agent,
    /// Sent to this origin alone.
    token: Option<(Uri, String)>,
}

/// A request that got no answer: worth another try, or not.
#[derive(Debug)]
pub(super) enum HttpError {
    /// The connection failed, or the server is overloaded. `after` is what it asked for.
    Passing { reason: String, after: Option<Duration> },
    /// Trying again would not help.
    Final(StoreError),
}

/// An answer, and what the redirects before it said.
pub(super) struct Answer {
    pub(super) response: Response<Body>,
    /// Final source after redirects, for messages.
    pub(super) host: String,
    /// `x-linked-etag` of the hub: the file's checksum, where it is a large one.
    pub(super) linked_etag: Option<String>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        text_of(self.response.headers(), name)
    }
}

impl Http {
    /// A client that gives up on a connection after `stall` without a byte. `token` is sent to the
    /// origin of `hub`.
    pub(super) fn new(stall: Duration, hub: &Uri, token: Option<String>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("hob/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .build();
        let token = token.map(|token| (hub.clone(), token));
        Self { agent: config.new_agent(), token }
    }

    /// Asks for `url`. Statuses other than redirects are the caller's to judge.
    pub(super) fn get(&self, url: &Uri, headers: &[(&str, String)]) -> Result<Answer, HttpError> {
        let (mut at, mut linked_etag) = (url.clone(), None);
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send(&at, headers)?;
            linked_etag = linked_etag
                .or_else(|| text_of(response.headers(), "x-linked-etag").map(str::to_owned));
            let location = text_of(response.headers(), "location");
            let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = location.filter(|_| redirects) else {
                return Ok(Answer { response, host: host(&at), linked_etag });
            };
            let next = join(&at, location).ok_or_else(|| {
                refused(format!("{} redirects to something that is no URL", host(&at)))
            })?;
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                let message = format!("{} redirects from https to plain http", host(&at));
                return Err(refused(format!("{message}, which is not followed")));
            }
            at = next;
        }
        Err(refused(format!("{} redirects more than {REDIRECTS_MAX} times", host(url))))
    }

    fn send(&self, url: &Uri, headers: &[(&str, String)]) -> Result<Response<Body>, HttpError> {
        let mut request = self.agent.get(url);
        if is_loopback(url) {
            request = request.config().proxy(None).build();
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some((_, token)) = self.token.as_ref().filter(|(hub, _)| same_origin(hub, url)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
                refused(format!("{}: {error}", host(url)))
            }
            // A certificate does not get better by itself.
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) => {
                refused(format!("{} cannot be trusted: {error}", host(url)))
            }
            error => HttpError::Passing { reason: error.to_string(), after: None },
        })
    }

    pub(super) fn has_token_for(&self, url: &Uri) -> bool {
        self.token.as_ref().is_some_and(|(hub, _)| same_origin(hub, url))
    }
}

fn refused(message: String) -> HttpError {
    HttpError::Final(StoreError::Answer(message))
}

pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Host and port of a URL, for messages.
pub(super) fn host(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
    };
    let same_host = match (a.host(), b.host()) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => false,
    };
    a.scheme() == b.scheme() && same_host && port(a) == port(b)
}

/// True if a URL is of this machine, which no proxy can reach.
fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The URL that `location`, which may be relative, means on a page of `base`.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let location = location.split('#').next().unwrap_or_default();
    let absolute = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let url: Uri = absolute.parse().ok()?;
    matches!(url.scheme_str(), Some("http" | "https")).then_some(url)
}

/// Delay requested by a server; dates are not parsed.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    text_of(headers, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// A path with what has a meaning in URLs escaped.
pub(super) fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().fold(String::new(), |text, byte| match plain(byte) {
        true => text + &char::from(byte).to_string(),
        false => text + &format!("%{byte:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URL")
    }

    #[test]
    fn locations_are_joined() {
        let base = uri("https://h:1/a/b?q");
        let joined = |location| join(&base, location).map(|url| url.to_string());
        assert_eq!(joined("/c?d").as_deref(), Some("https://h:1/c?d"));
        assert_eq!(joined("c").as_deref(), Some("https://h:1/a/c"));
        assert_eq!(joined("//i/c#x").as_deref(), Some("https://i/c"));
        assert_eq!(joined("http://i/c").as_deref(), Some("http://i/c"));
        assert_eq!(joined("ftp://i/c"), None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert!(same_origin(&uri("https://Hub.co/a"), &uri("https://hub.co:443/b")));
        for other in
            ["http://hub.co", "https://hub.co:444", "https://hub.co.evil", "https://a.hub.co"]
        {
            assert!(!same_origin(&uri("https://hub.co"), &uri(other)), "{other}");
        }
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escaped("a b/ü#.gguf"), "a%20b/%C3%BC%23.gguf");
    }
}
