"""The grammar, listed: every registered kind is there, with fields that are read from the same source as the checks."""

import json

import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.spec import Spec, axes_of


def registered() -> set[tuple[str, str]]:
    """Every kind of the package with the name of its nearest axis, found without the code under test."""
    found, rest = set(), list(Spec.__subclasses__())
    while rest:
        cls = rest.pop()
        rest += cls.__subclasses__()
        if cls.kind and cls.__module__.startswith("kinfolk."):
            found |= {(axis.__name__, cls.kind) for axis in axes_of(cls)}
    return found


def test_every_registered_kind_is_listed() -> None:
    listed = {
        (axis.replace("-", ""), choice.kind) for axis in kf.axes() for choice in kf.choices(axis, relatives=False)
    }
    # a private base class is no axis; its kinds are on the axis above it
    assert {(axis.lower(), kind) for axis, kind in registered() if not axis.startswith("_")} <= listed
    assert {kind for _, kind in registered()} <= {kind for _, kind in listed}
    assert all(meaning for meaning in kf.axes().values())


def test_a_choice_says_fields_bounds_paper_and_relatives() -> None:
    found = {choice.kind: choice for choice in kf.choices("norm")}
    rms = found["rms-norm"]
    assert rms.source == "Zhang and Sennrich 2019"
    assert "llama" in rms.relatives
    assert "gpt2" not in rms.relatives
    fields = {field.name: field for field in rms.fields}
    assert (fields["eps"].allowed, fields["eps"].default) == ("float, at least 0", 1e-6)
    assert fields["gain"].allowed == "weight | one-plus"
    attention = {
        f.name: f for f in next(c for c in kf.choices("mixer", relatives=False) if c.kind == "attention").fields
    }
    assert (attention["n_heads"].required, attention["n_heads"].allowed) == (True, "int, at least 1")
    assert (attention["position"].allowed, attention["position"].default) == ("position", "none")


def test_an_unknown_axis_is_refused_with_the_nearest() -> None:
    with pytest.raises(kf.KinfolkError, match=r"unknown 'nrom'.*norm"):
        kf.choices("nrom")


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["axes"]) == 0
    assert "feed-forward" in capsys.readouterr().out
    assert main(["axes", "residual", "--json"]) == 0
    assert "sandwich-norm" in {choice["kind"] for choice in json.loads(capsys.readouterr().out)}


def test_every_axis_is_printed_on_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    from kinfolk.family import grammar

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(grammar, "_users", dict)  # who uses a choice takes seconds to find, for every axis anew
    for axis in ("", *kf.axes()):
        for json_too in ([], ["--json"]):
            assert main(["axes", *filter(None, [axis]), *json_too]) == 0
            out = capsys.readouterr().out
            assert json_too or max(map(len, out.splitlines())) <= 80, axis
    # formulas are read in a terminal, not compiled
    assert main(["axes", "norm"]) == 0
    assert "g (x - μ) / √(σ² + ε) + b over the last axis" in capsys.readouterr().out.replace("\n  ", " ")


def test_every_field_of_every_kind_has_a_meaning_and_bounds() -> None:
    """A number without bounds, a text without a meaning: both would be listed as a bare type."""
    kf.axes()  # imports every kind
    ours = {(axis.lower(), kind) for axis, kind in registered()}  # other tests define kinds of their own
    listed = [
        choice
        for axis in kf.axes()
        for choice in kf.choices(axis, relatives=False)
        if (axis.replace("-", ""), choice.kind) in ours
    ]
    fields = [(choice.kind, field) for choice in listed for field in choice.fields]
    assert len(fields) > 600
    assert [f"{kind}.{field.name}" for kind, field in fields if not field.meaning] == []
    assert [f"{kind}.{field.name}" for kind, field in fields if field.allowed in ("int", "float")] == []


def test_no_meaning_in_the_table_is_left_over() -> None:
    from kinfolk.family.field_meanings import MEANINGS

    used = {
        field.meaning for axis in kf.axes() for choice in kf.choices(axis, relatives=False) for field in choice.fields
    }
    assert [name for name, meaning in MEANINGS.items() if meaning not in used] == []
