#!/usr/bin/env python3
"""Renders the templates in this folder with Jinja set up as transformers does.

    python3 make.py            writes NAME.json beside each NAME.jinja

smollm2, qwen2 and phi-3 are the templates in those models' files, gemma-3 is that of the
instruction-tuned Gemma 3, tools uses what transformers adds to Jinja.
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
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for add in (False, True):
                case = {"messages": messages, "add_generation_prompt": add}
                try:
                    case["rendered"] = template.render(
                        messages=messages, add_generation_prompt=add, bos_token=bos, eos_token=eos,
                        tools=None, documents=None)
                except jinja2.TemplateError as error:
                    case["refused"] = str(error)
                cases.append(case)
        out = {"bos": bos, "eos": eos, "cases": cases}
        (here / (path.stem + ".json")).write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
