// A model's files: from an address, a File, or bytes in memory; kept in Cache Storage.

import { aborted } from "./engine.js";

/** Name of the cache; a later layout gets a later number. */
const CACHE = "kiln-embed-1";
/** Header of what is kept of a file that is not there. */
const ABSENT = "x-kiln-absent";
/** Header of what is kept: the server's name for this version of the file. */
const VERSION = "x-kiln-version";
/** How often a download that breaks off is taken up again. */
const ATTEMPTS = 4;
/** Where the bytes of a download that broke off are kept. */
const partOf = (url) => `${url}${url.includes("?") ? "&" : "?"}kiln-embed-part`;

/** Forgets downloaded models: one by its address, or all. */
export async function clearCache(url) {
  if (!globalThis.caches) return;
  if (url === undefined) {
    await caches.delete(CACHE);
    return;
  }
  const cache = await caches.open(CACHE);
  const address = new URL(url, globalThis.location?.href).href;
  const requests = await cache.keys();
  // A folder's files lie under its address.
  const mine = requests.filter(({ url }) => url === address || url.startsWith(folder(address)) || url === partOf(address));
  await Promise.all(mine.map((request) => cache.delete(request)));
}

const folder = (url) => (url.endsWith("/") ? url : `${url}/`);

/** A path that stays inside the folder that it is meant for. */
function checked(path, where) {
  const inside = typeof path === "string" && path.split("/").every((part) => part !== "" && part !== "." && part !== "..");
  if (!inside || /[:\\?#]/.test(path)) throw new Error(`${where} names ${JSON.stringify(path)}, which is no path inside the model`);
  return path;
}

/**
 * The files of a model as the engine reads them. `fresh` leaves what the cache has aside; `onKept` is called
 * where something was taken from it.
 */
export async function modelFiles(source, { cache = true, fresh = false, onProgress, onKept, signal } = {}) {
  const options = { cache: cache ? await openCache() : undefined, fresh, onProgress, onKept, signal };
  if (source instanceof ArrayBuffer) return { kiln: new Uint8Array(source) };
  if (ArrayBuffer.isView(source)) return { kiln: new Uint8Array(source.buffer, source.byteOffset, source.byteLength) };
  if (globalThis.Blob && source instanceof Blob) return { kiln: await blobBytes(source, options) };
  if (Array.isArray(source) || (globalThis.FileList && source instanceof FileList)) return droppedFolder([...source], options);
  const url = new URL(source, globalThis.location?.href);
  if (url.pathname.endsWith(".kiln")) return { kiln: await download(url.href, options) };
  return { files: await downloadFolder(folder(url.href), options) };
}

async function openCache() {
  try {
    return await globalThis.caches?.open(CACHE);
  } catch {
    return undefined; // Not a secure context, or storage is switched off.
  }
}

async function blobBytes(blob, { onProgress, signal }) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  if (signal?.aborted) throw aborted();
  onProgress?.({ stage: "download", file: blob.name ?? "file", loaded: blob.size, total: blob.size, cached: true });
  return bytes;
}

/** Files that were dropped or chosen, by their paths inside the folder. */
async function droppedFolder(files, options) {
  const paths = files.map((file) => file.webkitRelativePath || file.name);
  if (files.length === 1 && paths[0].endsWith(".kiln")) return { kiln: await blobBytes(files[0], options) };
  const config = paths.filter((path) => /(^|\/)config\.json$/.test(path)).sort((a, b) => a.length - b.length)[0];
  if (config === undefined) {
    throw new Error("these files are no model: choose a .kiln file, or a folder with config.json, tokenizer.json and model.safetensors");
  }
  const root = config.slice(0, -"config.json".length);
  // Not the same weights once more in other formats.
  const isRead = (path) => path.startsWith(root) && /\.(json|safetensors|txt)$/.test(path);
  const inside = files.map((file, at) => [paths[at], file]).filter(([path]) => isRead(path));
  const read = async ([path, file]) => [path.slice(root.length), await blobBytes(file, options)];
  return { files: await Promise.all(inside.map(read)) };
}

/** The files of a folder: those that its kiln.json names, or those of the usual layout. */
async function downloadFolder(root, options) {
  const files = new Map();
  const get = async (path, needed) => {
    if (files.has(path)) return files.get(path);
    const bytes = await download(root + path, options, needed);
    if (bytes) files.set(path, bytes);
    return bytes;
  };
  const json = (bytes, path) => {
    try {
      return JSON.parse(new TextDecoder().decode(bytes));
    } catch {
      throw new Error(`${root}${path} is no JSON; is this the address of a model folder?`);
    }
  };
  const manifest = await get("kiln.json", false);
  if (manifest) {
    for (const path of Object.keys(json(manifest, "kiln.json").files ?? {})) await get(checked(path, `${root}kiln.json`), true);
    return [...files];
  }
  await get("config.json", true);
  await get("tokenizer.json", true);
  for (const path of ["tokenizer_config.json", "special_tokens_map.json", "config_sentence_transformers.json", "sentence_bert_config.json"]) {
    await get(path, false);
  }
  const shards = (await get("model.safetensors", false)) ? undefined : await get("model.safetensors.index.json", false);
  if (shards) {
    const index = json(shards, "model.safetensors.index.json");
    const where = `${root}model.safetensors.index.json`;
    for (const path of new Set(Object.values(index.weight_map ?? {}))) await get(checked(path, where), true);
  } else {
    await get("model.safetensors", true);
  }
  const modules = await get("modules.json", false);
  for (const { path } of modules ? json(modules, "modules.json") : []) {
    if (!path) continue;
    checked(path, `${root}modules.json`);
    await get(`${path}/config.json`, false);
    if (!path.endsWith("_Normalize") && !path.endsWith("_Pooling")) await get(`${path}/model.safetensors`, false);
  }
  return [...files];
}

/** The bytes at an address; undefined for one that is not there and not `needed`. */
async function download(url, { cache, fresh, onProgress, onKept, signal }, needed = true) {
  const file = decodeURIComponent(url.slice(url.lastIndexOf("/") + 1).split("?")[0]);
  const report = (loaded, total, cached = false) => onProgress?.({ stage: "download", file, loaded, total, cached });
  if (fresh) await cache?.delete(url);
  const kept = fresh ? undefined : await cache?.match(url);
  if (kept) onKept?.();
  if (kept?.headers.has(ABSENT)) return undefined;
  if (kept) {
    const bytes = new Uint8Array(await kept.arrayBuffer());
    if (signal?.aborted) throw aborted();
    report(bytes.length, bytes.length, true);
    forgetIfChanged(cache, url, kept.headers.get(VERSION));
    return bytes;
  }
  const part = new Part(url, cache, fresh);
  const resumed = !fresh && (await part.restore());
  for (let attempt = 1; ; attempt++) {
    try {
      const bytes = await part.fetch(report, signal, needed);
      // Where a server does not compare versions, the parts of two may have been joined.
      if (resumed) onKept?.();
      await keep(cache, url, bytes, part.version);
      await part.forget();
      return bytes;
    } catch (error) {
      const over = signal?.aborted || error.fatal || attempt === ATTEMPTS;
      if (over) {
        await part.keep();
        if (signal?.aborted) throw aborted();
        throw error.fatal ? error : new Error(`${url} could not be downloaded: ${error.message}; ${part.loaded} bytes of it came`);
      }
      await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** attempt));
    }
  }
}

