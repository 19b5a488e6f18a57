//! A model that answers whatever a test wants, and counts what it was asked.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::text::fill;

/// How many questions are kept as they came.
const KEPT: usize = 20_000;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// How many came before.
    pub(crate) number: usize,
    /// How often the same was asked before.
    pub(crate) again: usize,
    /// How many are under way with it.
    pub(crate) in_flight: usize,
    /// Method and path.
    pub(crate) path: String,
    /// Names are in small letters.
    pub(crate) headers: Vec<(String, String)>,
    /// The question.
    pub(crate) body: Value,
    /// What tells it from others: all but the form that is asked for.
    pub(crate) hash: u64,
}

impl Request {
    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
            Some(line.trim_end().to_string())
        };
        let first = line()?;
        let path = first.rsplit_once(' ')?.0.to_string();
        let mut headers = Vec::new();
        loop {
            let line = line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_string()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
        reader.read_exact(&mut body).ok()?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let mut request = Self { number: 0, again: 0, in_flight: 0, path, headers, body, hash: 0 };
        let mut hasher = DefaultHasher::new();
        for name in ["model", "messages", "seed"] {
            request.body[name].to_string().hash(&mut hasher);
        }
        request.hash = hasher.finish();
        Some(request)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// All that the model is told.
    pub(crate) fn prompt(&self) -> String {
        let messages = self.body["messages"].as_array().into_iter().flatten();
        let texts: Vec<&str> = messages.filter_map(|message| message["content"].as_str()).collect();
        texts.join("\n")
    }

    /// The form that is asked for.
    pub(crate) fn format(&self) -> &str {
        self.body["response_format"]["type"].as_str().unwrap_or("text")
    }
}

/// What comes after the body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Then {
    /// The next request.
    Keep,
    Close,
    /// Bytes for as long as somebody takes them.
    Endless,
    /// Nothing, and the connection stays open.
    Silence,
    /// The connection is torn, not closed.
    Reset,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Instead of all that.
    raw: Option<Vec<u8>>,
    /// Bytes of head and body that are sent, if not all.
    cut: Option<usize>,
    /// One byte of the body in this time.
    trickle: Option<Duration>,
    /// How long it takes.
    delay: Duration,
    then: Then,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref().to_vec();
        let headers = vec![("Content-Type".into(), "application/json".into())];
        let delay = Duration::ZERO;
        Self { status, headers, body, raw: None, cut: None, trickle: None, delay, then: Then::Keep }
    }

    /// A message of the model, as OpenAI wraps it.
    pub(crate) fn message(request: &Request, message: Value, finish: &str) -> Self {
        let tokens = |text: &Value| text.as_str().map_or(1, |text| text.len().div_ceil(4));
        let (prompt, completion) = (tokens(&json!(request.prompt())), tokens(&message["content"]));
        let body = json!({
            "id": format!("chatcmpl-{}", request.number),
            "object": "chat.completion",
            "created": 1,
            "model": request.body["model"],
            "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        });
        Self::new(200, body.to_string())
    }

    /// A text of the model.
    pub(crate) fn content(request: &Request, content: impl Into<String>) -> Self {
        let message = json!({ "role": "assistant", "content": content.into() });
        Self::message(request, message, "stop")
    }

    /// What was asked for.
    pub(crate) fn good(request: &Request) -> Self {
        Self::content(request, answer(request).to_string())
    }

    /// An error as OpenAI says it.
    pub(crate) fn error(status: u16, kind: &str, message: &str) -> Self {
        let error = json!({ "message": message, "type": kind, "param": null, "code": kind });
        Self::new(status, json!({ "error": error }).to_string())
    }

    /// An error as what stands before servers says it.
    pub(crate) fn html(status: u16) -> Self {
        let page = "<html><head><title>Bad</title></head><body><h1>Bad</h1><script>x()</script></body></html>";
        Self::new(status, page).with("Content-Type", "text/html")
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.to_string()));
        self
    }

    /// The JSON of the body, changed.
    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut body = serde_json::from_slice(&self.body).unwrap();
        change(&mut body);
        self.body = body.to_string().into_bytes();
        self
    }

    /// The first bytes of the body, as if they were all.
    pub(crate) fn shortened(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self
    }

    /// These bytes and no others.
    pub(crate) fn raw(mut self, bytes: &str) -> Self {
        self.raw = Some(bytes.as_bytes().to_vec());
        self.then(Then::Close)
    }

    /// Breaks off after some bytes of the body.
    pub(crate) fn cut_body(mut self, length: usize) -> Self {
        self.cut = Some(self.head().len() + length.min(self.body.len()));
        self
    }

    /// Breaks off after some bytes of the head.
    pub(crate) fn cut_head(mut self, length: usize) -> Self {
        self.cut = Some(length);
        self
    }

    pub(crate) fn trickle(self, pause: Duration) -> Self {
        Self { trickle: Some(pause), ..self }
    }

    pub(crate) fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    pub(crate) fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    /// Nothing at all.
    pub(crate) fn silence() -> Self {
        Self::new(200, "").cut_head(0).then(Then::Silence)
    }

    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} x\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if self.then != Then::Endless {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        if self.then != Then::Keep {
            head += "Connection: close\r\n";
        }
        head + "\r\n"
    }

    fn write(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut bytes = self.head().into_bytes();
        let body = bytes.len();
        bytes.extend_from_slice(&self.body);
        bytes = self.raw.clone().unwrap_or(bytes);
        bytes.truncate(self.cut.unwrap_or(usize::MAX));
        match self.trickle {
            None => stream.write_all(&bytes)?,
            Some(pause) => {
                stream.write_all(&bytes[..body])?;
                for byte in &bytes[body..] {
                    stream.write_all(&[*byte])?;
                    std::thread::sleep(pause);
                }
            }
        }
        match self.then {
            Then::Keep | Then::Close => Ok(()),
            Then::Endless => loop {
                stream.write_all(&[b' '; 1 << 16])?;
            },
            Then::Silence => stream.read(&mut [0]).map(drop),
            Then::Reset => socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)),
        }
    }
}

