"""`kin completion`: shell completion of verbs, options, choices and names of relatives, for bash, zsh and fish."""

import argparse
import json
import shlex
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")

NAMES_RELATIVES = ("family", "diff", "train", "compare", "scale")
"""Verbs whose arguments are names of relatives (or files)."""

VALUES = {"--size": ("tiny", "small", "base"), "--device": ("auto", "cpu", "cuda", "mps", "xpu")}
"""Values of options that a verb checks by itself."""

EPILOG = """\
examples:
  kin completion bash >> ~/.bashrc
  kin completion zsh > ~/.zfunc/_kin       a folder of $fpath; then: autoload -U compinit && compinit
  kin completion fish > ~/.config/fish/completions/kin.fish"""


class Option(NamedTuple):
    """One option of a verb, the values it is limited to, and its help in one line."""

    name: str
    values: tuple[str, ...]
    help: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to print a script for")


def run(args: argparse.Namespace) -> int:
    """Print the completion script."""
    script = script_of(args.shell)
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script)
    return 0


def script_of(shell: str) -> str:
    """Return the completion script of a shell."""
    from kinfolk.family.catalogue import scan

    relatives = sorted(scan())
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_options(), relatives)


def _options() -> dict[str, list[Option]]:
    """Return the options of every verb."""
    from kinfolk.cli.main import parser_of, verbs

    return {verb: [_option(a) for a in parser_of(verb)._actions if a.option_strings] for verb in verbs()}


def _option(action: argparse.Action) -> Option:
    name = action.option_strings[-1]
    values = tuple(str(value) for value in action.choices or VALUES.get(name, ()))
    summary = " ".join((action.help or "").split()) if action.help is not argparse.SUPPRESS else ""
    # a percent sign is doubled in argparse's help texts
    return Option(name, values, summary.replace("%%", "%"))


def _cases(options: dict[str, list[Option]], relatives: list[str]) -> tuple[str, str]:
    """Return two shell `case` bodies: words by verb, and values by verb and option."""
    words, values = [], []
    for verb, rows in options.items():
        names = [row.name for row in rows] + (relatives if verb in NAMES_RELATIVES else [])
        words.append(f"    {verb}) words={shlex.quote(' '.join(names))} ;;")
        values += [f"    {verb}:{row.name}) words={shlex.quote(' '.join(row.values))} ;;" for row in rows if row.values]
    return "\n".join(words), "\n".join(values)


def _bash(options: dict[str, list[Option]], relatives: list[str]) -> str:
    words, values = _cases(options, relatives)
    return f"""\
# completion of `kin` for bash
_kin() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {shlex.quote(" ".join(options))} -- "$cur"))
    return
  fi
  case "$verb:$before" in
{values}
  esac
  if [ -z "$words" ]; then case "$verb" in
{words}
  esac; COMPREPLY=($(compgen -W "$words" -- "$cur") $(compgen -f -- "$cur"))
  else COMPREPLY=($(compgen -W "$words" -- "$cur")); fi
}}
complete -o filenames -F _kin kin"""


def _zsh(options: dict[str, list[Option]], relatives: list[str]) -> str:
    words, values = _cases(options, relatives)
    return f"""\
#compdef kin
# completion of `kin` for zsh
_kin() {{
  local verb=$words[2] before=$words[CURRENT-1] line=
  if (( CURRENT == 2 )); then compadd -- {" ".join(options)}; return; fi
  case "$verb:$before" in
{values.replace(" words=", " line=")}
  esac
  if [[ -n $line ]]; then compadd -- ${{=line}}; return; fi
  case "$verb" in
{words.replace(" words=", " line=")}
  esac
  compadd -- ${{=line}}
  _files
}}
compdef _kin kin"""


def _fish(options: dict[str, list[Option]], relatives: list[str]) -> str:
    from kinfolk.cli.main import VERBS

    lines = ["# completion of `kin` for fish"]
    for verb, rows in options.items():
        lines.append(f"complete -c kin -n __fish_use_subcommand -f -a {verb} -d {shlex.quote(VERBS[verb].help)}")
        seen = f"-n '__fish_seen_subcommand_from {verb}'"
        for row in rows:
            limited = f" -x -a {shlex.quote(' '.join(row.values))}" if row.values else ""
            lines.append(f"complete -c kin {seen} -l {row.name.lstrip('-')}{limited} -d {shlex.quote(row.help[:80])}")
        if verb in NAMES_RELATIVES:
            lines.append(f"complete -c kin {seen} -a {shlex.quote(' '.join(relatives))}")
    return "\n".join(lines)
