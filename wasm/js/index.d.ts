/** Text embeddings in pages, Node, Deno and Bun: see the README for a start. */

/**
 * Where a model comes from: the address of a `.kiln` file or of a model folder (outside of browsers a path too), a File, a
 * dropped or chosen folder, or the bytes of a `.kiln` file.
 */
export type ModelSource = string | URL | Blob | ArrayLike<File> | ArrayBuffer | Uint8Array;

/** How far loading is. */
export type LoadProgress =
  | {
      stage: "download";
      /** Name of the file. */
      file: string;
      /** Bytes that have come. */
      loaded: number;
      /** Bytes in all, where the server says so. */
      total?: number;
      /** Whether the file was kept from the last time. */
      cached: boolean;
    }
  /** The model is read and checked against the vectors that it carries. */
  | { stage: "open" }
  | { stage: "ready" };

/** What a package with more builds of the core exports: where their files are. It has to be of this package's version. */
export interface AddOn<Name extends string, Build extends string> {
  readonly package: Name;
  readonly version: string;
  readonly builds: Readonly<Record<Build, Readonly<{ js: string; wasm: string }>>>;
}
/** `import webgpu from "kiln-embed-webgpu"`. */
export type WebGpu = AddOn<"kiln-embed-webgpu", "webgpu">;
/** `import training from "kiln-embed-train"`. */
export type Training = AddOn<"kiln-embed-train", "train" | "train-threads">;

export interface LoadOptions {
  /**
   * Where to compute. `auto` (the default) with `webgpu` measures the CPU and WebGPU where there is a GPU, and takes the faster
   * one; without, and outside of browsers, it takes the CPU. A GPU that computes wrongly or is lost later is left for the CPU,
   * with a warning. `webgpu` needs the option `webgpu`.
   */
  device?: "auto" | "cpu" | "webgpu";
  /** The build for WebGPU, which the package `kiln-embed-webgpu` exports; it is fetched where there is a GPU to try. */
  webgpu?: WebGpu;
  /** Keep downloaded files in Cache Storage, outside of browsers in a folder, so that the model loads offline the next time. Default: true. */
  cache?: boolean;
  /** Compute in a worker, so that the page never waits. `false` computes in this thread, for those who are in a worker of their own. Default: true, but in workerd. */
  worker?: boolean;
  /**
   * How many threads compute on the CPU, with one model in one memory: each text is done sooner. They need relaxed SIMD, a
   * worker, and a page that is isolated (`crossOriginIsolated`) or Node, Deno or Bun; elsewhere there is one. `auto` (the default) takes
   * one for each core, at most 8, or a single one where `workers` is a number. 64 at most.
   */
  threads?: "auto" | number;
  /**
   * How many workers compute on the CPU, each with the model in its memory. They are started when a call has 64 texts
   * or more, and share these. `auto` (the default) takes one for each core, at most 4, and a single one
   * for models over 64 MB, without `cache`, or where there are threads. 64 at most.
   */
  workers?: "auto" | number;
  /**
   * What the weights are computed with: `kept` (the default) as in the model's file, those of 16 bits in f32; `int8` or `int4` rounds larger
   * ones as they are loaded, which takes less memory and is faster (`int8:64` and the like name the numbers that share
   * a scale); `f32` computes weights of few bits in floating point.
   */
  weights?: "kept" | "f32" | "int8" | "int4" | `${"int8" | "int4"}:${number | "channel"}`;
  /** Adapters to compute with from the start, as `addAdapter` takes them. */
  adapter?: AdapterSource;
  onProgress?: (progress: LoadProgress) => void;
  /** Stops loading, at once; what has come of a file is kept, and the next load goes on from there. */
  signal?: AbortSignal;
}

/** How far a run of texts is. */
export interface EmbedProgress {
  /** Texts done. */
  texts: number;
  /** Texts in all. */
  total: number;
  /** Tokens done, padding not counted. */
  tokens: number;
  /** Texts per second since the run began. */
  textsPerSecond: number;
}

export interface EmbedOptions {
  /** Name of one of the model's prompts (`info.prompts`). Default: the model's own default, if it has one. */
  prompt?: string;
  /** Text to put before each text, in place of a named prompt. */
  promptText?: string;
  /** Keep only the first dimensions (Matryoshka), before vectors are divided by their norm. */
  dimensions?: number;
  /** Whether vectors are divided by their norm. Default: as the model does (`info.normalized`). */
  normalize?: boolean;
  /** Most tokens that are computed at once, padding included; 65536 at most. Default: 256 for each thread, on WebGPU 4096. */
  batchTokens?: number;
  onProgress?: (progress: EmbedProgress) => void;
  /** Stops the run after the batch that is being computed; the promise is rejected with an AbortError. */
  signal?: AbortSignal;
}

