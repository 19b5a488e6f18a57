//! Of a build that sends no traces.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use crate::terminal::Terminal;

/// Sends none.
#[derive(Clone)]
pub(in crate::serve) struct Traces;

/// Of a request: nothing.
#[derive(Clone)]
pub(in crate::serve) struct Trace;

/// A part of a request, of which nothing is kept.
pub(in crate::serve) struct Step;

impl Step {
    /// Ends it.
    pub(in crate::serve) fn end(self) {}
}

impl Traces {
    /// Says so, where the environment asks for traces, however it does.
    ///
    /// # Errors
    /// None.
    pub(in crate::serve) fn from_environment(terminal: Terminal) -> Result<Self> {
        if !matches!(super::asked(|name| std::env::var(name).ok()), Ok(None)) {
            terminal.note(
                "no traces are sent, which the environment (OTEL_...) asks for: this kiln was built without them; build it \
                 with --features otel, or install the package",
            );
        }
        Ok(Self)
    }

    /// Nothing is left to send.
    pub(in crate::serve) fn end(&self) {}
}

impl Trace {
    /// That of a request.
    pub(in crate::serve) fn of(_: &Extensions) -> Self {
        Self
    }

    /// Forgets it.
    pub(in crate::serve) fn count(&self, _: &'static str, _: usize) {}

    /// Forgets it.
    pub(in crate::serve) fn name(&self, _: &'static str, _: &str) {}

    /// A part that begins now.
    pub(in crate::serve) fn step(&self, _: &'static str) -> Step {
        Step
    }

    /// Forgets it.
    pub(in crate::serve) fn waited(&self, _: SystemTime, _: Duration) {}
}

/// Passes a request on.
pub(in crate::serve) async fn traced(_: State<Traces>, request: Request, next: Next) -> Response {
    next.run(request).await
}
