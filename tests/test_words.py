"""None of the paraphrases that hide the field's own terms is in help, errors, reports or docs."""

import ast
import re
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
    r"whoever|nobody|begins? anew|is told": "a subject and a verb",
    r"pictures?": "image",
    r"learns on": "continues training",
}
WORDS = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): say for pattern, say in SAY.items()}


def paraphrases(text):
    return sorted({match[0].lower() for word in WORDS for match in word.finditer(text)})


def errors_of(file):
    """Return the text of all string literals in `raise` statements of a file, and in pages of reports all literals."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = (
        [tree]
        if "report" in file.parts or file.stem == "page"
        else [n for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    )
    docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in inside:
        for leaf in ast.walk(node):
            if (
                isinstance(leaf, ast.Constant)
                and isinstance(leaf.value, str)
                and id(leaf) not in docs
                and " " in leaf.value
            ):
                yield leaf.value


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_help_speaks_as_the_field_does(verb):
    found = paraphrases(re.sub(r"\S*/\S*", "", parser_of(verb).format_help()))  # paths are names
    assert found == [], f"kin {verb} --help: {found}; say {SAY}"


def test_the_overview_speaks_as_the_field_does():
    assert paraphrases(overview()) == []


def test_errors_and_reports_speak_as_the_field_does():
    found = {}
    for file in sorted((HOUSE / "kinfolk").rglob("*.py")):
        words = sorted({word for text in errors_of(file) for word in paraphrases(text)})
        name = str(file.relative_to(HOUSE))
        if words:
            found[name] = words
    assert found == {}


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "AGENTS.md", *sorted(p.name for p in (HOUSE / "docs").glob("*.md"))]
)
def test_pages_speak_as_the_field_does(page):
    file = HOUSE / page if (HOUSE / page).exists() else HOUSE / "docs" / page
    prose = re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL))
    found = paraphrases(prose)
    assert found == [] or page in PAGES_LEFT, f"{page}: {found}; say {SAY}"


# records of the past, pages read from docstrings, and pages of one chapter that is being written
PAGES_LEFT = frozenset({"decisions.md", "LOG.md", "family.md", "grammar.md", "map.md", "api.md", "comparing.md"})


# in docstrings and comments too; files of comparisons are still to be read
EVERYWHERE = re.compile(r"\b(?:whoever|nobody|begins? anew|is told|are told|made again|so many)\b", re.IGNORECASE)


def test_sources_say_what_happens_and_to_what():
    found = [
        f"{file.relative_to(HOUSE)}:{number}: {line.strip()}"
        for file in sorted((HOUSE / "kinfolk").rglob("*.py"))
        if "contests" not in file.parts
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if EVERYWHERE.search(line)
    ]
    assert found == []
