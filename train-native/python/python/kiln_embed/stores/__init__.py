"""Where vectors go: what `kiln embed` wrote, or batches of Arrow, into a vector store, by the store's own client.

| module | for | extra |
|---|---|---|
| `lance` | LanceDB | `lancedb` |
| `pgvector` | Postgres with pgvector, by psycopg | `pgvector` |
| `qdrant` | Qdrant | `qdrant` |

>>> from kiln_embed.stores import lance
>>> lance.write("passages-db", "passages", "vectors/")       # of: kiln embed ... --output vectors/

Each module has one function, `write`, and each of them keeps three promises: a store keeps which model its vectors are
of, and those of another model are refused; rows have ids, so that a second run changes nothing; and never more than
`rows` rows are held.
"""

from kiln_embed._provenance import Provenance
from kiln_embed.stores._output import Output

__all__ = ["Output", "Provenance"]
