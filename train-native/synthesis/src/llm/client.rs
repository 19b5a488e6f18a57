//! One question to one endpoint: bounded in time and size, the key for that endpoint alone.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use kiln_terminal::terminal::{Terminal, field};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde_json::{Value, json};

use super::answer::{Answer, Finish, Usage};
use super::endpoint::{Endpoint, EndpointList};
use super::question::Question;

/// The largest answer; a model that writes a book has not understood the question.
const LARGEST: usize = 8 << 20;
/// Letters of a server's own words that an error repeats.
const SHOWN: usize = 300;
/// What stands where a server repeats the key.
const HIDDEN: &str = "[the key]";
const SHORTEST_KEY: usize = 8;
/// The longest pause that is told from others: what is added to a time must leave it one.
const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 86_400);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server has too much to do: another try may help, after the pause that it asks for.
    Busy(String, Option<Duration>),
    /// The server or the network is ill: another try may help, after the pause that is asked for.
    Ill(String, Option<Duration>),
    /// Nobody is there.
    Absent(String),
    /// The server does not know something that was asked for, which is left out from now on.
    Unsupported,
    /// This question cannot be answered.
    Bad(String),
    /// No question can.
    Fatal(String),
}

/// What an endpoint does not know. Bits, so that tasks can note what they see.
const NO_SCHEMA: u8 = 1;
const NO_JSON: u8 = 2;
const COMPLETION_TOKENS: u8 = 4;
const NO_SAMPLING: u8 = 8;
const NO_SEED: u8 = 16;
const NO_TOP_P: u8 = 32;

/// What may be left out, by the words that errors have for it.
const PARAMETERS: [(&[&str], u8); 5] = [
    (&["max_tokens", "max_completion_tokens"], COMPLETION_TOKENS),
    // Some take one of the two: the temperature says more.
    (&["top_p"], NO_TOP_P),
    (&["temperature"], NO_SAMPLING),
    (&["seed"], NO_SEED),
    (
        &[
            "response_format",
            "response format",
            "json_schema",
            "json_object",
            "schema",
            "grammar",
            "guided",
        ],
        NO_SCHEMA,
    ),
];
/// What an error says of a parameter that cannot be.
const UNKNOWN: [&str; 14] = [
    "unsupported",
    "not support",
    "unknown",
    "unrecognized",
    "unrecognised",
    "unexpected",
    "unavailable",
    "not permitted",
    "not allowed",
    "not implemented",
    "cannot both",
    "must be",
    "invalid",
    "bad ",
];

struct Target {
    endpoint: Endpoint,
    url: Url,
    key: Option<String>,
    lacks: AtomicU8,
    terminal: Terminal,
}

/// The endpoints, ready to be asked.
pub struct Llm {
    http: reqwest::Client,
    targets: Vec<Target>,
    /// What they are, shares and prices included.
    pub endpoints: EndpointList,
}

impl std::fmt::Debug for Llm {
    /// Without keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Llm").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Llm {
    /// Makes endpoints ready; nothing is sent.
    ///
    /// # Errors
    /// As [`EndpointList::check`], or a key that is not there.
    pub fn new(
        endpoints: EndpointList,
        http: reqwest::ClientBuilder,
        terminal: Terminal,
    ) -> Result<Self> {
        endpoints.check()?;
        let http = http
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            // What leads elsewhere would take the key along, or the documents.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(20))
            .build()
            .context("cannot make encrypted connections")?;
        let target = |endpoint: &Endpoint| -> Result<Target> {
            let url = endpoint.address()?;
            let key = endpoint.key(&url)?;
            let (endpoint, lacks) = (endpoint.clone(), AtomicU8::new(0));
            Ok(Target { endpoint, url, key, lacks, terminal })
        };
        let targets = endpoints.endpoints.iter().map(target).collect::<Result<_>>()?;
        Ok(Self { http, targets, endpoints })
    }

    /// An endpoint's name in messages.
    pub(super) fn name(&self, endpoint: usize) -> String {
        self.targets[endpoint].name()
    }

