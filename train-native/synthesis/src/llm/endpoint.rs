//! Which models may be asked, and where.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use kiln_data::data::mixed;
use kiln_data::text::read_small;
use reqwest::Url;
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};

/// The environment's name of the key where none is named.
pub(super) const KEY_ENV: &str = "OPENAI_API_KEY";

/// What an endpoint is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Tasks, and the samples that stand before other prompts: a strong model.
    Seed,
    /// Examples: a cheap one.
    Write,
    /// Judgements.
    Judge,
}

/// One model behind one address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Address: of the server, of its `/v1`, or of its chat completions.
    pub url: String,
    /// Name of the model, as the server has it.
    pub model: String,
    /// Share of the questions of a role, relative to other endpoints of that role.
    #[serde(default = "one")]
    pub share: f64,
    /// What it is asked for.
    #[serde(default = "all_roles")]
    pub roles: Vec<Role>,
    /// Environment variable that holds the key; OPENAI_API_KEY, where that is set, if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Price of a million tokens of prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_price: Option<f64>,
    /// Price of a million tokens of answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_price: Option<f64>,
    /// Most tokens of an answer.
    #[serde(default = "answer_tokens")]
    pub answer_tokens: u32,
}

fn one() -> f64 {
    1.0
}
fn all_roles() -> Vec<Role> {
    vec![Role::Seed, Role::Write, Role::Judge]
}
fn answer_tokens() -> u32 {
    2048
}

impl Endpoint {
    /// One for all roles.
    pub fn new(url: &str, model: &str) -> Self {
        Self {
            url: url.into(),
            model: model.into(),
            share: one(),
            roles: all_roles(),
            key_env: None,
            prompt_price: None,
            completion_price: None,
            answer_tokens: answer_tokens(),
        }
    }

    /// Where questions go.
    ///
    /// # Errors
    /// No address of the web, or one with a key inside.
    pub(super) fn address(&self) -> Result<Url> {
        // The address may hold a secret, so it is not repeated before it is known to hold none.
        let Ok(mut url) = Url::parse(&self.url) else {
            bail!(
                "the address of the model {:?} is none; expected http:// or https://",
                self.model
            );
        };
        let holds_more = url.query().is_some() || url.fragment().is_some();
        if !url.username().is_empty() || url.password().is_some() || holds_more {
            bail!(
                "the address of the model {:?} holds a user, password, query or #, which would end up in logs; \
                 put the key into the environment (--llm-key-env, key_env)",
                self.model
            );
        }
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            bail!("{}: is no address of a server; expected http:// or https://", self.url);
        }
        let path = url.path().trim_end_matches('/').to_string();
        let path = match path.as_str() {
            "" => "/v1/chat/completions".into(),
            done if done.ends_with("/chat/completions") => path,
            _ => format!("{path}/chat/completions"),
        };
        url.set_path(&path);
        Ok(url)
    }

    /// What says who asks.
    ///
    /// # Errors
    /// A key that is named and not there, or that cannot be sent.
    pub(super) fn key(&self, url: &Url) -> Result<Option<String>> {
        let name = self.key_env.as_deref();
        let key = std::env::var(name.unwrap_or(KEY_ENV)).unwrap_or_default();
        let key = key.trim();
        match (name, key) {
            (Some(name), "") => bail!("{}: the environment has no key {name}; set it", self.url),
            (None, "") => return Ok(None),
            // A key that was not meant for this server is not sent in the clear.
            (None, _) if url.scheme() == "http" && !is_here(url) => return Ok(None),
            _ => {}
        }
        if HeaderValue::from_str(key).is_err() {
            bail!(
                "{}: the key in {} has characters that no key has",
                self.url,
                name.unwrap_or(KEY_ENV)
            );
        }
        Ok(Some(key.into()))
    }

    /// What so many tokens cost.
    pub fn cost(&self, prompt: u64, completion: u64) -> f64 {
        let price = |tokens: u64, price: Option<f64>| tokens as f64 * price.unwrap_or(0.0) / 1e6;
        price(prompt, self.prompt_price) + price(completion, self.completion_price)
    }
}

/// Whether an address is this machine's own.
fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    loopback || host == "localhost"
}

/// The endpoints that may be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointList {
    /// They.
    #[serde(rename = "endpoint")]
    pub endpoints: Vec<Endpoint>,
}

