#!/usr/bin/env node
// Measures hob beside llama.cpp's Vulkan backend, on one driver, on one machine, in one run.
//
// Usage: tests/benches/peer/compare.mjs [OPTION...]      (README.md beside this file)

import {execFileSync, spawnSync} from "node:child_process";
import {existsSync, mkdirSync} from "node:fs";
import {loadavg} from "node:os";
import {dirname, join, resolve} from "node:path";
import {fileURLToPath} from "node:url";
import {parseArgs} from "node:util";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../../..");
const PEER = "node-llama-cpp@3.21.1"; // carries llama.cpp with its Vulkan backend built
const LOAD_MAX = 0.5; // of the last minute; more than that, and it is others that are measured

const {values: options} = parseArgs({
    options: {
        model: {type: "string", default: join(root, "target/models/SmolLM2-135M-Instruct.Q4_1.gguf")},
        driver: {type: "string", default: "lavapipe-26.1"},
        hob: {type: "string", default: join(root, "target/release/hob")},
        prefill: {type: "string", default: "128,512"},
        decode: {type: "string", default: "32"},
        repetitions: {type: "string", default: "3"},
        peer: {type: "string", default: process.env.HOB_PEER ?? join(root, "target/peer")},
        json: {type: "boolean", default: false},
        "peer-only": {type: "boolean", default: false},
        force: {type: "boolean", default: false},
    },
});
const prefill = options.prefill.split(",").map(Number);
const decode = Number(options.decode);
const repetitions = Number(options.repetitions);

function fail(message) {
    console.error(`compare: error: ${message}`);
    process.exit(1);
}

/** The command that starts a program on the driver wanted. */
function onDriver(program, ...args) {
    if (options.driver === "system") return [program, args];
    return [join(root, "target/drivers", options.driver, "run.sh"), [program, ...args]];
}

/** Runs a program on the driver and returns the JSON that it prints last. */
function measure(environment, program, ...args) {
    const [command, all] = onDriver(program, ...args);
    const run = spawnSync(command, all, {
        encoding: "utf8",
        env: {...process.env, ...environment},
        maxBuffer: 1 << 26,
    });
    if (run.error) fail(`${command}: ${run.error.message}`);
    if (run.status !== 0) fail(`${[command, ...all].join(" ")} failed:\n${run.stderr}${run.stdout}`);
    return JSON.parse(run.stdout.slice(run.stdout.search(/^[[{]/m)));
}

const hob = () => {
    const result = {prefill: {}, decode: []};
    const bench = (p, n) =>
        measure({}, options.hob, "bench", "--model", options.model, "--json", "--force",
            "-p", String(p), "-n", String(n), "-r", String(repetitions));
    for (const count of prefill) result.prefill[count] = speeds(bench(count, 0), "pp");
    result.decode = speeds(bench(0, decode), "tg");
    return result;
};

/** Tokens per second of each repetition, out of what `hob bench --json` prints. */
function speeds(report, kind) {
    const found = report.results?.find((result) => result.test.startsWith(kind));
    if (!found) fail(`hob bench printed no ${kind}: ${JSON.stringify(report)}`);
    return found.samples;
}

const llama = (environment) => () =>
    measure({GGML_VK_VISIBLE_DEVICES: "0", ...environment}, "node", join(here, "llama.mjs"),
        JSON.stringify({modules: resolve(options.peer), model: options.model, prefill, decode,
            repetitions}));

const HOB = "hob";
const contenders = {
    ...(options["peer-only"] ? {} : {[HOB]: hob}),
    "llama.cpp": llama({}),
    "llama.cpp, f16 off": llama({GGML_VK_DISABLE_F16: "1"}),
};

function prepare() {
    const [load] = loadavg();
    if (load > LOAD_MAX && !options.force) {
        fail(`the machine is busy (load ${load.toFixed(2)} of ${LOAD_MAX}); wait, or use --force`);
    }
    options.model = resolve(options.model);
    if (!existsSync(options.model)) fail(`${options.model} is missing: make models`);
    if (!options["peer-only"] && !existsSync(options.hob)) fail(`${options.hob}: make build`);
    const [starter] = onDriver("");
    if (options.driver !== "system" && !existsSync(starter)) fail(`${starter}: make drivers`);
    if (!existsSync(join(options.peer, "node_modules/node-llama-cpp"))) {
        console.error(`compare: installing ${PEER} into ${options.peer}`);
        mkdirSync(options.peer, {recursive: true});
        execFileSync("npm", ["install", "-E", PEER, "--ignore-scripts", "--no-audit", "--no-fund"],
            {cwd: options.peer, stdio: ["ignore", 2, 2]});
    }
}

/** Forth and back (A-B-C-C-B-A), so that a drift of the machine falls on all alike. */
function measureAll() {
    const names = Object.keys(contenders);
    const results = Object.fromEntries(names.map((name) => [name, {prefill: {}, decode: []}]));
    for (const name of [...names, ...names.toReversed()]) {
        console.error(`compare: ${name}`);
        const one = contenders[name]();
        for (const count of prefill) {
            (results[name].prefill[count] ??= []).push(...one.prefill[count]);
        }
        results[name].decode.push(...one.decode);
    }
    return results;
}

function median(values) {
    const sorted = values.toSorted((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function print(results) {
    const rows = [...prefill.map((count) => [`prefill ${count}`, (r) => r.prefill[count]]),
        [`decode ${decode}`, (r) => r.decode]];
    const peers = Object.keys(results).filter((name) => name !== HOB);
    console.log(`tokens per second on ${options.driver}: median (least-most) of ${2 * repetitions}`);
    for (const [title, values] of rows) {
        console.log(title);
        for (const [name, result] of Object.entries(results)) {
            const all = values(result);
            const [least, most] = [Math.min(...all), Math.max(...all)].map((x) => x.toFixed(1));
            console.log(`  ${name.padEnd(20)} ${median(all).toFixed(1).padStart(8)}  (${least}-${most})`);
        }
        if (!results[HOB]) continue;
        const best = Math.max(...peers.map((name) => median(values(results[name]))));
        const ratio = median(values(results[HOB])) / best;
        console.log(`  ${"hob to llama.cpp's best".padEnd(20)} ${ratio.toFixed(2)}`);
    }
}

prepare();
const results = measureAll();
if (options.json) console.log(JSON.stringify({driver: options.driver, results}, null, 2));
else print(results);
