//! The Hugging Face hub: what files a repository has, and where each is.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use ureq::http::Uri;

use super::error::StoreError;
use super::http::{Answer, Http, HttpError, escaped, host};
use super::names::{self, Part};

/// Default address of the hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Longest page of a list of files.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Pages of a list of files, of a thousand each.
const PAGES_MAX: usize = 20;

/// Taken in this order where no quantisation is named: small with little loss, then what is exact.
const PREFERRED: [&str; 7] = ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16"];

/// Names in a message.
const NAMES_SHOWN_MAX: usize = 24;

/// Options for reaching the hub.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hub {
    /// Address.
    pub endpoint: String,
    /// Sent to it, and to nobody else.
    pub token: Option<String>,
}

/// Shows whether there is a token, and not the token.
impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Hub").field("endpoint", &self.endpoint).field("token", &token).finish()
    }
}

impl Hub {
    /// By `HF_ENDPOINT`, and `HF_TOKEN` or the file that the hub's own programs keep it in.
    #[must_use]
    pub fn of_environment(home: Option<&Path>) -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let file = set("HF_TOKEN_PATH").map(Into::into).or_else(|| {
            let folder = set("HF_HOME").map(Into::into);
            let folder = folder.or_else(|| home.map(|home| home.join(".cache/huggingface")));
            folder.map(|folder: std::path::PathBuf| folder.join("token"))
        });
        let kept = || fs::read_to_string(file?).ok();
        let token = set("HF_TOKEN").or_else(kept).map(|token| token.trim().to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Self { endpoint, token: token.filter(|token| !token.is_empty()) }
    }
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubFile {
    pub(super) path: String,
    pub(super) bytes: u64,
    /// Checksum of large files, such as models.
    pub(super) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// A repository at a revision.
pub(super) struct Repo<'a> {
    pub(super) endpoint: &'a str,
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
}

impl Repo<'_> {
    /// Path of one of its files.
    pub(super) fn url(&self, file: &str) -> String {
        let (revision, file) = (escaped(self.revision), escaped(file));
        format!("{}/{}/resolve/{revision}/{file}", self.endpoint, self.name)
    }

    fn list_url(&self) -> String {
        let revision = escaped(self.revision).replace('/', "%2F");
        format!("{}/api/models/{}/tree/{revision}?recursive=true", self.endpoint, self.name)
    }

    /// All its files.
    pub(super) fn files(&self, http: &Http) -> Result<Vec<HubFile>, HttpError> {
        let mut files = Vec::new();
        let mut next = Some(self.list_url());
        for _ in 0..PAGES_MAX {
            let Some(url) = next.take() else { break };
            let url: Uri = url
                .parse()
                .map_err(|_| HttpError::Final(StoreError::Answer(format!("{url} is no URL"))))?;
            let mut answer = http.get(&url, &[])?;
            check_status(&answer, http, &url, self.name)?;
            next = answer.header("link").and_then(next_page);
            let body = answer.response.body_mut().with_config().limit(LIST_BYTES_MAX);
            let text = body
                .read_to_vec()
                .map_err(|error| HttpError::Passing { reason: error.to_string(), after: None })?;
            let listed: Vec<Listed> = serde_json::from_slice(&text).map_err(|error| {
                let message = format!("{}'s list of {}: {error}", host(&url), self.name);
                HttpError::Final(StoreError::Answer(message))
            })?;
            let of_kind = listed.into_iter().filter(|listed| listed.kind == "file");
            files.extend(of_kind.map(|Listed { path, size, lfs, .. }| match lfs {
                Some(Lfs { oid, size }) => HubFile { path, bytes: size, sha256: Some(oid) },
                None => HubFile { path, bytes: size, sha256: None },
            }));
        }
        Ok(files)
    }

    /// The files of the model that is meant: all parts of it, the first first.
    pub(super) fn choose(
        &self,
        files: &[HubFile],
        file: Option<&str>,
        quant: Option<&str>,
    ) -> Result<Vec<HubFile>, StoreError> {
        let nothing = |reason| StoreError::NothingToPull { repo: self.name.to_owned(), reason };
        // Of split models, the first part stands for all.
        let first = |file: &&HubFile| Part::of(&file.path).is_none_or(|part| part.index == 1);
        let models: Vec<&HubFile> =
            files.iter().filter(|file| names::is_model_file(&file.path)).filter(first).collect();
        if models.is_empty() {
            let reason = "has no GGUF file; a repository whose name ends with -GGUF may have";
            return Err(nothing(reason.to_owned()));
        }
        let named = |wanted: &str| files.iter().find(|file| file.path == wanted);
        let of_quant =
            |quant: &str| models.iter().copied().find(|file| names::has_quant(&file.path, quant));
        let chosen = match (file, quant) {
            (Some(file), _) => {
                named(file).ok_or_else(|| format!("has no file {file}; it has {}", shown(&models)))
            }
            (None, Some(quant)) => of_quant(quant).ok_or_else(|| {
                format!("has no model of the type {quant}; it has {}", shown(&models))
            }),
            (None, None) if models.len() == 1 => Ok(models[0]),
            (None, None) => PREFERRED
                .iter()
                .find_map(|quant| of_quant(quant))
                .ok_or_else(|| format!("has several models, name one: {}", shown(&models))),
        };
        let chosen = chosen.map_err(nothing)?;
        let parts = Part::all(&chosen.path);
        let find = |part: &String| {
            let missing = || nothing(format!("lacks {part}, a part of the model"));
            named(part).cloned().ok_or_else(missing)
        };
        parts.iter().map(find).collect()
    }
}

