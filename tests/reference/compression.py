"""Writes tests/fixtures/compression.json: weights and inputs of a projection, and what GPTQ, SparseGPT and
Wanda make of them. Written after the papers' own code (arXiv:2210.17323, 2301.00774, 2306.11695) in
double precision: Cholesky of the inverse Hessian, column after column, the errors passed on.

    python3 tests/reference/compression.py > tests/fixtures/compression.json
"""

import json

import numpy as np
import torch

torch.manual_seed(5)
OUT, IN, ROWS, DAMPING = 12, 160, 400, 0.01
mix = torch.randn(IN, IN, dtype=torch.float64) * 0.15 + torch.eye(IN, dtype=torch.float64)
X = (torch.randn(ROWS, IN, dtype=torch.float64) @ mix).float().double()
W = (torch.randn(OUT, IN, dtype=torch.float64) * 0.05).float().double()


def upper(order=None):
    hessian = 2.0 / ROWS * X.T @ X
    if order is not None:
        hessian = hessian[order][:, order]
    hessian += DAMPING * hessian.diag().mean() * torch.eye(IN, dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    return torch.linalg.cholesky(inverse, upper=True)


def scale(rows):
    return torch.from_numpy((rows.abs().amax(1) / 127).float().numpy().astype(np.float16)).double()


def gptq(block, act_order):
    order = torch.argsort((X * X).sum(0), descending=True, stable=True) if act_order else torch.arange(IN)
    w, factor = W[:, order].clone(), upper(order)
    scales = {at: scale(W[:, at * block:(at + 1) * block]) for at in range(IN // block)}
    made = torch.zeros_like(w)
    for column in range(IN):
        group = int(order[column]) // block
        if not act_order and column % block == 0:
            scales[group] = scale(w[:, column:column + block])
        made[:, column] = torch.clamp(torch.round(w[:, column] / scales[group]), -127, 127) * scales[group]
        error = (w[:, column] - made[:, column]) / factor[column, column]
        w[:, column:] -= error[:, None] * factor[column, column:][None]
    return made[:, torch.argsort(order)]


def sparse_gpt(ratio=None, n=0, m=0):
    w, factor = W.clone(), upper()
    width = m or 128
    for start in range(0, IN, width):
        end = min(start + width, IN)
        score = w[:, start:end] ** 2 / factor.diag()[start:end] ** 2
        if m:
            gone = torch.zeros_like(score).scatter(1, score.argsort(1)[:, :n], 1.0).bool()
        else:
            count = round(ratio * score.numel())
            gone = torch.zeros(score.numel())
            gone[score.flatten().argsort()[:count]] = 1
            gone = gone.reshape(score.shape).bool()
        for column in range(start, end):
            kept = torch.where(gone[:, column - start], 0.0, w[:, column])
            error = (w[:, column] - kept) / factor[column, column]
            w[:, column:] -= error[:, None] * factor[column, column:][None]
            w[:, column] = kept
    return w


def wanda(ratio=None, n=0, m=0):
    score = W.abs() * X.norm(dim=0)
    if m:
        score = score.reshape(OUT, IN // m, m)
        gone = torch.zeros_like(score).scatter(2, score.argsort(2)[..., :n], 1.0).bool().reshape(OUT, IN)
    else:
        gone = torch.zeros_like(score).scatter(1, score.argsort(1)[:, :round(ratio * IN)], 1.0).bool()
    return torch.where(gone, 0.0, W)


def numbers(matrix):
    return [float(f"{value:.7g}") for value in matrix.flatten().tolist()]


gram = X.T @ X
print(json.dumps({
    "shape": [OUT, IN], "rows": ROWS, "damping": DAMPING,
    "weights": W.flatten().tolist(),
    # The upper half is enough.
    "gram": [float(f"{gram[i, j]:.10g}") for i in range(IN) for j in range(i, IN)],
    "gptq": [{"scheme": f"int8:{block}" if block < IN else "int8:channel", "act_order": order,
              "weights": numbers(gptq(block, order))}
             for block in (32, IN) for order in (False, True)],
    "pruned": [{"method": name, "pattern": pattern, "weights": numbers(f(**how))}
               for name, f in (("wanda", wanda), ("sparsegpt", sparse_gpt))
               for pattern, how in (("50%", {"ratio": 0.5}), ("2:4", {"n": 2, "m": 4}), ("4:8", {"n": 4, "m": 8}))],
}))
