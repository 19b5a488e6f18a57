// kiln-embed and its add-ons as npm packages in Node, Deno and Bun, installed from their tarballs. By tests/browser.sh.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { cosine, native, texts } from "../browser/vectors.mjs";

const { KILN_PKG, KILN_MODELS, KILN_RUNTIMES, KILN_NODE20 } = process.env;
const fixtures = join(import.meta.dirname, "..", "fixtures");

let project;

/** Runs a command in the project; gives `{ code, out, err, seconds }`. A program that does not end by itself is killed. */
function run(command, args, { env, seconds = 120 } = {}) {
  return new Promise((resolve, reject) => {
    const start = performance.now();
    const child = spawn(command, args, {
      cwd: project,
      env: { ...process.env, NODE_OPTIONS: "", XDG_CACHE_HOME: join(project, "cache"), XDG_DATA_HOME: join(project, "data"), NO_COLOR: "1", ...env },
      timeout: seconds * 1000,
      stdio: ["ignore", "pipe", "pipe"],
    });
    const read = { out: "", err: "" };
    child.stdout.on("data", (data) => (read.out += data));
    child.stderr.on("data", (data) => (read.err += data));
    child.on("error", reject);
    child.on("close", (code, signal) => resolve({ code: code ?? signal, ...read, seconds: (performance.now() - start) / 1000 }));
  });
}

async function done(command, args, options) {
  const ran = await run(command, args, options);
  assert.equal(ran.code, 0, `${command} ${args.join(" ").slice(0, 200)}: ${ran.code}\n${ran.out.slice(-2000)}\n${ran.err.slice(-4000)}`);
  return ran;
}

/** Runtimes, and the command that runs a module there. */
const runtime = (name) => join(KILN_RUNTIMES, "node_modules", name);
const RUNTIMES = {
  "Node 24": [process.execPath, []],
  "Node 20": [KILN_NODE20, []],
  // With no more than wasm/README.md asks for, where nothing is downloaded.
  Deno: [runtime("@deno/linux-x64-glibc/deno"), ["run", "--allow-read", "--allow-write", "--allow-env", "--no-prompt", "--no-lock"]],
  Bun: [runtime("@oven/bun-linux-x64/bin/bun"), []],
};
const program = async (name, told, options) => {
  const [command, args] = RUNTIMES[name];
  const ran = await done(command, [...args, "program.mjs", JSON.stringify(told)], options);
  return { ...ran, ...JSON.parse(ran.out) };
};
const least = (vectors, to) => Math.min(...vectors.map((vector, at) => cosine(vector, to[at])));

/**
 * The packages by their folder: how many megabytes each may have, and its builds. The tests' build is made less small than that of
 * a release.
 */
const PACKAGES = [
  { folder: KILN_PKG, most: 6, builds: ["simd", "relaxed", "threads"], files: ["node/worker.js", "node/thread.js"] },
  { folder: `${KILN_PKG}-webgpu`, most: 3.2, builds: ["webgpu"], files: ["index.js", "index.d.ts"] },
  { folder: `${KILN_PKG}-train`, most: 5.5, builds: ["train", "train-threads"], files: ["index.js", "index.d.ts"] },
];

before(async () => {
  project = mkdtempSync(join(tmpdir(), "kiln-node-"));
  writeFileSync(join(project, "package.json"), '{ "name": "a-program", "private": true, "type": "module" }');
  cpSync(join(import.meta.dirname, "program.mjs"), join(project, "program.mjs"));
  const packed = JSON.parse((await done("npm", ["pack", "--json", ...PACKAGES.map(({ folder }) => folder)])).out);
  packed.forEach(({ name, filename }, at) => Object.assign(PACKAGES[at], { name, tarball: join(project, filename) }));
  await done("npm", ["install", "--offline", "--no-fund", "--no-audit", ...PACKAGES.map(({ tarball }) => tarball)]);
});
after(() => rmSync(project, { recursive: true, force: true }));

