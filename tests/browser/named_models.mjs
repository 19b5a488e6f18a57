// Folders of the small copies of named models (tests/reference/named_models.py says what they are).

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const fixtures = join(import.meta.dirname, "..", "fixtures", "models");
const read = (file) => JSON.parse(readFileSync(join(fixtures, file), "utf8"));

/** The texts that vectors are of, and the pairs that scores are of. */
export const { texts, pairs } = read("texts.json");

/** All copies, by name. */
export const named = readdirSync(fixtures)
  .filter((file) => file.includes("--"))
  .sort()
  .map((file) => ({ name: file.replace(/\.json$/, ""), ...read(file) }));

/** A tensor's values, by its name. */
const weights = (name, shape) => {
  let seed = 2166136261;
  for (const byte of Buffer.from(name)) seed = Math.imul(seed ^ byte, 16777619) >>> 0;
  const count = shape.reduce((product, size) => product * size, 1);
  const normed = shape.length === 1 && name.toLowerCase().includes("norm") && name.endsWith("weight");
  const scale = name.includes("embed") ? 1.5 : 2.5 / Math.sqrt(shape.at(-1));
  return Float32Array.from({ length: count }, (_, place) => {
    let x = (Math.imul(place, 0x9e3779b1) + seed) >>> 0;
    for (const [shift, factor] of [[16, 0x7feb352d], [15, 0x846ca68b]]) x = Math.imul(x ^ (x >>> shift), factor) >>> 0;
    const noise = ((x ^ (x >>> 16)) >>> 8) / 2 ** 23 - 1;
    if (shape.length > 1) return noise * scale;
    return normed ? noise * 0.3 + 1 : noise * 0.3;
  });
};

const safetensors = (shapes) => {
  const header = {};
  const parts = [];
  let end = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const bytes = Buffer.from(weights(name, shape).buffer);
    header[name] = { dtype: "F32", shape, data_offsets: [end, (end += bytes.length)] };
    parts.push(bytes);
  }
  const text = JSON.stringify(header);
  const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  return Buffer.concat([length, head, ...parts]);
};

/** Writes a copy's folder. */
export const writeModel = (folder, { kind, config, tokenizer, files, tensors }) => {
  const write = (name, content) => {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), content);
  };
  const [first] = Object.keys(tensors);
  const root = kind === "table" && first.includes("/") ? `${dirname(first)}/` : "";
  write(`${root}tokenizer.json`, readFileSync(join(fixtures, "tokenizers", `${tokenizer}.json`)));
  if (Object.keys(config).length > 0) write("config.json", JSON.stringify(config));
  for (const [name, content] of Object.entries(files)) write(name, JSON.stringify(content));
  for (const [name, shapes] of Object.entries(tensors)) write(name, safetensors(shapes));
};
