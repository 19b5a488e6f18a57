//! Measures of one query's ranking, as trec_eval defines them: gain is the grade, a document is
//! relevant from grade 1 on, and documents that nobody judged count as not relevant.

/// A ranking with what is known of its documents.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// Grade of each retrieved document, best first; `None` where nobody judged it.
    pub retrieved: Vec<Option<f64>>,
    /// Grades of all judged documents, retrieved or not.
    pub judged: Vec<f64>,
    /// Smallest grade of a relevant document, for the measures that know no degrees.
    pub level: f64,
}

impl Default for Ranking {
    fn default() -> Self {
        // Any grade above 0.
        Self { retrieved: Vec::new(), judged: Vec::new(), level: f64::MIN_POSITIVE }
    }
}

/// Smallest average precision that the geometric mean counts.
const LEAST_GEOMETRIC: f64 = 0.00001;

impl Ranking {
    /// A ranking of documents `(id, score)` under judgements: larger scores first, of equal ones
    /// the larger id, as trec_eval does.
    pub fn of(
        mut documents: Vec<(&str, f64)>,
        grade: impl Fn(&str) -> Option<f64>,
        judged: impl Iterator<Item = f64>,
    ) -> Self {
        documents.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| b.0.cmp(a.0)));
        Self {
            retrieved: documents.iter().map(|(id, _)| grade(id)).collect(),
            judged: judged.collect(),
            ..Self::default()
        }
    }

    /// Whether each of the first documents is relevant.
    fn hits(&self, depth: usize) -> impl DoubleEndedIterator<Item = bool> + ExactSizeIterator {
        let depth = depth.min(self.retrieved.len());
        self.retrieved[..depth].iter().map(|grade| grade.is_some_and(|grade| grade >= self.level))
    }

    /// Relevant documents, retrieved or not.
    pub fn relevant(&self) -> usize {
        self.judged.iter().filter(|&&grade| grade >= self.level).count()
    }

    /// Relevant documents among the first `depth`.
    pub fn found(&self, depth: usize) -> usize {
        self.hits(depth).filter(|&hit| hit).count()
    }

    /// Normalised discounted cumulative gain of the first `depth`: discount `1 / log2(rank + 1)`.
    /// 0 for a query without relevant documents.
    pub fn ndcg(&self, depth: usize) -> f64 {
        let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
            let gains = gains.take(depth).enumerate();
            let sum: f64 = gains.map(|(rank, gain)| gain / (rank as f64 + 2.0).log2()).sum();
            // The sum of nothing is -0, which would be printed.
            sum + 0.0
        };
        let mut ideal: Vec<f64> =
            self.judged.iter().copied().filter(|&grade| grade > 0.0).collect();
        ideal.sort_by(|a, b| b.total_cmp(a));
        let best = discounted(&mut ideal.into_iter());
        let gains = self.retrieved.iter().map(|grade| grade.unwrap_or(0.0).max(0.0));
        let result = discounted(&mut gains.into_iter());
        if best > 0.0 { result / best } else { 0.0 }
    }

    /// Average precision over the first `depth`, by the number of all relevant documents.
    pub fn average_precision(&self, depth: usize) -> f64 {
        let (mut result, mut sum) = (0.0, 0.0);
        for (rank, hit) in self.hits(depth).enumerate() {
            if hit {
                result += 1.0;
                sum += result / (rank as f64 + 1.0);
            }
        }
        if result > 0.0 { sum / self.relevant() as f64 } else { 0.0 }
    }

    /// What trec_eval averages for the geometric mean: the logarithm of the average precision.
    pub fn log_average_precision(&self) -> f64 {
        self.average_precision(usize::MAX).max(LEAST_GEOMETRIC).ln()
    }

    /// Share of relevant documents among the first `depth`; too short a ranking counts as filled
    /// with others.
    pub fn precision(&self, depth: usize) -> f64 {
        self.found(depth) as f64 / depth as f64
    }

    /// Share of the relevant documents that are among the first `depth`.
    pub fn recall(&self, depth: usize) -> f64 {
        match self.relevant() {
            0 => 0.0,
            relevant => self.found(depth) as f64 / relevant as f64,
        }
    }

    /// One over the rank of the first relevant document among the first `depth`.
    pub fn reciprocal_rank(&self, depth: usize) -> f64 {
        self.hits(depth).position(|hit| hit).map_or(0.0, |rank| 1.0 / (rank as f64 + 1.0))
    }

    /// 1 where a relevant document is among the first `depth`, else 0.
    pub fn success(&self, depth: usize) -> f64 {
        f64::from(self.hits(depth).any(|hit| hit))
    }

    /// WeightPrecision at the number of relevant documents.
    pub fn r_precision(&self) -> f64 {
        match self.relevant() {
            0 => 0.0,
            relevant => self.precision(relevant),
        }
    }

    /// How often a relevant document stands before those judged not relevant.
    pub fn bpref(&self) -> f64 {
        let relevant_count = self.relevant();
        // A negative grade is "in the pool, but not judged".
        let others =
            self.judged.iter().filter(|&&grade| grade >= 0.0 && grade < self.level).count();
        let (mut wrong, mut sum) = (0, 0.0);
        for grade in self.retrieved.iter().copied().flatten().filter(|&grade| grade >= 0.0) {
            if grade < self.level {
                wrong += 1;
            } else if wrong == 0 {
                sum += 1.0;
            } else {
                sum += 1.0 - wrong.min(relevant_count) as f64 / others.min(relevant_count) as f64;
            }
        }
        if relevant_count > 0 { sum / relevant_count as f64 } else { 0.0 }
    }

    /// Highest precision at or after the rank where a share of the relevant documents is found.
    pub fn interpolated_precision(&self, recall: f64) -> f64 {
        let wanted = (recall * self.relevant() as f64).round() as usize;
        let (mut result, mut best) = (0usize, 0.0f64);
        for (rank, hit) in self.hits(usize::MAX).enumerate() {
            result += usize::from(hit);
            if result >= wanted && (hit || wanted == 0) {
                best = best.max(result as f64 / (rank as f64 + 1.0));
            }
        }
        best
    }
}
