"""ROUGE-L: how much of a text another has, in order (Lin 2004, section 3)."""

import re
from collections.abc import Sequence


def rouge_l(written: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of words, with recall and precision of equal weight.

    Words are runs of letters and digits in lower case, as in the usual implementations.
    """
    a, b = words(written), words(reference)
    common = longest_common(a, b)
    return 2 * common / (len(a) + len(b)) if common else 0.0


def words(text: str) -> list[str]:
    """Return the words that are compared."""
    return re.findall(r"[^\W_]+", text.lower())


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    One bit for each word of b, 0 where the best length grows (Hyyrö 2004): a row of the table is one number.
    """
    where: dict[str, int] = {}
    for i, word in enumerate(b):
        where[word] = where.get(word, 0) | 1 << i
    whole = (1 << len(b)) - 1
    row = whole
    for word in a:
        met = row & where.get(word, 0)
        row = (row + met | row - met) & whole
    return len(b) - row.bit_count()
