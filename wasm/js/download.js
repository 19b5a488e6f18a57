// Downloads that go on where they broke off, and take nothing for a file but the file.

import { aborted } from "./aborted.js";
import { partOf } from "./kept.js";
import { said } from "./lengths.js";
import { platform } from "./platform.js";

/** How often a download that breaks off is taken up again. */
const ATTEMPTS = 4;
/** Milliseconds that an answer is waited for where the load can go on without. */
const PATIENCE = 5000;
/** No web page: servers of single-page apps answer every path with theirs where a page will do. */
const ACCEPT = "application/json, application/octet-stream";

/** Ends a download for good. */
const fatal = (message, name = "Error") => Object.assign(new Error(message), { name, fatal: true });

const isPage = ({ headers }) => /^\s*(text\/html|application\/xhtml)/i.test(headers.get("content-type") ?? "");
const isAbsent = ({ status }) => status === 404 || status === 410;
const isWeak = (version) => version.startsWith("W/");

/** Waits, or until told to stop. */
function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal?.addEventListener("abort", end, { once: true });
    if (signal?.aborted) end();
  });
}

/** The last part of an address, for people. */
function nameOf(url) {
  const name = new URL(url).pathname.split("/").at(-1);
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/**
 * The bytes at an address; undefined for one that is not there and not `needed`. `most` is how many there are
 * at most, where that is known.
 */
export async function download(url, { kept: store, fresh, onProgress, onKept, signal }, { needed = true, most } = {}) {
  const file = nameOf(url);
  const report = (loaded, total, cached = false) => onProgress?.({ stage: "download", file, loaded, total, cached });
  if (platform.readFile && new URL(url).protocol === "file:") return platform.readFile(url, { needed, most, report, signal });
  const kept = fresh ? undefined : await store?.get(url);
  if (signal?.aborted) throw aborted();
  if (kept?.bytes) {
    onKept?.();
    report(kept.bytes.length, kept.bytes.length, true);
    forgetIfChanged(store, url, kept.version);
    return kept.bytes;
  }
  if (kept?.absent && !needed && !(await isThere(url, signal))) {
    if (signal?.aborted) throw aborted();
    return undefined;
  }
  const part = new Part(url, store, { fresh, needed, most });
  if (!fresh) await part.restore();
  for (let attempt = 1; ; attempt++) {
    try {
      const bytes = await part.fetch(report, signal);
      // Where a server does not compare versions, the parts of two may have been joined.
      if (part.isJoined) onKept?.();
      await store?.put(url, bytes, { version: part.version });
      await part.forget();
      return bytes;
    } catch (error) {
      if (signal?.aborted || error.fatal || attempt === ATTEMPTS) {
        await part.keep();
        if (signal?.aborted) throw aborted();
        throw error.fatal ? error : fatal(`${url} could not be downloaded: ${error.message}; ${part.loaded} bytes of it came`, "NetworkError");
      }
      await sleep(250 * 2 ** attempt, signal);
    }
  }
}

/** Whether a file that was not there the last time is there by now. Without an answer in time it is not. */
async function isThere(url, signal) {
  if (globalThis.navigator?.onLine === false) return false;
  const ask = async () => {
    const response = await platform.fetch(url, { headers: { Accept: ACCEPT }, cache: "no-cache", signal });
    response.body?.cancel().catch(() => {});
    return response.ok && !isPage(response);
  };
  return (await Promise.race([ask().catch(() => false), sleep(PATIENCE, signal)])) ?? false;
}

/**
 * What the server calls this version of a file, with its exact bytes if it can: a strong tag, else the date, which
 * other sites' pages may read too, else a weak tag; null where it does not say.
 */
function versionOf({ headers }) {
  const [tag, date] = [headers.get("etag"), headers.get("last-modified")];
  return tag && !isWeak(tag) ? tag : date ?? tag;
}

/** Asks, while the kept file is in use, whether the server has another by now: then the next load fetches it. */
async function forgetIfChanged(store, url, version) {
  if (!version || globalThis.navigator?.onLine === false) return;
  const response = await platform.fetch(url, { method: "HEAD", headers: { Accept: ACCEPT }, cache: "no-cache" }).catch(() => undefined);
  // A network's login page is no newer file.
  const now = response?.ok && !isPage(response) ? versionOf(response) : null;
  if (now && now !== version) await store.forget(url);
}

/** What has come of a file. */
class Part {
  #chunks = [];
  loaded = 0;
  version = null;
  /** Bytes of the whole file, where the server says so. */
  #total;
  /** Whether they surely are the file's: other sites' servers need not say that they compress it on the way. */
  #isSure;
  /** What the file's own beginning says: see `said`. */
  #said;
  #path;
  /** Whether its bytes are of several responses. */
  isJoined = false;

  constructor(url, store, { fresh, needed, most = Infinity }) {
    Object.assign(this, { url, store, fresh, needed, most });
    this.#path = new URL(url).pathname;
    this.#drop();
  }

  /** Bytes of the whole file, where that is sure, or its own beginning says the same. */
  get #length() {
    return this.#isSure || this.#total === this.#said.length ? this.#total : undefined;
  }

  /** Whether the rest may be asked for: what has come is counted as the server counts it. */
  get #resumes() {
    return this.loaded > 0 && this.version !== null && !isWeak(this.version) && (this.#isSure || this.#length !== undefined);
  }

  /** Takes what an earlier load left, if it left something. */
  async restore() {
    const kept = await this.store?.get(partOf(this.url));
    if (!kept?.bytes) return;
    this.version = kept.version;
    this.#total = kept.total;
    this.#add(kept.bytes);
  }

  async keep() {
    if (!this.#resumes) return this.forget();
    await this.store?.put(partOf(this.url), this.#joined(), { version: this.version, total: this.#total });
  }

  async forget() {
    await this.store?.forget(partOf(this.url));
  }

  #drop() {
    this.#chunks = [];
    this.loaded = 0;
    this.#said = said(this.#path, new Uint8Array());
    this.version = null;
    this.#total = undefined;
    this.#isSure = true;
    this.isJoined = false;
  }

  #joined() {
    if (this.#chunks.length !== 1) {
      const bytes = new Uint8Array(this.loaded);
      let at = 0;
      for (const chunk of this.#chunks) {
        bytes.set(chunk, at);
        at += chunk.length;
      }
      this.#chunks = [bytes];
    }
    return this.#chunks[0];
  }

  /** The file's bytes, with what came before; undefined where it is not there, and need not be. */
  async fetch(report, signal) {
    if (!this.#resumes) this.#drop();
    const headers = { Accept: ACCEPT };
    if (this.loaded > 0) {
      headers.Range = `bytes=${this.loaded}-`;
      // Other sites would have to allow the header first; what they answer is compared all the same.
      if (new URL(this.url).origin === globalThis.location?.origin) headers["If-Range"] = this.version;
    }
    const response = await platform.fetch(this.url, { headers, signal, cache: this.fresh ? "reload" : "default" });
    const reader = response.body?.getReader();
    try {
      if (!this.needed && isAbsent(response)) return undefined;
      this.#begin(response, "If-Range" in headers);
      while (reader) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#add(value);
        const total = this.#said.length ?? this.#total;
        // More than what it was compressed to may come.
        report(this.loaded, total < this.loaded ? undefined : total);
      }
      return this.#whole();
    } finally {
      // Of a response that is not read to its end.
      reader?.cancel().catch(() => {});
    }
  }

  /** Decides by a response's head whether its body is the file, or the rest of it. */
  #begin(response, compared) {
    const { status, statusText } = response;
    if (status === 416 && this.loaded > 0) {
      this.#drop();
      throw new Error("the file has changed");
    }
    const isRest = status === 206 && this.loaded > 0;
    if (status !== 200 && !isRest) {
      const says = `${this.url}: the server says ${status} ${statusText}`.trimEnd();
      const passes = status >= 500 || status === 429 || status === 408;
      if (passes) throw new Error(says);
      throw fatal(this.needed || isAbsent(response) ? says : `${says}, which leaves open whether the file is there; only 404 says that it is not`, "NetworkError");
    }
    if (isPage(response)) {
      const led = response.redirected ? ` led to ${response.url}, which` : "";
      throw fatal(`${this.url}${led} is a web page, not a model file; check the address, and that no login or page for unknown paths answers in its place`, "NetworkError");
    }
    // A length is that of the file only where it is not compressed on the way.
    const encoding = response.headers.get("content-encoding");
    const given = encoding ? null : response.headers.get("content-length");
    const length = given === null ? undefined : Number(given);
    if (!isRest) {
      this.#drop();
      this.version = versionOf(response);
      this.#total = length;
      this.#isSure = response.type !== "cors" || encoding !== null;
    } else if (!this.#goesOn(response, length, compared)) {
      this.#drop();
      throw new Error("the rest that the server sends is not that of what had come");
    } else {
      this.isJoined = true;
    }
    if (this.#length > this.most) this.#refuse(`it has ${this.#length} bytes, and is said to have ${this.most}`);
  }

  /** Whether the body of a 206 is what follows what has come: of the same version, and from there on. */
  #goesOn({ headers, type }, length, compared) {
    if (headers.get("content-encoding")) return false;
    const version = headers.get(this.version.startsWith('"') ? "etag" : "last-modified");
    // A server that has compared need not say it again.
    if (version !== this.version && !(version === null && compared)) return false;
    const given = headers.get("content-range");
    // Other sites' servers may not let it be read; then lengths have to make a whole.
    if (given === null) return type === "cors" && this.#total !== undefined && this.loaded + length === this.#total;
    const range = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(given)?.slice(1);
    if (!range) return false;
    const [start, end, total] = range.map(Number);
    const whole = this.#total ?? total;
    this.#total = Number.isNaN(whole) ? undefined : whole;
    return start === this.loaded && end >= start && (Number.isNaN(total) || (total === whole && end < total)) && (length ?? end - start + 1) === end - start + 1;
  }

  /** It is another file; of several responses it may be that of none, and is asked for once more. */
  #refuse(why) {
    const { isJoined } = this;
    this.#drop();
    if (isJoined) throw new Error(why);
    throw fatal(`${this.url} is not the file that it should be: ${why}`);
  }

  #add(chunk) {
    this.#chunks.push(chunk);
    this.loaded += chunk.length;
    while (this.#said.needs <= this.loaded) {
      try {
        this.#said = said(this.#path, this.#joined());
      } catch (error) {
        this.#refuse(error.message);
      }
    }
    const most = Math.min(this.most, this.#said.length ?? this.#said.most ?? Infinity, this.#length ?? Infinity);
    if (this.loaded > most) this.#refuse(`more bytes come than the ${most} that it should have`);
  }

  #whole() {
    if (this.loaded < this.#length) throw new Error("the connection was lost");
    const { needs, length } = this.#said;
    if (needs !== undefined || this.loaded < length) this.#refuse(`it is cut short: it has ${this.loaded} bytes, and should have ${length ?? `${needs} at least`}`);
    return this.#joined();
  }
}
