#!/usr/bin/env node
// Runs the F32 models that make.py left in a folder through llama.cpp's CPU backend (npm package
// node-llama-cpp 3.21.1), with an F32 cache and without flash attention, and writes
// NAME.golden.json beside this file: prompts, and the ten most likely tokens of each step.
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {getLlama} from "node-llama-cpp";

const STEPS = 4;
const here = path.dirname(fileURLToPath(import.meta.url));
const work = process.argv[2];
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});

// The same prompts for all: a short one, and one of more tokens than a tile of any kernel.
const prompts = {short: 5, long: 61};
function promptTokens(count) {
    let state = 12345;
    const tokens = [1];
    while (tokens.length < count) {
        state = (state * 1103515245 + 12345) % 2147483648;
        tokens.push(4 + (state >> 8) % 60);
    }
    return tokens;
}

async function steps(model, tokens) {
    const context = await model.createContext({
        contextSize: 256,
        batchSize: 256,
        flashAttention: false,
        experimentalKvCacheKeyType: "F32",
        experimentalKvCacheValueType: "F32"
    });
    const sequence = context.getSequence();
    const options = {temperature: 1, topK: 0, topP: 1, minP: 0};
    const found = [];
    let input = tokens;
    for (let step = 0; step < STEPS; step++) {
        const generateNext = {probabilities: true, options};
        const items = input.map((token, i) =>
            i === input.length - 1 ? [token, {generateNext}] : token
        );
        const outputs = await sequence.controlledEvaluate(items);
        const all = [...outputs[input.length - 1].next.probabilities.entries()];
        const top = all.sort((a, b) => b[1] - a[1]).slice(0, 10)
            .map(([id, p]) => [id, Number(Math.log(p).toFixed(6))]);
        found.push({id: top[0][0], top});
        input = [top[0][0]];
    }
    await context.dispose();
    return found;
}

for (const file of fs.readdirSync(work).filter((name) => name.endsWith(".gguf")).sort()) {
    const model = await llama.loadModel({modelPath: path.join(work, file), gpuLayers: 0});
    const golden = [];
    for (const [name, count] of Object.entries(prompts)) {
        const tokens = promptTokens(count);
        golden.push({name, tokens, steps: await steps(model, tokens)});
    }
    const name = path.basename(file, ".gguf");
    const text = golden.map((prompt) => JSON.stringify(prompt)).join(",\n");
    fs.writeFileSync(path.join(here, `${name}.golden.json`), `[${text}]\n`);
    console.log(name, golden.map((prompt) => prompt.steps.map((step) => step.id)).join(" | "));
    await model.dispose();
}
