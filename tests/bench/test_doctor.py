"""`kin doctor`: finds what is off, and nothing else."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from kinfolk.bench import doctor, machine_report
from kinfolk.cli.main import main

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_operators_agree_with_their_references(precision):
    findings = list(doctor.check_operators(CPU, precision))
    assert len(findings) > 20
    assert [x for x in findings if not x.good] == []


def test_an_operator_that_is_off_is_found(monkeypatch):
    from kinfolk.ops import rms_norm as module

    right = module.rms_norm
    monkeypatch.setattr(module, "rms_norm", lambda *args: right(*args) * 1.01)
    assert [x.name for x in doctor.check_operators(CPU, "fp32") if not x.good] == ["ops.rms_norm.rms_norm"]


def test_a_relative_that_does_not_run_is_named(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_loss", lambda name, device, precision: 1 / 0)
    assert main(["doctor", "--device", "cpu", "--only", "gpt2", "--precision", "fp32"]) == 1
    assert "gpt2 in fp32: ZeroDivisionError" in capsys.readouterr().out


def test_the_command_checks_relatives(capsys):
    assert main(["doctor", "--device", "cpu", "--only", "gpt2", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {(x["name"], x["precision"]) for x in findings} >= {("gpt2", "fp32"), ("gpt2", "bf16")}


def test_a_device_that_is_not_here_is_refused(capsys):
    assert main(["doctor", "--device", "abacus"]) == 2
    assert "device" in capsys.readouterr().err


def test_the_machine_its_extras_and_a_small_model(capsys, monkeypatch):
    assert main(["doctor", "--quick"]) == 0
    out = capsys.readouterr().out
    for word in ("cores", "instructions", "memory", "accelerator", "precision", "torch", "extra serve"):
        assert word in out
    assert "write and read a small model: ok" in out
    monkeypatch.setattr(machine_report, "write_and_read", lambda: "OSError: no space left")
    assert main(["doctor", "--quick", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["write and read"] == "OSError: no space left"


def test_a_missing_extra_is_named_with_what_it_would_give(monkeypatch, capsys):
    monkeypatch.setitem(machine_report.EXTRAS, "serve", (("no_such_module",), "kin serve"))
    assert main(["doctor", "--quick"]) == 0
    assert "missing (no_such_module): pip install 'kinfolk[serve]': kin serve" in capsys.readouterr().out


def test_every_extra_is_described():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(declared["optional-dependencies"]) - {"dev"} == set(machine_report.EXTRAS)
