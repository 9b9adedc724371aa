//! The forms of calls and thoughts, family by family.

use crate::chat::ChatTemplate;

/// Marks around a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// Before it. A prompt may end with it already.
    pub open: &'static str,
    /// Behind it.
    pub close: &'static str,
    /// True if a call ends a thought that was not closed.
    pub calls_end_it: bool,
}

/// How a model writes thoughts and calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFormat {
    /// Its thoughts, if it has any.
    pub reasoning: Option<Reasoning>,
    /// Its calls, if it has a form for them.
    pub(super) calls: Option<Calls>,
    /// Marks that stand around content and are none of it.
    pub(super) wraps: &'static [&'static str],
}

/// A form of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    /// Marks that begin calls; the first is what the model was trained on.
    pub(super) open: &'static [&'static str],
    pub(super) kind: Kind,
    /// Marks that end calls, and may be missing.
    pub(super) close: &'static [&'static str],
}

/// The inside of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An object, or an array of them.
    Json(JsonKeys),
    /// A name, and an object of arguments behind a mark.
    Named {
        /// Before the name, such as `function<sep>`; may be missing.
        prefix: &'static str,
        /// What ends the name: the last one stands before the arguments, another before an id.
        ends: &'static [&'static str],
        /// Marks behind the arguments.
        behind: &'static [&'static str],
    },
    /// Marks around the name and each argument.
    Tagged(Tags),
    /// `call:name{key:value}`, with texts between marks.
    Gemma {
        /// The mark on both sides of a text.
        quote: &'static str,
    },
    /// `[name(key=value)]`, as in Python.
    Pythonic,
    /// Channels: the whole output has a form of its own.
    Harmony,
}

/// Names of an object's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonKeys {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
    pub(super) id: &'static str,
    /// True for an array; some models write one object without it.
    pub(super) array: bool,
    /// True if the id comes last, so that a call begins when it is whole.
    pub(super) id_last: bool,
}

