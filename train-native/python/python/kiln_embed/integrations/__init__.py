"""Kiln as a model of other libraries, a module for each: `pip install kiln-embed[langchain]` and the like bring them.

| module | for | extra |
|---|---|---|
| `chroma` | Chroma's `EmbeddingFunction` | `chroma` |
| `daft` | Daft's `embed_text` | `daft` |
| `haystack` | Haystack's embedders and ranker | `haystack` |
| `lancedb` | LanceDB's `EmbeddingFunction` | `lancedb` |
| `langchain` | LangChain's `Embeddings` | `langchain` |
| `llama_index` | LlamaIndex's `BaseEmbedding` | `llama-index` |
| `mteb` | mteb's encoder | `mteb` |
| `qdrant` | Qdrant's points and queries | `qdrant` |
| `ray` | Ray Data's `map_batches` | `ray` |
| `spark` | Spark's `mapInArrow` | `spark` |
"""
