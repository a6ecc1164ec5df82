"""`kin doctor`: what this machine offers, which extras are missing, and whether its device computes what it should."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.bench.doctor import Finding

EPILOG = """\
examples:
  kin doctor                       the machine, its extras, then operators and relatives on its accelerator or CPU
  kin doctor --quick               the machine only: no operator is run
  kin doctor --device mps --only gpt
  kin doctor --precision fp32 --json

Operators are compared with references written as plain loops, relatives with themselves on the CPU in float32. The exit
code is 1 if anything is off."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("--device", default="auto", help="cpu, cuda, mps or xpu (default: the accelerator, if there is one)")
    add(
        "--precision", action="append", choices=("fp32", "bf16", "fp16"), help="default: fp32 and bf16; may be repeated"
    )
    add("--only", default="", metavar="TEXT", help="only relatives whose names contain it, and no operators")
    add("--quick", action="store_true", help="only the machine, its extras, and a small model written and read")


def run(args: argparse.Namespace) -> int:
    """Check and print what is off."""
    from kinfolk.bench import machine_report
    from kinfolk.core.device import choose_device

    device = choose_device(args.device)
    machine, extras, problem = machine_report.facts(), machine_report.extras(), machine_report.write_and_read()
    if not args.json:
        for name, value in machine.items():
            print(f"{name:13}{value}")
        for extra in extras:
            state = (
                f"missing ({', '.join(extra.missing)}): pip install 'kinfolk[{extra.name}]'" if extra.missing else "ok"
            )
            print(f"extra {extra.name:10}{state}: {extra.gives}")
        print(f"write and read a small model: {problem or 'ok'}")
    findings = [] if args.quick else _checked(args, device)
    bad = [finding for finding in findings if not finding.good]
    if args.json:
        summary = {
            "machine": machine,
            "extras": [dataclasses.asdict(extra) for extra in extras],
            "write and read": problem or "ok",
            "device": str(device),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        print(json.dumps(summary, indent=1))
    elif not args.quick:
        for x in bad:
            print(f"{x.name} in {x.precision}: {x.error or f'off by {x.off:.2g} of the largest number'}")
        print(f"{device}: {len(findings) - len(bad)} of {len(findings)} as they should be")
    return 1 if bad or problem else 0


def _checked(args: argparse.Namespace, device: Any) -> "list[Finding]":
    from kinfolk.bench.doctor import check_operators, check_relatives

    findings: list[Finding] = []
    for precision in args.precision or ("fp32", "bf16"):
        findings += [] if args.only else check_operators(device, precision)
        findings += check_relatives(device, precision, args.only)
    return findings
