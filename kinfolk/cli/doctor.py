"""`kin doctor`: check that this machine's device computes what it should."""

import argparse
import dataclasses
import json

EPILOG = """\
examples:
  kin doctor                       the accelerator of this machine, or its CPU, in float32 and in half precision
  kin doctor --device mps --only gpt
  kin doctor --precision fp32 --json

Operators are compared with references written as plain loops, relatives with themselves on the CPU in float32. The exit
code is 1 if anything is off."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--device", default="auto", help="cpu, cuda, mps or xpu (default: the accelerator, if there is one)")
    add(
        "--precision", action="append", choices=("fp32", "bf16", "fp16"), help="default: fp32 and bf16; may be repeated"
    )
    add("--only", default="", metavar="TEXT", help="only relatives whose names contain it, and no operators")


def run(args: argparse.Namespace) -> int:
    """Check and print what is off."""
    from kinfolk.bench.doctor import Finding, check_operators, check_relatives
    from kinfolk.core.device import choose_device

    findings: list[Finding] = []
    device = choose_device(args.device)
    for precision in args.precision or ("fp32", "bf16"):
        findings += [] if args.only else check_operators(device, precision)
        findings += check_relatives(device, precision, args.only)
    bad = [finding for finding in findings if not finding.good]
    if args.json:
        print(json.dumps({"device": str(device), "findings": [dataclasses.asdict(x) for x in findings]}, indent=1))
    else:
        for x in bad:
            print(f"{x.name} in {x.precision}: {x.error or f'off by {x.off:.2g} of the largest number'}")
        print(f"{device}: {len(findings) - len(bad)} of {len(findings)} as they should be")
    return 1 if bad else 0
