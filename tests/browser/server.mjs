// Serves the package, the models and a page, and the faults that a network has.

import { createServer } from "node:http";
import { createReadStream, readFileSync, statSync } from "node:fs";
import { extname, join, normalize, resolve } from "node:path";

const TYPES = {
  ".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json",
};

/** Folders of kiln-embed and its add-ons, as `roots`. */
export function packages(folder = process.env.KILN_PKG) {
  const pkg = resolve(folder);
  return { pkg, "pkg-webgpu": `${pkg}-webgpu`, "pkg-train": `${pkg}-train` };
}

/** What a page that embeds texts has to allow, and no more. */
const CSP = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'";

/** `roots` maps the first part of a path to a folder; `site` is the folder of all paths. `open` lets other sites' pages read. */
export async function serve(roots, { site, csp = true, isolated = false, open = false } = {}) {
  const seen = [];
  let bytes = 0;
  let down = false;
  /** Paths that break off once, and after how many bytes. */
  const cuts = new Map();
  /** Paths whose version only a date names exactly. */
  const dated = new Set();
  /** Paths that are not there. */
  const missing = new Set();
  /** Paths that a hostile or broken server answers, each with a function of the request and the response. */
  const answers = new Map();
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
    const isQuestion = request.method === "HEAD";
    if (!isQuestion) seen.push({ path, range: request.headers.range });
    const [, root, ...rest] = path.split("/");
    if (down && root === "models") return request.socket.destroy();
    const answer = answers.get(path);
    if (answer) return answer(request, response);
    if (root === "app") {
      response.writeHead(200, { "content-type": "text/html" });
      return response.end("<p>a page for every path</p>");
    }
    const file = site ? join(site, normalize(path)) : join(roots[root] ?? "/nowhere", normalize(`/${rest.join("/")}`));
    let size, date;
    try {
      const stat = statSync(file);
      if (!stat.isFile() || missing.has(path)) throw new Error();
      size = stat.size;
      date = stat.mtime.toUTCString();
    } catch {
      response.writeHead(404);
      return response.end();
    }
    const [etag, version] = dated.has(path) ? [`W/"${size}"`, date] : [`"${size}"`, `"${size}"`];
    const headers = { "content-type": TYPES[extname(file)] ?? "application/octet-stream", etag, "last-modified": date, "accept-ranges": "bytes" };
    if (csp && root === "page" && headers["content-type"] === "text/html") headers["content-security-policy"] = CSP;
    if (isolated) Object.assign(headers, { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" });
    if (open) Object.assign(headers, { "access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin" });
    const asked = /^bytes=(\d+)-$/.exec(request.headers.range ?? "");
    const start = asked && request.headers["if-range"] === version ? Number(asked[1]) : 0;
    if (start > 0) headers["content-range"] = `bytes ${start}-${size - 1}/${size}`;
    response.writeHead(start > 0 ? 206 : 200, { ...headers, "content-length": size - start });
    if (isQuestion) return response.end();
    const cut = cuts.get(path);
    if (cut !== undefined) {
      cuts.delete(path);
      response.write(readFileSync(file).subarray(start, cut), () => setTimeout(() => request.socket.destroy(), 50));
      return;
    }
    createReadStream(file, { start }).on("data", (chunk) => (bytes += chunk.length)).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    seen,
    cuts,
    dated,
    missing,
    answers,
    /** Bytes of files that were sent. */
    bytes: () => bytes,
    setDown: (value) => (down = value),
    /** Ends all faults. */
    mend() {
      down = false;
      for (const faults of [cuts, dated, missing, answers]) faults.clear();
    },
    close() {
      server.close();
      // Those that are answered without end.
      server.closeAllConnections();
    },
  };
}
