#!/usr/bin/env python3
"""Makes the golden files of this folder from the reference outputs of llama.cpp.

usage: make.py REFERENCE.json HOB MODEL.gguf > GOLDEN.json

The reference lists a step for each piece of text that llama-server reported; it reports none for a token
that leaves a character unfinished. So the tokens that were really generated are those of `content`, and
each step gets the index (`at`) of its token among them. Where the model stopped, its stop token comes last.
"""
import json, subprocess, sys

reference, hob, model = sys.argv[1:4]
cases = []
for case in json.load(open(reference)):
    command = [hob, "tokenize", "--model", model, "--json"]
    text = case["content"].encode()
    tokens = json.loads(subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout)
    ids = [step["id"] for step in case["steps"]]
    if len(ids) > len(tokens):  # stopped: the text does not show the stop token
        tokens = tokens + ids[len(tokens):]
    at, places = 0, []
    for token in ids:
        at = tokens.index(token, at)
        places.append(at)
        at += 1
    cases.append({
        "name": case["name"], "prompt": case["prompt"], "messages": case.get("messages"),
        "tokens": case["tokens"], "content": case["content"], "generated": tokens,
        "steps": [
            {"at": place, "id": step["id"], "top": [[i, round(p, 5)] for i, p in step["top"]]}
            for place, step in zip(places, case["steps"])
        ],
    })
lines = (json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
print("[\n" + ",\n".join(lines) + "\n]")
