// A language model behind OpenAI's chat API, for tests: a thin adapter around node-llama-cpp.
//
//   node server.mjs FOLDER [--port N] [--context TOKENS] [--threads N] [--queue N] [--min-p P] [--top-k N]
//
// FOLDER is what `tests/setup.sh llm` made: node-llama-cpp and smollm2.gguf. Prints one line of JSON with the
// address once it answers, and ends when its standard input does, so that no test leaves it behind. Requests are
// answered one after the other.

import { createServer } from "node:http";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    port: { type: "string", default: "0" },
    context: { type: "string", default: "4096" },
    // llama.cpp's own number of threads hangs on a busy machine.
    threads: { type: "string", default: "1" },
    queue: { type: "string", default: "256" },
    // As llama.cpp's own server has them; without, a small model wanders off into other languages.
    "min-p": { type: "string", default: "0.05" },
    "top-k": { type: "string", default: "40" },
  },
});
const folder = resolve(positionals[0] ?? ".");
const NAME = "smollm2";
const BODY_LIMIT = 1 << 20;

const library = join(folder, "node_modules/node-llama-cpp/dist/index.js");
const { getLlama, LlamaChat, LlamaLogLevel } = await import(pathToFileURL(library));
const threads = Number(options.threads);
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads });
const model = await llama.loadModel({ modelPath: join(folder, "smollm2.gguf") });
const context = await model.createContext({ contextSize: Number(options.context), sequences: 1, threads });
const chat = new LlamaChat({ contextSequence: context.getSequence() });

/** What the one who asks did wrong, with the status for it. */
class Refusal extends Error {
  constructor(status, message, code = null) {
    super(message);
    Object.assign(this, { status, code });
  }
}

function number(body, name, least, most) {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number" || !(value >= least && value <= most)) {
    throw new Refusal(400, `${name} must be a number from ${least} to ${most}`);
  }
  return value;
}

/** Grammars of schemas, which are few and slow to make. */
const grammars = new Map();

async function grammarOf(format) {
  const type = format?.type ?? "text";
  if (type === "text") return undefined;
  if (type === "json_object") return await llama.getGrammarFor("json");
  if (type !== "json_schema") throw new Refusal(400, `response_format ${JSON.stringify(type)} is not supported`);
  const schema = format.json_schema?.schema;
  if (typeof schema !== "object" || schema === null) throw new Refusal(400, "json_schema has no schema");
  const key = JSON.stringify(schema);
  if (!grammars.has(key)) {
    if (grammars.size === 64) grammars.clear();
    try {
      grammars.set(key, await llama.createGrammarForJsonSchema(schema));
    } catch (error) {
      throw new Refusal(400, `the schema has no grammar: ${error.message}`);
    }
  }
  return grammars.get(key);
}

function historyOf(messages) {
  if (!Array.isArray(messages) || messages.length === 0) throw new Refusal(400, "messages must be a list of some");
  const history = messages.map((message) => {
    // Parts of text are text.
    const parts = Array.isArray(message?.content) ? message.content.map((part) => part?.text) : [message?.content];
    if (!parts.every((part) => typeof part === "string")) throw new Refusal(400, "messages must have text");
    const text = parts.join("\n");
    if (message.role === "assistant") return { type: "model", response: [text] };
    if (!["system", "developer", "user"].includes(message.role)) throw new Refusal(400, "no such role");
    return { type: message.role === "user" ? "user" : "system", text };
  });
  if (history.at(-1).type !== "user") throw new Refusal(400, "the last message must be the user's");
  return [...history, { type: "model", response: [] }];
}

