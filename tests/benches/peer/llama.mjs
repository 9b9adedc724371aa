// Measures llama.cpp's Vulkan backend as llama-bench does: the speed of a prompt of P tokens into
// an empty context (its last logits are computed), and of decoding N tokens from an empty context.
//
// Usage: node llama.mjs '{"modules": FOLDER, "model": FILE, "prefill": [128, 512], "decode": 32,
//                         "repetitions": 3}'
// Prints one line of JSON: {"device": NAME, "prefill": {"128": [TOKENS_PER_SECOND, ...]},
// "decode": [...]}. compare.mjs starts it, once for each measurement, on the driver wanted.

import {createRequire} from "node:module";
import {fileURLToPath, pathToFileURL} from "node:url";
import {performance} from "node:perf_hooks";

const options = JSON.parse(process.argv[2]);
if (process.env.HOB_DRIVER_RUN) process.execPath = fileURLToPath(new URL("node.sh", import.meta.url));
const resolve = createRequire(options.modules + "/");
const {getLlama} = await import(pathToFileURL(resolve.resolve("node-llama-cpp")).href);

const greedy = {generateNext: {token: true, options: {temperature: 0}}};

/** Tokens that are words, the same in every run. */
function promptTokens(count) {
    let state = 12345;
    return Array.from({length: count}, () => {
        state = (state * 1103515245 + 12345) % 2147483648;
        return 1000 + (state % 20000);
    });
}

async function prefill(sequence, count) {
    await sequence.clearHistory();
    const tokens = promptTokens(count);
    const last = tokens.pop();
    const start = performance.now();
    await sequence.controlledEvaluate([...tokens, [last, greedy]]);
    return count / ((performance.now() - start) / 1000);
}

async function decode(sequence, count) {
    await sequence.clearHistory();
    let token = promptTokens(1)[0];
    const start = performance.now();
    for (let step = 0; step < count; step++) {
        const results = await sequence.controlledEvaluate([[token, greedy]]);
        token = results[0].next.token;
    }
    return count / ((performance.now() - start) / 1000);
}

async function repeat(measure) {
    await measure(); // the first one compiles shaders
    const results = [];
    for (let n = 0; n < options.repetitions; n++) results.push(await measure());
    return results;
}

const llama = await getLlama({gpu: "vulkan", build: "never", logLevel: "error", skipDownload: true});
const model = await llama.loadModel({modelPath: options.model, gpuLayers: "max"});
const size = Math.max(...options.prefill, options.decode) + 16;
const context = await model.createContext({contextSize: size, batchSize: size});
const sequence = context.getSequence();

const result = {device: (await llama.getGpuDeviceNames()).join(", "), prefill: {}, decode: []};
for (const count of options.prefill) {
    result.prefill[count] = await repeat(() => prefill(sequence, count));
}
result.decode = await repeat(() => decode(sequence, options.decode));
console.log(JSON.stringify(result));
process.exit(0);