/// What the schema asks for, or where there is none, the prompt: the same for the same question.
pub(crate) fn answer(request: &Request) -> Value {
    let schema = &request.body["response_format"]["json_schema"]["schema"];
    fill(&request.prompt(), schema.is_object().then_some(schema), request.hash)
}

/// What a server saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The first of them, as they came.
    pub(crate) requests: Vec<Request>,
    /// All of them.
    pub(crate) count: usize,
    /// How often each was asked.
    pub(crate) asked: HashMap<u64, usize>,
    /// Connections that were opened.
    pub(crate) connections: usize,
    /// Most at a time.
    pub(crate) most: usize,
    /// Those under way, over the time from the first request to the last answer.
    in_flight: usize,
    area: f64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Seen {
    fn step(&mut self, by: isize) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        let since = now - self.last.unwrap_or(now);
        self.area += since.as_secs_f64() * self.in_flight as f64;
        self.in_flight = self.in_flight.saturating_add_signed(by);
        self.most = self.most.max(self.in_flight);
        self.last = Some(now);
    }

    /// From the first request to the last answer.
    pub(crate) fn time(&self) -> Duration {
        self.last.zip(self.first).map(|(last, first)| last - first).unwrap_or_default()
    }

    /// Requests under way, on average.
    pub(crate) fn mean(&self) -> f64 {
        self.area / self.time().as_secs_f64()
    }

    /// The most that any was asked.
    pub(crate) fn most_asked(&self) -> usize {
        self.asked.values().copied().max().unwrap_or_default()
    }

    /// All prompts that are kept.
    pub(crate) fn prompts(&self) -> Vec<String> {
        self.requests.iter().map(Request::prompt).collect()
    }
}

/// A server on loopback for as long as the test runs.
pub(crate) struct Fake {
    address: String,
    seen: Arc<Mutex<Seen>>,
}

impl Fake {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (kept, answer) = (seen.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (kept.clone(), answer.clone());
                seen.lock().unwrap().connections += 1;
                std::thread::spawn(move || serve(&mut stream.unwrap(), &seen, &*answer));
            }
        });
        Self { address, seen }
    }

    /// One that does what is asked of it.
    pub(crate) fn good() -> Self {
        Self::start(Reply::good)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().count
    }

    /// Waits until so many came.
    pub(crate) fn wait_for(&self, count: usize) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.count() < count {
            assert!(Instant::now() < limit, "only {} of {count} requests came", self.count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(
    stream: &mut TcpStream,
    seen: &Mutex<Seen>,
    answer: &(impl Fn(&Request) -> Reply + ?Sized),
) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    // It is busy from a question's first byte: to read it is its own work.
    while reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
        seen.lock().unwrap().step(1);
        let Some(mut request) = Request::read(&mut reader) else {
            seen.lock().unwrap().step(-1);
            return;
        };
        {
            let mut seen = seen.lock().unwrap();
            request.number = seen.count;
            request.in_flight = seen.in_flight;
            seen.count += 1;
            let asked = seen.asked.entry(request.hash).or_default();
            request.again = *asked;
            *asked += 1;
            if seen.requests.len() < KEPT {
                seen.requests.push(request.clone());
            }
        }
        let reply = answer(&request);
        std::thread::sleep(reply.delay);
        if reply.then == Then::Keep {
            // Who has the answer may ask again before we know that it is written.
            seen.lock().unwrap().step(-1);
        }
        // Who is written to may have gone.
        let written = reply.write(stream);
        if reply.then != Then::Keep {
            seen.lock().unwrap().step(-1);
        }
        if written.is_err() || reply.then != Then::Keep || reply.cut.is_some() {
            return;
        }
    }
}
