//! Scores a TREC run against TREC judgements, as `trec_eval` prints them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use super::metrics::Ranking;

/// Depths of precision and recall, and of cut measures.
const DEPTHS: [usize; 9] = [5, 10, 15, 20, 30, 100, 200, 500, 1000];
/// Depths of success.
const SUCCESS: [usize; 3] = [1, 5, 10];

/// How one query's value is made, and the whole run's from them.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Count(fn(&Ranking) -> f64),
    Mean(fn(&Ranking) -> f64),
    MeanAt(fn(&Ranking, usize) -> f64, usize),
    Recall(f64),
    GeometricMean,
    RunId,
}

/// A measure under trec_eval's name.
#[derive(Debug, Clone)]
pub struct Measure {
    name: String,
    kind: Kind,
}

fn all(ranking: &Ranking) -> usize {
    ranking.retrieved.len()
}

/// Precision of everything retrieved; 0 of nothing.
fn set_precision(ranking: &Ranking) -> f64 {
    if all(ranking) == 0 { 0.0 } else { ranking.precision(all(ranking)) }
}

fn set_f(ranking: &Ranking) -> f64 {
    let (precision, recall) = (set_precision(ranking), ranking.recall(usize::MAX));
    if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 }
}

impl Measure {
    /// The measures that are printed if none is named: trec_eval's official ones, and nDCG, recall,
    /// success and cut average precision at its depths.
    pub fn default_set() -> Vec<Measure> {
        let names = ["official", "ndcg", "ndcg_cut", "recall", "map_cut", "success"];
        names.iter().flat_map(|name| Self::parse(name).unwrap_or_default()).collect()
    }

    /// Measures by trec_eval's name: `map`, `ndcg_cut` (all depths), `ndcg_cut.10,20`,
    /// `ndcg_cut_10`, or `official`.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn parse(text: &str) -> Result<Vec<Measure>> {
        let one = |name: &str, kind| vec![Measure { name: name.into(), kind }];
        let at = |name: &str, of: fn(&Ranking, usize) -> f64, depths: &[usize]| {
            let measure = |depth: &usize| Measure {
                name: format!("{name}_{depth}"),
                kind: Kind::MeanAt(of, *depth),
            };
            depths.iter().map(measure).collect::<Vec<_>>()
        };
        let shares = |shares: &[f64]| {
            let measure = |share: &f64| Measure {
                name: format!("iprec_at_recall_{share:.2}"),
                kind: Kind::Recall(*share),
            };
            shares.iter().map(measure).collect::<Vec<_>>()
        };
        let (name, parameters) = match text.split_once('.') {
            Some((name, parameters)) => (name, Some(parameters)),
            None => match text.rsplit_once('_') {
                Some((name, depth)) if depth.parse::<usize>().is_ok() => (name, Some(depth)),
                _ => (text, None),
            },
        };
        let depths = |default: &[usize]| -> Result<Vec<usize>> {
            let Some(parameters) = parameters else { return Ok(default.to_vec()) };
            let depth = |text: &str| text.parse().ok().filter(|depth: &usize| *depth > 0);
            let depths: Option<Vec<usize>> = parameters.split(',').map(depth).collect();
            depths.with_context(|| format!("{text}: the depths {parameters:?} are no numbers"))
        };
        Ok(match name {
            "official" => {
                let parts = [
                    "runid",
                    "num_q",
                    "num_ret",
                    "num_rel",
                    "num_rel_ret",
                    "map",
                    "gm_map",
                    "Rprec",
                    "bpref",
                    "recip_rank",
                    "iprec_at_recall",
                    "P",
                ];
                parts.iter().map(|part| Self::parse(part)).collect::<Result<Vec<_>>>()?.concat()
            }
            "runid" => one(name, Kind::RunId),
            "num_q" => one(name, Kind::Count(|_| 1.0)),
            "num_ret" => one(name, Kind::Count(|ranking| all(ranking) as f64)),
            "num_rel" => one(name, Kind::Count(|ranking| ranking.relevant() as f64)),
            "num_rel_ret" => one(name, Kind::Count(|ranking| ranking.found(usize::MAX) as f64)),
            "map" => one(name, Kind::Mean(|ranking| ranking.average_precision(usize::MAX))),
            "gm_map" => one(name, Kind::GeometricMean),
            "Rprec" => one(name, Kind::Mean(Ranking::r_precision)),
            "bpref" => one(name, Kind::Mean(Ranking::bpref)),
            "recip_rank" => one(name, Kind::Mean(|ranking| ranking.reciprocal_rank(usize::MAX))),
            "ndcg" => one(name, Kind::Mean(|ranking| ranking.ndcg(usize::MAX))),
            "set_P" => one(name, Kind::Mean(set_precision)),
            "set_recall" => one(name, Kind::Mean(|ranking| ranking.recall(usize::MAX))),
            "set_F" => one(name, Kind::Mean(set_f)),
            "iprec_at_recall" => match parameters {
                None => shares(&[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
                Some(parameters) => {
                    let wanted = parameters.split(',').map(str::parse::<f64>);
                    shares(
                        &wanted.collect::<Result<Vec<_>, _>>().with_context(|| text.to_string())?,
                    )
                }
            },
            "P" => at(name, Ranking::precision, &depths(&DEPTHS)?),
            "recall" => at(name, Ranking::recall, &depths(&DEPTHS)?),
            "ndcg_cut" => at(name, Ranking::ndcg, &depths(&DEPTHS)?),
            "map_cut" => at(name, Ranking::average_precision, &depths(&DEPTHS)?),
            "success" => at(name, Ranking::success, &depths(&SUCCESS)?),
            _ => bail!(
                "no measure {text:?}; there are official, runid, num_q, num_ret, num_rel, num_rel_ret, map, gm_map, \
                 Rprec, bpref, recip_rank, ndcg, iprec_at_recall, P, recall, ndcg_cut, map_cut, success, \
                 set_P, set_recall, set_F"
            ),
        })
    }

    fn of(&self, ranking: &Ranking) -> f64 {
        match self.kind {
            Kind::Count(of) | Kind::Mean(of) => of(ranking),
            Kind::MeanAt(of, depth) => of(ranking, depth),
            Kind::Recall(share) => ranking.interpolated_precision(share),
            Kind::GeometricMean => ranking.log_average_precision(),
            // A name, not a number; who prints knows it.
            Kind::RunId => f64::NAN,
        }
    }

    fn over(&self, rankings: &[(String, Ranking)]) -> f64 {
        let sum: f64 = rankings.iter().map(|(_, ranking)| self.of(ranking)).sum();
        match self.kind {
            Kind::Count(_) => sum,
            Kind::GeometricMean => (sum / rankings.len() as f64).exp(),
            _ => sum / rankings.len() as f64,
        }
    }

    fn write(&self, text: &mut String, query: &str, value: f64) {
        // Writing to a string cannot fail.
        let _ = match self.kind {
            Kind::Count(_) => writeln!(text, "{:<22}\t{query}\t{value:.0}", self.name),
            _ => writeln!(text, "{:<22}\t{query}\t{value:>6.4}", self.name),
        };
    }

    /// Whether trec_eval prints it for single queries.
    fn of_queries(&self) -> bool {
        self.name != "num_q" && !matches!(self.kind, Kind::GeometricMean | Kind::RunId)
    }
}

/// A run under judgements.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    run: String,
    rankings: Vec<(String, Ranking)>,
}

/// The words of the lines of a file.
fn lines(path: &Path, columns: usize, what: &str) -> Result<Vec<(usize, Vec<String>)>> {
    let label = path.display().to_string();
    let text = if label == "-" {
        std::io::read_to_string(std::io::stdin()).context("standard input")?
    } else {
        std::fs::read_to_string(path).with_context(|| label.clone())?
    };
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        if words.is_empty() {
            continue;
        }
        if words.len() != columns {
            bail!("{label}:{}: {} words, a line of {what}", at + 1, words.len());
        }
        found.push((at + 1, words));
    }
    if found.is_empty() {
        bail!("{label}: the file is empty");
    }
    Ok(found)
}

impl Evaluated {
    /// Reads judgements (`query iteration document grade`) and a run (`query Q0 document rank score
    /// name`). Ranks come from the scores, as in trec_eval; queries without judgements are left
    /// out. With `complete`, judged queries that the run lacks count as 0.
    ///
    /// # Errors
    /// Lines of another form, a document twice for a query, or no query in common.
    pub fn read(qrels: &Path, run: &Path, complete: bool, level: f64) -> Result<Self> {
        let mut judged: BTreeMap<String, HashMap<String, f64>> = BTreeMap::new();
        let place = |path: &Path, line: usize| format!("{}:{line}", path.display());
        for (line, words) in lines(qrels, 4, "judgements has 4: query, iteration, document, grade")?
        {
            let [query, _, document, grade] = &words[..] else { continue };
            let grade: f64 = grade
                .parse()
                .with_context(|| format!("{}: the grade is {grade:?}", place(qrels, line)))?;
            if judged.entry(query.clone()).or_default().insert(document.clone(), grade).is_some() {
                bail!("{}: {document} is judged twice for {query}", place(qrels, line));
            }
        }
        let mut found: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        let mut name = String::new();
        let form = "a run has 6: query, Q0, document, rank, score, name";
        let mut seen = std::collections::HashSet::new();
        for (line, words) in lines(run, 6, form)? {
            let [query, _, document, _, score, tag] = &words[..] else { continue };
            let score: f64 = score
                .parse()
                .ok()
                .filter(|score: &f64| !score.is_nan())
                .with_context(|| format!("{}: the score is {score:?}", place(run, line)))?;
            if !seen.insert((query.clone(), document.clone())) {
                bail!("{}: {document} is there twice for {query}", place(run, line));
            }
            found.entry(query.clone()).or_default().push((document.clone(), score));
            name.clone_from(tag);
        }
        let mut rankings = Vec::new();
        for (query, grades) in &judged {
            let documents = match found.get(query) {
                Some(documents) => documents.as_slice(),
                None if complete => &[],
                None => continue,
            };
            let documents = documents.iter().map(|(id, score)| (id.as_str(), *score)).collect();
            let grade = |id: &str| grades.get(id).copied();
            let mut ranking = Ranking::of(documents, grade, grades.values().copied());
            ranking.level = level;
            rankings.push((query.clone(), ranking));
        }
        if rankings.is_empty() {
            bail!("{}: no query of the run is judged in {}", run.display(), qrels.display());
        }
        Ok(Self { run: name, rankings })
    }

    /// The lines that trec_eval prints.
    pub fn to_text(&self, measures: &[Measure], each_query: bool) -> String {
        let mut text = String::new();
        if each_query {
            for (query, ranking) in &self.rankings {
                for measure in measures.iter().filter(|measure| measure.of_queries()) {
                    measure.write(&mut text, query, measure.of(ranking));
                }
            }
        }
        for measure in measures {
            if let Kind::RunId = measure.kind {
                let _ = writeln!(text, "{:<22}\tall\t{}", measure.name, self.run);
                continue;
            }
            measure.write(&mut text, "all", measure.over(&self.rankings));
        }
        text
    }

    /// Measures by name; with `each_query` also of each query.
    pub fn to_json(&self, measures: &[Measure], each_query: bool) -> Value {
        let all: Map<String, Value> = measures
            .iter()
            .filter(|measure| !matches!(measure.kind, Kind::RunId))
            .map(|measure| (measure.name.clone(), json!(measure.over(&self.rankings))))
            .collect();
        let mut value = json!({ "runid": self.run, "all": all });
        if each_query {
            let of = |ranking: &Ranking| -> Map<String, Value> {
                let measures = measures.iter().filter(|measure| measure.of_queries());
                measures.map(|measure| (measure.name.clone(), json!(measure.of(ranking)))).collect()
            };
            let queries: Map<String, Value> = self
                .rankings
                .iter()
                .map(|(id, ranking)| (id.clone(), of(ranking).into()))
                .collect();
            value["queries"] = queries.into();
        }
        value
    }
}