fn shown(models: &[&HubFile]) -> String {
    let names: Vec<&str> =
        models.iter().take(NAMES_SHOWN_MAX).map(|file| file.path.as_str()).collect();
    let more = models.len().saturating_sub(NAMES_SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// The address in `<…>; rel="next"`.
fn next_page(link: &str) -> Option<String> {
    link.split(',').find_map(|part| {
        let (address, relation) = part.trim().split_once(';')?;
        let address = address.trim().strip_prefix('<')?.strip_suffix('>')?;
        relation.contains("rel=\"next\"").then(|| address.to_owned())
    })
}

/// Error for a status that is not a success. `what` was requested at `url`.
pub(super) fn check_status(
    answer: &Answer,
    http: &Http,
    url: &Uri,
    what: &str,
) -> Result<(), HttpError> {
    let status = answer.response.status();
    let (code, host) = (status.as_u16(), &answer.host);
    let refuse = |message: String| Err(HttpError::Final(StoreError::Answer(message)));
    let asked_token = http.has_token_for(url);
    match code {
        200..=299 => Ok(()),
        401 | 403 if asked_token => refuse(format!(
            "{host} refuses {what} ({code}): the token has no access to it; the terms of a gated \
             model are accepted on its page"
        )),
        401 | 403 => refuse(format!(
            "{host} refuses {what} ({code}): it is not there, or private, or gated; give a token \
             of the hub in HF_TOKEN"
        )),
        404 | 410 => refuse(format!("{host} has no {what} ({code})")),
        408 | 429 | 500..=599 => {
            let after = super::http::retry_after(answer.response.headers());
            let reason = match code {
                429 => "too many requests (429); a token in HF_TOKEN raises the hub's limit".into(),
                _ => format!("{host} answers {status}"),
            };
            Err(HttpError::Passing { reason, after })
        }
        _ => refuse(format!("{host} answers {status} for {what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPO: Repo<'_> = Repo { endpoint: "https://hub", name: "a/b", revision: "main" };

    fn files(names: &[&str]) -> Vec<HubFile> {
        let file = |name: &&str| HubFile { path: (*name).into(), bytes: 1, sha256: None };
        names.iter().map(file).collect()
    }

    fn chosen(names: &[&str], file: Option<&str>, quant: Option<&str>) -> Vec<String> {
        let chosen = REPO.choose(&files(names), file, quant);
        chosen.expect("something to pull").into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn the_model_that_is_meant_is_chosen_with_all_its_parts() {
        let names = [
            "README.md",
            "mmproj-Q8_0.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K.gguf",
            "F16/m-F16-00001-of-00002.gguf",
            "F16/m-F16-00002-of-00002.gguf",
        ];
        assert_eq!(chosen(&names, None, None), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&names, None, Some("q4_k")), ["m-Q4_K.gguf"]);
        assert_eq!(chosen(&names, None, Some("F16")), names[5..]);
        assert_eq!(chosen(&names, Some(names[6]), None), names[5..]);
        assert_eq!(chosen(&["x.gguf"], None, None), ["x.gguf"]);
    }

    #[test]
    fn what_cannot_be_chosen_is_told_with_what_there_is() {
        let refused = |names: &[&str], file, quant| {
            let error = REPO.choose(&files(names), file, quant).expect_err("nothing to pull");
            error.to_string()
        };
        assert!(refused(&["model.safetensors"], None, None).contains("has no GGUF file"));
        let told = refused(&["x-IQ1_S.gguf", "x-IQ1_M.gguf"], None, None);
        assert_eq!(told, "a/b has several models, name one: x-IQ1_S.gguf, x-IQ1_M.gguf");
        assert!(refused(&["x.gguf"], None, Some("Q8_0")).contains("no model of the type Q8_0"));
        let told = refused(&["x-00001-of-00002.gguf"], None, None);
        assert_eq!(told, "a/b lacks x-00002-of-00002.gguf, a part of the model");
    }

    #[test]
    fn pages_follow_one_another() {
        let link = "<https://hub/x?cursor=1>; rel=\"next\", <https://hub/y>; rel=\"prev\"";
        assert_eq!(next_page(link).as_deref(), Some("https://hub/x?cursor=1"));
        assert_eq!(next_page("<https://hub/y>; rel=\"prev\""), None);
    }
}