async function answer(body, signal) {
  if (body.stream) throw new Refusal(400, "stream is not supported");
  if ((body.n ?? 1) !== 1) throw new Refusal(400, "n must be 1");
  const chatHistory = historyOf(body.messages);
  const grammar = await grammarOf(body.response_format);
  const { contextText } = chat.chatWrapper.generateContextState({ chatHistory });
  const promptTokens = contextText.tokenize(model.tokenizer).length;
  const room = context.contextSize - promptTokens - 8;
  if (room < 1) {
    const message = `the prompt has ${promptTokens} tokens; the context has ${context.contextSize}`;
    throw new Refusal(400, message, "context_length_exceeded");
  }
  const asked = number(body, "max_completion_tokens", 1, 1e9) ?? number(body, "max_tokens", 1, 1e9) ?? room;
  // A prompt that went before leaves nothing behind but what both begin with.
  let completionTokens = 0;
  const { response, metadata } = await chat.generateResponse(chatHistory, {
    grammar,
    signal,
    maxTokens: Math.min(asked, room),
    temperature: number(body, "temperature", 0, 2) ?? 1,
    topP: number(body, "top_p", 0, 1) ?? 1,
    minP: Number(options["min-p"]),
    topK: Number(options["top-k"]),
    seed: number(body, "seed", 0, 2 ** 53) ?? undefined,
    repeatPenalty: false,
    // It would say one thing for ever.
    dryRepeatPenalty: { strength: 0.8, lastTokens: 512 },
    onToken: (tokens) => (completionTokens += tokens.length),
  });
  return {
    id: `chatcmpl-${Date.now()}`,
    object: "chat.completion",
    created: Math.floor(Date.now() / 1000),
    model: NAME,
    choices: [
      {
        index: 0,
        message: { role: "assistant", content: response },
        finish_reason: metadata.stopReason === "maxTokens" ? "length" : "stop",
      },
    ],
    usage: {
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
      total_tokens: promptTokens + completionTokens,
    },
  };
}

async function read(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > BODY_LIMIT) throw new Refusal(413, `the body is larger than ${BODY_LIMIT} bytes`);
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString());
  } catch {
    throw new Refusal(400, "the body is no JSON");
  }
}

let waiting = 0;
let last = Promise.resolve();

/** After all that came before, unless those are too many. */
function inTurn(work) {
  if (waiting >= Number(options.queue)) throw new Refusal(429, "too many requests are waiting");
  waiting += 1;
  const turn = last.then(work).finally(() => (waiting -= 1));
  last = turn.catch(() => {});
  return turn;
}

async function route(request, signal) {
  const path = new URL(request.url, "http://x").pathname;
  const asked = `${request.method} ${path}`;
  if (asked === "GET /health") return { status: "ok" };
  if (asked === "GET /v1/models") return { object: "list", data: [{ id: NAME, object: "model" }] };
  if (asked !== "POST /v1/chat/completions") throw new Refusal(404, `no ${asked} here`);
  const body = await read(request);
  if (typeof body !== "object" || body === null) throw new Refusal(400, "the body is no object");
  return await inTurn(() => {
    signal.throwIfAborted();
    return answer(body, signal);
  });
}

const server = createServer(async (request, response) => {
  const gone = new AbortController();
  response.on("close", () => gone.abort());
  const send = (status, body) => {
    if (response.destroyed) return;
    const headers = { "content-type": "application/json" };
    if (status === 429) headers["retry-after"] = "1";
    response.writeHead(status, headers);
    response.end(JSON.stringify(body));
  };
  try {
    send(200, await route(request, gone.signal));
  } catch (error) {
    if (gone.signal.aborted) return;
    const status = error instanceof Refusal ? error.status : 500;
    const type = status < 500 ? "invalid_request_error" : "server_error";
    send(status, { error: { message: error.message, type, code: error.code ?? null } });
  }
});
server.requestTimeout = 0;
server.listen(Number(options.port), "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}/v1`;
  console.log(JSON.stringify({ url, model: NAME, context: context.contextSize }));
});

// At once: llama.cpp may be in the middle of an answer.
const end = () => process.kill(process.pid, "SIGKILL");
process.stdin.on("end", end).on("close", end).on("error", end).resume();
