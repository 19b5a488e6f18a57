// A plugin for Orama by kiln-embed. The types and their docs are in orama.d.ts.

import { modelOf, prompted } from "./prompts.js";

/** What a document has at a path, as `meta.title`. */
const at = (document, path) => path.split(".").reduce((value, name) => value?.[name], document);

export function pluginKiln({ model, vector = "embedding", properties, similarity = 0, query, document }) {
  modelOf(model, "pluginKiln");
  if (!Array.isArray(properties) || properties.length === 0 || properties.some((one) => typeof one !== "string")) {
    throw new TypeError("pluginKiln needs properties: the names of those whose texts are embedded");
  }
  const options = prompted(model, { query, document });

  /** Gives vectors to those that have none, all in one run. */
  const fill = async (documents) => {
    const without = documents.filter((one) => one[vector] === undefined || one[vector] === null);
    const texts = without.map((one) => properties.map((path) => at(one, path)).filter((text) => typeof text === "string" && text !== "").join("\n"));
    const some = texts.flatMap((text, row) => (text === "" ? [] : [row]));
    const vectors = await model.embed(some.map((row) => texts[row]), options.document);
    some.forEach((row, place) => (without[row][vector] = Array.from(vectors[place])));
  };

  return {
    name: "kiln-embed",
    fill,
    // Orama waits for every insert of several only where this is there, and of these two calls the first alone.
    beforeInsert: async (database, id, one) => fill([one]),
    beforeInsertMultiple: async (database, several) => fill(several),
    beforeSearch: async (database, params) => {
      if (params.mode !== "vector" && params.mode !== "hybrid") return;
      params.similarity ??= similarity;
      if (params.vector?.value) return;
      if (typeof params.term !== "string" || params.term === "") throw new TypeError(`a search in mode ${params.mode} needs a term, or a vector`);
      params.vector = { property: params.vector?.property ?? vector, value: Array.from(await model.embed(params.term, options.query)) };
    },
  };
}
