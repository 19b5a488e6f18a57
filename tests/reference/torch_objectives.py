"""What a recipe trains, in plain PyTorch, written from the papers' formulas rather than from Kiln's code.

`objectives.py` compares it with `kiln train`. Nothing is fast here: a formula is a line where it can be, and rows are
loops where that reads better. Formulas: METHODS.md; where a paper leaves something open, the comment says what we took.
"""

import math

import torch
import torch.nn.functional as F

# ------------------------------------------------------------------------------------------------ texts to tokens


class Tokens:
    """One text: its ids, which of them pooling may use, and where the text's own stand."""

    def __init__(self, ids, pooled, own):
        self.ids, self.pooled, self.own = ids, pooled, own


class Reader:
    """BOS | instruction text, cut to fit | suffix | EOS, by transformers' tokenizer."""

    def __init__(self, tokenizer, max_length, add_bos=False, add_eos=False, text_suffix="", instruction="pooled"):
        self.tokenizer, self.instruction = tokenizer, instruction
        self.before = [tokenizer.bos_token_id] * add_bos
        # The suffix is a text by itself: no text before it changes its tokens.
        self.after = self.plain(text_suffix) + [tokenizer.eos_token_id] * add_eos
        self.room = max_length - len(self.before) - len(self.after)

    def plain(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def read(self, text, prompt=""):
        encoding = self.tokenizer(prompt + text, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoding.input_ids[: self.room]
        # Tokens wholly inside the instruction; one that it shares with the text is the text's.
        inside = sum(start < len(prompt) and end <= len(prompt) for start, end in encoding.offset_mapping[: self.room])
        ids = self.before + ids + self.after
        masked = 0
        if prompt and self.instruction == "masked":
            masked = len(self.before) + inside
        if prompt and self.instruction == "masked_without_bos":
            # NV-Embed's release: `pool_mask[:, : len(tokenizer.tokenize(instruction))] = 0`.
            masked = len(self.tokenizer.tokenize(prompt))
        own = range(len(self.before) + inside, len(ids) - len(self.after))
        if not ids:
            # A text of no token is one token of padding.
            ids = [self.tokenizer.pad_token_id]
        return Tokens(ids, [position >= masked for position in range(len(ids))], own)


def padded(rows, fill, side="right"):
    width = max(map(len, rows))
    spare = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([gap + row if side == "left" else row + gap for row, gap in zip(map(list, rows), spare)])


# ------------------------------------------------------------------------------------------------ the transformer


class States:
    """Of a batch: `last` [b, L, d] after the final norm, `layers` (the embeddings first, the last one normed),
    `attention` [b, H, L, L] of the last layer, and which tokens are `valid` and `pooled` [b, L]."""

    def __init__(self, output, valid, pooled, causal):
        self.last, self.layers, self.attention = output.last_hidden_state, output.hidden_states, output.attentions[-1]
        self.valid, self.pooled, self.causal = valid, pooled, causal


class Decoder:
    def __init__(self, model, pad):
        self.model, self.pad = model, pad

    def __call__(self, texts, causal, side="right", embedded=None):
        valid = padded([[1] * len(text.ids) for text in texts], 0, side)
        pooled = padded([list(map(int, text.pooled)) for text in texts], 0, side).float()
        positions = (valid.cumsum(1) - 1).clamp(min=0)
        # [b, 1, L, L], what each row may look at; padding looks at itself, so that no row is empty.
        length = valid.shape[1]
        sees = valid[:, None, None, :].bool().expand(-1, 1, length, -1)
        if causal:
            sees = sees & torch.ones(length, length).tril().bool()
        sees = sees | torch.eye(length).bool()
        mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
        if embedded is None:
            inputs = {"input_ids": padded([text.ids for text in texts], self.pad, side)}
        else:
            inputs = {"inputs_embeds": embedded}
        output = self.model(
            **inputs, attention_mask=mask, position_ids=positions, output_hidden_states=True, output_attentions=True,
            use_cache=False,
        )
        return States(output, valid.float(), pooled, causal)

    def embeddings(self):
        return self.model.get_input_embeddings().weight


# ------------------------------------------------------------------------------------------------ pooling


def weighted(x, weights):
    return (weights[..., None] * x).sum(1) / weights.sum(1, keepdim=True)


def last_token(states, x=None):
    x = states.last if x is None else x
    places = torch.arange(x.shape[1]).expand(x.shape[:2])
    place = places.masked_fill(states.pooled == 0, -1).argmax(1)
    return x[torch.arange(len(x)), place]


def mean(states, x=None):
    return weighted(states.last if x is None else x, states.pooled)


def weighted_mean(states):
    return weighted(states.last, states.pooled * states.valid.cumsum(1))


def anchor(score):
    """a_j = sum_h sum_i f(A_ij), w_j = a_j / sum_k a_k over the pooled tokens, e = sum_j w_j x_j. Rows and columns of
    padding do not count. f is a guess in all four: equation 3 of the paper is lost."""

    def pool(states):
        vectors = []
        for x, attention, valid, pooled in zip(states.last, states.attention, states.valid, states.pooled):
            kept = valid.bool()
            a = attention[:, kept][:, :, kept]  # [H, L, L]
            length = a.shape[1]
            if score == "log1p":
                drawn = torch.log(1 + length * a).sum(1)
            elif score == "linear":
                drawn = a.sum(1)
            elif score == "square":
                drawn = a.sum(1) ** 2
            elif score == "column_product":
                # exp of the mean of log A_ij over the rows that may look at j.
                rows = torch.ones(length, length).tril() if states.causal else torch.ones(length, length)
                logs = torch.where(rows.bool(), a, torch.ones(())).clamp(min=1e-30).log()
                drawn = torch.exp(logs.sum(1) / rows.sum(0))
            drawn = drawn.sum(0) * pooled[kept]  # [L], over the heads
            vectors.append((drawn / drawn.sum()) @ x[kept])
        return torch.stack(vectors)

    return pool


class Block:
    """The attending part of a head by its weights (names of NV-Embed's release): pre-norm cross-attention without
    biases, then a pre-norm feed-forward block, each added to what went in."""

    def __init__(self, weights, heads, feed_forward="geglu"):
        self.weights, self.heads, self.feed_forward = weights, heads, feed_forward

    def norm(self, x, name):
        weight, bias = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps=1e-5)

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def __call__(self, x, context, mask=None):
        """x [b, q, d] looks at the context [b, k, c]; `mask` [b, k] is 0 at what is not to be seen."""
        queries = self.linear(self.norm(x, "cross_attend_blocks.0.norm"), "cross_attend_blocks.0.fn.to_q")
        context = self.norm(context, "cross_attend_blocks.0.norm_context")
        keys, values = self.linear(context, "cross_attend_blocks.0.fn.to_kv").chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries, keys, values))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.linear(attended, "cross_attend_blocks.0.fn.to_out")
        inner = self.linear(self.norm(x, "cross_attend_blocks.1.norm"), "cross_attend_blocks.1.fn.net.0")
        if self.feed_forward == "geglu":
            inner, gate = inner.chunk(2, dim=-1)
            inner = inner * F.gelu(gate)
        else:
            inner = F.gelu(inner)
        return x + self.linear(inner, "cross_attend_blocks.1.fn.net.2")

    def latents(self, batch):
        return self.weights["latents"].expand(batch, -1, -1)

    def latent_states(self, states):
        """NV-Embed: each token's state, after it has looked at the latents."""
        return self(states.last, self.latents(len(states.last)))

    def latent_attention(self, states):
        return mean(states, self.latent_states(states))

    def last_layer_trainable(self, states):
        """Pooling and Attention: the latents look at the tokens."""
        return self(self.latents(len(states.last)), states.last, states.pooled).mean(1)

    def multi_layer_trainable(self, states):
        """One state a layer: the last token's where the mask is causal, else the mean; the embeddings are no layer."""
        pool = last_token if states.causal else mean
        m = torch.stack([pool(states, layer) for layer in states.layers[1:]], dim=1)
        return self(self.latents(len(m)), m + self.weights["layer_embedding"]).mean(1)


