#!/usr/bin/env node
// Measures hob beside llama.cpp, on the same drivers, machine and models, in one run.
//
// Usage: tests/benches/peer/compare.mjs [OPTION...]      (README.md beside this file)

import {execFileSync, spawnSync} from "node:child_process";
import {existsSync, mkdirSync, readFileSync} from "node:fs";
import {basename, dirname, join, resolve} from "node:path";
import {fileURLToPath} from "node:url";
import {parseArgs} from "node:util";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../../..");
const models = process.env.HOB_MODELS ?? join(root, "target/models");
const PEER = "node-llama-cpp@3.21.1"; // carries llama.cpp with its Vulkan backend built
const OTHERS_MAX = 0.1; // of all processors' time; more than that, and it is others that are measured
const LOOK_MS = 500;
const PATIENCE_LOOKS = 20; // how often is looked whether the machine has become quiet

const {values: options} = parseArgs({
    options: {
        models: {
            type: "string",
            default: ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"]
                .map((name) => join(models, name)).join(","),
        },
        drivers: {type: "string", default: "lavapipe-26.1"},
        hob: {type: "string", default: join(root, "target/release/hob")},
        prefill: {type: "string", default: "128,512"},
        decode: {type: "string", default: "32"},
        sessions: {type: "string", default: "8"},
        repetitions: {type: "string", default: "3"},
        rounds: {type: "string", default: "1"},
        peer: {type: "string", default: process.env.HOB_PEER ?? join(root, "target/peer")},
        json: {type: "boolean", default: false},
        "no-cpu": {type: "boolean", default: false},
        force: {type: "boolean", default: false},
    },
});
const list = (text) => text.split(",").filter((part) => part !== "");
const prefill = list(options.prefill).map(Number);
const decode = Number(options.decode);
const sessions = Number(options.sessions);
const repetitions = Number(options.repetitions);

function fail(message) {
    console.error(`compare: error: ${message}`);
    process.exit(1);
}

// --- The machine

/** Ticks of all processors, and those in use. */
function ticks() {
    const fields = readFileSync("/proc/stat", "utf8").split("\n")[0].split(/\s+/).slice(1, 9).map(Number);
    const all = fields.reduce((a, b) => a + b);
    return {all, used: all - fields[3] - fields[4]};
}

function sleep(ms) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** Waits until others leave the processors alone: nothing of this run is running now. */
function waitForQuiet() {
    if (options.force) return;
    let others;
    for (let look = 0; look < PATIENCE_LOOKS; look++) {
        const before = ticks();
        sleep(LOOK_MS);
        const after = ticks();
        others = (after.used - before.used) / Math.max(1, after.all - before.all);
        if (others <= OTHERS_MAX) return;
    }
    fail(`others use ${(100 * others).toFixed(0)} % of the processors; wait, or use --force`);
}

/** The command that starts a program on a driver. */
function onDriver(driver, program, ...args) {
    if (driver === "system") return [program, args];
    return [join(root, "target/drivers", driver, "run.sh"), [program, ...args]];
}

