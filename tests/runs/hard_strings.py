"""Two hundred strings that tokenizers stumble over: line separators, combining marks, controls, CJK, emoji, spaces."""

import random

WORDS = ["Hello", "world", "naïve", "café", "don't", "U.S.A.", "3,141.59", "state-of-the-art", "ǅ", "ﬁne", "İstanbul"]
WORDS += [
    "ß",
    "ﬀ",
    "①②③",
    "½",
    "日本語",
    "東京",
    "中文字符",
    "한국어",
    "ไทย",
    "हिन्दी",
    "עברית",
    "العربية",
    "🙂",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "👍🏽",
]
WORDS += [
    "e\u0301",
    "a\u0308\u0323",
    "\u1e9b\u0323",
    "Z\u0351\u036b\u0343",
    "``quoted''",
    "<tag>",
    "[brackets]",
    "##piece",
]
WORDS += ["▁under", "</w>", "@@ ", "the", "of", "running", "runner", "understand"]
CHARS = [
    *"\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x00\x01\x07\x7f\u200b\u200d\xad\ufeff\xa0\u3000\u202e\u2009\ufffd\ufffc"
]
CHARS += [*"\U000e0001\U0010ffff\ue000\t\r\n\u0300\ufe0f\u061c\u180e", "\r\n"]
SPACES = ["", " ", "  ", "\n", "\t\t", "a", " a", "a ", "  a  b  "]


def hard_strings(n=200):
    """Return each character alone, inside and between spaces, then random mixtures."""
    draw = random.Random(0)
    strings = [*SPACES, *WORDS, *CHARS, *(f"a{c}b" for c in CHARS), *(f" {c} " for c in CHARS)]
    while len(strings) < n:
        strings.append("".join(draw.choice([*WORDS, *CHARS, " ", " ", "x"]) for _ in range(draw.randint(2, 12))))
    return strings[:n]


def sentences(n=300):
    """Return lines of these words, to train tokenizers with."""
    draw = random.Random(1)
    return [" ".join(draw.choice(WORDS) for _ in range(9)) for _ in range(n)]