const isWeak = (version) => version.startsWith("W/");

/**
 * What the server calls this version of a file, with its exact bytes if it can: a strong tag, else the date, which
 * other sites' pages may read too, else a weak tag; null where it does not say.
 */
function versionOf({ headers }) {
  const [tag, date] = [headers.get("etag"), headers.get("last-modified")];
  return tag && !isWeak(tag) ? tag : date ?? tag;
}

/** Asks, while the kept file is in use, whether the server has another by now: then the next load fetches it. */
async function forgetIfChanged(cache, url, version) {
  if (!version || globalThis.navigator?.onLine === false) return;
  const response = await fetch(url, { method: "HEAD", cache: "no-cache" }).catch(() => undefined);
  const now = response?.ok ? versionOf(response) : null;
  if (now && now !== version) await cache.delete(url);
}

/** What has come of a file. */
class Part {
  chunks = [];
  loaded = 0;
  version = null;

  constructor(url, cache, fresh) {
    this.url = url;
    this.cache = cache;
    this.fresh = fresh;
  }

  /** Whether the rest may be asked for. */
  get resumes() {
    return this.loaded > 0 && this.version !== null && !isWeak(this.version);
  }

  /** Takes what an earlier load left, if it left something. */
  async restore() {
    const kept = await this.cache?.match(partOf(this.url));
    if (!kept) return false;
    this.version = kept.headers.get(VERSION);
    this.chunks = [new Uint8Array(await kept.arrayBuffer())];
    this.loaded = this.chunks[0].length;
    return true;
  }

  async keep() {
    if (this.cache && this.resumes) await keep(this.cache, partOf(this.url), join(this.chunks, this.loaded), this.version);
  }

  async forget() {
    await this.cache?.delete(partOf(this.url));
  }

  drop() {
    this.chunks = [];
    this.loaded = 0;
  }

  async fetch(report, signal, needed) {
    const headers = this.resumes ? { Range: `bytes=${this.loaded}-`, "If-Range": this.version } : {};
    if (!headers.Range) this.drop();
    const response = await fetch(this.url, { headers, signal, cache: this.fresh ? "reload" : "default" });
    if (response.status === 416) {
      this.drop();
      throw new Error("the file has changed");
    }
    if (!response.ok) {
      if (!needed && (response.status === 404 || response.status === 403)) return undefined;
      const fatal = response.status < 500 && response.status !== 429;
      throw Object.assign(new Error(`${this.url}: the server says ${response.status} ${response.statusText}`.trimEnd()), { fatal });
    }
    // Single-page servers answer unknown paths with their page.
    if (/text\/html/.test(response.headers.get("content-type") ?? "")) {
      if (!needed) return undefined;
      throw Object.assign(new Error(`${this.url} is a web page, not a model file; check the address`), { fatal: true });
    }
    if (response.status !== 206) this.drop();
    // A length is that of the file only where it is not compressed on the way.
    const length = response.headers.get("content-encoding") ? NaN : Number(response.headers.get("content-length") ?? NaN);
    const total = Number.isNaN(length) ? undefined : this.loaded + length;
    this.version = versionOf(response);
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      this.chunks.push(value);
      this.loaded += value.length;
      report(this.loaded, total);
    }
    if (total !== undefined && this.loaded < total) throw new Error("the connection was lost");
    return join(this.chunks, this.loaded);
  }
}

function join(chunks, length) {
  if (chunks.length === 1) return chunks[0];
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}

/** Keeps bytes for the next time, or that there are none; a full store is no reason to fail. */
async function keep(cache, url, bytes, version) {
  if (!cache) return;
  const headers = { "content-type": "application/octet-stream" };
  if (version) headers[VERSION] = version;
  if (!bytes) headers[ABSENT] = "1";
  try {
    await cache.put(url, new Response(bytes ?? null, { headers }));
  } catch (error) {
    console.warn(`kiln-embed: ${url} is not kept for the next time: ${error.message}`);
  }
}
