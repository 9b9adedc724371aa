#!/usr/bin/env python3
"""Renders the templates in this folder with Jinja set up as transformers does.

    python3 make.py            writes NAME.json beside each NAME.jinja

smollm2, qwen2 and phi-3 are the templates in those models' files, gemma-3 is that of the
instruction-tuned Gemma 3, tools uses what transformers adds to Jinja, and calls what models that call
tools do with them.
"""
import json
import pathlib

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONVERSATIONS = [
    [("user", "What is the capital of France? Answer in one word.")],
    [("system", "You are terse."), ("user", "Name a color."), ("assistant", "Blue."), ("user", "Another one.")],
    [("user", "  <b>é 苹果 🍎</b>\n\n'\"{{ x }}\\ ")],
    [("user", "a"), ("user", "b")],
]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Weather of a <city>",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"]}}}]
DOCUMENTS = [{"title": "Oslo", "text": "It rains."}, {"title": "é", "text": "苹果"}]
CALL = {"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": {"days": 2, "city": "Ålesund"}}}
CALLS = [
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {"name": "weather", "arguments": {}}]},
    {"role": "tool", "content": '{"rain": true}', "tool_call_id": "1", "name": "weather"},
    {"role": "tool", "content": "no city"},
    {"role": "assistant", "content": "One moment.", "tool_calls": [CALL]},
    {"role": "tool", "content": "3.5"},
]
BOS_EOS = {"smollm2": ("<|im_start|>", "<|im_end|>"), "gemma-3": ("<bos>", "<eos>")}


def raise_exception(message):
    raise jinja2.TemplateError(message)


def main():
    here = pathlib.Path(__file__).parent
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = raise_exception
    for path in sorted(here.glob("*.jinja")):
        bos, eos = BOS_EOS.get(path.stem, ("<s>", "</s>"))
        template = env.from_string(path.read_text())
        cases = []
        plain = [([{"role": role, "content": content} for role, content in conversation], {})
                 for conversation in CONVERSATIONS]
        calls = [(CALLS[:1], {"tools": TOOLS}), (CALLS, {"tools": TOOLS, "documents": DOCUMENTS})]
        for messages, given in plain + (calls if path.stem == "calls" else []):
            for add in (False, True):
                case = {"messages": messages, **given, "add_generation_prompt": add}
                try:
                    case["rendered"] = template.render(
                        messages=messages, add_generation_prompt=add, bos_token=bos, eos_token=eos,
                        tools=given.get("tools"), documents=given.get("documents"))
                except jinja2.TemplateError as error:
                    case["refused"] = str(error)
                cases.append(case)
        out = {"bos": bos, "eos": eos, "cases": cases}
        (here / (path.stem + ".json")).write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
