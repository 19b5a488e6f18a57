"""Writes train-native/suites/mteb.toml: the papers' 56 tasks, and the newer clustering tasks of Pooling and Attention,
with their places on the Hub (from the mteb package) and the instructions of the five papers' tables.

    python3 tests/reference/mteb_tasks.py > train-native/suites/mteb.toml
"""

import json

import mteb

# Negative Matters, table 8 (which took it over from E5-Mistral).
MGH = {
    "AmazonCounterfactualClassification": "Classify a given Amazon customer review text as either counterfactual or not-counterfactual",
    "AmazonPolarityClassification": "Classify Amazon reviews into positive or negative sentiment",
    "AmazonReviewsClassification": "Classify the given Amazon review into its appropriate rating category",
    "Banking77Classification": "Given a online banking query, find the corresponding intents",
    "EmotionClassification": "Classify the emotion expressed in the given Twitter message into one of the six emotions: anger, fear, joy, love, sadness, and surprise",
    "ImdbClassification": "Classify the sentiment expressed in the given movie review text from the IMDB dataset",
    "MassiveIntentClassification": "Given a user utterance as query, find the user intents",
    "MassiveScenarioClassification": "Given a user utterance as query, find the user scenarios",
    "MTOPDomainClassification": "Classify the intent domain of the given utterance in task-oriented conversation",
    "MTOPIntentClassification": "Classify the intent of the given utterance in task-oriented conversation",
    "ToxicConversationsClassification": "Classify the given comments as either toxic or not toxic",
    "TweetSentimentExtractionClassification": "Classify the sentiment of a given tweet as either positive, negative, or neutral",
    "ArxivClusteringP2P": "Identify the main and secondary category of Arxiv papers based on the titles and abstracts",
    "ArxivClusteringS2S": "Identify the main and secondary category of Arxiv papers based on the titles",
    "BiorxivClusteringP2P": "Identify the main category of Biorxiv papers based on the titles and abstracts",
    "BiorxivClusteringS2S": "Identify the main category of Biorxiv papers based on the titles",
    "MedrxivClusteringP2P": "Identify the main category of Medrxiv papers based on the titles and abstracts",
    "MedrxivClusteringS2S": "Identify the main category of Medrxiv papers based on the titles",
    "RedditClustering": "Identify the topic or theme of Reddit posts based on the titles",
    "RedditClusteringP2P": "Identify the topic or theme of Reddit posts based on the titles and posts",
    "StackExchangeClustering": "Identify the topic or theme of StackExchange posts based on the titles",
    "StackExchangeClusteringP2P": "Identify the topic or theme of StackExchange posts based on the given paragraphs",
    "TwentyNewsgroupsClustering": "Identify the topic or theme of the given news articles",
    "SprintDuplicateQuestions": "Retrieve duplicate questions from Sprint forum",
    "TwitterSemEval2015": "Retrieve tweets that are semantically similar to the given tweet",
    "TwitterURLCorpus": "Retrieve tweets that are semantically similar to the given tweet",
    "AskUbuntuDupQuestions": "Retrieve duplicate questions from AskUbuntu forum",
    "MindSmallReranking": "Retrieve relevant news articles based on user browsing history",
    "SciDocsRR": "Given a title of a scientific paper, retrieve the titles of other relevant papers",
    "StackOverflowDupQuestions": "Retrieve duplicate questions from StackOverflow forum",
    "ArguAna": "Given a claim, find documents that refute the claim",
    "ClimateFEVER": "Given a claim about climate change, retrieve documents that support or refute the claim",
    "CQADupstackRetrieval": "Given a question, retrieve detailed question descriptions from Stackexchange that are duplicates to the given question",
    "DBPedia": "Given a query, retrieve relevant entity descriptions from DBPedia",
    "FEVER": "Given a claim, retrieve documents that support or refute the claim",
    "FiQA2018": "Given a financial question, retrieve user replies that best answer the question",
    "HotpotQA": "Given a multi-hop question, retrieve documents that can help answer the question",
    "MSMARCO": "Given a web search query, retrieve relevant passages that answer the query",
    "NFCorpus": "Given a question, retrieve relevant documents that best answer the question",
    "NQ": "Given a question, retrieve Wikipedia passages that answer the question",
    "QuoraRetrieval": "Given a question, retrieve questions that are semantically equivalent to the given question",
    "SCIDOCS": "Given a scientific paper title, retrieve paper abstracts that are cited by the given paper",
    "SciFact": "Given a scientific claim, retrieve documents that support or refute the claim",
    "Touche2020": "Given a question, retrieve detailed and persuasive arguments that answer the question",
    "TRECCOVID": "Given a query on COVID-19, retrieve documents that answer the query",
    "STS": "Retrieve semantically similar text.",
    "SummEval": "Given a news summary, retrieve other semantically similar summaries",
}

