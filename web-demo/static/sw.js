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

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  const isPage = origin === self.location.origin && /(\/|\.(html|css|js|svg|wasm))$/.test(pathname);
  if (request.method !== "GET" || !isPage) return;
  const answer = async () => {
    const cache = await caches.open(KEPT);
    try {
      const response = await fetch(request);
      if (response.ok) await cache.put(request, response.clone());
      return isolated(response);
    } catch (error) {
      const kept = await cache.match(request);
      if (kept) return isolated(kept);
      throw error;
    }
  };
  event.respondWith(answer());
});