# ------------------------------------------------------------------------------------------------ losses


def info_nce(rows, query_vectors, document_vectors, tau, in_batch=True, both_directions=False, cross_negatives=True):
    """-log exp(cos(q,p)/tau) / sum_c exp(cos(q,c)/tau), the mean over the queries.

    A row has `pos`, `neg` (texts), `known` (all its positives) and perhaps `in_batch`. c is p, the query's own
    negatives, and, with in-batch negatives, all documents of the others; never another copy of p or of a known
    positive. Document vectors are by text."""
    queries = F.normalize(query_vectors, dim=1)
    document = {text: F.normalize(vector, dim=0) for text, vector in document_vectors.items()}

    def mixes(row):
        return row.get("in_batch", in_batch)

    def cross_entropy(positive, others):
        scores = torch.stack([positive, *others]) / tau
        return scores.logsumexp(0) - scores[0]

    losses, backward = [], []
    for i, (row, q) in enumerate(zip(rows, queries)):
        negatives = list(row["neg"])
        for j, other in enumerate(rows):
            if j != i and mixes(row):
                negatives += [other["pos"], *(other["neg"] if cross_negatives else [])]
        negatives = [text for text in negatives if text not in row["known"]]
        losses.append(cross_entropy(q @ document[row["pos"]], [q @ document[text] for text in negatives]))
        # The other direction, with in-batch negatives: the positive is to find its query among the batch's.
        p = document[row["pos"]]
        strangers = [
            queries[j] for j, other in enumerate(rows) if j != i and mixes(row) and other["pos"] != row["pos"]
        ]
        backward.append(cross_entropy(q @ p, [stranger @ p for stranger in strangers]) if mixes(row) else losses[-1])
    loss = torch.stack(losses).mean()
    return (loss + torch.stack(backward).mean()) / 2 if both_directions else loss


