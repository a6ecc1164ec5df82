"""Depths and relations in a dependency tree, by walking from each word to its root."""


def path(heads: list[int], word: int) -> list[int]:
    """Return a word and all heads above it, the root last."""
    found = [word]
    while heads[found[-1]] >= 0:
        found.append(heads[found[-1]])
    return found


def depth(heads: list[int], word: int) -> int:
    """Return the number of edges between a word and its root; 0 outside the parse."""
    return 0 if word < 0 else len(path(heads, word)) - 1


def relation(heads: list[int], words: list[int], i: int, j: int) -> int:
    """Return what replaces j - i for tokens i and j, which belong to words."""
    a, b = words[i], words[j]
    d_i, d_j = depth(heads, a), depth(heads, b)
    if a >= 0 and b >= 0 and (a in path(heads, b) or b in path(heads, a)):
        return d_j - d_i
    return (d_i + d_j) if j > i else -(d_i + d_j) if j < i else 0