    /// Asks once.
    pub(super) async fn ask(
        &self,
        question: &Question,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let target = &self.targets[question.endpoint];
        let answered = tokio::time::timeout(limit, self.exchange(target, question)).await;
        let failure = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) => {
                Failure::Ill(format!("no answer within {} seconds", limit.as_secs_f64()), None)
            }
        };
        Err(target.without_key(failure))
    }

    async fn exchange(&self, target: &Target, question: &Question) -> Result<Answer, Failure> {
        let lacks = target.lacks.load(Ordering::Relaxed);
        let body = target.body(question, lacks);
        let mut request =
            self.http.post(target.url.clone()).header(ACCEPT_ENCODING, "identity").json(&body);
        if let Some(key) = &target.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(of_transport)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = target.without_key_in(bounded(response).await?);
        if !status.is_success() {
            return Err(target.refusal(status, &headers, &bytes, lacks));
        }
        let mut answer = answer(&headers, &bytes, question, &target.endpoint.model)?;
        // Letters may be written as numbers in JSON.
        if let Some(key) = target.secret().filter(|key| answer.text.contains(key)) {
            answer.text = answer.text.replace(key, HIDDEN);
        }
        Ok(answer)
    }
}

impl Target {
    fn name(&self) -> String {
        format!("{} ({})", self.url, self.endpoint.model)
    }

    fn body(&self, question: &Question, lacks: u8) -> Value {
        let mut messages = Vec::new();
        if let Some(system) = &question.system {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": question.prompt}));
        let mut body = json!({"model": self.endpoint.model, "messages": messages, "stream": false});
        let limit =
            if lacks & COMPLETION_TOKENS > 0 { "max_completion_tokens" } else { "max_tokens" };
        body[limit] = self.endpoint.answer_tokens.into();
        if lacks & NO_SAMPLING == 0 {
            body["temperature"] = question.temperature.into();
            if lacks & NO_TOP_P == 0 {
                body["top_p"] = 1.0.into();
            }
        }
        if lacks & NO_SEED == 0 {
            // Positive and small enough for every server.
            body["seed"] = ((question.key as u32) >> 1).into();
        }
        match &question.schema {
            Some(schema) if lacks & NO_SCHEMA == 0 => {
                let name = schema["title"].as_str().unwrap_or("answer");
                let schema = json!({"name": name, "schema": schema, "strict": true});
                body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
            }
            Some(_) if lacks & NO_JSON == 0 => {
                body["response_format"] = json!({"type": "json_object"})
            }
            _ => {}
        }
        body
    }

    /// What an answer says that is none.
    fn refusal(&self, status: StatusCode, headers: &HeaderMap, bytes: &[u8], lacks: u8) -> Failure {
        let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let words = words_of(&body).unwrap_or_else(|| short(&String::from_utf8_lossy(bytes)));
        let said = format!("the server answers {status}: {words}");
        let code =
            body["error"]["code"].as_str().or(body["error"]["type"].as_str()).unwrap_or_default();
        match status.as_u16() {
            429 if matches!(code, "insufficient_quota" | "billing_hard_limit_reached") => {
                Failure::Fatal(said)
            }
            // 529 is what some say for 'overloaded'.
            429 | 503 | 529 => Failure::Busy(said, pause(headers)),
            408 | 425 | 500..=599 => Failure::Ill(said, pause(headers)),
            400 | 404 | 415 | 422 if self.learns(&body, &words, lacks) => Failure::Unsupported,
            300..=399 => Failure::Fatal(format!(
                "the server answers {status} and leads elsewhere; name the address that it leads to"
            )),
            400 | 413 | 415 | 422 => Failure::Bad(said),
            _ => Failure::Fatal(said),
        }
    }

    /// Notes what the endpoint does not know by its own words, and says whether that was new, so that asking
    /// again may help.
    fn learns(&self, body: &Value, words: &str, lacks: u8) -> bool {
        let field = |name: &str| body["error"][name].as_str().unwrap_or_default().to_lowercase();
        let (param, words) =
            (field("param"), format!("{} {}", field("code"), words.to_lowercase()));
        let says = |names: &[&str]| names.iter().any(|name| words.contains(name));
        // What is too long may be said by the same names, and is no reason to ask for less than a schema.
        let is_unknown = says(&UNKNOWN);
        let found = PARAMETERS.iter().find(|(names, _)| {
            names.iter().any(|name| param.contains(name)) || (is_unknown && says(names))
        });
        let Some(&(_, lack)) = found else { return false };
        let new = if lack == NO_SCHEMA && lacks & NO_SCHEMA > 0 { NO_JSON } else { lack };
        if self.lacks.fetch_or(new, Ordering::Relaxed) & new == 0 {
            self.terminal.note(format!("{} {}", self.name(), instead(new)));
        }
        lacks & new == 0
    }

    /// What came, without the key: before anything is cut, as half a key is a secret too.
    fn without_key_in(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(key) = self.secret() else { return bytes };
        match String::from_utf8_lossy(&bytes) {
            text if text.contains(key) => text.replace(key, HIDDEN).into_bytes(),
            _ => bytes,
        }
    }

    /// The key, where it is one: servers that need none get words like `none`, which answers may well hold.
    fn secret(&self) -> Option<&str> {
        self.key.as_deref().filter(|key| key.len() >= SHORTEST_KEY)
    }

    /// A failure whose words do not hold the key, should the server repeat it.
    fn without_key(&self, failure: Failure) -> Failure {
        let Some(key) = self.secret() else { return failure };
        let clean = |words: String| words.replace(key, HIDDEN);
        match failure {
            Failure::Busy(words, pause) => Failure::Busy(clean(words), pause),
            Failure::Ill(words, pause) => Failure::Ill(clean(words), pause),
            Failure::Absent(words) => Failure::Absent(clean(words)),
            Failure::Bad(words) => Failure::Bad(clean(words)),
            Failure::Fatal(words) => Failure::Fatal(clean(words)),
            Failure::Unsupported => failure,
        }
    }
}

/// What is done where an endpoint does not know something.
fn instead(lack: u8) -> &'static str {
    match lack {
        NO_SCHEMA => "does not take json_schema; json_object is asked for instead",
        NO_JSON => "does not take json_object; the form of answers is asked for in words alone",
        COMPLETION_TOKENS => "does not take max_tokens; max_completion_tokens is said instead",
        NO_TOP_P => "does not take temperature with top_p; temperature alone is said",
        NO_SAMPLING => "does not take a temperature; its own is left to it",
        _ => "does not take a seed; the same question may get another answer",
    }
}

