import init from "./demo.js";

// Where pages cannot keep themselves, as in private windows, this one works with a network only. README.md says what isolation is for.
// Not before the model is there: in Chromium a service worker that takes over may lose a thread that is being started.
const worker = "isolated" in document.documentElement.dataset ? "sw.js?isolated" : "sw.js";
addEventListener("kiln-model", () => navigator.serviceWorker?.register(worker).catch(() => {}), { once: true });

init().catch((error) => {
  const line = document.getElementById("waiting") ?? document.body.appendChild(document.createElement("p"));
  line.textContent = `The page could not be started: ${error.message}. It needs a browser with WebAssembly SIMD (all current ones).`;
});
