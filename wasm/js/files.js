// A model's files: from an address, a File, or bytes in memory.

import { aborted } from "./aborted.js";
import { shown } from "./checks.js";
import { download } from "./download.js";
import { Kept } from "./kept.js";
import { fileAddress, folderAddress, sourceAddress } from "./names.js";

/** Files of a model at most; it has some dozens. */
const MOST_FILES = 1000;

/** Names of the file in which sentence-transformers says how it calls transformers, as in the core; the first that is there rules. */
const TRANSFORMER_CONFIGS = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"].map((kind) => `sentence_${kind}_config.json`);

/**
 * The files of a model as the engine reads them. `fresh` leaves what the cache has aside; `onKept` is called
 * where something was taken from it.
 */
export async function modelFiles(source, { cache = true, fresh = false, onProgress, onKept, signal } = {}) {
  const options = { kept: cache ? await Kept.open() : undefined, fresh, onProgress, onKept, signal };
  if (source instanceof ArrayBuffer) return { kiln: new Uint8Array(source) };
  if (ArrayBuffer.isView(source)) return { kiln: new Uint8Array(source.buffer, source.byteOffset, source.byteLength) };
  if (globalThis.Blob && source instanceof Blob) return { kiln: await blobBytes(source, options) };
  if (Array.isArray(source) || (globalThis.FileList && source instanceof FileList)) return droppedFolder([...source], options);
  const url = sourceAddress(source);
  if (url.pathname.endsWith(".kiln")) return { kiln: await download(url.href, options) };
  return { files: await downloadFolder(folderAddress(url), options) };
}

async function blobBytes(blob, { onProgress, signal }) {
  const cannot = ({ message }) => {
    throw new Error(`${shown(blob.name ?? "file")} cannot be read: ${message}`);
  };
  const bytes = new Uint8Array(await blob.arrayBuffer().catch(cannot));
  if (signal?.aborted) throw aborted();
  onProgress?.({ stage: "download", file: blob.name ?? "file", loaded: blob.size, total: blob.size, cached: true });
  return bytes;
}

