#!/usr/bin/env python3
"""Renders published templates, which keep licences of their own and are not in this repository, and
small expressions, which are, with Jinja set up as transformers does.

    python3 -m venv V && V/bin/pip install jinja2==3.1.6
    V/bin/python make_real.py TEMPLATES [OUT]     writes real.json and expressions.json here

TEMPLATES is a folder of *.jinja. Of each rendering only the SHA-256 is written; OUT gets the texts, to
look at where one differs. The dates that a template writes are replaced by their format.
"""
import datetime
import hashlib
import json
import pathlib
import sys
import types

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATES = ["%d %b %Y", "%B %d, %Y", "%Y-%m-%d"]
CALL = {"id": "abcdefghi", "type": "function", "function": {
    "name": "weather", "arguments": {"days": 2, "city": "Ålesund", "hours": [1, 2.5], "now": True}}}
TEXT_CALL = {"id": "abcdefghi", "type": "function", "function": {
    "name": "weather", "arguments": '{"days": 2}'}}
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "Weather of a <city>\nby \"day\"",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "days": {"type": "integer", "minimum": 1, "default": 3},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "at": {"type": ["string", "null"]},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {
        "type": "object", "properties": {}}}},
]
S = {"role": "system", "content": "You are terse.\n"}
U = {"role": "user", "content": "  Rain in <Oslo>? é 苹果 🍎 "}
A = {"role": "assistant", "content": "Yes.\n\nSurely."}
ASK = {"role": "assistant", "content": "", "tool_calls": [CALL]}
T = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"rain": true}'}
CONVERSATIONS = {
    "user": ([U], {}),
    "system": ([S, U], {}),
    "turns": ([S, U, A, {"role": "user", "content": "Why?"}], {}),
    "user user": ([U, U], {}),
    "thinking": ([U, A, U], {"enable_thinking": True, "thinking": True}),
    "not thinking": ([U, A, U], {"enable_thinking": False, "thinking": False}),
    "thought": ([S, U, A | {"reasoning_content": "Let me see.", "thinking": "Let me see."}, U], {}),
    "thought last": ([U, A | {"reasoning_content": "Let me see."}], {}),
    "think tags": ([U, A | {"content": "<think>\nLet me see.\n</think>\n\nYes."}, U], {}),
    "answered": ([S, U, A], {}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Rain?"}, {"type": "text", "text": "é"}]}], {}),
    "tools": ([U], {"tools": TOOLS}),
    "tools system": ([S, U], {"tools": TOOLS}),
    "called": ([S, U, ASK, T], {"tools": TOOLS}),
    "called and answered": ([U, ASK, T, A, U], {"tools": TOOLS}),
    "thought and called": ([U, ASK | {"reasoning_content": "I should ask."}, T], {"tools": TOOLS}),
    "called without tools": ([U, ASK, T], {}),
    "text arguments": ([U, ASK | {"tool_calls": [TEXT_CALL]}, T], {"tools": TOOLS}),
    "two calls": ([U, ASK | {"content": "Two.", "tool_calls": [CALL, CALL]}, T, T], {"tools": TOOLS}),
    "null content": ([U, ASK | {"content": None}, T], {"tools": TOOLS}),
    "no content": ([U, {"role": "assistant", "tool_calls": [CALL]}, T], {"tools": TOOLS}),
    "documents": ([U], {"documents": [{"title": "Oslo", "text": "It rains.", "doc_id": 1}]}),
    "unknown role": ([{"role": "robot", "content": "x"}], {}),
}
VARIABLES = {"a": "abc", "s": "  Ünï\tx y\n", "n": None, "i": 7, "neg": -7, "f": 2.5, "big": 1e22, "t": True,
             "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": [1, "x"], "items": 5}, "q": "it's \"so\"\\\n\x07\u200b",
             "m": [{"n": "x", "v": 2, "k": {"z": 1}}, {"n": "Y", "v": 1, "k": {"z": 2}}, {"n": "z", "v": 2}],
             "lines": "a\n\n  b\r\nc\n"}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # A filter such as `map` gives a generator, which hob writes as the list that is meant.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys,
                      default=lambda value: list(value) if isinstance(value, types.GeneratorType) else json.JSONEncoder().default(value))


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.now(datetime.timezone.utc).strftime(format)
    return env


def rendered(env, source, **variables):
    """The text, or the kind of failure and its message."""
    try:
        template = env.from_string(source)
    except Exception as error:
        return None, "syntax", str(error)
    try:
        return template.render(**variables), None, None
    except jinja2.TemplateError as error:
        kind = "refused" if type(error) is jinja2.TemplateError else "failed"
        return None, kind, str(error)
    except Exception as error:
        return None, "failed", str(error)


def real(templates, out):
    env = environment()
    names = {name: {"messages": messages, **more} for name, (messages, more) in CONVERSATIONS.items()}
    facts = {}
    for path in sorted(templates.glob("*.jinja")):
        facts[path.name] = {}
        for name, given in names.items():
            add = given["messages"][-1]["role"] != "assistant"
            text, kind, message = rendered(
                env, path.read_text(), **{"tools": None, "documents": None, **given},
                add_generation_prompt=add, bos_token="<s>", eos_token="</s>")
            if kind:
                facts[path.name][name] = {kind: message if kind == "refused" else True}
                text = f"{kind}: {message}"
            else:
                now = datetime.datetime.now(datetime.timezone.utc)
                for format in DATES:
                    text = text.replace(now.strftime(format), format)
                facts[path.name][name] = hashlib.sha256(text.encode()).hexdigest()
            if out:
                (out / f"{path.name}.{name.replace(' ', '-')}").write_text(text)
    return {"conversations": names, "templates": facts}


def expressions(here):
    env = environment()
    facts = []
    for source in (here / "expressions.txt").read_text().split("\n---\n"):
        text, kind, _ = rendered(env, source, **VARIABLES)
        facts.append([source, {"failed": True} if kind else text])
    return {"variables": VARIABLES, "cases": facts}


def main():
    here = pathlib.Path(__file__).parent
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    for name, facts in [("real", real(pathlib.Path(sys.argv[1]), out)), ("expressions", expressions(here))]:
        (here / f"{name}.json").write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n")


main()
