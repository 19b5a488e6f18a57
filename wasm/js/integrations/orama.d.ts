import type { Embedder, EmbedOptions } from "kiln-embed";

export interface KilnPluginOptions {
  model: Embedder;
  /** Properties whose texts are embedded, one below the other; `meta.title` is one of an object's own. */
  properties: string[];
  /** The property of the vector, in the schema as `vector[N]` with the model's dimensions. Default: `embedding`. */
  vector?: string;
  /** The least cosine of a hit where a search does not say; Orama's own, 0.8, is more than most models give. Default: 0. */
  similarity?: number;
  /** How terms are embedded. Default: with the model's prompt `query`, else with none. */
  query?: EmbedOptions;
  /** How documents are embedded. Default: with the model's prompt `document`, `passage` or `corpus`, else with none. */
  document?: EmbedOptions;
}

/**
 * A plugin for Orama 3 (`create({ schema, plugins: [pluginKiln({ model, properties })] })`): documents without a
 * vector get theirs when they are inserted, and searches in mode `vector` or `hybrid` that of their term.
 */
export function pluginKiln(options: KilnPluginOptions): {
  name: string;
  /** Gives vectors to documents before they are inserted, all in one run, which is faster than one by one. */
  fill(documents: Record<string, any>[]): Promise<void>;
  beforeInsert(database: any, id: string, document: any): Promise<void>;
  beforeInsertMultiple(database: any, documents: any[]): Promise<void>;
  beforeSearch(database: any, params: any): Promise<void>;
};
