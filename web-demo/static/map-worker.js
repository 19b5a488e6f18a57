// Lays vectors out in the plane, away from the page's thread.

import init, { layout } from "./demo.js";

const ready = init();

onmessage = async ({ data: { vectors, dimensions } }) => {
  try {
    await ready;
    const places = layout(vectors, dimensions, (share) => postMessage({ share }));
    postMessage({ places }, [places.buffer]);
  } catch (error) {
    postMessage({ error: error.message ?? String(error) });
  }
};
