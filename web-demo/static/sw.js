// Keeps the page itself, so that it opens without a network: the newest from the server where it answers,
// else what was kept. The model is kept by kiln-embed. Pages that it answers for are isolated, whoever serves
// them, so that kiln-embed computes with threads.

const KEPT = "kiln-demo";
const ISOLATION = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

function isolated({ body, status, statusText, headers: given }) {
  const headers = new Headers(given);
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
  const answer = async () => {
    const cache = await caches.open(KEPT);
    const response = await fetch(request).catch((error) => error);
    if (response.ok && isGenuine(response, /(\/|\.html)$/.test(pathname))) {
      await cache.put(key, response.clone()).catch(() => {}); // A full store is no reason to fail.
      return isolated(response);
    }
    const isAnswer = response instanceof Response;
    const kept = isAnswer && !response.ok ? undefined : await cache.match(key);
    if (kept) return isolated(kept);
    if (!isAnswer) throw response;
    // A redirect is the browser's to follow.
    return response.type === "opaqueredirect" ? response : isolated(response);
  };
  event.respondWith(answer());
});
