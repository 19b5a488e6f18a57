// What callers give, checked before it is used: what is wrong is one line that names it. Numbers above all,
// which WebAssembly would take for others (NaN for 0, -1 for 4294967295).

/** A value in a message. */
export function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value);
  if (value === null || ["undefined", "number", "boolean", "bigint"].includes(typeof value)) return String(value);
  if (Array.isArray(value)) return "a list";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

/** Characters of a text at most: far more than any model reads, and little enough to be copied. */
const LONGEST_TEXT = 2 ** 26;
/** And of a prompt, which stands before each text. */
const LONGEST_PROMPT = 2 ** 16;

export function text(name, value, most = LONGEST_TEXT) {
  if (typeof value !== "string") throw new TypeError(`${name} is ${shown(value)}, not a string`);
  if (value.length > most) throw new RangeError(`${name} has ${value.length} characters, more than ${most}`);
  return value;
}

/** A list of texts; a string would be one of its characters. */
export function texts(name, value) {
  if (typeof value === "string" || value instanceof String) throw new TypeError(`${name} is ${shown(String(value))}, not a list of strings`);
  if (typeof value?.[Symbol.iterator] !== "function") throw new TypeError(`${name} is ${shown(value)}, neither a string nor a list of strings`);
  return Array.from(value, (one, at) => text(`${name}[${at}]`, one));
}

export function whole(name, value, least, most = Infinity) {
  if (typeof value !== "number") throw new TypeError(`${name} is ${shown(value)}, not a number`);
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new RangeError(`${name} is ${value}, not a whole number ${most === Infinity ? `from ${least} on` : `from ${least} to ${most}`}`);
}

/** A number above 0. */
export function positive(name, value) {
  if (typeof value !== "number") throw new TypeError(`${name} is ${shown(value)}, not a number`);
  if (Number.isFinite(value) && value > 0) return value;
  throw new RangeError(`${name} is ${value}, not a number above 0`);
}

/** A share below 0.9. */
export function share(name, value) {
  if (typeof value !== "number") throw new TypeError(`${name} is ${shown(value)}, not a number`);
  if (value >= 0 && value < 0.9) return value;
  throw new RangeError(`${name} is ${value}, not a share from 0 to 0.9`);
}

export function oneOf(name, value, known) {
  if (known.includes(value)) return value;
  throw new RangeError(`${name} ${shown(value)} is unknown; known are ${known.join(", ")}`);
}

/** A value that may be left out, and null is as undefined. */
export const optional = (check, name, value, ...bounds) => (value === undefined || value === null ? undefined : check(name, value, ...bounds));

function flag(name, value) {
  if (typeof value !== "boolean") throw new TypeError(`${name} is ${shown(value)}, neither true nor false`);
  return value;
}

/** What every call takes. */
export function listeners({ onProgress, signal }) {
  if (onProgress !== undefined && typeof onProgress !== "function") throw new TypeError(`onProgress is ${shown(onProgress)}, not a function`);
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw new TypeError(`signal is ${shown(signal)}, not an AbortSignal`);
}

/** Tokens of a batch at most; more of them would not fit into WebAssembly's memory. */
const MOST_BATCH_TOKENS = 2 ** 16;

/** Options of a run of texts through a model of so many dimensions. */
export function embedOptions({ prompt, promptText, dimensions, normalize, batchTokens }, width) {
  if (typeof dimensions === "number" && dimensions > width) throw new RangeError(`${dimensions} dimensions asked of a model that gives ${width}`);
  return {
    prompt: optional(text, "prompt", prompt, LONGEST_PROMPT),
    promptText: optional(text, "promptText", promptText, LONGEST_PROMPT),
    dimensions: optional(whole, "dimensions", dimensions, 1),
    normalize: optional(flag, "normalize", normalize),
    batchTokens: optional(whole, "batchTokens", batchTokens, 1, MOST_BATCH_TOKENS),
  };
}

/** The name of a prompt. */
export const promptName = (prompt) => optional(text, "prompt", prompt, LONGEST_PROMPT);

const DEVICES = ["auto", "cpu", "webgpu"];
const WEIGHTS = /^(kept|f32|int[48](:(channel|[1-9]\d{0,6}))?)$/;
/** Workers, or threads, at most. */
const MOST_WORKERS = 64;

/** What `Embedder.load` is told. */
export function loadOptions({ device, workers, threads, weights, onProgress, signal }) {
  oneOf("device", device, DEVICES);
  for (const [name, count] of Object.entries({ workers, threads })) {
    const known = count === "auto" || (Number.isInteger(count) && count > 0 && count <= MOST_WORKERS);
    if (!known) throw new RangeError(`${name} is ${shown(count)}, neither "auto" nor a whole number from 1 to ${MOST_WORKERS}`);
  }
  if (typeof weights !== "string" || !WEIGHTS.test(weights)) throw new RangeError(`weights ${shown(weights)} are unknown; known are kept, f32, int8 and int4, and these with a group as in int8:64 or int8:channel`);
  const group = /:(\d+)$/.exec(weights)?.[1] ?? 0;
  if (group % 4 !== 0) throw new RangeError(`weights ${shown(weights)} have groups of ${group}, not of a multiple of 4`);
  listeners({ onProgress, signal });
}

/** A vector of so many dimensions, in numbers of 32 bits, with a length that can be told from 0 and infinity. */
export function vector(name, value, dimensions) {
  const length = value?.length;
  if (typeof value !== "object" || typeof length !== "number") throw new TypeError(`${name} is ${shown(value)}, not a list of numbers`);
  if (length !== dimensions) throw new RangeError(`${name} has ${length} dimensions, the index has ${dimensions}`);
  // Not what would be made a number of: "1", null, [1], 1n.
  const other = Array.prototype.findIndex.call(value, (x) => typeof x !== "number");
  if (other >= 0) throw new TypeError(`${name} has ${shown(value[other])} in place ${other}, not a number`);
  const numbers = Float32Array.from(value);
  const square = numbers.reduce((sum, x) => sum + x * x, 0);
  if (Number.isNaN(square) || !numbers.every(Number.isFinite)) throw new RangeError(`${name} has numbers that are not finite`);
  if (square > 1e30) throw new RangeError(`${name} has a length of ${Math.sqrt(square).toPrecision(2)}, too large to compare`);
  if (square < 1e-30) throw new RangeError(`${name} has length 0, so nothing is like it`);
  return numbers;
}

/** The name of an entry. */
export function id(value) {
  if (typeof value === "string" || Number.isFinite(value)) return value;
  throw new TypeError(`an id is ${shown(value)}, neither a string nor a finite number`);
}

/** A list of names; a string would be one of its characters. */
export function ids(value) {
  if (typeof value === "string" || typeof value?.[Symbol.iterator] !== "function") throw new TypeError(`ids are ${shown(value)}, not a list of ids`);
  return Array.from(value, id);
}
