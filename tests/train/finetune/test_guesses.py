"""What fine-tuning guesses of a file, says before it trains, and can be told otherwise."""

import re

import pytest

from kinfolk.cli.main import main, parser_of
from kinfolk.data import open_data
from kinfolk.objectives.tasks.registry import named
from kinfolk.runs.fit import LONGEST, labelling_of
from kinfolk.train.finetune.task import choose, separator_of


@pytest.mark.parametrize(
    ("labels", "between"),
    [
        (["3", "10", "3,10", "5,3", "5"], "comma"),
        (["a;b", "b;c", "c;a", "a;c", "b"], "semicolon"),
        (["a|b", "c"], "bar"),
        (["joy", "anger", "joy"], ""),
        # names that hold a comma, once or in every label
        (["Business, Economy", "Sport"], ""),
        (["Smith, John", "Doe, Jane", "Roe, Richard"], ""),
        (["1,5", "2,5"], ""),
        ([["a", "b"], ["a"]], ""),
        ([1, 2, None], ""),
    ],
)
def test_a_separator_is_guessed_where_it_leaves_fewer_names(labels, between):
    assert separator_of(labels) == between


def table(path, labels, column="label"):
    rows = [f'text number {i} of many,"{label}"' for i, label in enumerate(labels)]
    path.write_text("\n".join([f"text,{column}", *rows]) + "\n")
    return path


def emotions(n=280):
    """Make labels as GoEmotions has them: 28 classes, some rows with two."""
    pairs = [(i % 28, (i * 7 + 3) % 28) for i in range(n)]
    return [f"{a},{b}" if i % 3 == 0 and a != b else str(a) for i, (a, b) in enumerate(pairs)]


def test_labels_with_commas_are_28_classes_and_not_one_for_each_pair(tmp_path):
    file = table(tmp_path / "a.csv", emotions())
    task = choose("auto", file)
    assert task == named("multi-label", text="text", label="label", between="comma")
    data = open_data(task.data(file), cache=tmp_path / "cache")
    assert len(data.split("train").classes) == 28
    # an option says what a file does not show
    spaced = table(tmp_path / "b.csv", [label.replace(",", " ") for label in emotions()])
    assert choose("auto", spaced).kind == "classify"
    told = choose("auto", spaced, between="space")
    assert len(open_data(told.data(spaced), cache=tmp_path / "cache").split("train").classes) == 28


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a small trained encoder."""
    out = tmp_path_factory.mktemp("run") / "roberta"
    sizes = ["n_layers=1", "d_model=16", "n_heads=2", "d_ff=16", "training.batch_size=4", "training.length=32"]
    words = [word for size in sizes for word in ("--set", size)]
    text = out.parent / "my.txt"
    text.write_text("some words of a text. " * 400)
    cache = ["--cache", str(out.parent / "cache"), "--quiet", "--no-tensorboard"]
    assert main(["train", "roberta", "--data", str(text), "--steps", "1", "--out", str(out), *words, *cache]) == 0
    return out


def tuned(run, tmp_path, train, *more):
    given = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--steps", "1", "--no-tensorboard"]
    return main(["finetune", str(run), "--train", str(train), *given, *map(str, more)])


def test_what_was_guessed_is_said_before_training(run, tmp_path, capsys):
    file = table(tmp_path / "a.csv", emotions())
    assert tuned(run, tmp_path, file) == 0
    said = capsys.readouterr().err
    before = said[: said.index("step 1/1")]
    assert "task: multi-label (guessed" in before
    assert "text column 'text', label column 'label'" in before
    assert "classes: 28, separated by comma" in before
    assert "held out of the same file" in before
    assert "length: up to" in before
    assert tuned(run, tmp_path / "other", file, "--task", "classify") == 0
    assert "some labels look like several with a comma between" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["classes", "tags"])
def test_a_class_that_only_validation_has_can_be_added(run, tmp_path, capsys, kind):
    if kind == "classes":
        train, valid = table(tmp_path / "a.csv", ["x", "y"] * 6), table(tmp_path / "b.csv", ["x", "z"])
    else:
        train, valid = tmp_path / "a.conll", tmp_path / "b.conll"
        train.write_text("one\tO\ntwo\tB-x\n\n" * 6)
        valid.write_text("one\tO\ntwo\tB-z\n\n")
    assert tuned(run, tmp_path, train, "--valid", valid) == 2
    assert "--unknown-classes add" in capsys.readouterr().err
    assert tuned(run, tmp_path, train, "--valid", valid, "--unknown-classes", "add") == 0
    assert main(["eval", str(tmp_path / "out")]) == 0
    assert "z" in (tmp_path / "out" / "run.toml").read_text()


def test_long_sequences_are_read_whole_where_their_length_was_asked_for(tmp_path):
    """A file's are cut at 4,096 tokens and that is said; a task of a longer length was asked for in that length."""
    from kinfolk.runs.fit import n_cut

    file = tmp_path / "a.csv"
    file.write_text("text,label\n" + f"{'ab ' * 2000},x\nshort,y\n" * 10)
    data = open_data(f"labelled:{file}", cache=tmp_path / "cache")
    asked = labelling_of(data)
    assert asked.length == LONGEST
    assert n_cut(data.split("train"), LONGEST) > 0
    assert labelling_of(open_data("parity:length=6000,examples=4")).length > 6000


def test_eval_scores_all_of_a_raw_file_and_says_so(run, tmp_path, capsys):
    file = tmp_path / "other.txt"
    file.write_text("other words of another text. " * 300)
    counts = {}
    for split in ("", "all", "valid"):
        more = ["--split", split] if split else []
        assert main(["eval", str(run), "--data", str(file), "--cache", str(tmp_path / "c"), *more]) == 0
        said = capsys.readouterr().out
        assert ("all of it" in said.splitlines()[0]) == (split != "valid")
        assert ("the valid part of it" in said.splitlines()[0]) == (split == "valid")
        counts[split] = int(re.search(r"\(([\d,]+) targets\)", said)[1].replace(",", ""))
    assert counts[""] == counts["all"] > 5 * counts["valid"]


# a hint may name an option of its own verb, or say whose it is: `kin prepare --on-bad`
@pytest.mark.parametrize("verb", ["train", "compare", "eval"])
@pytest.mark.parametrize("what", ["column", "row", "binary"])
def test_hints_name_options_that_the_verb_has(run, tmp_path, capsys, verb, what):
    file = tmp_path / ("a.csv" if what != "binary" else "a.npz")
    texts = {"column": b"words,label\na,b\n", "row": b"text\nok\n\xff\xfe bad\n", "binary": b"PK\x03\x04\0\0\0"}
    file.write_bytes(texts[what])
    first = [str(run)] if verb == "eval" else ["gpt2"]
    more = ["--budget", "1000-tokens"] if verb == "compare" else []
    out = [] if verb == "eval" else ["--out", str(tmp_path / "out")]
    assert main([verb, *first, "--data", f"corpus:{file}", "--cache", str(tmp_path / "c"), *more, *out]) == 2
    said = capsys.readouterr().err
    # the verb named last before an option is the one that has it; the line begins with the verb itself
    for option in re.finditer(r"--[a-z][a-z-]+", said):
        owner = re.findall(r"kin (\w+)", said[: option.start()])[-1]
        assert option.group() in {name for action in parser_of(owner)._actions for name in action.option_strings}
    if what == "binary":
        assert all(ending in said for ending in (".csv", ".jsonl", ".parquet"))
