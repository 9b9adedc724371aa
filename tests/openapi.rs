//! `config/openapi.yaml` against what is served: its paths and methods are those of the router, and
//! replies have the members that it requires.
#![allow(clippy::unwrap_used)]

mod http_support;
mod server_support;

use std::collections::{BTreeMap, BTreeSet};

use hob::http;
use http_support::HttpClient;
use serde_json::{Value, json};
use server_support::{ADA, Bench};

const TEXT: &str = include_str!("../config/openapi.yaml");

/// One operation: its method, its path, and the schema of its reply.
#[derive(Debug)]
struct Operation {
    method: String,
    path: String,
    schema: Option<String>,
}

/// The file is written so that its lines can be read one by one.
fn operations() -> Vec<Operation> {
    let mut found: Vec<Operation> = Vec::new();
    let mut path = String::new();
    let lines = TEXT.lines().skip_while(|line| *line != "paths:").skip(1);
    for line in lines.take_while(|line| line.starts_with(' ')) {
        let indent = line.len() - line.trim_start().len();
        let word = line.trim().trim_end_matches(':');
        match indent {
            2 => path = word.to_owned(),
            4 => found.push(Operation {
                method: word.to_ascii_uppercase(),
                path: path.clone(),
                schema: None,
            }),
            _ => {
                if let Some((_, rest)) = line.split_once("#/components/schemas/") {
                    let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                    found.last_mut().unwrap().schema = Some(name);
                }
            }
        }
    }
    found
}

/// The members that each schema requires.
fn schemas() -> BTreeMap<String, Vec<String>> {
    let lines = TEXT.lines().skip_while(|line| line.trim() != "schemas:").skip(1);
    let one = |line: &str| {
        let (name, rest) = line.trim().split_once(": {type: object, required: [").unwrap();
        let members = rest.trim_end_matches("]}").split(", ").map(str::to_owned).collect();
        (name.to_owned(), members)
    };
    lines.map(one).collect()
}

#[test]
fn the_file_lists_exactly_what_is_routed() {
    let documented: BTreeSet<(String, String)> =
        operations().into_iter().map(|operation| (operation.method, operation.path)).collect();
    let served: BTreeSet<(String, String)> = http::routes()
        .into_iter()
        .map(|(method, path)| (method.to_owned(), path.replace("...}", "}")))
        .collect();
    let missing: Vec<_> = served.difference(&documented).collect();
    let surplus: Vec<_> = documented.difference(&served).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

#[tokio::test]
async fn replies_have_the_members_that_are_required() {
    let bench = Bench::start();
    let mut http = HttpClient::new(bench.raw_as(ADA));
    let messages = json!([{"role": "user", "content": "x"}]);
    let stored = http.post("/v1/responses", json!({"input": "x", "max_output_tokens": 1})).await;
    let id = stored.json()["id"].as_str().unwrap().to_owned();
    let body = |path: &str| match path {
        "/v1/completions" => json!({"prompt": "x", "max_tokens": 1}),
        "/v1/embeddings" => json!({"input": "x"}),
        "/v1/responses" | "/v1/responses/input_tokens" => json!({"input": "x"}),
        _ => json!({"messages": messages, "max_tokens": 1}),
    };
    let schemas = schemas();
    let mut seen = BTreeSet::new();
    // The deletion comes last.
    let mut all = operations();
    all.sort_by_key(|operation| operation.method == "DELETE");
    for Operation { method, path, schema } in all {
        let Some(schema) = schema else { continue };
        let id = if path.contains("models") { "mock" } else { &id };
        let place = path.replace("{id}", id);
        let sent = if method == "POST" { body(&path).to_string() } else { String::new() };
        http.send(&http_support::request(&method, &place, sent.as_bytes())).await;
        let reply = http.reply().await;
        assert_eq!(reply.status, 200, "{method} {place}: {}", reply.text());
        let reply: Value = reply.json();
        for member in &schemas[&schema] {
            assert!(reply.get(member).is_some(), "{method} {place}: no {member} in {reply}");
        }
        seen.insert(schema);
    }
    assert_eq!(seen.len(), schemas.len(), "every schema is some reply's");
}
