//! Which language models a command asks, and how much.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kiln_synthesis::llm::{Endpoint, EndpointList, Limits, Llm};

use super::ranges::{number, whole};
use crate::terminal::Terminal;

/// The endpoints, and the limits of what they are asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Language model")]
pub(super) struct LlmArgs {
    /// Address of an OpenAI-compatible server, such as http://localhost:8080/v1 (vLLM, llama.cpp, Ollama, OpenAI)
    #[arg(long, value_name = "URL", requires = "llm_model")]
    pub(super) llm: Option<String>,
    /// Name of the model there
    #[arg(long, value_name = "NAME", requires = "llm")]
    pub(super) llm_model: Option<String>,
    /// TOML file of several [[endpoint]]: url, model, and where wanted share, roles (seed, write, judge), key_env,
    /// prompt_price, completion_price, answer_tokens
    #[arg(long, value_name = "FILE", conflicts_with_all = ["llm", "llm_model", "llm_key_env", "prompt_price", "completion_price"])]
    pub(super) llm_config: Option<PathBuf>,
    /// Environment variable that holds the key [default: OPENAI_API_KEY, where that is set and the connection is
    /// encrypted or local]
    #[arg(long, value_name = "NAME", requires = "llm")]
    llm_key_env: Option<String>,
    /// Requests under way at a time, at most; fewer where the server has too much to do
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole(1, 4096))]
    concurrency: usize,
    /// Seconds that an answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = number(0.01, 1e5))]
    llm_timeout: f64,
    /// How often a request is sent again where the server or the network fails
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    llm_retries: u32,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "llm_config")]
    answer_tokens: u32,
    /// Stop after so many requests
    #[arg(long, value_name = "N")]
    max_requests: Option<u64>,
    /// Stop when prompts and answers have so many tokens, those of earlier runs into the same folder included
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Stop when the tokens cost so much, in the unit of the prices, earlier runs into the same folder included
    #[arg(long, value_name = "AMOUNT", value_parser = number(0.0, 1e12))]
    max_cost: Option<f64>,
    /// Price of a million tokens of prompts
    #[arg(long, value_name = "AMOUNT", requires = "llm", value_parser = number(0.0, 1e9))]
    prompt_price: Option<f64>,
    /// Price of a million tokens of answers
    #[arg(long, value_name = "AMOUNT", requires = "llm", value_parser = number(0.0, 1e9))]
    completion_price: Option<f64>,
}

impl LlmArgs {
    /// The endpoints that are named, if any.
    ///
    /// # Errors
    /// A file that cannot be read, or endpoints that cannot be asked.
    pub(super) fn endpoints(&self) -> Result<Option<EndpointList>> {
        let list = match (&self.llm_config, &self.llm, &self.llm_model) {
            (Some(path), _, _) => EndpointList::read(path)?,
            (None, Some(url), Some(model)) => EndpointList {
                endpoints: vec![Endpoint {
                    key_env: self.llm_key_env.clone(),
                    prompt_price: self.prompt_price,
                    completion_price: self.completion_price,
                    answer_tokens: self.answer_tokens,
                    ..Endpoint::new(url, model)
                }],
            },
            _ => return Ok(None),
        };
        list.check()?;
        if self.max_cost.is_some() {
            let unpriced =
                |one: &&Endpoint| one.prompt_price.is_none() && one.completion_price.is_none();
            if let Some(endpoint) = list.endpoints.iter().find(unpriced) {
                anyhow::bail!(
                    "--max-cost needs prices, and {} has none; give --prompt-price and --completion-price, or \
                     prompt_price and completion_price in the file of endpoints",
                    endpoint.model
                );
            }
        }
        Ok(Some(list))
    }

    /// The endpoints, ready to be asked.
    ///
    /// # Errors
    /// As [`Self::endpoints`], or a key that is not there.
    pub(super) fn connect(&self, terminal: Terminal) -> Result<Option<Arc<Llm>>> {
        let Some(list) = self.endpoints()? else { return Ok(None) };
        Ok(Some(Arc::new(Llm::new(list, crate::http::client(), terminal)?)))
    }

    /// The same with what is left of the budget when so much of it is used.
    pub(super) fn less(&self, requests: u64, tokens: u64, cost: f64) -> Self {
        Self {
            max_requests: self.max_requests.map(|most| most.saturating_sub(requests)),
            max_tokens: self.max_tokens.map(|most| most.saturating_sub(tokens)),
            max_cost: self.max_cost.map(|most| (most - cost).max(0.0)),
            ..self.clone()
        }
    }

    /// The same as words of a command line.
    pub(super) fn words(&self) -> Vec<String> {
        let path = self.llm_config.as_ref().map(|path| path.to_string_lossy().into_owned());
        let number = |number: Option<f64>| number.map(|number| number.to_string());
        let count = |number: Option<u64>| number.map(|number| number.to_string());
        let tokens = path.is_none().then(|| self.answer_tokens.to_string());
        let options = [
            ("--llm", self.llm.clone()),
            ("--llm-model", self.llm_model.clone()),
            ("--llm-config", path),
            ("--llm-key-env", self.llm_key_env.clone()),
            ("--concurrency", Some(self.concurrency.to_string())),
            ("--llm-timeout", Some(self.llm_timeout.to_string())),
            ("--llm-retries", Some(self.llm_retries.to_string())),
            ("--answer-tokens", tokens),
            ("--max-requests", count(self.max_requests)),
            ("--max-tokens", count(self.max_tokens)),
            ("--max-cost", number(self.max_cost)),
            ("--prompt-price", number(self.prompt_price)),
            ("--completion-price", number(self.completion_price)),
        ];
        let given =
            options.into_iter().filter_map(|(name, value)| Some([name.to_string(), value?]));
        given.flatten().collect()
    }

    /// How much may be asked.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            concurrency: self.concurrency,
            retries: self.llm_retries,
            timeout: Duration::from_secs_f64(self.llm_timeout),
            max_requests: self.max_requests,
            requests_before: 0,
            max_tokens: self.max_tokens,
            max_cost: self.max_cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        llm: LlmArgs,
    }

    #[test]
    fn a_budget_shrinks_by_what_was_used() {
        let line =
            "kiln --llm http://a --llm-model m --max-tokens 100 --max-cost 1.5 --prompt-price 1";
        let llm = Line::parse_from(line.split(' ')).llm;
        let limits = llm.less(3, 60, 1.25).limits();
        assert_eq!((limits.max_requests, limits.max_tokens), (None, Some(40)));
        assert_eq!(limits.max_cost, Some(0.25));
        assert_eq!(llm.less(0, 200, 9.0).limits().max_cost, Some(0.0));
        // As words it is the same.
        let words = llm.less(0, 60, 0.0).words();
        let again = Line::parse_from(std::iter::once("kiln".into()).chain(words)).llm;
        assert_eq!(again.limits().max_tokens, Some(40));
    }
}
