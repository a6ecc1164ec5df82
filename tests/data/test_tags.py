"""Words with tags, from CoNLL files and JSON lines to batches; and what is refused, with its line."""

import gzip
import json

import numpy as np
import pytest

from kinfolk.core.batch import IGNORE
from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Tokenizer, open_data
from kinfolk.data.files.conll import read_conll, read_tag_rows
from kinfolk.data.splits.labels import with_classes
from kinfolk.data.splits.tagged import pieces_of

SMALL = """\
-DOCSTART- -X- O O

EU NNP B-ORG
rejects VBZ O
German JJ B-MISC
call NN O

Peter NNP B-PER
Blackburn NNP I-PER
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_with_spaces_and_documents(tmp_path):
    first, second = read_conll(write(tmp_path / "a.conll", SMALL))
    assert first.words == ("EU", "rejects", "German", "call")
    assert first.tags == ("B-ORG", "O", "B-MISC", "O")
    assert (first.line, first.line_of(2)) == (3, 5)
    assert second.tags == ("B-PER", "I-PER")
    parts = read_conll(tmp_path / "a.conll", "1", "2")
    assert parts[0].tags == ("NNP", "VBZ", "JJ", "NN")


def test_tabs_keep_hashes_and_odd_spaces(tmp_path):
    text = "#sport\tO\n#\tO\na b\tB-x\n\u00a0\tO\n\t\n# id 7\nend\tO\n\ufeff"
    first, second = read_conll(write(tmp_path / "a.bio", text))
    assert first.words == ("#sport", "#", "a b", "\u00a0")
    assert second.words == ("end",)
    with gzip.open(tmp_path / "b.iob2.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert read_conll(tmp_path / "b.iob2.gz") == [first, second]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tO\nb\n", "x.conll:2: 1 columns, but 2 in the first row"),
        ("a O\n\nb O O\n", "x.conll:3: 3 columns"),
        ("a\n", "x.conll:1: a word and its tag need 2 columns"),
        ("a\tO\n\tO\n", "x.conll:2: a tag without a word"),
        ("a\tO\nb\t\n", "x.conll:2: a word without a tag"),
        ("\n\n", "holds no sentence"),
        (f"a\t{'x' * 300}\n", "x.conll:1: a tag of more than 256 bytes"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, said):
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        read_conll(write(tmp_path / "x.conll", text))


def test_lists_of_words_and_tags(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-x"]}, {"tokens": ["c"], "tags": [3]}]
    path = write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    first, second = read_tag_rows(path)
    assert (first.words, first.tags, first.line_of(1)) == (("a", "b"), ("O", "B-x"), 1)
    assert (second.tags, second.line_of(0)) == (("3",), 3)
    bad = {
        "2 words, but 1 tags": {"tokens": ["a", "b"], "tags": ["O"]},
        "no 'tags'": {"tokens": ["a"], "tagz": ["O"]},
        "is no word": {"tokens": [""], "tags": ["O"]},
        "not a list": {"tokens": "a", "tags": ["O"]},
        "without a tag": {"tokens": ["a"], "tags": [None]},
    }
    for said, row in bad.items():
        with pytest.raises(DataError, match=f"b.jsonl:2: .*{said}"):
            read_tag_rows(write(tmp_path / "b.jsonl", f"\n{json.dumps(row)}\n"))


def test_a_tag_is_at_the_first_token_of_its_word(tmp_path):
    data = open_data(f"labelled:{write(tmp_path / 'a.conll', SMALL)}", valid=tmp_path / "a.conll")
    split = data.split("train")
    assert (data.kind, split.asks) == ("labelled", "tags")
    assert split.classes == ("B-MISC", "B-ORG", "B-PER", "I-PER", "O")
    ids, tags = split.examples(np.arange(2))[0]
    assert data.tokenizer.decode(ids) == "EU rejects German call"
    marked = {int(i): split.classes[tags[i]] for i in np.flatnonzero(tags != IGNORE)}
    assert marked == {0: "B-ORG", 2: "O", 10: "B-MISC", 17: "O"}
    batch = Batches(split, batch_size=2, length=12, shuffle=False).at(0)
    assert (batch.targets != IGNORE).sum() == 3 + 2
    assert split.words_cut(12) == 1
    assert split.words_cut(18) == 0


def test_a_word_of_no_tokens_is_unknown_and_still_there():
    tokenizer = Tokenizer.words(["a", "b"])
    ids, firsts = pieces_of(tokenizer, ["a", "\u00a0", "b"])
    assert ids.tolist() == [tokenizer.encode("a")[0], tokenizer.unk, tokenizer.encode("b")[0]]
    assert firsts.tolist() == [0, 1, 2]


def test_a_part_is_held_out_or_comes_from_its_own_file(tmp_path):
    path = write(tmp_path / "t.conll", "\n".join(f"w{i}\tO\nx\tB-y\n" for i in range(40)))
    data = open_data(f"labelled:{path}", seed=1)
    assert len(data.split("train")) == 38
    assert len(data.split("valid")) == 2
    other = write(tmp_path / "v.conll", "a\tO\n\nb\tB-y\n")
    named = open_data(f"labelled:valid={other}:{path}")
    assert len(named.split("train")) == 40
    assert [s.words for s in named.split("valid").sentences] == [("a",), ("b",)]
    assert named.fingerprint == open_data(f"tags:{path}", valid=other).fingerprint != data.fingerprint
    write(other, "a\tO\n\nb\tO\nc\tB-z\n")
    with pytest.raises(DataError, match=r"v.conll:4: the tag 'B-z' is not among .* did you mean 'B-y'"):
        open_data(f"labelled:{path}", valid=other)


def test_tags_are_numbered_as_a_model_knows_them(tmp_path):
    data = open_data(f"labelled:{write(tmp_path / 'a.conll', SMALL)}", valid=tmp_path / "a.conll")
    classes = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-MISC"]
    renamed = with_classes(data, classes).split("valid")
    for (_, old), (_, new) in zip(data.split("valid").examples(range(2)), renamed.examples(range(2)), strict=True):
        was, now = (old[old != IGNORE], new[new != IGNORE])
        assert [data.split("valid").classes[i] for i in was] == [classes[i] for i in now]