/** What a model is. */
export interface ModelInfo {
  /** Numbers of a vector. */
  readonly dimensions: number;
  /** Tokens of a text that are read; what comes after is cut off. */
  readonly maxLength: number;
  readonly hiddenSize: number;
  readonly layers: number;
  readonly vocabularySize: number;
  /** Pooling head, as `mean` or `latent_attention`. */
  readonly pooling: string;
  /** Whether the model divides vectors by their norm. */
  readonly normalized: boolean;
  /** Prompts by name. */
  readonly prompts: Readonly<Record<string, string>>;
  readonly defaultPrompt: string | null;
  /** What matrices are computed with where `load` was told, or kept in, as `int8:32`; null where the model does not say. */
  readonly weights: string | null;
  /**
   * What tells the model from others, and from other versions of itself: the SHA-256 of its kiln.json, and with adapters that of
   * these behind a `+`; null where it has no kiln.json.
   */
  readonly fingerprint: string | null;
  /** Where it computes, for people. */
  readonly device: string;
  /** Threads that compute in one memory. */
  readonly threads: number;
}

/** Why a text gets its vector. */
export interface Explanation {
  /** The tokens, special ones included, and their place in the text (empty for special and prompt tokens). */
  tokens: { token: string; start: number; end: number }[];
  /** Pooling weight of each token, where pooling weighs tokens. */
  weights: number[] | null;
  /** Attention between tokens and latents, `[head][token][latent]`, where pooling has latents. */
  latents: number[][][] | null;
  /** Weight of each layer, where pooling weighs layers. */
  layers: number[] | null;
}

/** A text seen through every pooling head that has no parameters, whatever the model's own is. */
export interface Lens {
  /** The model's own head. */
  own: Explanation;
  /** Mean, first token, last token, mean weighted by position, and by the attention that tokens draw. */
  heads: {
    name: string;
    /** Weight of each token. */
    weights: number[];
    /** Cosine between this head's vector and the model's own; null where they cannot be compared. */
    cosine: number | null;
  }[];
  /** Cosine between the mean state after each layer, the embeddings first, and after the last. */
  layers: number[];
  attentionHeads: number;
  /** Attention weights of the last layer, `[head][query][key]` one after another. */
  attention: Float32Array;
  /** States of the last layer, `[token][hidden]` one after another, each divided by its norm: their products are cosines. */
  states: Float32Array;
}

/**
 * A loaded model. Its calls reject with one line: a TypeError or RangeError for a wrong argument, an AbortError
 * where the signal says so, a WorkerError where the worker that computes has died (load the model again), a VersionError where
 * its GPU was lost and its files have changed since it was loaded (load it again, too).
 */
