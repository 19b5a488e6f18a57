// LangChain.js' Embeddings by kiln-embed. The types and their docs are in langchain.d.ts.

import { Embeddings } from "@langchain/core/embeddings";
import { Embedder } from "kiln-embed";
import { modelOf, prompted } from "./prompts.js";

export class KilnEmbeddings extends Embeddings {
  #model;
  #options;

  constructor({ model, query, document, ...params }) {
    super(params);
    this.#model = modelOf(model, "KilnEmbeddings");
    this.#options = prompted(model, { query, document });
  }

  static async load(source, { query, document, ...options } = {}) {
    return new KilnEmbeddings({ model: await Embedder.load(source, options), query, document });
  }

  get model() {
    return this.#model;
  }

  async embedDocuments(documents) {
    const vectors = await this.#model.embed(documents, this.#options.document);
    return vectors.map((vector) => Array.from(vector));
  }

  async embedQuery(query) {
    return Array.from(await this.#model.embed(query, this.#options.query));
  }
}
