// Which prompts stand before queries and documents where nobody says: those that sentence-transformers'
// encode_query and encode_document would take, as in the core.

const QUERY = ["query"];
const DOCUMENT = ["document", "passage", "corpus"];

/** Options of `embed` for `query` and `document`, those that are given before those that the model names. */
export function prompted({ info: { prompts, defaultPrompt } }, given = {}) {
  const usual = (names) => {
    const prompt = names.find((name) => Object.hasOwn(prompts, name));
    if (prompt !== undefined) return { prompt };
    // The model's default may be the other side's, unless it is named after this one, as `retrieval.query` is.
    const last = defaultPrompt?.split(/[._:-]/).at(-1);
    return names.includes(last) ? {} : { promptText: "" };
  };
  return { query: given.query ?? usual(QUERY), document: given.document ?? usual(DOCUMENT) };
}

/** Refuses what is no loaded model. */
export function modelOf(model, who) {
  if (typeof model?.embed === "function" && typeof model.dimensions === "number") return model;
  throw new TypeError(`${who} needs a model: give it what Embedder.load gave`);
}
