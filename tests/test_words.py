"""None of the paraphrases that hide the field's own terms is in help, errors, docstrings, comments or docs."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from kinfolk.cli.main import overview, parser_of, verbs

HOUSE = Path(__file__).parents[1]

SAY = {
    r"look(s|ing)? (back|across)": "attention, self-attention, cross-attention",
    r"what it has read|what is remembered": "KV cache, recurrent state",
    r"what hides a key|who (may )?sees? whom": "attention mask",
    r"made again|blocks that run twice": "gradient checkpointing",
    r"number formats?|whole numbers": "mixed precision, integers, int8 quantization",
    r"put beside a trained part": "LoRA, adapters",
    r"rows that come and go|waits? for nobody": "continuous batching, graceful shutdown",
    r"so many": "a number, or N",
    r"measures? of which more is better": "metrics where higher is better",
    r"by lot\b|drawn lots|dice": "random seed, sample, permutation",
    r"foreign folder": "checkpoint of another library",
    r"stands?": "is, has, stores",
    r"whoever|nobody|begins? anew|(is|are) told(?! apart)": "a subject and a verb",
    r"pictures?": "image",
    r"learns on": "continues training",
}
WORDS = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): say for pattern, say in SAY.items()}


ANY = re.compile("|".join(word.pattern for word in WORDS), re.IGNORECASE)


def paraphrases(text):
    # most texts have none, which one search says
    if not ANY.search(text):
        return []
    return sorted({match[0].lower() for word in WORDS for match in word.finditer(text)})


def prose_of(file):
    """Yield docstrings, comments and all other texts of a source file, without names in backticks."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield NAMES.sub("", node.value)
    # where nothing that begins with a # has one, no comment has; to find out where comments begin takes longer
    if not any(paraphrases(NAMES.sub("", match[1])) for match in re.finditer(r"(?=(#.*))", source)):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield NAMES.sub("", token.string)


NAMES = re.compile(r"`[^`]*`|\w+:(?= )|\S*/\S*")
"""Names in backticks, names of fields before a colon, and paths."""


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_help_speaks_as_the_field_does(verb):
    found = paraphrases(re.sub(r"\S*/\S*", "", parser_of(verb).format_help()))  # paths are names
    assert found == [], f"kin {verb} --help: {found}; say {SAY}"


def test_the_overview_speaks_as_the_field_does():
    assert paraphrases(overview()) == []


def test_sources_speak_as_the_field_does():
    found = {}
    for file in sorted((HOUSE / "kinfolk").rglob("*.py")):
        words = sorted({word for text in prose_of(file) for word in paraphrases(text)})
        if words:
            found[str(file.relative_to(HOUSE))] = words
    assert found == {}, SAY


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt", *sorted(p.name for p in (HOUSE / "docs").glob("*.md"))],
)
def test_pages_speak_as_the_field_does(page):
    file = HOUSE / page if (HOUSE / page).exists() else HOUSE / "docs" / page
    prose = re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL))
    found = paraphrases(prose)
    assert found == [], f"{page}: {found}; say {SAY}"
