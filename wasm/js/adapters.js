// Adapters' files: from a trainer, an address, a dropped folder, or bytes in memory.

import { shown } from "./checks.js";
import { download } from "./download.js";
import { Kept } from "./kept.js";
import { fileAddress, folderAddress, sourceAddress } from "./names.js";

/** The files of each kind: LoRA's, as PEFT writes them, and those of an adapter of vectors, a Dense module of sentence-transformers. */
const KINDS = [
  ["adapter_config.json", "adapter_model.safetensors"],
  ["config.json", "model.safetensors"],
];

/** The bytes of an adapter's two files, as `[path, bytes]`. */
export async function adapterFiles(source, { cache = true, signal } = {}) {
  if (typeof source === "string" || source instanceof URL) {
    const root = folderAddress(sourceAddress(source));
    const options = { kept: cache ? await Kept.open() : undefined, signal };
    const [lora, ofVectors] = KINDS;
    const bytes = await download(fileAddress(lora[0], root), options, { needed: false });
    const rest = async (names) => Promise.all(names.map(async (name) => [name, await download(fileAddress(name, root), options)]));
    return bytes === undefined ? rest(ofVectors) : [[lora[0], bytes], ...(await rest(lora.slice(1)))];
  }
  const files = await listed(source?.files ?? source);
  // LLM2Vec's folders have the model's config.json beside the adapters.
  const names = KINDS.find(([config]) => files.has(config)) ?? KINDS[0];
  return names.map((name) => {
    const bytes = files.get(name);
    if (bytes === undefined) throw new Error(`these are no adapters: there is no ${name}; give the two files that PEFT's save_pretrained, kiln train or trainer.fit wrote`);
    if (!(bytes instanceof Uint8Array)) throw new TypeError(`${name} is ${shown(bytes)}, not a Uint8Array`);
    return [name, bytes];
  });
}

/** Bytes by the name of the file. */
async function listed(source) {
  const isList = Array.isArray(source) || (globalThis.FileList && source instanceof FileList);
  if (isList && [...source].every((one) => globalThis.File && one instanceof File)) {
    return new Map(await Promise.all([...source].map(async (file) => [file.name, new Uint8Array(await file.arrayBuffer())])));
  }
  if (isList && source.every((one) => Array.isArray(one) && one.length === 2)) return new Map(source);
  if (source instanceof Map) return source;
  if (typeof source === "object" && source !== null && !isList) return new Map(Object.entries(source));
  throw new TypeError(`adapters are ${shown(source)}, neither an address nor files`);
}