def matryoshka(loss, widths, weights):
    """The loss at each width, on vectors cut to it; `loss` takes the width."""
    return sum(weight * loss(width) for width, weight in zip(widths, weights))


def rewrite(decoder, head, read, written, eos, side="right"):
    """Cross-entropy of each token of the written texts, from the state at the end of the read ones (Anchor, stage I):
    [e ; Embed(d_1 .. d_m-1)] predicts d_1 .. d_m, under a causal mask, padded on the right."""
    e = last_token(decoder(read, causal=True, side=side))
    targets = [[text.ids[i] for i in text.own] + eos for text in written]
    valid = [Tokens(ids, [True] * len(ids), range(len(ids))) for ids in targets]
    ids = padded(targets, 0)
    embedded = torch.cat([e[:, None], F.embedding(ids[:, :-1], decoder.embeddings())], dim=1)
    states = decoder(valid, causal=True, embedded=embedded)
    return [
        F.cross_entropy(state[: len(own)] @ head.T, torch.tensor(own), reduction="none")
        for state, own in zip(states.last, targets)
    ]


def reconstruction(decoder, queries, documents, alpha, reduction="token_mean", head=None, eos=(), side="right"):
    """alpha L_Q2D + (1 - alpha) L_D2Q. `token_mean` is the mean over all tokens of a direction, `token_sum` the sum
    over a text's tokens and the mean over texts."""
    head = decoder.embeddings() if head is None else head
    total = 0.0
    for share, read, written in [(alpha, queries, documents), (1 - alpha, documents, queries)]:
        losses = rewrite(decoder, head, read, written, list(eos), side)
        if reduction == "token_mean":
            total = total + share * torch.cat(losses).mean()
        else:
            total = total + share * torch.stack([loss.sum() for loss in losses]).mean()
    return total


def ordered_pairs(similarities, scores, scale):
    """CoSENT over any similarity: log(1 + sum over pairs i, j with score i < score j of exp(scale (sim_i - sim_j)))."""
    terms = [torch.zeros(())]
    for i, lower in enumerate(scores):
        terms += [scale * (similarities[i] - similarities[j]) for j, higher in enumerate(scores) if lower < higher]
    return torch.stack(terms).logsumexp(0)


