// What llama.cpp computes of the tiny models; README.md says how to run this.
// Usage: node golden.mjs FOLDER OUT [NAME...]
import fs from "node:fs";
import path from "node:path";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const STEPS = 4; // the last tokens of the prompt
const TOP = 10;
const [, , folder, out, ...names] = process.argv;
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
for (const file of fs.readdirSync(folder).filter((name) => name.endsWith(".gguf")).sort()) {
    const name = file.slice(0, -".gguf".length);
    if (names.length > 0 && !names.includes(name)) continue;
    const {tokens, context: contextSize} =
        JSON.parse(fs.readFileSync(path.join(folder, `${name}.prompt.json`), "utf8"));
    try {
        const model = await llama.loadModel({modelPath: path.join(folder, file)});
        const context = await model.createContext({
            contextSize, flashAttention: false, batchSize: 64,
            experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
        });
        const next = {generateNext: {token: true, probabilities: true}};
        const first = tokens.length - STEPS;
        const found = await context.getSequence()
            .controlledEvaluate(tokens.map((token, at) => (at < first ? token : [token, next])));
        const steps = [];
        for (let at = first; at < tokens.length; at++) {
            const all = [...found[at].next.probabilities.entries()].sort((a, b) => b[1] - a[1]);
            const top = all.slice(0, TOP).map(([token, p]) => [token, +Math.log(p).toFixed(6)]);
            steps.push({at, top});
        }
        fs.writeFileSync(path.join(out, `${name}.json`), JSON.stringify({tokens, steps}) + "\n");
        await context.dispose();
        await model.dispose();
    } catch (error) {
        console.error(`${name}: ${error}`);
        process.exitCode = 1;
    }
}
process.exit();
