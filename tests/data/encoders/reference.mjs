#!/usr/bin/env node
// Runs the F32 encoders that make.py left in a folder through llama.cpp's CPU backend (npm package
// node-llama-cpp 3.21.1), and writes NAME.golden.json beside this file: tokens of texts, and their
// embeddings, of length 1.
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {getLlama} from "node-llama-cpp";

const here = path.dirname(fileURLToPath(import.meta.url));
const work = process.argv[2];
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});

function textTokens(count) {
    let state = 4321;
    const tokens = [2];
    while (tokens.length < count - 1) {
        state = (state * 1103515245 + 12345) % 2147483648;
        tokens.push(5 + (state >> 8) % 59);
    }
    return [...tokens, 3];
}

for (const file of fs.readdirSync(work).filter((name) => name.endsWith(".gguf")).sort()) {
    const model = await llama.loadModel({modelPath: path.join(work, file), gpuLayers: 0});
    const context = await model.createEmbeddingContext({contextSize: 128, batchSize: 128});
    const golden = [];
    for (const count of [3, 20, 75]) {
        const tokens = textTokens(count);
        const {vector} = await context.getEmbeddingFor(tokens);
        const length = Math.hypot(...vector);
        golden.push({tokens, embedding: vector.map((v) => Number((v / length).toFixed(6)))});
    }
    const text = golden.map((entry) => JSON.stringify(entry)).join(",\n");
    const name = path.basename(file, ".gguf");
    fs.writeFileSync(path.join(here, `${name}.golden.json`), `[${text}]\n`);
    console.log(name, golden[1].embedding.slice(0, 4));
    await model.dispose();
}
