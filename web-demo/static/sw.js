// Keeps the page itself, so that it opens without a network: the newest from the server where it answers,
// else what was kept. The model is kept by kiln-embed. Begun as sw.js?isolated it isolates the pages that it answers
// for, whoever serves them, so that kiln-embed computes with threads.

const KEPT = "kiln-demo";
const ISOLATES = new URL(self.location).searchParams.has("isolated");
const ISOLATION = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

/** An answer as the page gets it. Scripts always have the headers: a page that is still isolated starts no worker without them. */
function given(response, isDocument) {
  if (isDocument && !ISOLATES) return response;
  const { body, status, statusText } = response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATION)) headers.set(name, value);
  return new Response(body, { status, statusText, headers });
}

/** Whether an answer is what was asked for, and no login page of a network in its place. */
const isGenuine = ({ redirected, headers }, isDocument) => !redirected && /^\s*text\/html/i.test(headers.get("content-type") ?? "") === isDocument;

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  const isPage = origin === self.location.origin && /(\/|\.(html|css|js|svg|wasm))$/.test(pathname);
  if (request.method !== "GET" || !isPage) return;
  // Whatever is asked behind a "?", it is the same file.
  const key = origin + pathname;
  const isDocument = /(\/|\.html)$/.test(pathname);
  const answer = async () => {
    const cache = await caches.open(KEPT);
    const response = await fetch(request).catch((error) => error);
    if (response.ok && isGenuine(response, isDocument)) {
      await cache.put(key, response.clone()).catch(() => {}); // A full store is no reason to fail.
      return given(response, isDocument);
    }
    const isAnswer = response instanceof Response;
    const kept = isAnswer && !response.ok ? undefined : await cache.match(key);
    if (kept) return given(kept, isDocument);
    if (!isAnswer) throw response;
    // A redirect is the browser's to follow.
    return response.type === "opaqueredirect" ? response : given(response, isDocument);
  };
  event.respondWith(answer());
});
