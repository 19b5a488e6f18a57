//! `kiln load`

use anyhow::{Result, bail};
use clap::Args;

use super::Global;
use super::serve::up_to;
use crate::eval::plain_table;
use crate::serve::{Load, LoadLine, check_key};
use crate::terminal::counted;
use crate::text::{Columns, TextFile};

/// Measure a running server under load.
///
/// Measures response times and throughput of `kiln serve`, or of another server with OpenAI's
/// /v1/embeddings, for several numbers of connections and batch sizes.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key of the server
    #[arg(long, value_name = "KEY", env = "KILN_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// File of texts to send, in any format of `embed --input` [default: made-up sentences]
    #[arg(long, short, value_name = "FILE")]
    input: Option<String>,
    /// Field or column of the text
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Texts per request
    #[arg(long, value_name = "N", default_value = "1,32", value_delimiter = ',', value_parser = up_to(65_536))]
    batch: Vec<usize>,
    /// Concurrent requests
    #[arg(long, value_name = "N", default_value = "1,4,16,64", value_delimiter = ',', value_parser = up_to(65_536))]
    connections: Vec<usize>,
    /// Requests per measurement
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = up_to(1 << 32))]
    requests: usize,
}

/// Texts that are read at most.
const TEXTS: usize = 10_000;

pub(super) fn run(args: &LoadArgs, global: &Global) -> Result<()> {
    args.api_key.as_deref().map(check_key).transpose()?;
    let texts = match &args.input {
        Some(input) => {
            let columns = Columns { fields: args.field.clone(), optional: Vec::new() };
            let records = TextFile::open(input, columns)?.records()?.take(TEXTS);
            records.map(|record| Ok(record?.joined())).collect::<Result<Vec<_>>>()?
        }
        None => {
            use crate::data::corpus::{Corpus, CorpusSize};
            Corpus::generate(0, CorpusSize::default()).test.corpus
        }
    };
    let load = Load {
        url: args.url.trim_end_matches('/').into(),
        key: args.api_key.clone(),
        texts,
        batches: args.batch.clone(),
        connections: args.connections.clone(),
        requests: args.requests,
    };
    let lines = load.run(global.terminal())?;
    global.terminal().result(&lines, || table(&lines))?;
    match lines.iter().map(|line| line.lost).sum::<usize>() {
        0 => Ok(()),
        lost => {
            bail!("{} lost; see the server's output", counted(lost, "request was", "requests were"))
        }
    }
}

fn table(lines: &[LoadLine]) -> String {
    let header = [
        "connections",
        "batch",
        "answered",
        "refused",
        "lost",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "texts/s",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(lines.iter().map(|line| {
        let counts = [line.connections, line.batch, line.answered, line.refused, line.lost];
        let times = [line.p50_ms, line.p95_ms, line.p99_ms, line.texts_per_second];
        counts
            .iter()
            .map(usize::to_string)
            .chain(times.iter().map(|time| format!("{time:.1}")))
            .collect()
    }));
    plain_table(&rows)
}
