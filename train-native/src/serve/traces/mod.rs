//! Traces by OpenTelemetry: a span for each request, with its parts below it, sent to a collector by OTLP.
//!
//! The standard variables say whether, where and how much
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables>). Names of what is noted are
//! OpenTelemetry's for HTTP servers and generative models; `kiln.texts` is our own.

#[cfg(not(feature = "otel"))]
mod none;
#[cfg(feature = "otel")]
mod otlp;

use anyhow::{Result, bail};
#[cfg(not(feature = "otel"))]
pub(super) use none::{Trace, Traces, traced};
#[cfg(feature = "otel")]
pub(super) use otlp::{Trace, Traces, traced};

/// Where a collector is.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// How traces are sent.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Which requests are traced.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// How traces are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Protobuf,
    Json,
}

/// How the environment, whose variables `get` gives, asks for traces, if it does.
///
/// # Errors
/// It asks for what there is not, of which OpenTelemetry's library would take something else in silence.
fn asked(get: impl Fn(&str) -> Option<String>) -> Result<Option<Encoding>> {
    let set = |name: &str| {
        get(name).map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
    };
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let endpoint = ENDPOINTS.into_iter().find_map(|name| Some((name, set(name)?)));
    match set("OTEL_TRACES_EXPORTER").as_deref() {
        Some("none") => return Ok(None),
        None if endpoint.is_none() => return Ok(None),
        None | Some("otlp") => {}
        Some(other) => bail!(
            "OTEL_TRACES_EXPORTER is {other:?}; traces go by otlp alone: unset it, or set it to otlp or none"
        ),
    }
    if let Some((name, address)) = endpoint
        && !["http://", "https://"].iter().any(|scheme| address.starts_with(scheme))
    {
        bail!("{name} is {address:?}, which is no address: write it as http://collector:4318");
    }
    if let Some(sampler) = set("OTEL_TRACES_SAMPLER") {
        let share = set("OTEL_TRACES_SAMPLER_ARG");
        // All, where it is not set.
        let is_share = share.as_ref().is_none_or(|share| {
            share.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share))
        });
        if !SAMPLERS.contains(&sampler.as_str()) {
            bail!("OTEL_TRACES_SAMPLER is {sampler:?}; it may be {}", SAMPLERS.join(", "));
        }
        if sampler.ends_with("traceidratio") && !is_share {
            bail!(
                "OTEL_TRACES_SAMPLER is {sampler}, and OTEL_TRACES_SAMPLER_ARG {:?}; it has to be a share from 0 to 1",
                share.unwrap_or_default()
            );
        }
    }
    let named = PROTOCOLS.into_iter().find_map(|name| Some((name, set(name)?)));
    match named.as_ref().map(|(name, protocol)| (name, protocol.as_str())) {
        None | Some((_, "http/protobuf")) => Ok(Some(Encoding::Protobuf)),
        Some((_, "http/json")) => Ok(Some(Encoding::Json)),
        Some((name, protocol)) => bail!(
            "{name} is {protocol:?}; traces go by http/protobuf or http/json: set it to one of them, and the endpoint to \
             the collector's port for HTTP (4318)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_variables_ask_for_traces() {
        let asked = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            asked(|name| find(name).map(|(_, value)| value.to_string()))
                .map_err(|error| error.to_string())
        };
        let (protobuf, json) = (Some(Encoding::Protobuf), Some(Encoding::Json));
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for (variables, wanted) in [
            (&[][..], None),
            (&[endpoint], protobuf),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], None),
            (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")], protobuf),
            (&[("OTEL_TRACES_EXPORTER", "otlp")], protobuf),
            (&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], None),
            (&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], None),
            (&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json ")], json),
            (&[endpoint, ("OTEL_TRACES_SAMPLER", "always_off")], protobuf),
            (&[endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio")], protobuf),
            (&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], None),
        ] {
            assert_eq!(asked(variables), Ok(wanted), "{variables:?}");
        }
        for (variable, words) in [
            (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "4318"),
            (("OTEL_TRACES_EXPORTER", "zipkin"), "otlp"),
            (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318"), "no address"),
            (("OTEL_TRACES_SAMPLER", "ratio"), "traceidratio"),
        ] {
            let error = asked(&[endpoint, variable]).unwrap_err();
            assert!(error.contains(variable.0) && error.contains(words), "{error}");
        }
        let half = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "50 %")];
        let error = asked(&[endpoint, half[0], half[1]]).unwrap_err();
        assert!(error.contains("OTEL_TRACES_SAMPLER_ARG") && error.contains("50 %"), "{error}");
    }
}
