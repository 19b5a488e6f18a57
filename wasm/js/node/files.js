// A model's files on this machine.

import { readFile, stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { aborted } from "../aborted.js";

/** Bytes of a file at most: WebAssembly's memory has 4 GiB, and a model has to fit in it beside what is computed. */
const LARGEST = 2 ** 31;

/**
 * The bytes of a file by its address; undefined for one that is not there and not `needed`. `most` is how many there
 * are at most, where that is known.
 */
export async function readModelFile(url, { needed, most = Infinity, report, signal }) {
  const path = fileURLToPath(url);
  let found;
  try {
    found = await stat(path);
  } catch (error) {
    if (!needed && (error.code === "ENOENT" || error.code === "ENOTDIR")) return undefined;
    throw cannot(path, error);
  }
  if (!found.isFile()) throw new Error(`${path} is ${found.isDirectory() ? "a folder" : "no regular file"}; give a .kiln file, or a model's folder`);
  if (found.size > most) throw new Error(`${path} is not the file that it should be: it has ${found.size} bytes, and is said to have ${most}`);
  if (found.size >= LARGEST) throw new Error(`${path} has ${found.size} bytes, more than WebAssembly can load; make it smaller (kiln export --weights int8)`);
  let bytes;
  try {
    bytes = await readFile(path, { signal });
  } catch (error) {
    if (signal?.aborted) throw aborted();
    throw cannot(path, error);
  }
  report(bytes.length, bytes.length, true);
  // A part of Node's own pool could not be handed over.
  return bytes.byteLength === bytes.buffer.byteLength ? new Uint8Array(bytes.buffer) : new Uint8Array(bytes);
}

/** What the first files of a model are called: without them it is none. */
const FIRST = /\.kiln$|[\\/]config\.json$/;

function cannot(path, error) {
  const isMissing = error.code === "ENOENT" || error.code === "ENOTDIR";
  const hint = FIRST.test(path) ? "; give the path, or the address, of a .kiln file or of a model's folder" : "";
  return new Error(`${path} ${isMissing ? `is not there${hint}` : `cannot be read: ${error.message}`}`, { cause: error });
}
