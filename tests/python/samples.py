"""Texts, and where the repository is."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

SENTENCES = [
    "the river floods the lower streets",
    "a violinist from a small town",
    "granite walls and a long way up",
    "the ship carried tea and timber",
    "petals of pale blue in wet meadows",
    "",
    "Größe, 蜂蜜 and 🚢",
]


def many(count: int) -> list[str]:
    """Texts of 1 to 40 words, all different."""
    words = " ".join(SENTENCES[:5]).split()
    return [
        " ".join(words[(row * 7 + i * (1 + row % 5)) % len(words)] for i in range(1 + row * 13 % 40)) + f" {row}"
        for row in range(count)
    ]