test("each package is small, whole, and no model is in it", (run) => {
  for (const { name, tarball, most, builds, files } of PACKAGES) {
    const megabytes = statSync(tarball).size / 1e6;
    run.diagnostic(`${name}: ${megabytes.toFixed(2)} MB packed`);
    assert.ok(megabytes < most, `${name}: ${megabytes} MB`);
    const installed = join(project, "node_modules", name);
    const { exports } = JSON.parse(readFileSync(join(installed, "package.json")));
    const named = (value) => (typeof value === "string" ? [value] : Object.values(value).flatMap(named));
    const ofBuilds = builds.flatMap((build) => [`${build}/kiln_wasm.js`, `${build}/kiln_wasm_bg.wasm`]);
    for (const file of [...named(exports), ...files, ...ofBuilds, "README.md", "LICENSE-APACHE", "LICENSE-MIT"]) {
      assert.ok(existsSync(join(installed, file)), `${name}: ${file}`);
    }
    assert.deepEqual(readdirSync(installed, { recursive: true }).filter((file) => file.endsWith(".wasm")).sort(), ofBuilds.filter((file) => file.endsWith(".wasm")).sort());
  }
});

for (const name of Object.keys(RUNTIMES)) {
  const [command] = RUNTIMES[name];
  const reason = command && existsSync(command) ? false : `no ${name} here; tests/setup.sh runtimes installs it where npm has one`;
  test(`${name}: native vectors, index, abort, and it ends`, { skip: reason }, async (run) => {
    const expected = JSON.parse(readFileSync(join(fixtures, "rerankers/bert/scores.json"))).map((score) => 1 / (1 + Math.exp(-score)));
    const pairs = JSON.parse(readFileSync(join(fixtures, "rerankers/pairs.json")));
    const [query] = pairs[0];
    const mine = pairs.flatMap(([asked, text], at) => (asked === query ? [{ text, score: expected[at] }] : []));
    // Sums in another order than the native ones round some activations of int8 the other way.
    for (const [file, known, close] of [["mini.kiln", "native-mini.jsonl", 0.9999], ["model.kiln", "native.jsonl", 0.9997], ["f32.kiln", "native-f32.jsonl", 0.99999]]) {
      const rich = file === "mini.kiln";
      // The same builds compute in the others.
      if (!rich && !name.startsWith("Node")) continue;
      const rerank = rich ? { source: join(fixtures, "rerankers/bert"), query, texts: mine.map(({ text }) => text) } : undefined;
      const found = await program(name, { source: join(KILN_MODELS, file), texts, rerank, index: rich, teach: rich, options: { device: "cpu", ...(rich ? { threads: 2 } : {}) } });
      const cosines = least(found.vectors, native(known));
      run.diagnostic(`${file}: ${found.device}, cosine ${cosines.toFixed(6)}, first vector after ${found.first.toFixed(0)} ms, all in ${found.seconds.toFixed(1)} s`);
      assert.ok(cosines > close, `${file}: ${cosines}`);
      assert.ok(found.same);
      assert.match(found.aborted, /^AbortError/);
      assert.match(found.wrong, /^TypeError: texts\[1\] is 7, not a string/);
      assert.equal(found.err, "");
      if (!rich) continue;
      assert.match(found.device, name === "Node 20" ? /^cpu \(wasm, SIMD\)$/ : /^cpu \(wasm, relaxed SIMD, 2 threads\)$/);
      assert.deepEqual(found.taught, { steps: 2, device: name === "Node 20" ? "cpu (wasm, SIMD)" : "cpu (wasm, relaxed SIMD, 2 threads)" });
      assert.deepEqual([found.hit.id, found.names, found.saved, found.deleted], [5, ["a / name"], [199, true], [[], null]]);
      mine.forEach(({ score }, at) => assert.ok(Math.abs(found.scores[at] - score) < 1e-4, `${found.scores[at]} ${score}`));
    }
  });

  test(`${name}: it ends where all is forgotten`, { skip: reason }, async () => {
    const found = await program(name, { source: join(KILN_MODELS, "mini.kiln"), texts, index: true, forget: true, options: { workers: 2, device: "cpu" } });
    assert.ok(least(found.vectors, native("native-mini.jsonl")) > 0.9999);
  });
}