impl EndpointList {
    /// Reads a TOML file of `[[endpoint]]`.
    ///
    /// # Errors
    /// Unreadable, or nothing that can be asked.
    pub fn read(path: &Path) -> Result<Self> {
        let label = || path.display().to_string();
        let text = read_small(path)?;
        let list: Self = toml::from_str(&text).map_err(|error| {
            // Its own words repeat the line, which may be a key that should not stand there.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            anyhow!("{}:{}: {}", label(), before.matches('\n').count() + 1, error.message())
        })?;
        list.check().with_context(label)?;
        Ok(list)
    }

    /// Refuses what cannot be asked.
    ///
    /// # Errors
    /// No endpoint, an address that is none, shares or prices that make no sense.
    pub fn check(&self) -> Result<()> {
        if self.endpoints.is_empty() {
            bail!("names no [[endpoint]]");
        }
        for endpoint in &self.endpoints {
            endpoint.address()?;
            let prices = [endpoint.prompt_price, endpoint.completion_price];
            let numbers = prices.into_iter().flatten().chain([endpoint.share]);
            if !numbers.into_iter().all(|number| number.is_finite() && number >= 0.0) {
                bail!("{}: shares and prices are numbers from 0", endpoint.model);
            }
            if endpoint.answer_tokens == 0 || endpoint.model.trim().is_empty() {
                bail!("{}: needs a model and answer_tokens above 0", endpoint.url);
            }
        }
        Ok(())
    }

    /// What decides who answers which question of some roles: models and shares, wherever they are.
    pub fn answering(&self, asked: &[Role]) -> Vec<(&str, f64, Vec<Role>)> {
        let models = self.of_models().into_iter().map(|(model, share, roles)| {
            let of = |role: &&Role| asked.contains(role);
            (model, share, roles.iter().filter(of).copied().collect::<Vec<_>>())
        });
        models.filter(|(_, _, roles)| !roles.is_empty()).collect()
    }

    /// What decides who answers which question: models, shares and roles, wherever they are.
    pub fn of_models(&self) -> Vec<(&str, f64, &[Role])> {
        self.endpoints.iter().map(|one| (one.model.as_str(), one.share, &one.roles[..])).collect()
    }

    /// The endpoints of a role.
    pub fn of(&self, role: Role) -> Vec<usize> {
        let places = self.endpoints.iter().enumerate();
        places
            .filter(|(_, one)| one.roles.contains(&role) && one.share > 0.0)
            .map(|(i, _)| i)
            .collect()
    }

    /// The endpoint that is to answer a question of a role: by shares, the same for the same numbers.
    ///
    /// # Errors
    /// None has the role.
    pub fn pick(&self, role: Role, numbers: &[u64]) -> Result<usize> {
        let places = self.of(role);
        let total: f64 = places.iter().map(|&i| self.endpoints[i].share).sum();
        let drawn = mixed(numbers) as f64 / (u64::MAX as f64 + 1.0) * total;
        let mut sum = 0.0;
        for &i in &places {
            sum += self.endpoints[i].share;
            if drawn < sum {
                return Ok(i);
            }
        }
        let Some(last) = places.last() else { bail!("no endpoint has the role {role:?}") };
        Ok(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_and_hold_no_secret() {
        let address = |url: &str| Endpoint::new(url, "m").address().map(String::from);
        for (url, full) in [
            ("http://localhost:8080", "http://localhost:8080/v1/chat/completions"),
            ("http://localhost:8080/v1/", "http://localhost:8080/v1/chat/completions"),
            ("https://a.b/api/v2", "https://a.b/api/v2/chat/completions"),
            ("https://a.b/x/chat/completions", "https://a.b/x/chat/completions"),
        ] {
            assert_eq!(address(url).unwrap(), full);
        }
        for url in [
            "localhost:8080",
            "file:///etc/passwd",
            "x",
            "http://u:secret@a.b",
            "http://a.b/?key=secret",
            "http://a.b/v1#secret",
        ] {
            let error = address(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn shares_decide_who_is_asked() {
        let mut list = EndpointList {
            endpoints: vec![Endpoint::new("http://a", "a"), Endpoint::new("http://b", "b")],
        };
        list.endpoints[0].share = 3.0;
        list.endpoints[1].roles = vec![Role::Write];
        let count = (0..4000).filter(|&i| list.pick(Role::Write, &[7, i]).unwrap() == 0).count();
        assert!((2850..3150).contains(&count), "{count}");
        assert!((0..100).all(|i| list.pick(Role::Judge, &[i]).unwrap() == 0));
        assert_eq!(
            list.pick(Role::Write, &[7, 9]).unwrap(),
            list.pick(Role::Write, &[7, 9]).unwrap()
        );
        list.endpoints[0].roles.clear();
        assert!(list.pick(Role::Judge, &[1]).is_err());
    }
}
