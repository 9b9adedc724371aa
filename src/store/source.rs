//! What can be pulled: a model of the hub, a file behind a URL, a file of this machine.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::StoreError;

/// Source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A repository of the Hugging Face hub.
    Hub {
        /// `OWNER/REPO`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// A file of it.
        file: Option<String>,
        /// A quantisation, where no file is named.
        quant: Option<String>,
    },
    /// A file behind a URL.
    Url(String),
    /// A file of this machine.
    File(PathBuf),
}

/// The branch that a repository shows first.
const REVISION: &str = "main";

impl Source {
    /// Reads `hf:OWNER/REPO[/FILE][:QUANT]`, `OWNER/REPO[:QUANT]`, a URL, or a path. A text that
    /// could be a repository is a path if there is such a file.
    ///
    /// # Errors
    /// None of these.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |reason| StoreError::BadSource { text: text.to_owned(), reason };
        if let Some(rest) = text.strip_prefix("hf:") {
            return hub(rest).ok_or_else(|| wrong("hf: wants an owner and a repository"));
        }
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("https://") || lower.starts_with("http://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if text.contains("://") {
            return Err(wrong("only http and https are spoken"));
        }
        let path = Path::new(text);
        if path.exists() || lower.ends_with(".gguf") || text.starts_with(['/', '.', '~']) {
            return Ok(Self::File(path.to_owned()));
        }
        hub(text).ok_or_else(|| wrong("there is no such file"))
    }

    /// The hub's file behind a URL that a browser shows, where it is one of `endpoint`.
    pub(super) fn of_hub_url(url: &str, endpoint: &str) -> Option<Self> {
        let path = url.strip_prefix(endpoint)?.strip_prefix('/')?;
        let path = path.split(['?', '#']).next()?;
        let mut parts = path.splitn(5, '/');
        let (owner, name, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let (revision, file) = (parts.next()?, parts.next()?);
        matches!(kind, "resolve" | "blob").then(|| Self::Hub {
            repo: format!("{owner}/{name}"),
            revision: revision.to_owned(),
            file: Some(file.to_owned()),
            quant: None,
        })
    }
}

fn hub(text: &str) -> Option<Source> {
    let (path, quant) = match text.split_once(':') {
        Some((path, quant)) if !quant.is_empty() => (path, Some(quant.to_owned())),
        Some(_) => return None,
        None => (text, None),
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let mut parts = path.splitn(3, '/');
    let (owner, name) = (parts.next()?, parts.next()?);
    let file = parts.next().map(str::to_owned);
    let named =
        |part: &&str| !part.is_empty() && part.chars().all(good) && !part.chars().all(|c| c == '.');
    let climbs =
        file.as_ref().is_some_and(|file| file.split('/').any(|p| p == ".." || p.is_empty()));
    let valid = [owner, name].iter().all(named) && !climbs && (file.is_none() || quant.is_none());
    valid.then(|| Source::Hub {
        repo: format!("{owner}/{name}"),
        revision: REVISION.to_owned(),
        file,
        quant,
    })
}

/// Without what is secret: the query of a URL may hold a signature, its authority a password.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub { repo, file, quant, .. } => {
                write!(f, "hf:{repo}")?;
                file.iter().try_for_each(|file| write!(f, "/{file}"))?;
                quant.iter().try_for_each(|quant| write!(f, ":{quant}"))
            }
            Self::Url(url) => f.write_str(&without_secrets(url)),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A URL without user, query and fragment.
pub(super) fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub_of(repo: &str, file: Option<&str>, quant: Option<&str>) -> Source {
        let (file, quant) = (file.map(str::to_owned), quant.map(str::to_owned));
        Source::Hub { repo: repo.to_owned(), revision: REVISION.to_owned(), file, quant }
    }

    #[test]
    fn sources_are_told_apart() {
        let read = |text| Source::parse(text).expect("a source");
        assert_eq!(read("hf:a/b"), hub_of("a/b", None, None));
        assert_eq!(read("a/b-GGUF:Q4_K_M"), hub_of("a/b-GGUF", None, Some("Q4_K_M")));
        assert_eq!(read("hf:a/b/sub/c.gguf"), hub_of("a/b", Some("sub/c.gguf"), None));
        assert_eq!(read("https://h/x.gguf"), Source::Url("https://h/x.gguf".into()));
        assert_eq!(read("./a/b"), Source::File("./a/b".into()));
        assert_eq!(read("missing.gguf"), Source::File("missing.gguf".into()));
        for wrong in ["hf:a", "hf:/b", "hf:a/b:", "hf:a/b/../c.gguf", "hf:../b", "ftp://h/x", "x"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_of_the_hub_is_its_file() {
        let url = "https://hub/a/b/blob/main/sub/c.gguf?download=true";
        let source = Source::of_hub_url(url, "https://hub").expect("a file of the hub");
        assert_eq!(source, hub_of("a/b", Some("sub/c.gguf"), None));
        assert_eq!(Source::of_hub_url("https://hub/a/b", "https://hub"), None);
        assert_eq!(Source::of_hub_url("https://other/a/b/blob/main/c", "https://hub"), None);
    }

    #[test]
    fn no_secret_is_shown() {
        let source = Source::Url("https://me:word@host:1/x.gguf?signature=1#a".into());
        assert_eq!(source.to_string(), "https://host:1/x.gguf");
    }
}
