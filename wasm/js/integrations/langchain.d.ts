import { Embeddings, type EmbeddingsParams } from "@langchain/core/embeddings";
import type { Embedder, EmbedOptions, LoadOptions, ModelSource } from "kiln-embed";

export interface KilnEmbeddingsOptions {
  /** How queries are embedded. Default: with the model's prompt `query`, else with none. */
  query?: EmbedOptions;
  /** How documents are embedded. Default: with the model's prompt `document`, `passage` or `corpus`, else with none. */
  document?: EmbedOptions;
}

/** LangChain.js' `Embeddings`, computed here by kiln-embed. Needs `@langchain/core`. */
export class KilnEmbeddings extends Embeddings {
  constructor(options: EmbeddingsParams & KilnEmbeddingsOptions & { model: Embedder });
  /** Loads a model, as `Embedder.load` does. */
  static load(source: ModelSource, options?: LoadOptions & KilnEmbeddingsOptions): Promise<KilnEmbeddings>;
  /** The model, to be disposed when it is needed no more. */
  readonly model: Embedder;
  embedDocuments(documents: string[]): Promise<number[][]>;
  embedQuery(query: string): Promise<number[]>;
}