/** Files that were dropped or chosen, by their paths inside the folder. */
async function droppedFolder(files, options) {
  const other = files.find((file) => !(file instanceof File));
  if (other !== undefined) throw new TypeError(`the source has ${shown(other)} in it, not a File`);
  const paths = files.map((file) => file.webkitRelativePath || file.name);
  if (files.length === 1 && paths[0].endsWith(".kiln")) return { kiln: await blobBytes(files[0], options) };
  const folderOf = (path) => path.slice(0, path.lastIndexOf("/") + 1);
  // A list of modules, or where there is none a config.json, is at the top.
  const tops = paths.filter((path) => /(^|\/)(modules|config)\.json$/.test(path)).map(folderOf);
  const root = tops.sort((a, b) => a.length - b.length)[0];
  if (root === undefined) {
    throw new Error("these files are no model: choose a .kiln file, or a folder with config.json, tokenizer.json and model.safetensors");
  }
  // Not the same weights once more in PyTorch's format.
  const whole = new Set(paths.filter((path) => path.endsWith(".safetensors")).map(folderOf));
  const isPyTorch = (path) => /(^|\/)pytorch_model[^/]*\.bin$/.test(path) && !whole.has(folderOf(path));
  // The model card says whether a language model ranks.
  const isRead = (path) => path.startsWith(root) && (/\.(json|safetensors|txt|jinja)$/.test(path) || path === `${root}README.md` || isPyTorch(path));
  const inside = files.map((file, at) => [paths[at], file]).filter(([path]) => isRead(path));
  const read = async ([path, file]) => [path.slice(root.length), await blobBytes(file, options)];
  return { files: await Promise.all(inside.map(read)) };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The files of a folder: those that its kiln.json names, or those of the usual layout. */
async function downloadFolder(root, options) {
  const files = new Map();
  /** A file by its name, which `where` gives. */
  const get = async (name, { where = "this layout", ...more } = {}) => {
    const url = fileAddress(name, root, where);
    if (files.has(name)) return files.get(name);
    const bytes = await download(url, options, more);
    if (bytes) files.set(name, bytes);
    return bytes;
  };
  const optional = (name, more) => get(name, { needed: false, ...more });
  /** What a file says, if it is there: `read` takes it from the parsed JSON, and gives undefined where that is not `what` it should be. */
  const told = async (name, what, read) => {
    const bytes = await optional(name);
    if (!bytes) return undefined;
    const where = fileAddress(name, root);
    let value;
    try {
      value = JSON.parse(new TextDecoder().decode(bytes));
    } catch {
      throw new Error(`${where} is no JSON; is this the address of a model folder?`);
    }
    const found = read(value);
    if (!found) throw new Error(`${where} has no ${what}`);
    if (found.length > MOST_FILES) throw new Error(`${where} names ${found.length} files, more than any model has`);
    return { where, found };
  };

  // What a later format has instead is for those to say who read it.
  const named = ({ format, files }) => (format === 1 ? isObject(files) && Object.entries(files) : []);
  const manifest = await told("kiln.json", "files", (value) => isObject(value) && named(value));
  if (manifest) {
    const { where, found } = manifest;
    for (const [name, sum] of found) {
      const most = sum?.bytes;
      if (!Number.isSafeInteger(most) || most < 0) throw new Error(`${where} gives ${shown(name)} a length of ${shown(most)}`);
      await get(name, { where, most });
    }
    return [...files];
  }
  const modules = await told("modules.json", "list of modules", (list) => Array.isArray(list) && list.every(isObject) && list);
  // A table of tokens has no config.json, and may have all else in its module's folder; a transformer may have everything there.
  let table = false;
  let inside = "";
  if (!(await optional("config.json"))) {
    const [first] = modules?.found ?? [];
    table = String(first?.type).includes("StaticEmbedding");
    if (!table && first?.path && (await optional(`${first.path}/config.json`, { where: modules.where }))) inside = `${first.path}/`;
    else if (!table) await get("config.json");
  }
  const tokenizer = table ? await optional("tokenizer.json") : await get(`${inside}tokenizer.json`);
  for (const name of ["tokenizer_config.json", "special_tokens_map.json"]) await optional(inside + name);
  await optional("config_sentence_transformers.json");
  const [usual, ...older] = TRANSFORMER_CONFIGS.map((name) => inside + name);
  if (!(await optional(usual)) && modules) await Promise.all(older.map((name) => optional(name)));
  /** A file of weights, or its shards, which are beside it; whether it is there. */
  const weights = async (file) => {
    const name = inside + file;
    if (await optional(name)) return true;
    const shards = await told(`${name}.index.json`, "weight_map", (index) => isObject(index?.weight_map) && [...new Set(Object.values(index.weight_map))]);
    for (const shard of shards?.found ?? []) {
      fileAddress(shard, root, shards.where);
      await get(inside + shard, { where: shards.where });
    }
    return shards !== undefined;
  };
  if (!(await weights("model.safetensors")) && tokenizer && !(await weights("pytorch_model.bin"))) await get(`${inside}model.safetensors`);
  // What a language model's configuration does not say: whether it ranks.
  if (!modules && /"(Qwen3|Gemma)ForCausalLM"/.test(new TextDecoder().decode(files.get("config.json")))) await optional("README.md");
  // Templates of other names are not Qwen3-Reranker's, the one that is read.
  if (modules?.found.some(({ path }) => String(path).endsWith("_LogitScore"))) await optional("chat_template.jinja");
  for (const { path } of modules?.found ?? []) {
    if (path === undefined || path === "" || path === ".") continue;
    const { where } = modules;
    fileAddress(path, root, where);
    const config = await optional(`${path}/config.json`, { where });
    if (!tokenizer) await optional(`${path}/tokenizer.json`, { where });
    // Of these only Kiln's own heads have weights.
    const isBare = /_(Normalize|Pooling)$/.test(path) && !new TextDecoder().decode(config).includes('"kiln"');
    if (isBare || (await optional(`${path}/model.safetensors`, { where }))) continue;
    await optional(`${path}/pytorch_model.bin`, { where });
  }
  return [...files];
}
