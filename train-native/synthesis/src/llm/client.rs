//! One question to one endpoint: bounded in time and size, the key for that endpoint alone.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use kiln_terminal::terminal::field;
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

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server has too much to do, and perhaps says for how long.
    Busy(String, Option<Duration>),
    /// The server or the network is ill; another try may help.
    Ill(String),
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

struct Target {
    endpoint: Endpoint,
    url: Url,
    key: Option<String>,
    lacks: AtomicU8,
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
    pub fn new(endpoints: EndpointList, http: reqwest::ClientBuilder) -> Result<Self> {
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
            Ok(Target { endpoint: endpoint.clone(), url, key, lacks: AtomicU8::new(0) })
        };
        let targets = endpoints.endpoints.iter().map(target).collect::<Result<_>>()?;
        Ok(Self { http, targets, endpoints })
    }

    /// An endpoint's name in messages.
    pub(super) fn name(&self, endpoint: usize) -> String {
        let target = &self.targets[endpoint];
        format!("{} ({})", target.url, target.endpoint.model)
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
                Failure::Busy(format!("no answer within {} seconds", limit.as_secs_f64()), None)
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
            body["top_p"] = 1.0.into();
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
            429 | 503 | 529 => Failure::Busy(said, pause(headers)),
            408 | 425 | 500..=599 => Failure::Ill(said),
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
        let param = body["error"]["param"].as_str().unwrap_or_default();
        let words = format!("{param} {words}").to_lowercase();
        let says = |names: &[&str]| names.iter().any(|name| words.contains(name));
        let format =
            ["response_format", "json_schema", "json_object", "schema", "grammar", "guided"];
        let new = if says(&["max_tokens", "max_completion_tokens"]) {
            COMPLETION_TOKENS
        } else if says(&["temperature", "top_p"]) {
            NO_SAMPLING
        } else if says(&["seed"]) {
            NO_SEED
        } else if says(&format) {
            if lacks & NO_SCHEMA == 0 { NO_SCHEMA } else { NO_JSON }
        } else {
            return false;
        };
        self.lacks.fetch_or(new, Ordering::Relaxed);
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
            Failure::Ill(words) => Failure::Ill(clean(words)),
            Failure::Absent(words) => Failure::Absent(clean(words)),
            Failure::Bad(words) => Failure::Bad(clean(words)),
            Failure::Fatal(words) => Failure::Fatal(clean(words)),
            Failure::Unsupported => failure,
        }
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
        _ => Failure::Ill(format!("the connection broke off: {cause}")),
    }
}

/// How long a server asks to be left alone: seconds, or a date.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// All of a body, if it is not too much.
async fn bounded(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(of_transport)? {
        if bytes.len() + part.len() > LARGEST {
            return Err(Failure::Ill(format!("the answer is larger than {} MiB", LARGEST >> 20)));
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
    let ill =
        |what: &str| Failure::Ill(format!("{what}: {}", short(&String::from_utf8_lossy(bytes))));
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (text, finish, usage) = match kind.starts_with("text/event-stream")
        || bytes.starts_with(b"data:")
    {
        true => streamed(bytes).ok_or_else(|| ill("the stream breaks off"))?,
        false => {
            let body: Value =
                serde_json::from_slice(bytes).map_err(|_| ill("the answer is no JSON"))?;
            if body.get("choices").is_none()
                && let Some(words) = words_of(&body)
            {
                return Err(Failure::Ill(format!("the server says: {words}")));
            }
            let choice = body["choices"].get(0).ok_or_else(|| ill("the answer has no choices"))?;
            let message = choice.get("message").ok_or_else(|| ill("the answer has no message"))?;
            let refused = message["refusal"].as_str().is_some_and(|words| !words.is_empty());
            let finish = match choice["finish_reason"].as_str() {
                _ if refused => Finish::Refused,
                Some("content_filter") => Finish::Refused,
                Some("length" | "max_tokens") => Finish::Length,
                _ => Finish::Stop,
            };
            let text =
                if refused { words(&message["refusal"]) } else { words(&message["content"]) };
            (text, finish, counted(&body["usage"]))
        }
    };
    let usage = usage.unwrap_or_else(|| Usage::estimate(&question.prompt, &text));
    Ok(Answer { text, finish, usage, model: model.into() })
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
fn streamed(bytes: &[u8]) -> Option<(String, Finish, Option<Usage>)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (mut all, mut finish, mut usage, mut done) = (String::new(), Finish::Stop, None, false);
    for data in text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim) {
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let part: Value = serde_json::from_str(data).ok()?;
        usage = usage.or_else(|| counted(&part["usage"]));
        let choice = &part["choices"][0];
        all.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if let Some(reason) = choice["finish_reason"].as_str() {
            done = true;
            finish = match reason {
                "length" => Finish::Length,
                "content_filter" => Finish::Refused,
                _ => finish,
            };
        }
    }
    done.then_some((all, finish, usage))
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
        Target { endpoint, url, key: Some("sk-secret".into()), lacks: AtomicU8::new(0) }
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
        let refusal = r#"{"choices":[{"message":{"content":null,"refusal":"no"}}],"usage":{"prompt_tokens":-1}}"#;
        let answer = read("application/json", refusal).unwrap();
        assert_eq!((answer.finish, answer.usage.estimated), (Finish::Refused, true));
        for broken in [
            r#"{"error": {"message": "overloaded"}}"#,
            r#"{"choices": []}"#,
            "<html>",
            "",
            "{\"choices\":[{}]}",
        ] {
            assert!(matches!(read("application/json", broken), Err(Failure::Ill(_))), "{broken}");
        }
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let header = |text: &str| HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
        assert_eq!(pause(&header("7")), Some(Duration::from_secs(7)));
        assert_eq!(pause(&header("Wed, 21 Oct 2015 07:28:00 GMT")), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(pause(&header(&later)).unwrap() > Duration::from_secs(90));
        assert_eq!(
            (pause(&header("-1")), pause(&header("soon")), pause(&header("1e300"))),
            (None, None, None)
        );
    }
}
