"""Kiln as a model of other libraries, a module for each: `pip install kiln-embed[langchain]` and the like bring them.

| module | for | extra |
|---|---|---|
| `chroma` | Chroma's `EmbeddingFunction` | `chroma` |
| `haystack` | Haystack's embedders and ranker | `haystack` |
| `lancedb` | LanceDB's `EmbeddingFunction` | `lancedb` |
| `langchain` | LangChain's `Embeddings` | `langchain` |
| `llama_index` | LlamaIndex's `BaseEmbedding` | `llama-index` |
| `mteb` | mteb's encoder | `mteb` |
| `qdrant` | Qdrant's points and queries | `qdrant` |
"""