/// Marks of a tagged call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Around the name.
    pub(super) name: (&'static str, &'static [&'static str]),
    /// Before a parameter's name, behind it, and behind its value.
    pub(super) parameter: (&'static str, &'static str, &'static str),
    /// Behind the parameters.
    pub(super) end: &'static str,
    /// True if values stand on lines of their own.
    pub(super) lines: bool,
    /// True if `string="true"` or `"false"` says how a value is written.
    pub(super) says_string: bool,
}

const NAME: JsonKeys = JsonKeys {
    name: "name",
    arguments: &["arguments", "parameters"],
    id: "id",
    array: false,
    id_last: false,
};

const ARRAY: JsonKeys = JsonKeys { array: true, ..NAME };

const COHERE: JsonKeys = JsonKeys {
    name: "tool_name",
    arguments: &["parameters"],
    id: "tool_call_id",
    array: true,
    id_last: false,
};

const THINK: Reasoning = Reasoning { open: "<think>", close: "</think>", calls_end_it: false };

const fn tags(
    name: (&'static str, &'static [&'static str]),
    parameter: (&'static str, &'static str, &'static str),
    end: &'static str,
) -> Tags {
    Tags { name, parameter, end, lines: false, says_string: false }
}

const fn calls(
    open: &'static [&'static str],
    kind: Kind,
    close: &'static [&'static str],
) -> Option<Calls> {
    Some(Calls { open, kind, close })
}

/// A family: the parts that its templates have, those that they do not, and its form.
struct Family {
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    calls: Option<Calls>,
    wraps: &'static [&'static str],
}

const fn family(
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    calls: Option<Calls>,
) -> Family {
    Family { has, lacks, calls, wraps: &[] }
}

const QWEN_CODER: Tags = Tags {
    lines: true,
    ..tags(("<function=", &[">"]), ("<parameter=", ">", "</parameter>"), "</function>")
};

const GLM: Tags = tags(
    ("", &["\n", "<arg_key>", "</tool_call>"]),
    ("<arg_key>", "</arg_key>", "</arg_value>"),
    "",
);

const DSML: Tags = Tags {
    says_string: true,
    ..tags(
        ("<｜DSML｜invoke name=\"", &["\">"]),
        ("<｜DSML｜parameter name=\"", "\"", "</｜DSML｜parameter>"),
        "</｜DSML｜invoke>",
    )
};

/// The families, the more particular ones first.
const FAMILIES: [Family; 27] = [
    family(&["<|channel|>", "<|message|>", "<|start|>"], &[], calls(&[], Kind::Harmony, &[])),
    family(
        &["｜DSML｜"],
        &[],
        calls(
            &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
            Kind::Tagged(DSML),
            &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        ),
    ),
    family(
        &["<｜tool▁calls▁begin｜>"],
        &[],
        calls(
            &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
            Kind::Named {
                prefix: "function<｜tool▁sep｜>",
                ends: &["\n```json\n", "<｜tool▁sep｜>"],
                behind: &["```", "<｜tool▁call▁end｜>"],
            },
            &["<｜tool▁calls▁end｜>"],
        ),
    ),
    family(
        &["<minimax:tool_call>"],
        &[],
        calls(
            &["<minimax:tool_call>"],
            Kind::Tagged(tags(
                ("<invoke name=\"", &["\">"]),
                ("<parameter name=\"", "\">", "</parameter>"),
                "</invoke>",
            )),
            &["</minimax:tool_call>"],
        ),
    ),
    family(
        &["<seed:tool_call>"],
        &[],
        calls(
            &["<seed:tool_call>"],
            Kind::Tagged(Tags { lines: false, ..QWEN_CODER }),
            &["</seed:tool_call>"],
        ),
    ),
    family(
        &["<tool_call>", "<function=", "<parameter="],
        &[],
        calls(&["<tool_call>", "<function="], Kind::Tagged(QWEN_CODER), &["</tool_call>"]),
    ),
    family(
        &["<arg_key>", "<tool_call>"],
        &[],
        calls(&["<tool_call>"], Kind::Tagged(GLM), &["</tool_call>"]),
    ),
    family(
        &["<function name=", "<param name="],
        &[],
        calls(
            &["<function name=\""],
            Kind::Tagged(tags(
                ("<function name=\"", &["\">"]),
                ("<param name=\"", "\">", "</param>"),
                "</function>",
            )),
            &[],
        ),
    ),
    Family {
        has: &["<|tool_call>", "<tool_call|>"],
        lacks: &[],
        calls: calls(&["<|tool_call>"], Kind::Gemma { quote: "<|\"|>" }, &["<tool_call|>"]),
        wraps: &["<|channel>"],
    },
    family(
        &["<start_function_call>"],
        &[],
        calls(
            &["<start_function_call>"],
            Kind::Gemma { quote: "<escape>" },
            &["<end_function_call>"],
        ),
    ),
    family(
        &["[TOOL_CALLS]", "[ARGS]"],
        &[],
        calls(
            &["[TOOL_CALLS]"],
            Kind::Named { prefix: "", ends: &["[CALL_ID]", "[ARGS]"], behind: &[] },
            &[],
        ),
    ),
    family(
        &["[TOOL_CALLS]"],
        &[],
        calls(&["[TOOL_CALLS]"], Kind::Json(JsonKeys { id_last: true, ..ARRAY }), &[]),
    ),
    Family {
        has: &["<|START_ACTION|>"],
        lacks: &[],
        calls: calls(&["<|START_ACTION|>"], Kind::Json(COHERE), &["<|END_ACTION|>"]),
        wraps: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    },
    family(
        &["Action:", "tool_name"],
        &[],
        calls(&["Action:\n```json\n", "Action: ```json\n"], Kind::Json(COHERE), &["\n```", "```"]),
    ),
    family(
        &["<|tool_call_start|>"],
        &[],
        calls(&["<|tool_call_start|>"], Kind::Pythonic, &["<|tool_call_end|>"]),
    ),
    family(
        &["List of tools: "],
        &[],
        calls(&["<|tool_call_start|>"], Kind::Pythonic, &["<|tool_call_end|>"]),
    ),
    family(&["<TOOLCALL>"], &[], calls(&["<TOOLCALL>"], Kind::Json(ARRAY), &["</TOOLCALL>"])),
    family(&["<tool_calls>"], &[], calls(&["<tool_calls>"], Kind::Json(ARRAY), &["</tool_calls>"])),
    family(
        &["<|tools_prefix|>"],
        &[],
        calls(
            &["<|tools_prefix|>"],
            Kind::Json(JsonKeys { name: "", ..ARRAY }),
            &["<|tools_suffix|>"],
        ),
    ),
    family(&["<|function_call|>"], &[], calls(&["<|function_call|>"], Kind::Json(NAME), &[])),
    family(
        &["function call", "<|role_sep|>"],
        &[],
        calls(&["<|message_sep|>\n\nfunction call<|role_sep|>\n"], Kind::Json(NAME), &[]),
    ),
    family(
        &["<|tool_call|>"],
        &["<tool_call>"],
        calls(&["<|tool_call|>"], Kind::Json(ARRAY), &["<|/tool_call|>"]),
    ),
    family(&["functools["], &[], calls(&["functools"], Kind::Json(ARRAY), &[])),
    family(&["<tool_call>"], &[], calls(&["<tool_call>"], Kind::Json(NAME), &["</tool_call>"])),
    family(
        &["<function"],
        &[],
        calls(
            &["<function="],
            Kind::Named { prefix: "", ends: &[">"], behind: &["</function>"] },
            &[],
        ),
    ),
    Family { has: &["recipient", ">>>"], lacks: &[], calls: None, wraps: &["all\n", ">>>all\n"] },
    family(&["<|python_tag|>"], &[], calls(&["<|python_tag|>"], Kind::Json(NAME), &["<|eom_id|>"])),
];

/// Marks of thoughts, the more particular ones first.
const THOUGHTS: [Reasoning; 8] = [
    Reasoning { open: "[THINK]", close: "[/THINK]", calls_end_it: false },
    Reasoning { open: "<|START_THINKING|>", close: "<|END_THINKING|>", calls_end_it: false },
    Reasoning { open: "<|channel>thought\n", close: "<channel|>", calls_end_it: false },
    Reasoning { open: "<seed:think>", close: "</seed:think>", calls_end_it: false },
    Reasoning { open: "<mm:think>", close: "</mm:think>", calls_end_it: false },
    Reasoning { open: "<|inner_prefix|>", close: "<|inner_suffix|>", calls_end_it: false },
    Reasoning {
        open: "Here are my reasoning steps:\n",
        close: "[BEGIN FINAL RESPONSE]",
        calls_end_it: false,
    },
    THINK,
];

impl CallFormat {
    /// The form of a model whose template this is. A model without a form for calls has thoughts
    /// between `<think>` and `</think>` where it writes these marks.
    #[must_use]
    pub fn find(template: &ChatTemplate) -> Self {
        Self::of_source(template.source())
    }

    /// As [`Self::find`], of a template's source.
    #[must_use]
    pub fn of_source(source: &str) -> Self {
        let found = FAMILIES.iter().find(|family| {
            family.has.iter().all(|part| source.contains(part))
                && !family.lacks.iter().any(|part| source.contains(part))
        });
        let (calls, wraps) = found.map_or((None, &[][..]), |family| (family.calls, family.wraps));
        let thoughts = THOUGHTS.iter().find(|thought| source.contains(thought.close)).copied();
        let ends = matches!(calls, Some(Calls { kind: Kind::Tagged(_), .. }));
        let reasoning = thoughts.unwrap_or(THINK);
        let reasoning = Some(Reasoning { calls_end_it: ends, ..reasoning });
        Self { reasoning, calls, wraps }
    }

    /// True if the model has a form for calls.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// The marks of this form. Those that are special tokens of the model's vocabulary are to be
    /// named to the parser.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let reasoning = self.reasoning.into_iter().flat_map(|r| [r.open, r.close]);
        let calls = self.calls.into_iter().flat_map(|calls| calls.open.iter().chain(calls.close));
        reasoning.chain(calls.copied()).chain(self.wraps.iter().copied())
    }
}
