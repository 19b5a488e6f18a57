"""Writes tests/fixtures/eval/metrics.json: random and degenerate inputs, and what scipy, scikit-learn,
mteb and trec_eval (pytrec_eval) say of them.

    python3 tests/reference/metrics.py > tests/fixtures/eval/metrics.json
"""

import json
import math
import random as python_random
import warnings

import numpy as np
import pytrec_eval
from mteb._evaluators.retrieval_metrics import mrr
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from scipy.stats import pearsonr, spearmanr, wilcoxon
from sklearn import metrics
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

warnings.simplefilter("ignore")
rng = np.random.default_rng(7)


def number(value):
    value = float(value)
    return value if math.isfinite(value) else None


def correlations():
    cases = [(rng.normal(size=n), rng.normal(size=n)) for n in (2, 3, 50)]
    cases += [(rng.integers(0, 4, 40).astype(float), rng.integers(0, 3, 40).astype(float))]  # ties
    cases += [(np.ones(10), rng.normal(size=10)), (np.zeros(5), np.zeros(5))]  # constant
    cases += [(np.arange(6.0), 5 - np.arange(6.0))]
    return [
        {"a": a.tolist(), "b": b.tolist(), "pearson": number(pearsonr(a, b)[0]), "spearman": number(spearmanr(a, b)[0])}
        for a, b in cases
    ]


def classifications():
    cases = [(rng.integers(0, k, 60), rng.integers(0, k, 60)) for k in (2, 3, 7)]
    cases += [(np.zeros(9, int), np.zeros(9, int)), (np.array([0, 0, 1, 1]), np.ones(4, int))]  # one class
    cases += [(np.array([0, 1, 2]), np.array([3, 3, 3]))]  # a label that never was
    found = []
    for truth, got in cases:
        scores = {"accuracy": metrics.accuracy_score(truth, got)}
        for name in ("f1", "precision", "recall"):
            of = getattr(metrics, f"{name}_score")
            scores[name] = of(truth, got, average="macro")
            scores[f"{name}_weighted"] = of(truth, got, average="weighted")
        found.append({"truth": truth.tolist(), "found": got.tolist(), "scores": {k: float(v) for k, v in scores.items()}})
    return found


def pairs():
    task = AbsTaskPairClassification
    cases = [(rng.normal(size=n), rng.integers(0, 2, n)) for n in (10, 80)]
    cases += [(rng.integers(0, 5, 60) / 4, rng.integers(0, 2, 60))]  # ties
    cases += [(np.full(8, 0.5), np.array([0, 1] * 4))]  # constant scores
    cases += [(rng.normal(size=6), np.ones(6, int)), (rng.normal(size=6), np.zeros(6, int))]  # one class
    found = []
    for scores, labels in cases:
        accuracy, _ = task._find_best_acc_and_threshold(None, scores.tolist(), labels, True)
        f1, precision, recall, _ = task._find_best_f1_and_threshold(None, scores.tolist(), labels, True)
        ap = metrics.average_precision_score(labels, scores)
        expected = {"accuracy": accuracy, "f1": f1, "precision": precision, "recall": recall, "ap": ap}
        found.append({"scores": scores.tolist(), "labels": labels.tolist(), "expected": {k: float(v) for k, v in expected.items()}})
    return found


def clusterings():
    cases = [(rng.integers(0, k, 80), rng.integers(0, k + 1, 80)) for k in (2, 5, 20)]
    cases += [(np.zeros(10, int), rng.integers(0, 3, 10)), (rng.integers(0, 3, 10), np.zeros(10, int))]
    cases += [(np.zeros(6, int), np.zeros(6, int)), (np.arange(6), np.arange(6)), (np.arange(6), np.zeros(6, int))]
    return [
        {
            "labels": a.tolist(), "clusters": b.tolist(), "v_measure": float(metrics.v_measure_score(a, b)),
            "ami": float(metrics.adjusted_mutual_info_score(a, b)),
        }
        for a, b in cases
    ]  # fmt: skip


def blobs(rows, dim, kinds, spread, seed):
    """Unit vectors around centres; the test makes the same ones from the numbers below."""
    generator = np.random.RandomState(seed)
    centres = generator.random_sample((kinds, dim)) - 0.5
    labels = generator.randint(0, kinds, rows)
    points = centres[labels] + spread * (generator.random_sample((rows, dim)) - 0.5)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points.astype(np.float32), labels


def kmeans():
    found = []
    for rows, dim, kinds, spread, batch in ((300, 8, 4, 0.9, 64), (2000, 16, 12, 1.5, 500), (40, 4, 6, 1.2, 512), (1500, 12, 30, 1.6, 100)):
        points, _ = blobs(rows, dim, kinds, spread, rows)
        labels = MiniBatchKMeans(n_clusters=kinds, batch_size=batch, n_init="auto", random_state=42).fit(points).labels_
        found.append({"rows": rows, "dim": dim, "kinds": kinds, "spread": spread, "batch": batch, "labels": labels.tolist()})
    return found


