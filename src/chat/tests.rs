//! Tests of rendering, of what transformers adds, and of hostile templates.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use super::*;

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

fn render(source: &str) -> Result<String, ChatError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(&[message("user", "Hi <b>")], true)
}

#[test]
fn chatml_is_rendered() {
    let t = ChatTemplate::new(named_template("chatml").unwrap(), "", "").unwrap();
    let messages = [message("system", "Be terse."), message("user", "Hi")];
    let wanted = "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
    assert_eq!(t.render(&messages, false).unwrap(), wanted);
    let open = t.render(&messages, true).unwrap();
    assert_eq!(open, format!("{wanted}<|im_start|>assistant\n"));
    assert!(!t.template_adds_bos(&open));
}

#[test]
fn bos_is_seen_where_the_template_writes_it() {
    let t = ChatTemplate::new("{{ bos_token }}{{ messages[0].content }}", "<s>", "").unwrap();
    assert!(t.template_adds_bos(&t.render(&[message("user", "x")], true).unwrap()));
    assert!(!t.template_adds_bos("x<s>"));
}

#[test]
fn white_space_is_cut_as_transformers_does() {
    let source = "{% for m in messages %}\n    {% if true %}\n{{ m['content'] }}\n  {% endif %}\n\
                  {% endfor %}\nend\n";
    assert_eq!(render(source).unwrap(), "Hi <b>\nend");
}

#[test]
fn python_methods_loop_controls_and_tests_are_there() {
    let source = "{% for m in messages * 3 %}{% if loop.index > 2 %}{% break %}{% endif %}\
                  {{ m.content.strip().upper().split(' ')[0] }}{{ m.get('x', '-') }}{% endfor %}\
                  {{ tools is none }}{{ 'a' in 'abc' }}{% set ns = namespace(x=1) %}\
                  {% set ns.x = ns.x + 1 %}{{ ns.x }}";
    assert_eq!(render(source).unwrap().to_lowercase(), "hi-hi-truetrue2");
}

#[test]
fn operators_are_pythons() {
    for (source, wanted) in [
        ("{{ 1 + 2 }} {{ 1 + 2.5 }} {{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none }}", "3 3.5 ab a1none"),
        ("{{ ([1] + [2, 3]) | length }} {{ (messages + messages) | length }}", "3 2"),
        ("{{ ((1, 2) + (3,))[2] }} {{ [1, 2] + [3] == [1, 2, 3] }}", "3 true"),
        ("{{ 2 in [1, 2] }} {{ 'x' not in {'y': 1} }} {{ 1 < 2 <= 2 }}", "true true true"),
        ("{% set x = 'a' %}{% set x = x + 'b' ~ 'c' %}{{ x }}", "abc"),
        ("{{ [3, 1] | sort | join('-') }} {{ ', '.join(['a', 'b']) }}", "1-3 a, b"),
    ] {
        assert_eq!(render(source).unwrap().to_lowercase(), wanted, "{source}");
    }
    let failed = render("\n{{ 1 + 'a' }}").unwrap_err();
    assert!(matches!(failed, ChatError::Failed { line: 2, .. }), "{failed}");
}