# Anchor ('Bidirectional Reconstruction'), table 13, where it differs.
ANCHOR = MGH | {
    "AmazonCounterfactualClassification": "Classify a given Amazon customer review text as either counterfactual or non-counterfactual",
    "MassiveScenarioClassification": "Given a utterance as query, find the user scenarios",
    "MTOPDomainClassification": "Classify the internet domain of the given utterance in task-oriented conversation",
    "STS": "Retrieve semantically similar text",
}

# Linq-Embed-Mistral prints no table: it evaluates as E5-Mistral does (section 5), whose table MGH's is.
LINQ = MGH

# Pooling and Attention, table 7: with a full stop, some in other words, and not of all 56 tasks. A newer task (.v2) has
# the instruction of its older one.
POOLING_ATTENTION = {name: text.removesuffix(".") + "." for name, text in MGH.items()} | {
    "Banking77Classification": "Given an online banking query, find the corresponding intents.",
    "TRECCOVID": "Given a query, retrieve documents that answer the query.",
}
for name in ["AmazonCounterfactualClassification", "AmazonReviewsClassification", "CQADupstackRetrieval",
             "MassiveIntentClassification", "MassiveScenarioClassification", "MTOPDomainClassification",
             "MTOPIntentClassification"]:  # fmt: skip
    del POOLING_ATTENTION[name]
NOT_IN_POOLING_ATTENTION = ["STS17", "STS22"]

# The newer clustering tasks of that table.
NEWER = [
    "BiorxivClusteringP2P.v2", "BiorxivClusteringS2S.v2", "MedrxivClusteringP2P.v2", "MedrxivClusteringS2S.v2",
    "RedditClustering.v2", "RedditClusteringP2P.v2", "StackExchangeClustering.v2", "StackExchangeClusteringP2P.v2",
    "TwentyNewsgroupsClustering.v2",
]  # fmt: skip

# NV-Embed, table 13, where it differs. It has no row for CQADupstack; the released code's is MGH's.
NV_EMBED = MGH | {
    "EmotionClassification": "Classify the emotion expressed in the given Twitter message into one of the six emotions:anger, fear, joy, love, sadness, and surprise",
    "ArguAna": "Given a claim, retrieve documents that support or refute the claim",
    "NFCorpus": "Given a question, retrieve relevant documents that answer the question",
    "NQ": "Given a question, retrieve passages that answer the question",
    "Touche2020": "Given a question, retrieve passages that answer the question",
}

KINDS = {
    "Classification": "classification", "Clustering": "clustering", "PairClassification": "pair_classification",
    "Reranking": "reranking", "Retrieval": "retrieval", "STS": "sts", "Summarization": "summarization",
}  # fmt: skip


TABLES = {"nv-embed": NV_EMBED, "mgh": MGH, "anchor": ANCHOR, "linq": LINQ, "pooling-attention": POOLING_ATTENTION}


def instruction(table, task, group):
    name = task.metadata.name
    if table is POOLING_ATTENTION and name in NOT_IN_POOLING_ATTENTION:
        return None
    return table.get("STS" if task.metadata.type == "STS" else group or name.removesuffix(".v2"))


def documents(task):
    """How many texts the newer clustering embeds: 4 % of the set, or what is left of a set that mteb thins out itself."""
    texts = task.metadata.descriptive_stats[task.eval_splits[0]]["num_samples"]
    return texts if texts <= 2048 else int(task.max_fraction_of_documents_to_embed * texts)


def show(task, group=None):
    meta = task.metadata
    print("\n[[task]]")
    fields = {"name": meta.name, "kind": KINDS[meta.type], "hub": meta.dataset["path"],
              "revision": meta.dataset["revision"], "split": task.eval_splits[0]}  # fmt: skip
    subset = task.hf_subsets[0]
    if subset != "default":
        fields["subset"] = subset
    if group:
        fields["group"] = group
    default = {"pair_classification": "max_ap", "clustering": "v_measure", "classification": "accuracy",
               "reranking": "map_at_1000", "retrieval": "ndcg_at_10"}.get(fields["kind"], "cosine_spearman")  # fmt: skip
    if meta.main_score != default:
        fields["main_score"] = meta.main_score
    if fields["kind"] == "classification":
        if task.samples_per_label != 8:
            fields["samples_per_label"] = task.samples_per_label
        if task.n_experiments != 10:
            fields["experiments"] = task.n_experiments
    if getattr(task, "ignore_identical_ids", False):
        fields["ignore_identical_ids"] = True
    if meta.name in NEWER:
        fields["documents"] = documents(task)
    for name, value in fields.items():
        print(f"{name} = {json.dumps(value)}")
    for name, table in TABLES.items():
        if text := instruction(table, task, group):
            print(f"instructions.{name} =", json.dumps(text))


print("# The papers' tasks. Written by tests/reference/mteb_tasks.py from the mteb package; do not edit.")
for task in sorted(mteb.get_benchmark("MTEB(eng, v1)").tasks, key=lambda task: (task.metadata.type, task.metadata.name)):
    parts = getattr(task.metadata, "tasks", None)
    if parts:
        for part in parts:
            show(part, task.metadata.name)
    else:
        show(task)
for name in NEWER:
    show(mteb.get_task(name))
