//! Outputs of each family, whole and piece by piece.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::chat::JsonObject;

/// A message put together from deltas.
#[derive(Debug, Default, PartialEq)]
struct Message {
    content: String,
    reasoning: String,
    calls: Vec<(String, String, String)>,
}

fn add(message: &mut Message, deltas: Vec<Delta>) {
    for delta in deltas {
        match delta {
            Delta::Content(text) => message.content.push_str(&text),
            Delta::Reasoning(text) => message.reasoning.push_str(&text),
            Delta::CallStart { index, id, name } => {
                assert_eq!(index, message.calls.len());
                message.calls.push((id, name, String::new()));
            }
            Delta::Arguments { index, text } => message.calls[index].2.push_str(&text),
            Delta::CallEnd { index } => assert_eq!(index + 1, message.calls.len()),
        }
    }
}

fn tools() -> Vec<JsonObject> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name, "parameters":
            {"type": "object", "properties": properties}}})
    };
    let all = [
        tool("f", json!({"n": {"type": "integer"}, "s": {"type": "string"}})),
        tool("g", json!({})),
    ];
    all.into_iter().map(|tool| tool.as_object().unwrap().clone()).collect()
}

/// Parses a text in pieces of `size` characters.
fn parsed(source: &str, prompt: &str, text: &str, size: usize) -> Message {
    let tools = tools();
    let options = ParseOptions { tools: &tools, prompt, split_reasoning: true };
    let mut parser = CallParser::new(CallFormat::of_source(source), &options, &|_| false);
    let mut message = Message::default();
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(size) {
        add(&mut message, parser.push(piece.iter().collect::<String>().as_bytes(), false));
    }
    add(&mut message, parser.finish());
    message
}

/// Marks of a template, the end of the prompt, an output, and the ids of its calls.
type Output = (&'static str, &'static str, &'static str, [&'static str; 2]);

/// The same message in each family's form.
const OUTPUTS: &[Output] = &[
    (
        "<tool_call></think>",
        "<think>\n",
        "Hm.\n</think>\n\nWell.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"a\\\"<b>\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>",
        ["", ""],
    ),
    (
        "<tool_call><function=<parameter=</think>",
        "",
        "<think>Hm.</think>Well.<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\na\"<b>\n</parameter>\n</function>\n</tool_call>\n<function=g>\n</function>\n</tool_call>",
        ["", ""],
    ),
    (
        "<arg_key><tool_call></think>",
        "",
        "<think>Hm.</think>Well.<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>a\"<b></arg_value>\n</tool_call><tool_call>g</tool_call>",
        ["", ""],
    ),
    (
        "[TOOL_CALLS][ARGS][/THINK]",
        "",
        "[THINK]Hm.[/THINK]Well.[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"n\": 1, \"s\": \"a\\\"<b>\"}[TOOL_CALLS]g[ARGS]{}",
        ["123456789", ""],
    ),
    (
        "[TOOL_CALLS][/THINK]",
        "",
        "[THINK]Hm.[/THINK]Well.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"a\\\"<b>\"}, \"id\": \"1\"}, {\"name\": \"g\", \"arguments\": {}}]",
        ["", ""],
    ),
    (
        "<|tool_call><tool_call|><channel|>",
        "",
        "<|channel>thought\nHm.<channel|>Well.<|tool_call>call:f{n:1,s:<|\"|>a\"<b><|\"|>}<tool_call|><|tool_call>call:g{}<tool_call|>",
        ["", ""],
    ),
    (
        "<|tool_call_start|></think>",
        "",
        "<think>Hm.</think>Well.<|tool_call_start|>[f(n=1, s='a\"<b>'), g()]<|tool_call_end|>",
        ["", ""],
    ),
    (
        "<|START_ACTION|><|END_THINKING|>",
        "<|START_THINKING|>",
        "Hm.<|END_THINKING|><|START_RESPONSE|>Well.<|END_RESPONSE|><|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"a\\\"<b>\"}},\n{\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        ["0", "1"],
    ),
    (
        "<｜DSML｜</think>",
        "<think>",
        "Hm.</think>Well.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"true\">a\"<b></｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ["", ""],
    ),
    (
        "<|channel|><|message|><|start|>",
        "",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Well.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\":1,\"s\":\"a\\\"<b>\"}<|call|><|start|>assistant to=functions.g<|channel|>commentary<|message|>{}<|call|>",
        ["", ""],
    ),
];

