"use client";

import { Embedder, Index } from "kiln-embed";
import webgpu from "kiln-embed-webgpu";
import { useEffect, useRef, useState } from "react";

const TEXTS = [
  "Bread keeps longest in a box at room temperature, and best in the freezer.",
  "The moon raises two tides a day on most coasts.",
  "A dull knife is more dangerous than a sharp one.",
  "Compost wants green scraps, brown leaves and a little patience.",
];

export function Search() {
  const [query, setQuery] = useState("how do I keep bread fresh?");
  const [hits, setHits] = useState([]);
  const [status, setStatus] = useState("loading");
  const loaded = useRef(undefined);

  // Effects run in the browser alone.
  useEffect(() => {
    const stop = new AbortController();
    const load = async () => {
      // ?device=webgpu insists on the GPU.
      const device = new URLSearchParams(location.search).get("device") ?? "auto";
      const model = await Embedder.load("/model.kiln", { device, webgpu, signal: stop.signal });
      const index = await Index.create({ dimensions: model.dimensions });
      const vectors = await model.embed(TEXTS);
      await index.add(TEXTS.map((text, at) => ({ id: at, vector: vectors[at], data: text })));
      if (stop.signal.aborted) {
        for (const one of [model, index]) one.dispose();
        return;
      }
      loaded.current = { model, index };
      setStatus(`computed on ${model.device}`);
    };
    load().catch((error) => stop.signal.aborted || setStatus(error.message));
    return () => {
      stop.abort();
      for (const one of Object.values(loaded.current ?? {})) one.dispose();
      loaded.current = undefined;
    };
  }, []);

  useEffect(() => {
    let late = false;
    const search = async () => {
      if (!loaded.current) return;
      const { model, index } = loaded.current;
      const found = await index.search(await model.embed(query), { k: 3 });
      if (!late) setHits(found);
    };
    search().catch((error) => late || setStatus(error.message));
    return () => {
      late = true;
    };
  }, [query, status]);

  return (
    <>
      <label htmlFor="query">Query</label>
      <input id="query" value={query} onChange={({ target }) => setQuery(target.value)} />
      <ol id="hits">
        {hits.map(({ id, score, data }) => (
          <li key={id}>
            {score.toFixed(2)} {data}
          </li>
        ))}
      </ol>
      <p id="status" role="status">
        {status}
      </p>
    </>
  );
}
