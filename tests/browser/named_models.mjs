// Folders of the small copies of named models (tests/reference/named_models.py says what they are).

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const fixtures = join(import.meta.dirname, "..", "fixtures", "models");
const read = (file) => JSON.parse(readFileSync(join(fixtures, file), "utf8"));

/** The texts that vectors are of, and the pairs that scores are of. */
export const { texts, pairs } = read("texts.json");

const copy = (file) => ({ name: file.replace(/\.json$/, ""), ...read(file) });

/** All copies of named models, by name. */
export const named = readdirSync(fixtures)
  .filter((file) => file.includes("--"))
  .sort()
  .map(copy);

/** The copy that stands for EmbeddingGemma 2. */
export const gemma2 = copy("embedding-gemma2.json");

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

/** The same in the format that torch.save wrote before PyTorch 1.6: five pickles, then the numbers. */
const pytorch = (shapes) => {
  const latin = (text) => Buffer.from(text, "latin1");
  const long = (value) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(BigInt(value));
    return bytes;
  };
  const pickle = (...parts) => Buffer.concat([latin("\x80\x02"), ...parts, latin(".")]);
  const number = (value) => Buffer.concat([latin("J"), long(value).subarray(0, 4)]);
  const text = (value) => Buffer.concat([latin("X"), long(Buffer.byteLength(value)).subarray(0, 4), Buffer.from(value)]);
  const tuple = (...parts) => Buffer.concat([latin("("), ...parts, latin("t")]);
  const product = (sizes) => sizes.reduce((product, size) => product * size, 1);
  const entries = Object.entries(shapes);
  const tensors = entries.flatMap(([name, shape], key) => {
    const storage = tuple(text("storage"), latin("ctorch\nFloatStorage\n"), text(`${key}`), text("cpu"), number(product(shape)), latin("N"));
    const strides = shape.map((_, at) => product(shape.slice(at + 1)));
    const sizes = [shape, strides].map((sizes) => tuple(...sizes.map(number)));
    const tensor = tuple(storage, latin("Q"), number(0), ...sizes, latin("\x89ccollections\nOrderedDict\n)R"));
    return [text(name), latin("ctorch._utils\n_rebuild_tensor_v2\n"), tensor, latin("R")];
  });
  return Buffer.concat([
    pickle(latin("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")),
    pickle(number(1001)),
    pickle(latin("}("), text("little_endian"), latin("\x88u")),
    pickle(latin("}("), ...tensors, latin("u")),
    pickle(latin("]("), ...entries.map((_, key) => text(`${key}`)), latin("e")),
    ...entries.flatMap(([name, shape]) => [long(product(shape)), Buffer.from(weights(name, shape).buffer)]),
  ]);
};

/** Writes a copy's folder; weights whose names end in .bin are PyTorch's. */
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
  for (const [name, shapes] of Object.entries(tensors)) write(name, (name.endsWith(".bin") ? pytorch : safetensors)(shapes));
};
