"""One test over many files: all that break a rule are named, and a thousand files are not a thousand tests."""

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HOUSE = Path(__file__).parents[1]


def name_of(path: Path) -> str:
    return str(path.relative_to(HOUSE))


@functools.cache
def parse(path: Path) -> ast.Module:
    """Read and parse a file once for all rules; a module of rules forgets what it parsed with `forget`."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, in the order of `ast.walk`."""
    return tuple(ast.walk(parse(path)))


def forget() -> None:
    """Drop what is kept: the garbage collector would look through millions of nodes in every later test."""
    nodes.cache_clear()
    parse.cache_clear()


def dotted(node: ast.AST) -> str:
    """Return an expression as `ast.unparse` does, quickly where it is a dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


def calls(found: Sequence[ast.AST]) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call among some nodes with its dotted name."""
    for node in found:
        if isinstance(node, ast.Call):
            yield node, dotted(node.func)


def over(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make a test of a check of one file; it fails with the message of every file that fails."""
    assert paths

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            faults = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    faults.append(f"{name_of(path)}: {error}")
            assert not faults, "\n".join(faults)

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate
