//! Scores a TREC run against TREC judgements, as `trec_eval` prints them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use crate::range::checked;
use crate::ranking::Ranking;
use kiln_data::data::MOST_GRADE;
use kiln_data::text::{Stream, TextFile};

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

/// WeightPrecision of everything retrieved; 0 of nothing.
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
                    let inside = |share: &f64| (0.0..=1.0).contains(share);
                    let share = |text: &str| text.parse().ok().filter(inside);
                    let wanted: Option<Vec<f64>> = parameters.split(',').map(share).collect();
                    shares(&wanted.with_context(|| format!("{text}: a share is 0 to 1"))?)
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

    /// A value that is one.
    fn checked(&self, query: &str, value: f64) -> Result<f64> {
        match self.kind {
            Kind::Count(_) | Kind::RunId => Ok(value),
            _ => Ok(checked(query, &self.name, value)?.unwrap_or_default()),
        }
    }

    /// The value of a query.
    fn of(&self, query: &str, ranking: &Ranking) -> Result<f64> {
        self.checked(query, self.raw(ranking))
    }

    /// What is averaged over the queries.
    fn raw(&self, ranking: &Ranking) -> f64 {
        match self.kind {
            Kind::Count(of) | Kind::Mean(of) => of(ranking),
            Kind::MeanAt(of, depth) => of(ranking, depth),
            Kind::Recall(share) => ranking.interpolated_precision(share),
            Kind::GeometricMean => ranking.log_average_precision(),
            // A name, not a number; who prints knows it.
            Kind::RunId => f64::NAN,
        }
    }

    /// The value of all queries.
    fn over(&self, rankings: &[(String, Ranking)]) -> Result<f64> {
        let sum: f64 = rankings.iter().map(|(_, ranking)| self.raw(ranking)).sum();
        let value = match self.kind {
            Kind::Count(_) => sum,
            Kind::GeometricMean => (sum / rankings.len() as f64).exp(),
            _ => sum / rankings.len() as f64,
        };
        self.checked("all", value)
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
    repeated: usize,
}

/// The words of the lines of a file, with the lines' numbers.
fn lines(
    file: &TextFile,
    columns: usize,
    what: &'static str,
) -> Result<Stream<(usize, Vec<String>)>> {
    let label = file.label.clone();
    let words = file.numbered()?.map(move |line| {
        let (number, line) = line?;
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        if !words.is_empty() && words.len() != columns {
            bail!("{label}:{number}: {} words, a line of {what}", words.len());
        }
        Ok((number, words))
    });
    Ok(Box::new(words.filter(|line| !line.as_ref().is_ok_and(|(_, words)| words.is_empty()))))
}

/// What a query's documents were given, and in which line.
type Given = BTreeMap<String, HashMap<String, (f64, usize)>>;

/// Numbers by query and document of a file, whose lines say each at `at`, no larger than `most`; the
/// number of lines that say again what one before them says; and the last word of the last line.
fn numbers(
    path: &Path,
    columns: usize,
    what: &'static str,
    (name, i, most): (&str, usize, f64),
) -> Result<(Given, usize, String)> {
    let file = TextFile::of_lines(path)?;
    let mut given = Given::new();
    let (mut repeated, mut last) = (0, String::new());
    for line in lines(&file, columns, what)? {
        let (line, words) = line?;
        let place = || format!("{}:{line}", file.label);
        let (query, document, number) = (&words[0], &words[2], &words[i]);
        let number: f64 =
            number.parse().ok().filter(|result: &f64| result.abs() <= most).with_context(|| {
                format!("{}: the {name} is {number:?}, not a number up to {most:e}", place())
            })?;
        let of_query = given.entry(query.clone()).or_default();
        match of_query.get(document) {
            None => _ = of_query.insert(document.clone(), (number, line)),
            Some((same, _)) if *same == number => repeated += 1,
            Some((other, before)) => bail!(
                "{}: {document} is there twice for {query}, with the {name} {number} here and {other} in line \
                 {before}; keep one of them",
                place()
            ),
        }
        last.clone_from(&words[columns - 1]);
    }
    if given.is_empty() {
        bail!("{}: the file is empty", file.label);
    }
    Ok((given, repeated, last))
}

impl Evaluated {
    /// Reads judgements (`query iteration document grade`) and a run (`query Q0 document rank score
    /// name`). Ranks come from the scores, as in trec_eval; queries without judgements are left
    /// out. With `complete`, judged queries that the run lacks count as 0. Of lines that say the same
    /// of a query's document one counts.
    ///
    /// # Errors
    /// Lines of another form, a document that a query has twice with different numbers, or no query
    /// in common.
    pub fn read(qrels: &Path, run: &Path, complete: bool, level: f64) -> Result<Self> {
        let form = "judgements has 4: query, iteration, document, grade";
        let (judged, twice_judged, _) = numbers(qrels, 4, form, ("grade", 3, MOST_GRADE))?;
        let form = "a run has 6: query, Q0, document, rank, score, name";
        let (ranked, twice_ranked, name) = numbers(run, 6, form, ("score", 4, f64::MAX))?;
        let nothing = HashMap::new();
        let mut rankings = Vec::new();
        for (query, grades) in &judged {
            let documents = match ranked.get(query) {
                Some(documents) => documents,
                None if complete => &nothing,
                None => continue,
            };
            let documents =
                documents.iter().map(|(id, (score, _))| (id.as_str(), *score)).collect();
            let grade = |id: &str| grades.get(id).map(|(grade, _)| *grade);
            let judged = grades.values().map(|(grade, _)| *grade);
            let mut ranking = Ranking::of(documents, grade, judged);
            ranking.level = level;
            rankings.push((query.clone(), ranking));
        }
        if rankings.is_empty() {
            bail!("{}: no query of the run is judged in {}", run.display(), qrels.display());
        }
        Ok(Self { run: name, rankings, repeated: twice_judged + twice_ranked })
    }

    /// Lines that say again what one before them says.
    pub fn repeated(&self) -> usize {
        self.repeated
    }

    /// The lines that trec_eval prints.
    ///
    /// # Errors
    /// A value outside its measure's range.
    pub fn to_text(&self, measures: &[Measure], each_query: bool) -> Result<String> {
        let mut text = String::new();
        if each_query {
            for (query, ranking) in &self.rankings {
                for measure in measures.iter().filter(|measure| measure.of_queries()) {
                    measure.write(&mut text, query, measure.of(query, ranking)?);
                }
            }
        }
        for measure in measures {
            if let Kind::RunId = measure.kind {
                let _ = writeln!(text, "{:<22}\tall\t{}", measure.name, self.run);
                continue;
            }
            measure.write(&mut text, "all", measure.over(&self.rankings)?);
        }
        Ok(text)
    }

    /// Measures by name; with `each_query` also of each query.
    ///
    /// # Errors
    /// A value outside its measure's range.
    pub fn to_json(&self, measures: &[Measure], each_query: bool) -> Result<Value> {
        let all: Map<String, Value> = measures
            .iter()
            .filter(|measure| !matches!(measure.kind, Kind::RunId))
            .map(|measure| Ok((measure.name.clone(), json!(measure.over(&self.rankings)?))))
            .collect::<Result<_>>()?;
        let mut value = json!({ "runid": self.run, "all": all });
        if each_query {
            let of = |id: &String, ranking: &Ranking| -> Result<Value> {
                let measures = measures.iter().filter(|measure| measure.of_queries());
                let values: Result<Map<String, Value>> = measures
                    .map(|measure| Ok((measure.name.clone(), json!(measure.of(id, ranking)?))))
                    .collect();
                Ok(values?.into())
            };
            let queries: Map<String, Value> = self
                .rankings
                .iter()
                .map(|(id, ranking)| Ok((id.clone(), of(id, ranking)?)))
                .collect::<Result<_>>()?;
            value["queries"] = queries.into();
        }
        Ok(value)
    }
}