def logistic():
    found = []
    for rows, dim, kinds, spread in ((60, 8, 2, 2.0), (120, 16, 5, 2.5), (400, 24, 20, 2.0)):
        points, labels = blobs(rows, dim, kinds, spread, rows)
        half = rows // 2
        model = LogisticRegression(max_iter=100, random_state=42).fit(points[:half], labels[:half])
        found.append({"rows": rows, "dim": dim, "kinds": kinds, "spread": spread, "found": model.predict(points[half:]).tolist()})
    return found


def rankings():
    depths = [1, 3, 5, 10, 20, 100, 1000]
    names = {f"{m}.{','.join(map(str, depths))}" for m in ("ndcg_cut", "map_cut", "recall", "P", "success")}
    names |= {"map", "ndcg", "recip_rank", "Rprec", "bpref", "iprec_at_recall", "set_P", "set_recall", "set_F"}
    found = []
    for case in range(8):
        documents = [f"d{n}" for n in range(int(rng.integers(3, 120)))]
        grades = {d: int(rng.integers(0, 4)) for d in documents if rng.random() < 0.3} or {"d0": 1}
        if case == 6:
            grades = {d: 0 for d in grades}  # no relevant document
        if case == 7:
            grades = {"elsewhere": 2}  # none of them retrieved
        # Few distinct scores, so that ties are broken by the id.
        scores = {d: float(rng.integers(0, 6)) / 2 for d in documents if rng.random() < 0.8} or {"d1": 1.0}
        expected = pytrec_eval.RelevanceEvaluator({"q": grades}, names).evaluate({"q": scores})["q"]
        expected |= {f"mrr_{k.split('@')[1]}": v[0] for k, v in mrr({"q": grades}, {"q": scores}, depths).items()}
        found.append({"grades": grades, "scores": scores, "expected": {k: float(v) for k, v in expected.items()}})
    return found


def signed_ranks():
    cases = [rng.normal(0.3, 1, n).round(6) for n in (5, 12, 25, 40)]
    cases += [rng.integers(-3, 5, 20).astype(float), np.array([1.0, 2, 3, 4, 5]), np.array([0.0, 1, 0, -2, 3, 4])]
    found = []
    for case in cases:
        kept = case[case != 0]
        ties = len(np.unique(np.abs(kept))) < len(kept)
        method = "approx" if len(kept) > 25 or ties else "exact"
        result = wilcoxon(kept, method=method, correction=False)
        found.append({"differences": case.tolist(), "statistic": float(result.statistic), "p": float(result.pvalue)})
    return found


def draws():
    python = python_random.Random(42)
    return {"sample": python.sample(range(5000), 40), "choices": python.choices(range(777), k=20)}


def spaces():
    """Vectors of length 1: a spread space, a narrow cone, and one with a direction that is not used."""
    found = []
    for rows, width, shift in ((40, 6, 0.0), (30, 8, 3.0), (12, 20, 0.5)):
        x = (rng.normal(size=(rows, width)) * np.linspace(1, 0.2, width) + shift / width).round(4)
        if width == 8:
            x[:, 3] = 0
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        wide = x.astype(np.float64)
        upper = np.triu_indices(rows, 1)
        cosines = (wide @ wide.T)[upper]
        # torch.pdist(x).pow(2).mul(-2).exp().mean().log() of Wang and Isola's paper.
        distances = np.linalg.norm(wide[:, None] - wide[None], axis=-1)[upper]
        along = wide @ np.linalg.eigh(wide.T @ wide)[1]
        z = np.concatenate([np.exp(along).sum(0), np.exp(-along).sum(0)])
        spectrum = np.clip(np.linalg.eigvalsh(np.cov(wide.T))[::-1], 0, None)
        shares = np.linalg.svd(wide, compute_uv=False)
        shares = np.pad(shares, (0, width - len(shares))) / shares.sum() + 1e-7
        pca = PCA(2).fit(wide)
        found.append({
            "vectors": x.astype(float).tolist(), "uniformity": float(np.log(np.exp(-2 * distances**2).mean())),
            "mean_cosine": float(cosines.mean()), "isotropy": float(z.min() / z.max()),
            "effective_dimension": float(spectrum.sum() ** 2 / (spectrum**2).sum()),
            "rank_me": float(np.exp(-(shares * np.log(shares)).sum())), "spectrum": spectrum.tolist(),
            "dimensions": [int(np.searchsorted(np.cumsum(spectrum) / spectrum.sum(), s - 1e-12) + 1) for s in (0.9, 0.99)],
            "pca": pca.transform(wide).tolist(), "shares": pca.explained_variance_ratio_.tolist(),
        })  # fmt: skip
    return found


parts = (correlations, classifications, pairs, clusterings, kmeans, logistic, rankings, signed_ranks, draws, spaces)
print(json.dumps({part.__name__: part() for part in parts}, separators=(",", ":")))