def angle_similarity(left, right):
    """AnglE (arXiv:2309.12871), section 3.4, as sentence-transformers has it: the quotient of complex vectors, whose real
    parts are the first half, over that of their lengths; the sum of its parts, without a sign."""
    z, w = (torch.complex(*x.chunk(2, dim=1)) for x in (left, right))
    length = [(x.real**2 + x.imag**2).sum(1, keepdim=True) for x in (z, w)]
    quotient = z * w.conj() / length[1] / (length[0].sqrt() / length[1].sqrt())
    return (quotient.real + quotient.imag).sum(1).abs()


def margin_mse(queries, positives, negatives, margins):
    """Mean of ((q p - q n) - margin)^2."""
    return (((queries * (positives - negatives)).sum(1) - margins) ** 2).mean()


def guided_info_nce(own, guide, tau, less):
    """InfoNCE over the batch's positives and negatives without the texts that the guide finds nearer to a query than its
    positive less `less` (GISTEmbed, arXiv:2402.16829); and how many those are. `own` and `guide`: vectors of length one
    of queries, positives, and one negative each."""
    scores, guided = ([q @ torch.cat([p, n]).T for q, p, n in (own, guide)])
    limit = guided.diagonal()[:, None] - less
    hidden = (guided > limit) & ~torch.eye(*guided.shape).bool()
    scores = (scores / tau).masked_fill(hidden, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(scores))), int(hidden.sum())


def vector_distillation(student, teacher):
    """Mean of 1 - cos."""
    return (1 - F.cosine_similarity(student, teacher, dim=1)).mean()


def score_distillation(student, teacher, tau):
    """Mean over the texts of KL(teacher || student) between softmaxes of the cosines to the batch's other texts."""
    total = 0.0
    student, teacher = F.normalize(student, dim=1), F.normalize(teacher, dim=1)
    for i in range(len(student)):
        others = torch.arange(len(student)) != i
        p = ((teacher[others] @ teacher[i]) / tau).log_softmax(0)
        q = ((student[others] @ student[i]) / tau).log_softmax(0)
        total = total + (p.exp() * (p - q)).sum()
    return total / len(student)


def state_distillation(student, teacher, valid):
    """Mean squared error over all values of all tokens."""
    return F.mse_loss(student[valid.bool()], teacher[valid.bool()])


def appendix_a(student, teacher, teacher_output):
    """NV-Embed, appendix A: sum over n = 1 .. N-1 of MSE(student layer n, teacher layer n), and MSE(the student's last
    state, the teacher's output): token by token, which is our reading; states after the final norm."""
    layers = range(1, len(student.layers) - 1)
    total = sum(state_distillation(student.layers[n], teacher.layers[n], student.valid) for n in layers)
    return total + state_distillation(student.last, teacher_output, student.valid)


def mntp(decoder, texts, mask, causal=False, side="right"):
    """Masked next-token prediction (LLM2Vec) where all of a text's own tokens are masked: each is replaced by `mask` and
    predicted from the state before it, by cross-entropy, the mean over them. The first token of all, which without BOS
    is the text's own, has no state before it and stays (LLM2Vec's bases have BOS)."""
    places = [[place for place in text.own if place > 0] for text in texts]
    inputs, losses = [], []
    for text, masked in zip(texts, places):
        ids = [mask if place in masked else id for place, id in enumerate(text.ids)]
        inputs.append(Tokens(ids, text.pooled, text.own))
    states = decoder(inputs, causal, side)
    for i, text in enumerate(texts):
        last = states.last[i][states.valid[i].bool()]
        logits = last[[place - 1 for place in places[i]]] @ decoder.embeddings().T
        targets = torch.tensor([text.ids[place] for place in places[i]])
        losses.append(F.cross_entropy(logits, targets, reduction="none"))
    return torch.cat(losses).mean()
