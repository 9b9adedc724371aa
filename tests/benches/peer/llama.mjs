// Measures llama.cpp as llama-bench does: the speed of a prompt of P tokens into an empty context
// (its last logits are computed), and of decoding N tokens from an empty context, by one session and
// by several that decode together.
//
// Usage: node llama.mjs '{"modules": FOLDER, "model": FILE, "prefill": [128, 512], "decode": 32,
//                         "sessions": 8, "repetitions": 3, "gpu": "vulkan" or false}'
// Prints one line of JSON: {"device": NAME, "results": {"prefill 128": [TOKENS_PER_SECOND, ...],
// "decode 32": [...], "decode 32 x 8": [...]}}. compare.mjs starts it, once for each measurement, on
// the driver wanted.

import {createRequire} from "node:module";
import {availableParallelism} from "node:os";
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

/** Tokens per second of what `work` does with `count` tokens. */
async function rate(count, work) {
    const start = performance.now();
    await work();
    return count / ((performance.now() - start) / 1000);
}

async function prefill(sequence, count) {
    await sequence.clearHistory();
    const tokens = promptTokens(count);
    const last = tokens.pop();
    return rate(count, () => sequence.controlledEvaluate([...tokens, [last, greedy]]));
}

async function generate(sequence, count) {
    let token = promptTokens(1)[0];
    for (let step = 0; step < count; step++) {
        const results = await sequence.controlledEvaluate([[token, greedy]]);
        token = results[0].next.token;
    }
}

/** All sequences at once: the library puts what they ask for in the same moment into one batch. */
async function decode(sequences, count) {
    for (const sequence of sequences) await sequence.clearHistory();
    const all = () => Promise.all(sequences.map((sequence) => generate(sequence, count)));
    return rate(count * sequences.length, all);
}

async function repeat(measure) {
    await measure(); // the first one compiles shaders
    const results = [];
    for (let n = 0; n < options.repetitions; n++) results.push(await measure());
    return results;
}

const llama = await getLlama({gpu: options.gpu, build: "never", logLevel: "error", skipDownload: true});
const model = await llama.loadModel({modelPath: options.model, gpuLayers: options.gpu ? "max" : 0});
const size = Math.max(...options.prefill, options.decode) + 16;
const results = {};

async function withContext(sequences, measure) {
    // Its own default is more threads than a small machine has cores, which then wait for each other.
    const threads = availableParallelism();
    const context = await model.createContext({contextSize: size, batchSize: size, sequences, threads});
    await measure(Array.from({length: sequences}, () => context.getSequence()));
    await context.dispose();
}

await withContext(1, async ([sequence]) => {
    for (const count of options.prefill) {
        results[`prefill ${count}`] = await repeat(() => prefill(sequence, count));
    }
    results[`decode ${options.decode}`] = await repeat(() => decode([sequence], options.decode));
});
if (options.sessions > 1) {
    await withContext(options.sessions, async (sequences) => {
        const name = `decode ${options.decode} x ${options.sessions}`;
        results[name] = await repeat(() => decode(sequences, options.decode));
    });
}
const device = options.gpu ? (await llama.getGpuDeviceNames()).join(", ") : "CPU";
console.log(JSON.stringify({device, results}));
process.exit(0);