export class Embedder {
  /**
   * Loads a model and checks it: sums of its files, and the vectors that it carries against those that it gives
   * here. Rejects with one line that says what is wrong and where, a NetworkError where a server does. Only a 404 or
   * 410 says of a file that may be missing that it is not there, and it is asked for again the next time.
   */
  static load(source: ModelSource, options?: LoadOptions): Promise<Embedder>;
  readonly info: ModelInfo;
  /** Where it computes, for people. */
  readonly device: string;
  /** Numbers of a vector. */
  readonly dimensions: number;
  /** Name of the adapters that it computes with; null where there are none. */
  readonly adapter: string | null;
  /**
   * Adds an adapter of either kind by a name; one of the same name is replaced, also where it computes, once the runs that are
   * under way have ended. It shares the model's weights, packed ones packed. Rejects where it is of another model, as far as
   * both say which one: what `fit` gives says so of a model with a fingerprint.
   */
  addAdapter(name: string, adapter: AdapterSource): Promise<void>;
  /** Forgets an adapter; where it computes, the model goes on as it was. */
  removeAdapter(name: string): Promise<void>;
  /**
   * Computes with the adapters of a name from now on, or, with null, with none: a matter of milliseconds. Runs that are
   * under way end before it. `info.fingerprint`, where the model has one, becomes another, so that an index is not read with
   * vectors of another space.
   */
  setAdapter(name: string | null): Promise<void>;
  /**
   * Loads the model once more to teach it adapters, with the build of the core that trains, which is fetched now. On the CPU,
   * in a worker of its own.
   */
  trainer(options: TrainerOptions): Promise<Trainer>;
  /** Vectors of texts, in their order. Halves of characters (lone surrogates) are read as U+FFFD. */
  embed(texts: readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  /** The vector of one text. */
  embed(text: string, options?: EmbedOptions): Promise<Float32Array>;
  /** Cosine of two texts' vectors. */
  similarity(a: string, b: string, options?: EmbedOptions): Promise<number>;
  /** What pooling looked at. */
  explain(text: string, options?: { prompt?: string }): Promise<Explanation>;
  /** The text through every pooling head that has no parameters, with the last layer's attention and states. */
  lens(text: string, options?: { prompt?: string }): Promise<Lens>;
  /** Tokens that the model reads of a text, special ones included. */
  countTokens(text: string): Promise<number>;
  /** Frees everything; runs that are under way are rejected. */
  dispose(): void;
}

/**
 * An adapter of either kind: what `trainer.fit` gave, the address of a folder with its two files, as PEFT, `kiln train` or
 * sentence-transformers write them, these as `File`s, or their bytes by name.
 */
export type AdapterSource = string | URL | Adapter | readonly File[] | Record<string, Uint8Array>;

/**
 * Two files as `[name, bytes]`, which can be cloned and stored. LoRA: PEFT's `adapter_config.json` and
 * `adapter_model.safetensors`. An adapter of vectors: `config.json` and `model.safetensors`, a `Dense` module of
 * sentence-transformers, which stands before `Normalize`.
 */
export interface Adapter {
  files: [name: string, bytes: Uint8Array][];
}

export interface TrainerOptions {
  /** The builds that train, which the package `kiln-embed-train` exports. */
  training: Training;
  /**
   * What is taught. `lora`: adapters on the model's projections; each step is a pass through the model. `adapter`: a residual
   * adapter of its vectors, `v + B A v` divided by its norm; texts are embedded once, steps take milliseconds, and an index
   * follows at once (`index.adapted`). `auto` (the default): LoRA for small models (12 blocks of 384 numbers at most, as
   * kiln-mini and MiniLM have), else an adapter; an adapter too where, by its first step, LoRA would get fewer than 20 steps
   * into `budget`, or its steps would take more than two minutes, as the 300 for words that are new to the model may (`steps`).
   */
  kind?: "auto" | "lora" | "adapter";
  /** Rank of the adapters. Default: 8. */
  rank?: number;
  /** Their update is scaled by `alpha / rank`. Default: 16. */
  alpha?: number;
  /** Which projections get LoRA, as PEFT's `target_modules`. Default: `["all-linear"]`. */
  targets?: string[];
  /** Seed of all that is drawn. The same lessons, settings and seed give the same adapters. Default: 1. */
  seed?: number;
  /** As for `Embedder.load`; default: as the model was loaded with. */
  threads?: "auto" | number;
  onProgress?: (progress: LoadProgress) => void;
  signal?: AbortSignal;
}

/** A query and a text that answers it, or does not. */
export type Pair = { query: string; text: string } | readonly [query: string, text: string];

/**
 * How well the answers of lessons that were held back are found among 96 texts, or more where the lessons have more of their own:
 * these, then `others`, then those of the lessons that are taught.
 */
export interface Score {
  /** Mean of one over the rank of the answer: 1 where each comes first. */
  mrr: number;
  /** What the answers lose to the other texts, on average; as the loss of training. */
  loss: number;
}

export interface FitProgress {
  /** What is taught, which `auto` may change after the first step. */
  kind: "lora" | "adapter";
  /** Steps done; 0 while texts are embedded for an adapter, and where the lessons that are held back were asked before the first. */
  step: number;
  /**
   * Steps in all; with `budget` by what those before took, and left out before the first. More from the first look at the lessons
   * that are held back on, where `newWords`.
   */
  steps?: number;
  /** Whether words that are new to the model are practised, for longer than usual. */
  newWords: boolean;
  /** Loss of the step. */
  loss?: number;
  /** Where the lessons that are held back were asked. */
  score?: Score;
  seconds: number;
  /** Left out before the first step, unless there is a `budget`. */
  secondsLeft?: number;
}

/** Where negatives are mined from, and by which rule. */
export interface MineOptions {
  index: Index<any>;
  /** An entry's text. Default: what was given with it, or its `text`. */
  text?: (entry: { id: string | number; data?: any }) => string;
  /** Entries that are looked at, the nearest to each query. Default: 50. */
  nearest?: number;
  /** Negatives of each query at most. Default: 3. */
  perQuery?: number;
  /** No entry is taken that is nearer to the query than this share of its lowest text's cosine: it may be an answer. Default: 0.95. */
  percentOfPositive?: number;
  /** First rank that is taken, from 1. Default: 1. */
  minRank?: number;
}

export interface FitOptions {
  /**
   * Queries with texts that answer them. A pair that is given twice counts once. Of a text that is longer than the model reads
   * (`info.maxLength`) the beginning is taught.
   */
  pairs: Iterable<Pair>;
  /** Texts that do not answer a query, each of which needs a pair too. Other lessons' texts are wrong answers anyway. */
  negatives?: Iterable<Pair>;
  /**
   * Texts that answers are to be told apart from where the lessons that are held back are asked, passages of the collection
   * say; as many as `Score` has room for.
   */
  others?: Iterable<string>;
  /**
   * Mines negatives of each query from the texts of an index, which has to be of the model as it computes now: the nearest that
   * are no answers, by the rule of `kiln mine`.
   */
  mine?: Index<any> | MineOptions;
  /**
   * Steps of `batchSize` lessons each. Default: 60; with `budget` as many as it allows, of an adapter 60 at most. Where neither
   * `steps`, `budget` nor `learningRate` is given and the model finds the answers of the lessons that are held back hardly better
   * than by chance, as of names that it has never seen, they are 300 at a higher rate, and the result says `newWords`.
   */
  steps?: number;
  /**
   * Milliseconds to teach in, in place of `steps`: no step but the first three is begun afterwards. With both, whichever ends
   * first. Where the texts of an adapter are not embedded by then it rejects with a RangeError; what is embedded stays, so that
   * another `fit` goes on with the rest.
   */
  budget?: number;
  /** Default: 16, of an adapter 64. */
  batchSize?: number;
  /** Highest learning rate. Default: 5e-4, of an adapter 3e-4; where `steps` are 300 for new words 2e-3, of an adapter 1e-3. */
  learningRate?: number;
  /** Of InfoNCE. Default: 0.05. */
  temperature?: number;
  /** Negatives of a lesson's own in a batch, of those that it has. Default: 1. */
  hardNegatives?: number;
  /**
   * Share of the queries that is held back and not taught: they are asked before, in between and after. Default: 0.2; none
   * where the share is less than five, by default below 25 queries. Another run with the same queries, and a trainer of the same
   * seed, hold the same ones back.
   */
  holdBack?: number;
  /** Steps between looks at them. Default: a quarter of all. */
  checkEvery?: number;
  /** Looks without a gain after which training stops. Default: 2; new words are practised to the end. */
  patience?: number;
  /**
   * Keeps the state of the run under this name, every ten steps and once a second at most (in IndexedDB, or a folder), for
   * `resume`, until it ends. What was kept under it before is forgotten.
   */
  checkpoint?: string;
  onProgress?: (progress: FitProgress) => void;
  /** Stops after the step that is being computed; `state` can still be asked for. */
  signal?: AbortSignal;
}

/** A run that was stopped, which can be cloned and stored. */
export interface TrainerState {
  files: [name: string, bytes: Uint8Array][];
}

/** What became of lessons. */
export interface FitResult {
  /** The adapters; null where they are not kept. */
  adapter: Adapter | null;
  /** What was taught. */
  kind: "lora" | "adapter";
  /**
   * Whether they are: not where the queries that were held back are answered no better than before: so it was in a third of the
   * runs with 25 or 50 lessons.
   */
  kept: boolean;
  /** Queries that were taught, and that were held back; where none were, nothing is known of the gain. */
  taught: number;
  heldBack: number;
  /** Negatives that `mine` found; not told by `resume`. */
  mined?: number;
  /** Steps done, and the one whose adapters these are. */
  steps: number;
  bestStep: number;
  /**
   * Whether the lessons' words were new to the model, so that it practised longer and harder than usual: if the adapters are kept,
   * other questions may be answered a little worse.
   */
  newWords: boolean;
  /** How well held-back queries were answered before, and are now; null where none were held back. */
  before: Score | null;
  after: Score | null;
  seconds: number;
}

/**
 * Teaches a model from pairs of a query and a text, where they are; the model's own weights stay as they are. What is asked for
 * is done one after another.
 */
export class Trainer {
  /** Where it computes, for people. */
  readonly device: string;
  /** What it teaches; `auto` may change it in the first run. */
  readonly kind: "lora" | "adapter";
  /**
   * Teaches. Rejects with one line where the lessons make no sense: a pair of equal texts, an empty one, a text that is said to
   * answer a query and not to. A second run goes on from the adapters of the first, or, where that was stopped or failed, from
   * those of before it.
   */
  fit(options: FitOptions): Promise<FitResult>;
  /**
   * Goes on with a run, with the same numbers: one that `checkpoint` kept, by its name (undefined where there is none of it), or
   * one of a trainer with the same settings, from its `state`.
   */
  resume(checkpoint: string, options?: Pick<FitOptions, "budget" | "onProgress" | "signal">): Promise<FitResult | undefined>;
  resume(state: TrainerState, options?: Pick<FitOptions, "budget" | "onProgress" | "signal">): Promise<FitResult>;
  /**
   * Begins with these adapters in place of fresh ones; a trainer of kind `auto` teaches their kind from then on. Rejects for
   * another model's, and for LoRA of tables of tokens.
   */
  startFrom(adapter: AdapterSource): Promise<void>;
  /** All that `resume` needs to go on with a run that was stopped, here or after a reload. */
  state(): Promise<TrainerState>;
  /** Frees everything; a run that is under way is rejected. */
  dispose(): void;
}

/** Runs that `checkpoint` kept. */
export const checkpoints: {
  /** Their names. */
  names(): Promise<string[]>;
  /** Forgets one; nothing happens where there is none of that name. */
  delete(name: string): Promise<void>;
};

/** What a cross-encoder is. */
export interface RerankerInfo {
  /** Tokens of a query and a text that are read together. */
  readonly maxLength: number;
  readonly hiddenSize: number;
  readonly layers: number;
  readonly vocabularySize: number;
  /** What is made of a score: `sigmoid` gives a number between 0 and 1. */
  readonly activation: "identity" | "sigmoid";
  /** Where it computes, for people. */
  readonly device: string;
  readonly threads: number;
}

/** How far a ranking is. */
export interface RankProgress {
  texts: number;
  total: number;
  textsPerSecond: number;
}

export interface RankOptions {
  /** How many of the best; all where it is left out. */
  top?: number;
  onProgress?: (progress: RankProgress) => void;
  /** Stops after the text that is being scored; the promise is rejected with an AbortError. */
  signal?: AbortSignal;
}

/**
 * A loaded cross-encoder, which reads a query and a text together: slower than vectors, and usually better. Rank
 * the best few dozen that an index finds. It computes on the CPU; its calls reject as those of `Embedder`.
 */
export class Reranker {
  /**
   * Loads a cross-encoder: a `.kiln` file of one, or of any decoder that ranks, or a folder with a head for sequence classification
   * of one score, or a Qwen3-Reranker.
   */
  static load(source: ModelSource, options?: Omit<LoadOptions, "device" | "webgpu" | "workers" | "adapter">): Promise<Reranker>;
  readonly info: RerankerInfo;
  readonly device: string;
  /** Scores of texts, in their order. */
  scores(query: string, texts: readonly string[], options?: Omit<RankOptions, "top">): Promise<Float32Array>;
  /** Texts by how relevant they are to a query, the most relevant first; equal ones in their order. */
  rank(query: string, texts: readonly string[], options?: RankOptions): Promise<{ index: number; score: number; text: string }[]>;
  /** Frees everything; a ranking that is under way is rejected. */
  dispose(): void;
}

/** How an index keeps vectors: four bytes a number, one byte, one bit, or bits to find candidates and bytes to score them. */
export type Precision = "f32" | "int8" | "binary" | "binary+int8";

export interface Entry<Data = unknown> {
  /** A name, or a finite number; `1` and `"1"` are two. */
  id: string | number;
  /** A vector of length 1 (as `embed` gives it), so that scores are cosines; never one that is zero or not finite. */
  vector: ArrayLike<number>;
  /** Anything that can be cloned, to have it back with a hit. */
  data?: Data;
}

export interface Hit<Data = unknown> {
  id: string | number;
  score: number;
  data?: Data;
}

/**
 * Whose vectors they are: an embedder's `info`, or its `info.fingerprint` alone, with which nothing is known of its weights;
 * nothing is known either where the fingerprint is null.
 */
export type MadeBy = string | Readonly<{ fingerprint: string | null; weights?: string | null }> | null;

/** A saved index: can be cloned, stored, and sent to a worker. */
export interface SavedIndex {
  version: 1;
  settings: { dimensions: number; precision: Precision; model?: string; weights?: string; adapted?: true };
  /** No id twice. */
  entries: [id: string | number, data: unknown][];
  /** With a sum of their own. */
  bytes: Uint8Array;
}

/** Vectors by name, and exact search for the nearest. Each id has one vector: to add it again is to replace that. */
export class Index<Data = unknown> {
  /**
   * `model` says whose vectors they are, and is saved with them. Where later entries or queries are of the same model with other
   * `weights`, `add`, `search` and `import` warn on the console, once. At most 65536 dimensions.
   */
  static create<Data = unknown>(options: { dimensions: number; precision?: Precision; model?: MadeBy; worker?: boolean }): Promise<Index<Data>>;
  /**
   * An index as `export` gave it. Rejects where its settings, ids and bytes do not belong together, and where it was
   * saved with another `model` than is given here.
   */
  static import<Data = unknown>(saved: SavedIndex, options?: { model?: MadeBy; worker?: boolean }): Promise<Index<Data>>;
  /** An index as `save` kept it, checked as `import` does; undefined where there is none of that name. */
  static load<Data = unknown>(name: string, options?: { model?: MadeBy; worker?: boolean }): Promise<Index<Data> | undefined>;
  /** Deletes a saved index. */
  static delete(name: string): Promise<void>;
  /** Names of the saved indexes. */
  static names(): Promise<string[]>;
  readonly size: number;
  readonly dimensions: number;
  readonly precision: Precision;
  /** Whose vectors they are, as `create` was told, or the first `add` that was. */
  readonly model?: string;
  has(id: string | number): boolean;
  /** What was given with an entry. */
  get(id: string | number): Data | undefined;
  /** All ids with what was given with them. */
  entries(): [id: string | number, data: Data | undefined][];
  /** Vectors of entries, as exact as the precision keeps them. */
  vectors(ids: Iterable<string | number>): Promise<Float32Array[]>;
  /**
   * Adds entries, all or none; one whose id is there already is replaced, vector and data. Rejects where an id is given twice, and
   * where `model`, what embedded them, is not the index's: an index never mixes two spaces.
   */
  add(entries: Iterable<Entry<Data>>, options?: { model?: MadeBy }): Promise<void>;
  /** Takes entries out, so that no search finds them from now on; gives how many were there. */
  remove(ids: Iterable<string | number>): Promise<number>;
  /**
   * The k best entries, best first, or all where there are fewer; `rescore` times k candidates of the binary precisions are scored
   * again. Rejects where `model`, as in `add`, is not the index's.
   */
  search(query: ArrayLike<number>, options?: { k?: number; rescore?: number; model?: MadeBy; signal?: AbortSignal }): Promise<Hit<Data>[]>;
  /**
   * The same entries with their vectors in the space of an adapter of vectors (`kind: "adapter"`), as the model gives them with
   * it; nothing is embedded. Of `f32` exactly, of int8 rounded a second time. This index stays as it is. Rejects for LoRA
   * adapters, for an adapter of another model or an index that is adapted already, and for `binary`, which keeps signs alone.
   */
  adapted(adapter: AdapterSource, options?: { worker?: boolean }): Promise<Index<Data>>;
  /**
   * The same entries with the vectors that an embedder gives their texts now, such as after `setAdapter`, in the same precision.
   * An entry's text is its `data`, or `data.text`, or what `text` makes of it. This index stays as it is and answers meanwhile;
   * what is added to it or removed meanwhile is not known to the new one. Rejects where an entry has no text, and where the
   * embedder is given another adapter meanwhile.
   */
  reembedded(
    embedder: Embedder,
    options?: Omit<EmbedOptions, "onProgress"> & {
      text?: (entry: { id: string | number; data?: Data }) => string;
      onProgress?: (progress: Omit<EmbedProgress, "tokens">) => void;
      worker?: boolean;
    },
  ): Promise<Index<Data>>;
  export(): Promise<SavedIndex>;
  /** Keeps the index under a name: in IndexedDB; in Node, Deno and Bun in a folder, for the same runtime. */
  save(name: string): Promise<void>;
  dispose(): void;
}

/** Cosine of two vectors. */
export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number;

/** Forgets downloaded models: one by its address, or all. Rejects in workerd, which does not say what it keeps. */
export function clearCache(url?: string | URL): Promise<void>;
