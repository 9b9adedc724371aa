//! Which handler a request is for.

use std::future::Future;
use std::pin::Pin;

use hyper::Method;

use super::call::Call;
use super::error::{Failure, Shape};
use super::reply::Reply;
use crate::protocol::nearest;

/// Longest path that a similar one is looked for.
const SIMILAR_BYTES_MAX: usize = 64;

/// What a handler returns in the end.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>;

/// A method that routes have. HEAD is answered wherever GET is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Delete,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    fn is(self, method: &Method) -> bool {
        method == self.name() || self == Self::Get && method == Method::HEAD
    }
}

/// One entry of an interface's table.
pub(super) struct Route {
    pub(super) verb: Verb,
    /// `{name}` stands for one segment, `{name...}` at the end for the rest.
    pub(super) paths: &'static [&'static str],
    /// Of its errors.
    pub(super) shape: Shape,
    pub(super) handler: fn(Call) -> Answer,
}

impl Route {
    pub(super) const fn new(
        verb: Verb,
        paths: &'static [&'static str],
        shape: Shape,
        handler: fn(Call) -> Answer,
    ) -> Self {
        Self { verb, paths, shape, handler }
    }
}

/// The values of a path's `{name}`s.
pub(super) type PathParams = Vec<(&'static str, String)>;

/// A route, the path of it that matched, and the values in that.
type Found = (&'static Route, &'static str, PathParams);

/// The route of a request, or why there is none, in the shape of the interface that it is nearest
/// to.
pub(super) fn find(
    tables: &'static [&'static [Route]],
    method: &Method,
    path: &str,
) -> Result<Found, Box<(Shape, Failure)>> {
    let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let routes = || tables.iter().flat_map(|table| table.iter());
    let matching = || {
        routes().flat_map(|route| {
            let found = route.paths.iter().find_map(|at| Some((*at, matched(at, path)?)));
            found.map(|(at, params)| (route, at, params))
        })
    };
    // A path that is written out goes before one with a name in it.
    let mut best: Vec<_> = matching().collect();
    best.sort_by_key(|(_, _, params)| params.len());
    if let Some(first) = best.first().map(|(_, _, params)| params.len()) {
        best.retain(|(_, _, params)| params.len() == first);
    }
    let shape = best.first().map(|(route, _, _)| route.shape);
    let mut allowed: Vec<&str> = best.iter().map(|(route, _, _)| route.verb.name()).collect();
    match (best.into_iter().find(|(route, _, _)| route.verb.is(method)), shape) {
        (Some(found), _) => Ok(found),
        (None, Some(shape)) => {
            if allowed.contains(&"GET") {
                allowed.push("HEAD");
            }
            Err(Box::new((shape, Failure::wrong_method(&allowed.join(", ")))))
        }
        (None, None) => {
            let known = routes().flat_map(|route| route.paths.iter().copied());
            let similar = (path.len() <= SIMILAR_BYTES_MAX).then(|| nearest(path, known)).flatten();
            let of = |similar: &str| routes().find(|route| route.paths.contains(&similar));
            let shape = similar.and_then(of).map_or(shape_of(path), |route| route.shape);
            Err(Box::new((shape, Failure::unknown_path(path, similar))))
        }
    }
}

/// The interface that an unknown path belongs to.
fn shape_of(path: &str) -> Shape {
    if path.starts_with("/api/") { Shape::Ollama } else { Shape::OpenAi }
}

/// The values of a pattern's names, where it matches.
fn matched(pattern: &'static str, path: &str) -> Option<PathParams> {
    let mut params = Vec::new();
    let mut rest = path.strip_prefix('/')?;
    let mut segments = pattern.strip_prefix('/')?.split('/').peekable();
    while let Some(segment) = segments.next() {
        let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        if let Some(name) = name.and_then(|name| name.strip_suffix("...")) {
            params.push((name, decoded(rest)?));
            return (!rest.is_empty()).then_some(params);
        }
        let (first, behind) = match rest.split_once('/') {
            Some((first, behind)) => (first, Some(behind)),
            None => (rest, None),
        };
        match name {
            Some(_) if first.is_empty() => return None,
            Some(name) => params.push((name, decoded(first)?)),
            None if first == segment => {}
            None => return None,
        }
        match (behind, segments.peek().is_some()) {
            (Some(behind), true) => rest = behind,
            (None, false) => return Some(params),
            _ => return None,
        }
    }
    None
}

/// A part of a path without its percent signs; `None` where it is no text.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let code = std::str::from_utf8(rest.get(..2)?).ok()?;
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_segments_and_rests() {
        let of = |pattern, path| {
            matched(pattern, path).map(|p| p.into_iter().map(|(_, v)| v).collect::<Vec<_>>())
        };
        assert_eq!(of("/v1/models", "/v1/models"), Some(vec![]));
        assert_eq!(of("/v1/models", "/v1/models/x"), None);
        assert_eq!(of("/v1/models/{id...}", "/v1/models"), None);
        assert_eq!(of("/v1/models/{id...}", "/v1/models/"), None);
        assert_eq!(of("/v1/models/{id...}", "/v1/models/a/b%20c"), Some(vec!["a/b c".to_owned()]));
        assert_eq!(of("/r/{id}/items", "/r/7/items"), Some(vec!["7".to_owned()]));
        assert_eq!(of("/r/{id}/items", "/r//items"), None);
        assert_eq!(of("/r/{id}", "/r/7/items"), None);
        assert_eq!(of("/r/{id}", "/r/%f"), None);
        assert_eq!(of("/r/{id}", "/r/%+1"), None);
        assert_eq!(of("/r/{id}", "/r/%ff"), None, "no UTF-8");
        assert_eq!(of("/", "/"), Some(vec![]));
    }
}