#[test]
fn each_family_is_taken_apart_whole_and_piece_by_piece() {
    let (one, two) = (r#"{"n":1,"s":"a\"<b>"}"#, r#"{}"#);
    for &(source, prompt, text, ids) in OUTPUTS {
        for size in [usize::MAX, 1, 2, 3, 7] {
            let message = parsed(source, prompt, text, size);
            assert_eq!(message.content, "Well.", "{source} by {size}");
            assert_eq!(message.reasoning, "Hm.", "{source} by {size}");
            assert_eq!(message.calls.len(), 2, "{source} by {size}: {message:?}");
            for (call, (name, wanted)) in message.calls.iter().zip([("f", one), ("g", two)]) {
                assert_eq!(call.1, name, "{source}");
                let found: Value = serde_json::from_str(&call.2).expect(&call.2);
                assert_eq!(found, serde_json::from_str::<Value>(wanted).unwrap(), "{source}");
            }
            if ids != ["", ""] {
                assert_eq!([message.calls[0].0.as_str(), message.calls[1].0.as_str()], ids);
            }
        }
    }
}

#[test]
fn a_mark_that_is_a_special_token_counts_only_as_one() {
    let tools = tools();
    let options = ParseOptions { tools: &tools, prompt: "", split_reasoning: true };
    let format = CallFormat::of_source("<tool_call>");
    let call = "\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    let parse = |special: bool| {
        let mut parser = CallParser::new(format, &options, &|mark| mark.starts_with("<tool_call"));
        let mut message = Message::default();
        add(&mut message, parser.push(b"<tool_call>", special));
        add(&mut message, parser.push(call.as_bytes(), false));
        add(&mut message, parser.finish());
        message
    };
    assert_eq!(parse(true).calls.len(), 1);
    let spelled = parse(false);
    assert!(spelled.calls.is_empty() && spelled.content.starts_with("<tool_call>"), "{spelled:?}");
}

#[test]
fn without_tools_nothing_is_a_call_and_bytes_of_a_character_may_come_apart() {
    let options = ParseOptions { tools: &[], prompt: "", split_reasoning: false };
    let format = CallFormat::of_source("<tool_call></think>");
    let mut parser = CallParser::new(format, &options, &|_| false);
    let mut message = Message::default();
    for byte in "<think>é</think> <tool_call>{}".bytes() {
        add(&mut message, parser.push(&[byte], false));
    }
    add(&mut message, parser.finish());
    assert_eq!(message.content, "<think>é</think> <tool_call>{}");
}

#[test]
fn grammars_name_special_tokens_and_the_tools_that_are_wanted() {
    let tools = tools();
    let special = |mark: &str| (mark == "<tool_call>").then_some(7);
    let format = CallFormat::of_source("<tool_call>");
    let grammar = |choice, parallel| format.grammar(&tools, choice, parallel, &special);
    let auto = grammar(ToolChoice::Auto, true).unwrap();
    assert!(auto.starts_with("start: TEXT | TEXT? <[7]> "), "{auto}");
    assert!(auto.contains("\"</tool_call>\"") && auto.contains("(/\\n?/ call)*"), "{auto}");
    let named = grammar(ToolChoice::Named("g"), false).unwrap();
    assert!(named.contains("\"const\":\"g\"") && !named.contains("\"const\":\"f\""), "{named}");
    assert_eq!(grammar(ToolChoice::None, true), None);
    assert_eq!(grammar(ToolChoice::Named("h"), true), None);
}