/** Runs a program on a driver and returns the JSON that it prints last. */
function measure(driver, environment, program, ...args) {
    waitForQuiet();
    const [command, all] = onDriver(driver, program, ...args);
    const run = spawnSync(command, all, {
        encoding: "utf8",
        env: {...process.env, ...environment},
        maxBuffer: 1 << 26,
    });
    if (run.error) fail(`${command}: ${run.error.message}`);
    if (run.status !== 0) fail(`${[command, ...all].join(" ")} failed:\n${run.stderr}${run.stdout}`);
    return JSON.parse(run.stdout.slice(run.stdout.search(/^[[{]/m)));
}

// --- Who is measured. Each returns tokens per second of each repetition, by test.

const TESTS = [
    ...prefill.map((count) => `prefill ${count}`),
    `decode ${decode}`,
    ...(sessions > 1 ? [`decode ${decode} x ${sessions}`] : []),
];

/** `hob bench`'s names of the tests. */
function hobName(test) {
    return test.replace(/^prefill /, "pp").replace(/^decode /, "tg");
}

function hob(driver, model) {
    const bench = (...args) => {
        const force = options.force ? ["--force"] : [];
        const report = measure(driver, {}, options.hob, "bench", "--model", model, "--json",
            "-r", String(repetitions), ...force, ...args);
        if (report.disturbed && !options.force) {
            fail(`others used ${(100 * report.others_cpu).toFixed(0)} % of the processors meanwhile`);
        }
        return report.results;
    };
    const results = [
        ...bench("-p", options.prefill, "-n", "0"),
        ...bench("-p", "0", "-n", options.decode, "--sessions", sessions > 1 ? `1,${sessions}` : "1"),
    ];
    return Object.fromEntries(TESTS.map((test) => {
        const found = results.find((result) => result.test === hobName(test));
        if (!found) fail(`hob bench printed no ${hobName(test)}: ${JSON.stringify(results)}`);
        return [test, found.samples];
    }));
}

/** The CPU backend needs no Vulkan driver, and is started without one. */
const llama = (gpu, environment) => (driver, model) => {
    const asked = {modules: resolve(options.peer), model, prefill, decode, sessions, repetitions, gpu};
    return measure(gpu ? driver : "system", {GGML_VK_VISIBLE_DEVICES: "0", ...environment}, "node",
        join(here, "llama.mjs"), JSON.stringify(asked)).results;
};

const HOB = "hob";
const CPU = "llama.cpp CPU";
const contenders = {
    [HOB]: hob,
    "llama.cpp Vulkan": llama("vulkan", {}),
    "llama.cpp Vulkan, f16 off": llama("vulkan", {GGML_VK_DISABLE_F16: "1"}),
    ...(options["no-cpu"] ? {} : {[CPU]: llama(false, {})}),
};
const vulkan = Object.keys(contenders).filter((name) => name !== HOB && name !== CPU);

function prepare() {
    for (const model of list(options.models)) {
        if (!existsSync(model)) fail(`${model} is missing: make models`);
    }
    if (!existsSync(options.hob)) fail(`${options.hob} is missing: make build`);
    for (const driver of list(options.drivers)) {
        const [starter] = onDriver(driver, "");
        if (driver !== "system" && !existsSync(starter)) fail(`${starter} is missing: make drivers`);
    }
    if (!existsSync(join(options.peer, "node_modules/node-llama-cpp"))) {
        console.error(`compare: installing ${PEER} into ${options.peer}`);
        mkdirSync(options.peer, {recursive: true});
        execFileSync("npm", ["install", "-E", PEER, "--ignore-scripts", "--no-audit", "--no-fund"],
            {cwd: options.peer, stdio: ["ignore", 2, 2]});
    }
    waitForQuiet();
}

/** Forth and back (A-B-C-C-B-A), so that a drift of the machine falls on all alike. */
function measureAll(driver, model) {
    const names = Object.keys(contenders);
    const results = Object.fromEntries(names.map((name) => [name, {}]));
    for (let round = 0; round < Number(options.rounds); round++) {
        for (const name of [...names, ...names.toReversed()]) {
            console.error(`compare: ${basename(model)} on ${driver}: ${name}`);
            const one = contenders[name](driver, resolve(model));
            for (const test of TESTS) (results[name][test] ??= []).push(...one[test]);
        }
    }
    return results;
}

// --- What is said

function median(values) {
    const sorted = values.toSorted((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Medians of a test, and hob's ratios to llama.cpp's better setting and to its CPU backend. */
function compare(results, test) {
    const of = (name) => median(results[name][test]);
    const best = vulkan.toSorted((a, b) => of(b) - of(a))[0];
    const row = {test, hob: of(HOB), vulkan: of(best), setting: best, ratio: of(HOB) / of(best)};
    if (!options["no-cpu"]) Object.assign(row, {cpu: of(CPU), cpu_ratio: of(HOB) / of(CPU)});
    const all = results[HOB][test];
    return {...row, least: Math.min(...all), most: Math.max(...all)};
}

function print(driver, model, rows) {
    const samples = 2 * Number(options.rounds) * repetitions;
    console.log(`\n${basename(model)} on ${driver}: tokens per second, medians of ${samples}`);
    const head = ["", "hob", "(least-most)", "llama.cpp Vulkan", "ratio", "llama.cpp CPU", "ratio"];
    const cells = rows.map((row) => [
        row.test,
        row.hob.toFixed(1),
        `${row.least.toFixed(1)}-${row.most.toFixed(1)}`,
        row.vulkan.toFixed(1) + (row.setting.endsWith("off") ? " (f16 off)" : " (f16 on)"),
        `${row.ratio.toFixed(2)}x`,
        row.cpu?.toFixed(1) ?? "-",
        row.cpu_ratio ? `${row.cpu_ratio.toFixed(2)}x` : "-",
    ]);
    const widths = head.map((_, i) => Math.max(...[head, ...cells].map((row) => row[i].length)));
    for (const row of [head, ...cells]) {
        console.log(row.map((cell, i) => i ? cell.padStart(widths[i]) : cell.padEnd(widths[i])).join("  "));
    }
    const one = rows.find((row) => row.test === `decode ${decode}`);
    const many = rows.find((row) => row.test === `decode ${decode} x ${sessions}`);
    if (one && many) {
        const ratio = (many.hob / one.hob).toFixed(2);
        console.log(`${sessions} sessions decode together at ${ratio}x the rate of one`);
    }
}

prepare();
const reports = [];
for (const driver of list(options.drivers)) {
    for (const model of list(options.models)) {
        const results = measureAll(driver, model);
        const rows = TESTS.map((test) => compare(results, test));
        reports.push({driver, model, rows, results});
        if (!options.json) print(driver, model, rows);
    }
}
if (options.json) console.log(JSON.stringify(reports, null, 2));
