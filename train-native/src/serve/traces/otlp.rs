//! Traces that are sent, by OpenTelemetry's own exporter on a thread of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Extensions, HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as Exports,
};

use super::Encoding;
use crate::terminal::Terminal;

/// Bytes of what a client calls itself.
const AGENT: usize = 256;

/// Sends traces, where the environment asks for them.
#[derive(Clone)]
pub(in crate::serve) struct Traces(Option<Arc<Sdk>>);

struct Sdk {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Traces {
    /// As the environment asks.
    ///
    /// # Errors
    /// It asks for what there is not.
    pub(in crate::serve) fn from_environment(terminal: Terminal) -> Result<Self> {
        let Some(encoding) = super::asked(|name| std::env::var(name).ok())? else {
            return Ok(Self(None));
        };
        let protocol = match encoding {
            Encoding::Protobuf => Protocol::HttpBinary,
            Encoding::Json => Protocol::HttpJson,
        };
        // The way of encrypting has to be chosen before the exporter makes its client.
        drop(crate::http::client());
        let exporter = SpanExporter::builder().with_http().with_protocol(protocol).build();
        let exporter = exporter.context("cannot send traces as the environment (OTEL_...) asks")?;
        let exporter = Told { exporter, terminal, fails: AtomicBool::new(false) };
        let service = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let mut resource = Resource::builder().with_attribute(service);
        if std::env::var_os("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty())
            && !std::env::var("OTEL_RESOURCE_ATTRIBUTES")
                .is_ok_and(|all| all.contains("service.name="))
        {
            resource = resource.with_service_name("kiln");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer("kiln");
        Ok(Self(Some(Arc::new(Sdk {
            provider,
            tracer,
            propagator: TraceContextPropagator::new(),
        }))))
    }

    /// Sends what is left, for some seconds at most.
    pub(in crate::serve) fn end(&self) {
        if let Some(sdk) = &self.0 {
            // What cannot be sent has been told by then.
            let _ = sdk.provider.shutdown();
        }
    }
}

/// A request's span; nothing where no traces are sent.
#[derive(Clone)]
pub(in crate::serve) struct Trace(Option<(Arc<Sdk>, Context)>);

impl Trace {
    /// That of a request.
    pub(in crate::serve) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or(Self(None))
    }

    /// Notes a number.
    pub(in crate::serve) fn count(&self, key: &'static str, count: usize) {
        if let Some((_, context)) = &self.0 {
            context
                .span()
                .set_attribute(KeyValue::new(key, i64::try_from(count).unwrap_or(i64::MAX)));
        }
    }

    /// Notes a name.
    pub(in crate::serve) fn name(&self, key: &'static str, name: &str) {
        if let Some((_, context)) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, name.to_string()));
        }
    }

    /// A part that begins now.
    pub(in crate::serve) fn step(&self, name: &'static str) -> Step {
        Step { _span: self.begin(name, SystemTime::now()) }
    }

    /// What the model had some texts for since a time: they waited for it first.
    pub(in crate::serve) fn waited(&self, since: SystemTime, waited: Duration) {
        let began = since + waited;
        if let Some(mut span) = self.begin("queue", since) {
            span.end_with_timestamp(began);
        }
        drop(self.begin("inference", began));
    }

    fn begin(&self, name: &'static str, at: SystemTime) -> Option<Span> {
        let (sdk, context) = self.0.as_ref()?;
        let span = sdk.tracer.span_builder(name).with_start_time(at);
        Some(sdk.tracer.build_with_context(span, context))
    }
}

/// A part of a request, which ends when it is dropped.
pub(in crate::serve) struct Step {
    _span: Option<Span>,
}

impl Step {
    /// Ends it.
    pub(in crate::serve) fn end(self) {}
}

/// Before a route: its span, below that of the client where it names one.
pub(in crate::serve) async fn traced(
    State(traces): State<Traces>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(sdk) = traces.0 else { return next.run(request).await };
    let above = sdk.propagator.extract_with_context(&Context::new(), &Headers(request.headers()));
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_string());
    let route = route.unwrap_or_else(|| request.uri().path().to_string());
    // A stranger may write any.
    let known =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST].contains(request.method());
    let (verb, method) = match known {
        true => (request.method().as_str(), request.method().as_str()),
        false => ("HTTP", "_OTHER"),
    };
    let mut noted = vec![
        KeyValue::new("http.request.method", method.to_string()),
        KeyValue::new("http.route", route.clone()),
        KeyValue::new("url.path", route.clone()),
        KeyValue::new("url.scheme", "http"),
    ];
    let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    // Text of a header is ASCII.
    let agent = agent.map(|agent| agent[..agent.len().min(AGENT)].to_string());
    noted.extend(agent.map(|agent| KeyValue::new("user_agent.original", agent)));
    let span = sdk
        .tracer
        .span_builder(format!("{verb} {route}"))
        .with_kind(SpanKind::Server)
        .with_attributes(noted);
    let context = above.with_span(sdk.tracer.build_with_context(span, &above));
    request.extensions_mut().insert(Trace(Some((sdk, context.clone()))));
    let response = next.run(request).await;
    let (span, status) = (context.span(), response.status());
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
    if status.is_server_error() {
        span.set_attribute(KeyValue::new("error.type", status.as_str().to_string()));
        span.set_status(Status::error(status.canonical_reason().unwrap_or_default()));
    }
    span.end();
    response
}

/// A request's headers, which may name the client's span (`traceparent`).
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

/// An exporter that says when the collector does not take what it sends, and when it does again.
struct Told<E> {
    exporter: E,
    terminal: Terminal,
    fails: AtomicBool,
}

impl<E: fmt::Debug> fmt::Debug for Told<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exporter.fmt(f)
    }
}

impl<E: Exports> Exports for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let failed = self.fails.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !failed => self.terminal.note(format!(
                "warning: traces are lost, as the collector does not take them: {error}"
            )),
            Ok(()) if failed => self.terminal.note("traces are sent again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
