"""What the tests with the real packages share."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    "a ship sails across the sea",
    "the recipe needs two eggs and some flour",
    "granite walls and a long way up to the summit",
    "the violinist plays in the orchestra",
]
QUERY = "cooking with eggs"