/// A server's words, short enough and harmless.
fn short(words: &str) -> String {
    let words = words.split_whitespace().take(100).collect::<Vec<_>>().join(" ");
    let words: String = words.chars().take(SHOWN).collect();
    if words.is_empty() { "nothing more".into() } else { field(&words).into_owned() }
}

/// What an error object says.
fn words_of(body: &Value) -> Option<String> {
    let error = body.get("error").or_else(|| body.get("detail"))?;
    let text = error.as_str().or_else(|| error["message"].as_str());
    Some(short(&text.map_or_else(|| error.to_string(), String::from)))
}

fn of_transport(error: reqwest::Error) -> Failure {
    let (absent, builder) = (error.is_connect(), error.is_builder());
    let error = error.without_url();
    // The innermost cause is the one that says something.
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let cause = short(&cause.to_string());
    match (builder, absent) {
        (true, _) => Failure::Fatal(cause),
        (_, true) => Failure::Absent(cause),
        _ => Failure::Ill(format!("the connection broke off: {cause}"), None),
    }
}

/// How long a server asks to be left alone: seconds, or a date.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            date.duration_since(SystemTime::now()).unwrap_or_default()
        }
    };
    Some(pause.min(LONGEST_PAUSE))
}

/// All of a body, if it is not too much.
async fn bounded(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(of_transport)? {
        if bytes.len() + part.len() > LARGEST {
            let words = format!("the answer is larger than {} MiB", LARGEST >> 20);
            return Err(Failure::Ill(words, None));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// What a server's answer says.
fn answer(
    headers: &HeaderMap,
    bytes: &[u8],
    question: &Question,
    model: &str,
) -> Result<Answer, Failure> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let streams = kind.starts_with("text/event-stream") || bytes.starts_with(b"data:");
    let said = if streams { streamed(bytes) } else { whole(bytes) };
    let (text, finish, usage) = said.map_err(|words| Failure::Ill(words, None))?;
    let usage = usage.unwrap_or_else(|| Usage::estimate(&question.prompt, &text));
    Ok(Answer { text, finish, usage, model: model.into() })
}

/// Text, end and tokens of an answer, or why it is none.
type Said = Result<(String, Finish, Option<Usage>), String>;

/// What is said of an answer that cannot be read.
fn ill(what: &str, bytes: &[u8]) -> String {
    format!("{what}: {}", short(&String::from_utf8_lossy(bytes)))
}

/// An answer that is one JSON object.
fn whole(bytes: &[u8]) -> Said {
    let body: Value =
        serde_json::from_slice(bytes).map_err(|_| ill("the answer is no JSON", bytes))?;
    if body.get("choices").is_none()
        && let Some(words) = words_of(&body)
    {
        return Err(format!("the server says: {words}"));
    }
    let choice = body["choices"].get(0).ok_or_else(|| ill("the answer has no choices", bytes))?;
    let message = choice.get("message").ok_or_else(|| ill("the answer has no message", bytes))?;
    let end = finish(choice).ok_or_else(|| ill("the model broke off", bytes))?;
    Ok(match message["refusal"].as_str().filter(|words| !words.is_empty()) {
        Some(words) => (words.into(), Finish::Refused, counted(&body["usage"])),
        None => (words(&message["content"]), end, counted(&body["usage"])),
    })
}

/// Why an answer ends; none where the server failed while it wrote.
fn finish(choice: &Value) -> Option<Finish> {
    match choice["finish_reason"].as_str() {
        Some("error") => None,
        Some("content_filter") => Some(Finish::Refused),
        Some("length" | "max_tokens") => Some(Finish::Length),
        _ => Some(Finish::Stop),
    }
}

/// The text of a message: one, or several parts.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Tokens, where the server counts them in numbers that may be true.
fn counted(usage: &Value) -> Option<Usage> {
    let number = |name: &str| usage[name].as_u64().filter(|tokens| *tokens < 1 << 40);
    Some(Usage {
        prompt: number("prompt_tokens")?,
        completion: number("completion_tokens")?,
        estimated: false,
    })
}

/// The text of an answer that comes in parts although nobody asked for that.
fn streamed(bytes: &[u8]) -> Said {
    let broken = || ill("the stream breaks off", bytes);
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (mut all, mut end, mut usage, mut done) = (String::new(), Finish::Stop, None, false);
    for data in text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim) {
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let part: Value = serde_json::from_str(data).map_err(|_| broken())?;
        if part.get("error").is_some_and(|error| !error.is_null())
            && let Some(words) = words_of(&part)
        {
            return Err(format!("the server says amid its answer: {words}"));
        }
        usage = usage.or_else(|| counted(&part["usage"]));
        let choice = &part["choices"][0];
        all.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if choice["finish_reason"].is_string() {
            (done, end) = (true, finish(choice).ok_or_else(broken)?);
        }
    }
    done.then_some((all, end, usage)).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        let schema = Some(super::super::texts_schema("row", ["a"]));
        Question {
            key: 3,
            endpoint: 0,
            system: None,
            prompt: "p".into(),
            schema,
            temperature: 1.0,
            label: "l".into(),
        }
    }

    fn target() -> Target {
        let endpoint = Endpoint::new("http://localhost", "m");
        let url = endpoint.address().unwrap();
        let terminal = Terminal { json: false, quiet: true };
        let key = Some("sk-secret".into());
        Target { endpoint, url, key, lacks: AtomicU8::new(0), terminal }
    }

    #[test]
    fn what_a_server_does_not_know_is_left_out_step_by_step() {
        let target = target();
        let ask = || target.body(&question(), target.lacks.load(Ordering::Relaxed));
        let refuse = |words: &str| {
            let lacks = target.lacks.load(Ordering::Relaxed);
            let body = json!({"error": {"message": words}}).to_string();
            target.refusal(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes(), lacks)
        };
        assert_eq!(ask()["response_format"]["type"], "json_schema");
        assert!(matches!(
            refuse("response_format of type json_schema is unknown"),
            Failure::Unsupported
        ));
        assert_eq!(ask()["response_format"]["type"], "json_object");
        assert!(matches!(refuse("response_format is unknown"), Failure::Unsupported));
        assert_eq!(ask().get("response_format"), None);
        assert!(matches!(refuse("response_format is unknown"), Failure::Bad(_)));
        assert!(matches!(refuse("Unsupported parameter: 'max_tokens'"), Failure::Unsupported));
        assert!(ask().get("max_tokens").is_none() && ask()["max_completion_tokens"] == 2048);
        assert!(matches!(refuse("temperature must be 1"), Failure::Unsupported));
        assert!(ask().get("temperature").is_none());
        assert!(matches!(refuse("the prompt is too long"), Failure::Bad(_)));
    }

    #[test]
    fn what_is_too_long_is_no_missing_parameter() {
        let target = target();
        let refuse = |body: Value| {
            let body = body.to_string();
            target.refusal(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes(), 0)
        };
        let long = "'max_tokens' is too large: 2048. The schema and your prompt have 4000 tokens";
        assert!(matches!(refuse(json!({"error": {"message": long}})), Failure::Bad(_)));
        assert_eq!(target.lacks.load(Ordering::Relaxed), 0);
        let named = json!({"error": {"message": "no", "param": "response_format.json_schema"}});
        assert!(matches!(refuse(named), Failure::Unsupported));
        assert_eq!(target.lacks.load(Ordering::Relaxed), NO_SCHEMA);
    }

    #[test]
    fn an_error_never_repeats_the_key() {
        let target = target();
        let body = br#"{"error": {"message": "Incorrect API key provided: sk-secret"}}"#;
        let failure = target.refusal(StatusCode::UNAUTHORIZED, &HeaderMap::new(), body, 0);
        let Failure::Fatal(words) = target.without_key(failure) else { panic!() };
        assert!(!words.contains("secret") && words.contains("[the key]"), "{words}");
        // Nor half of it, where the words are cut.
        let long = format!("{}sk-secret", "x".repeat(SHOWN - 5)).into_bytes();
        let failure = target.refusal(
            StatusCode::BAD_REQUEST,
            &HeaderMap::new(),
            &target.without_key_in(long),
            0,
        );
        let Failure::Bad(words) = failure else { panic!() };
        assert!(!words.contains("sk-s"), "{words}");
    }

    #[test]
    fn answers_of_all_shapes() {
        let read = |kind: &'static str, body: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
            answer(&headers, body.as_bytes(), &question(), "m")
        };
        let plain = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;
        let answer = read("application/json", plain).unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.finish, answer.usage.prompt),
            ("x", Finish::Length, 5)
        );
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n";
        assert_eq!(read("text/event-stream", stream).unwrap().text, "ab");
        assert!(read("text/event-stream", &stream[..60]).is_err());
        let amid = stream.replace("data: [DONE]", "data: {\"error\":{\"message\":\"CUDA\"}}");
        let Err(Failure::Ill(words, None)) = read("text/event-stream", &amid) else { panic!() };
        assert!(words.contains("CUDA"), "{words}");
        let failed = stream.replace("\"stop\"", "\"error\"");
        assert!(matches!(read("text/event-stream", &failed), Err(Failure::Ill(..))));
        let refusal = r#"{"choices":[{"message":{"content":null,"refusal":"no"}}],"usage":{"prompt_tokens":-1}}"#;
        let answer = read("application/json", refusal).unwrap();
        assert_eq!((answer.finish, answer.usage.estimated), (Finish::Refused, true));
        for broken in [
            r#"{"error": {"message": "overloaded"}}"#,
            r#"{"choices": []}"#,
            "<html>",
            "",
            "{\"choices\":[{}]}",
            r#"{"choices":[{"message":{"content":"half a"},"finish_reason":"error"}]}"#,
        ] {
            assert!(matches!(read("application/json", broken), Err(Failure::Ill(..))), "{broken}");
        }
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let header = |text: &str| HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
        assert_eq!(pause(&header("7")), Some(Duration::from_secs(7)));
        assert_eq!(pause(&header("Wed, 21 Oct 2015 07:28:00 GMT")), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(pause(&header(&later)).unwrap() > Duration::from_secs(90));
        assert_eq!(pause(&header("1e19")), Some(LONGEST_PAUSE));
        assert_eq!(
            (pause(&header("-1")), pause(&header("soon")), pause(&header("1e300"))),
            (None, None, None)
        );
    }
}
