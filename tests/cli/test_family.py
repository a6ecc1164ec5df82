"""`kin family`: the tree, and one relative explained."""

import json
import re

import pytest

from kinfolk.cli import family
from kinfolk.cli.main import main
from kinfolk.family import catalogue
from kinfolk.family.about import About
from kinfolk.family.query import where


def about(name, parent=None, year=2017):
    return About(
        name=name, parent=parent, year=year, paper="P", topology="decoder", causal=True, input="tokens", changes="new"
    )


def test_the_tree_shows_who_descends_from_whom():
    people = [about("a"), about("b", "a", 2018), about("c", "b", 2019), about("d", "b", 2020), about("e", "a", 2021)]
    assert family.tree({person.name: person for person in people}) == [
        "a (2017)  new",
        "├─ b (2018)  new",
        "│  ├─ c (2019)  new",
        "│  └─ d (2020)  new",
        "└─ e (2021)  new",
    ]


def test_every_relative_is_in_the_tree_and_in_the_data(capsys):
    assert main(["family"]) == 0
    drawn = capsys.readouterr().out
    assert main(["family", "--json"]) == 0
    listed = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert {"vanilla", "vanilla-pre", "gpt", "gpt2", "bert"} <= set(listed)
    assert set(listed) == set(re.findall(r"^[│├└─ ]*([\w-]+) \(\d{4}\)", drawn, re.MULTILINE))
    assert listed["gpt2"]["parent"] == "gpt"


def test_a_terminal_gets_the_same_tree(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    family._draw_in_colour(catalogue.scan())
    drawn = capsys.readouterr().out
    for name, who in catalogue.scan().items():
        assert f"{name} {who.year}  {who.changes}" in drawn


def test_one_relative_is_explained(capsys):
    assert main(["family", "gpt2"]) == 0
    text = capsys.readouterr().out
    assert "lineage     vanilla (2017) → gpt (2018) → gpt2 (2019)" in text
    assert "Radford et al. 2019" in text
    assert re.search(r"at tiny +[\d,]+ parameters, [\d.]+ \wFLOPs per token", text)
    assert re.search(r"residual +post-norm → pre-norm", text)
    assert "  ████····························\n" in text


def test_the_figures_are_those_of_the_model(capsys):
    import kinfolk as kf

    assert main(["family", "gpt2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = kf.build(kf.relative("gpt2", size="tiny"))
    assert found["params"] == sum(p.numel() for p in model.parameters()) == found["sizes"]["tiny"]
    assert found["sizes"]["tiny"] < found["sizes"]["small"] < found["sizes"]["base"]
    # two for each weight that multiplies, and something for attention
    assert found["flops_per_token"] > 2 * 2 * 12 * 128**2
    assert found["lineage"] == ["vanilla", "gpt", "gpt2"]
    assert found["patterns"][0]["pattern"] == {"kind": "causal"}
    assert "model.decoder.norm" in [change["path"] for change in found["differences"]]


def test_a_size_can_be_named(capsys):
    assert main(["family", "bert", "--size", "base"]) == 0
    assert re.search(r"at base +110,\d{3},\d{3} parameters", capsys.readouterr().out)
    assert main(["family", "bert", "--size", "bse"]) == 2
    assert "did you mean 'base'" in capsys.readouterr().err


def test_the_source_is_the_function_itself(capsys):
    assert main(["family", "gpt2", "--source"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"# .*gpt\.py:\d+\n@relative\(\n +\"gpt2\"", text)
    assert "def gpt2(" in text
    assert main(["family", "gpt2", "--source", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gpt3"], "kin family: unknown relative 'gpt3'; did you mean 'gpt"),
        (["gpt3", "--source"], "kin family: unknown relative 'gpt3'; did you mean 'gpt"),
        (["--source"], "kin family: --source needs the NAME of a relative"),
    ],
)
def test_what_is_not_there_is_said(argv, message, capsys):
    assert main(["family", *argv]) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("name", catalogue.scan())
def test_every_relative_can_be_explained(name):
    found = family.explain(name, "tiny")
    assert found["lineage"][-1] == name
    assert found["params"] > 0
    assert found["activation_bytes"] > 0
    assert all(len(drawing["picture"]) == 16 for drawing in found["patterns"])


@pytest.mark.parametrize(
    ("x", "text"), [(3, "3"), (999, "999"), (1000, "1 k"), (124_439_808, "124 M"), (2.5e15, "2.5 P")]
)
def test_numbers_are_short(x, text):
    assert family._short(x) == text


def test_the_spec_is_toml_that_training_takes(capsys, tmp_path):
    import kinfolk as kf
    from kinfolk.core.plain import loads
    from kinfolk.family.recipe import Recipe

    assert main(["family", "gpt2", "--spec", "--size", "small"]) == 0
    assert loads(Recipe, capsys.readouterr().out) == kf.relative("gpt2", size="small")


@pytest.mark.parametrize(
    ("conditions", "some", "none"),
    [
        ("causal,linear", {"performer", "linear", "local", "lstm"}, {"gpt2", "bert", "vanilla", "sparse-strided"}),
        ("year>=2020, !causal", {"linformer"}, {"gpt2", "bert", "reformer"}),
        ("from=gpt2,rotary", {"llama", "gpt-neox"}, {"gpt2", "alibi"}),
        ("encoder-decoder,year=2017", {"vanilla"}, {"gpt", "t5"}),
    ],
)
def test_relatives_are_listed_by_conditions(conditions, some, none):
    selected = set(where(catalogue.scan(), conditions))
    assert some <= selected
    assert not none & selected


def test_an_unknown_condition_names_the_nearest(capsys):
    assert main(["family", "--where", "casual"]) == 2
    assert "did you mean 'causal'" in capsys.readouterr().err
    assert main(["family", "--where", "from=gtp2"]) == 2
    assert "did you mean 'gpt2'" in capsys.readouterr().err
    assert main(["family", "gpt2", "--where", "causal"]) == 2


def test_a_relative_with_changes_is_explained_like_any_other(capsys):
    import kinfolk as kf

    assert main(["family", "gpt2+rotary", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lineage"] == ["vanilla", "gpt", "gpt2", "gpt2+rotary"]
    assert {row["path"] for row in found["differences"]} >= {"model.embedding.position"}
    assert main(["family", "gpt2+rotary", "--spec"]) == 0
    assert main(["family", "gpt2+rotary"]) == 0
    assert kf.about("gpt2+rotary").parent == "gpt2"
    with pytest.raises(kf.KinfolkError, match="'rotory' is not known; did you mean 'rotary'"):
        kf.about("gpt2+rotory")


def test_an_unknown_name_among_many_gets_the_nearest_and_not_all(capsys):
    assert main(["family", "gtp2"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'gpt2'?" in err
    assert len(err) < 200