#[test]
fn tools_documents_and_fields_of_messages_are_there() {
    let object = |text: &str| serde_json::from_str::<JsonObject>(text).unwrap();
    let source = "{{ tools | tojson }} {{ documents[0].title }} {{ messages[0].tool_calls[0].name }}\
                  {{ ' ' }}{{ messages[0].content is none }}";
    let fields = object(r#"{"tool_calls": [{"name": "look"}]}"#);
    let message = ChatMessage { role: "assistant".into(), content: Content::Null, fields };
    let t = ChatTemplate::new(source, "", "").unwrap();
    let conversation = Conversation {
        messages: &[message],
        tools: &[object(r#"{"type": "function", "function": {"name": "look", "a": 1}}"#)],
        documents: &[object(r#"{"title": "T", "text": "x"}"#)],
        variables: None,
        add_generation_prompt: true,
    };
    let wanted =
        "[{\"type\": \"function\", \"function\": {\"name\": \"look\", \"a\": 1}}] T look true";
    assert_eq!(t.render_conversation(&conversation).unwrap().to_lowercase(), wanted.to_lowercase());
}

#[test]
fn tools_and_documents_that_a_template_passes_over_are_refused() {
    let object = |text: &str| serde_json::from_str::<JsonObject>(text).unwrap();
    let (messages, things) = ([message("user", "Hi")], [object(r#"{"name": "look"}"#)]);
    let unused = |source: &str, tools: &[JsonObject], documents: &[JsonObject]| {
        let conversation =
            Conversation { messages: &messages, tools, documents, ..Default::default() };
        ChatTemplate::new(source, "", "").unwrap().render_conversation(&conversation)
    };
    let plain = "{{ messages[0].content }}{% if tools and messages | length > 1 %}x{% endif %}";
    assert_eq!(unused(plain, &[], &[]).unwrap(), "Hi");
    assert_eq!(unused(plain, &things, &[]), Err(ChatError::Unused { what: "tools" }));
    assert_eq!(unused(plain, &[], &things), Err(ChatError::Unused { what: "documents" }));
    let tools = "{{ tools[0].name }}";
    assert_eq!(unused(tools, &things, &[]).unwrap(), "look");
    assert_eq!(unused(tools, &things, &things), Err(ChatError::Unused { what: "documents" }));
}

#[test]
fn json_is_pythons() {
    let source = "{{ {'a': [1, \"<é'>\"], 'b': none} | tojson }}";
    assert_eq!(render(source).unwrap(), "{\"a\": [1, \"<é'>\"], \"b\": null}");
    assert_eq!(render("{{ {'a': 1} | tojson(indent=2) }}").unwrap(), "{\n  \"a\": 1\n}");
}

#[test]
fn time_is_formatted() {
    let year: u32 = render("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
    assert!(year >= 2025, "{year}");
    assert!(matches!(render("{{ strftime_now('%!') }}"), Err(ChatError::Failed { .. })));
}

#[test]
fn generation_tags_show_their_text() {
    let source = "{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration -%} z";
    assert_eq!(render(source).unwrap(), "xyz");
}

#[test]
fn a_refusal_carries_the_templates_own_words() {
    for source in [
        "{{ raise_exception('roles must alternate') }}",
        "{% macro m() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ m() }}",
    ] {
        let error = render(source).unwrap_err();
        assert_eq!(error, ChatError::Refused { message: "roles must alternate".to_owned() });
    }
}

#[test]
fn faults_name_the_line() {
    let syntax = render("a\n{% if %}").unwrap_err();
    assert!(matches!(syntax, ChatError::Syntax { line: 2, .. }), "{syntax}");
    let failed = render("a\n\n{{ nope() }}").unwrap_err();
    assert!(matches!(failed, ChatError::Failed { line: 3, .. }), "{failed}");
    assert!(matches!(render("{{ messages[7].content.x }}"), Err(ChatError::Failed { .. })));
    let large = render(&" ".repeat(ChatTemplate::SOURCE_BYTES_MAX + 1)).unwrap_err();
    assert!(matches!(large, ChatError::TooLarge { .. }), "{large}");
}

/// Renders within a time that no limited template needs.
fn render_soon(source: &str) -> Result<String, ChatError> {
    let start = Instant::now();
    let result = render(source);
    let head: String = source.chars().take(60).collect();
    assert!(start.elapsed() < Duration::from_secs(10), "{head}: {:?}", start.elapsed());
    result
}

fn nested(open: &str, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(50_000), close.repeat(50_000))
}

/// Templates that want more than there is.
const HOSTILE: &[&str] = &[
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 100000000000 }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x }}",
    // Lists are joined eagerly, each step paid for: not 2^40 elements at once.
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}",
    "{% set x = [1] * 100000000 %}{{ (x + x + x) | length }}",
    // Values that hold one value many times, made into text, compared, sought, sorted.
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{% set y = ns.x ~ '' %}",
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}\
         {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}\
         {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}\
         {{ ns.x in [ns.y] }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ [ns.x, ns.x] | join('-') | length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x | string | length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ '%s' % ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ '-'.join([ns.x]) | length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ raise_exception(ns.x) }}",
    "{% set x = ['a' * 1000000] * 1000000 %}{{ (x ~ '') | length }}",
    "{{ 'a'.ljust(1000000000) | length }}",
    "{{ 'a' | center(1000000000) | length }}",
    "{{ 'a\\nb' | indent(1000000000) | length }}",
    "{{ '{:18446744073709551615}'.format(1) }}",
    "{{ '{:99999999999999999999999}'.format(1) }}",
    "{{ '{:1000000000}'.format('x') }}",
    "{{ '{:.99999999f}'.format(0.1) }}",
    "{{ '{:{w}}'.format(1, w=9999999999) }}",
    "{{ '%*d' % (9999999999, 1) }}",
    "{{ '%.999999999f' % 0.1 }}",
    "{{ 'a'.zfill(99999999999999999999) }}",
    "{{ 'a\t'.expandtabs(99999999999) }}",
    "{{ 2 ** 9999999999 }}",
    "{{ -170141183460469231731687303715884105727 - 2 }}",
    "{{ strftime_now('%Y' * 100000000) }}",
    "{{ ('a ' * 10000000).split() | length }}",
    "{{ ('a\n' * 10000000).splitlines() | length }}",
    "{{ ('a' * 30000000) | list | length }}",
    "{{ 'a' | indent('x' * 100000000, true) }}",
    "{% set x = 'é' * 4000000 %}{% for i in range(100000) %}{% set y = x[3999999] %}{% endfor %}",
    "{% set x = 'é' * 4000000 %}{% for i in range(100000) %}{% set y = x[1:] %}{% endfor %}",
    "{% set x = 'a' * 9000000 %}{% set d = {x: 1} %}{% for i in range(100000) %}\
         {% set y = d[x] %}{% set y = d.get(x) %}{% endfor %}",
    "{% set x = 'a' * 9000000 %}{% for i in range(100000) %}{% set y = x.find('b') %}{% endfor %}",
    "{{ [1] | batch(10000000000, 'x') | list | length }}",
    "{{ [1] | slice(10000000000) | list | length }}",
    "{% set ns = namespace() %}{% for i in range(100000) %}{% for j in range(100) %}\
         {% set ns.x = namespace(x=ns) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    "{% include 'chat' %}",
    "{% extends 'chat' %}",
    "{{ range(1000000000) | list | tojson }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ 'aaaa'.replace('a', 'b' * 10000000).replace('b', 'c' * 10000000) }}",
    "{{ [1] | tojson(indent=100000000000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x | tojson }}",
];

#[test]
fn templates_without_end_and_huge_results_are_errors() {
    for source in HOSTILE {
        assert!(render_soon(source).is_err(), "{source}");
    }
}

#[test]
fn deeply_nested_templates_overflow_no_stack() {
    for source in [
        format!("{{{{ {} }}}}", nested("[", "", "]")),
        nested("{% if 1 %}", "", "{%endif%}"),
        nested("{% for a in [1] %}", "", ""),
    ] {
        assert!(render_soon(&source).is_err(), "{}", &source[..60]);
    }
    // These may compile, or be refused; all that matters is that they end.
    for source in [
        format!("{{{{ {} }}}}", nested("(", "1", ")")),
        format!("{{{{ {}1 }}}}", "-".repeat(200_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(200_000)),
        format!("{{{{ {}true }}}}", "not ".repeat(200_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(50_000)),
        format!("{{{{ a{} }}}}", ".a".repeat(200_000)),
    ] {
        let _ = render_soon(&source);
    }
}

#[test]
fn deeply_nested_values_overflow_no_stack() {
    // Each turn of the loop nests the value once more; then it is shown, compared, or freed.
    for (value, end) in [
        ("[ns.x]", "{{ ns.x }}"),
        ("[ns.x]", "{{ ns.x | tojson }}"),
        ("[ns.x]", "{{ ns.x == [ns.x] }}"),
        ("[ns.x]", ""),
        ("{'a': ns.x}", "{{ ns.x | tojson }}"),
        ("{'a': ns.x}", "{{ ns.x }}"),
        ("[ns.x] + [ns.x]", ""),
    ] {
        for turns in [1000, 300_000] {
            let source = format!(
                "{{% set ns = namespace(x=[]) %}}{{% for a in range({turns} // 1000) %}}\
                 {{% for b in range(1000) %}}{{% set ns.x = {value} %}}{{% endfor %}}\
                 {{% endfor %}}{end}"
            );
            let _ = render_soon(&source);
        }
    }
}

#[test]
fn values_that_refer_to_one_another_are_freed_without_a_deep_stack() {
    // Chains of macros and namespaces, each of which holds the one before, and rings.
    for source in [
        "{% set ns = namespace(f=none) %}{% for a in range(300) %}{% for i in range(100) %}\
         {% set old = ns.f %}{% macro m() %}{{ old }}{% endmacro %}{% set ns.f = m %}{% endfor %}\
         {% endfor %}ends",
        "{% set ns = namespace(f=none) %}{% for a in range(300) %}{% for i in range(100) %}\
         {% set ns.f = namespace(f=ns.f, ns=ns) %}{% endfor %}{% endfor %}ends",
        "{% for i in [1] recursive %}{{ loop.changed(loop) }}{{ loop.changed(loop) }}{% endfor %}ends",
    ] {
        let result = render_soon(source);
        assert!(result.as_ref().is_ok_and(|text| text.ends_with("ends")), "{source}: {result:?}");
    }
}

#[test]
fn a_long_conversation_is_within_the_limits() {
    let template = ChatTemplate::new(named_template("chatml").unwrap(), "", "").unwrap();
    let long = "word ".repeat(1 << 20);
    let messages = [message("user", &long), message("assistant", &long)];
    assert!(template.render(&messages, true).unwrap().len() > 10 << 20);
    let many: Vec<_> = (0..4000).map(|_| message("user", "Hi")).collect();
    assert!(template.render(&many, true).is_ok());
}

#[test]
fn a_template_for_tools_is_taken_where_there_are_tools() {
    let template = ChatTemplate::new("plain", "", "").unwrap();
    let template = template.with_tool_use("{{ tools[0].name }}").unwrap();
    let tools = [serde_json::from_str::<JsonObject>(r#"{"name": "look"}"#).unwrap()];
    let messages = [message("user", "Hi")];
    let with = Conversation { messages: &messages, tools: &tools, ..Conversation::default() };
    assert_eq!(template.render_conversation(&with).unwrap(), "look");
    assert_eq!(template.render(&messages, true).unwrap(), "plain");
}

#[test]
fn a_callers_flag_ends_a_rendering() {
    let source = "{% for a in range(100000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let cancelled = template.render_unless(&Conversation::default(), &|| true);
    assert_eq!(cancelled, Err(ChatError::Cancelled));
}

#[test]
fn messages_are_adapted_to_what_a_template_takes() {
    let object = |text: &str| serde_json::from_str::<JsonObject>(text).unwrap();
    let part = object(r#"{"type": "text", "text": "one"}"#);
    let parts = Content::Parts(vec![part.clone(), object(r#"{"type": "text", "text": "two"}"#)]);
    let user = ChatMessage { role: "user".into(), content: parts, fields: JsonObject::new() };
    let calls = r#"{"tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}"#;
    let calling = ChatMessage { role: "assistant".into(), fields: object(calls), ..user.clone() };
    let adapted = |source: &str| {
        ChatTemplate::new(source, "", "").unwrap().adapted(vec![user.clone(), calling.clone()])
    };
    let texts = adapted(
        "{% for m in messages %}{{ '' + m.content }}{% for c in m.tool_calls %}\
         {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    );
    assert_eq!(texts[0].content, Content::Text("one\ntwo".to_owned()));
    assert_eq!(
        texts[1].fields["tool_calls"][0]["function"]["arguments"],
        serde_json::json!({"a": 1})
    );
    let parts = adapted(
        "{% for m in messages %}{% for p in m.content if p is mapping %}{{ p.text }}{% endfor %}\
         {% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}",
    );
    assert_eq!(parts[0], user);
    assert!(parts[1].fields["tool_calls"][0]["function"]["arguments"].is_string());
    let source = "{% for m in messages %}{% for p in m.content if p is mapping %}{{ p.text }}\
                  {% endfor %}{% endfor %}";
    let wrapped = ChatTemplate::new(source, "", "").unwrap().adapted(vec![message("user", "one")]);
    assert_eq!(wrapped[0].content, Content::Parts(vec![part]));
}
