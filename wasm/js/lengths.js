// What a file of a model may begin with, and how long it says that it is: so that another file in its place, or
// one without end, is refused as soon as it shows.

import { shown } from "./checks.js";

/** Bytes of a text at most, as everywhere in Kiln. */
const LARGEST_TEXT = 2 ** 28;
const LARGEST_HEADER = { kiln: 2 ** 20, safetensors: 100 * 2 ** 20 };
/** Bytes of PyTorch's weights at most: what WebAssembly can hold. */
const LARGEST_PYTORCH = 2 ** 32;

const decode = (bytes) => new TextDecoder().decode(bytes);

/** The first characters of a file, for messages. */
const beginning = (bytes) => shown(decode(bytes.subarray(0, 20)));

/** The largest end of what a header names. */
function furthest(ends) {
  let most = 0;
  for (const end of ends) {
    if (!Number.isSafeInteger(end) || end < 0) throw new Error("its header names a part without an end");
    most = Math.max(most, end);
  }
  return most;
}

/** A header's length as 64 bits have it, and the JSON behind it: `{ needs }` where it takes so many bytes to know. */
function headed(bytes, at, start, most, end) {
  if (bytes.length < start) return { needs: start };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const size = Number(view.getBigUint64(at, true));
  if (size > most) throw new Error(`it begins with ${beginning(bytes)}, and would have a header of ${size} bytes`);
  if (bytes.length < start + size) return { needs: start + size };
  let header;
  try {
    header = JSON.parse(decode(bytes.subarray(start, start + size)));
  } catch {
    throw new Error("its header is no JSON");
  }
  return { length: end(header, start + size) };
}

/**
 * What the beginning of a file says: its `length`, or `most` that it may have; `{ needs }` where it takes so many
 * bytes to know. Throws where no such file begins so.
 */
export function said(path, bytes) {
  if (path.endsWith(".kiln")) {
    const magic = decode(bytes.subarray(0, 4));
    if (!"KILN".startsWith(magic)) throw new Error(`it begins with ${beginning(bytes)}, as no .kiln file does`);
    return headed(bytes, 8, 48, LARGEST_HEADER.kiln, ({ files }, start) => {
      if (!Array.isArray(files)) throw new Error("its header names no files");
      return Math.max(start, furthest(files.map((file) => file?.offset + file?.bytes)));
    });
  }
  if (path.endsWith(".safetensors")) {
    return headed(bytes, 0, 8, LARGEST_HEADER.safetensors, (header, start) => {
      const tensors = Object.entries(header ?? {}).filter(([name]) => name !== "__metadata__");
      return start + furthest(tensors.map(([, tensor]) => tensor?.data_offsets?.[1]));
    });
  }
  if (path.endsWith(".bin")) {
    if (bytes.length === 0) return { needs: 1 };
    // A zip archive, or a pickle.
    if (bytes[0] !== 0x50 && bytes[0] !== 0x80) throw new Error(`it begins with ${beginning(bytes)}, as no file of PyTorch's does`);
    return { most: LARGEST_PYTORCH };
  }
  if (path.endsWith(".json")) {
    const first = decode(bytes.subarray(0, 64)).trimStart();
    if (first === "" && bytes.length < 64) return { needs: bytes.length + 1 };
    if (!/^[{[]/.test(first)) throw new Error(`it is no JSON: it begins with ${beginning(bytes)}`);
  }
  return { most: LARGEST_TEXT };
}
