"""No regular expression takes more than linear time, whatever text it meets.

One text of a thousand characters that takes seconds stops everybody: all requests, and all leases, share one loop. The
patterns are found by importing every module, so that a new one is tested without being listed here.
"""

import ast
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from re import _constants as codes
from re import _parser as parser
from time import thread_time
from types import ModuleType
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

import lcm

Text = str | bytes
SIZES = (16, 24, 200, 600, 9_000)
"""Exponential time shows at the second, cubic time at the fourth, quadratic time at the last."""
SLOW_SECONDS = 0.1
"""A linear match of the longest text takes a hundredth of it, a quadratic one several times as long."""
ENDS = ("", "\0", "(", "\n")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
METHODS = ("match", "fullmatch", "search", "sub", "split", "findall", "finditer")
MADE_OF_ARGUMENTS = {"world/environment.py", "upkeep/pseudonyms.py"}
"""Modules that make a pattern of local values. None of them comes from a caller, or they are literal words; a new one
must be looked at."""


class Use(NamedTuple):
    """A pattern and the way in which it is used."""

    where: str
    pattern: "re.Pattern[Any]"
    method: str


def modules() -> list[ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [import_module(one.name) for one in pkgutil.walk_packages(lcm.__path__, "lcm.")]


def compiled_patterns(module: ModuleType, tree: ast.Module) -> Iterator[Use]:
    """Find the patterns among a module's names, and the methods that it calls on them."""
    calls: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
            calls.setdefault(node.value.id, set()).add(node.attr)
    for name, value in vars(module).items():
        for one in value if isinstance(value, tuple) else (value,):
            for pattern in one if isinstance(one, tuple) else (one,):
                if isinstance(pattern, re.Pattern):
                    for method in calls.get(name, {"fullmatch"}):
                        yield Use(f"{module.__name__}.{name}", pattern, method)


def inline_patterns(module: ModuleType, tree: ast.Module) -> Iterator[Use]:
    """Find the calls such as `re.sub(PATTERN, …)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[first, *_]):
                try:
                    pattern = eval(compile(ast.Expression(first), "", "eval"), vars(module))
                except NameError:
                    assert Path(str(module.__file__)).as_posix().endswith(tuple(MADE_OF_ARGUMENTS)), module.__name__
                    continue
                if method in METHODS:
                    yield Use(f"{module.__name__}:{node.lineno}", re.compile(pattern), method)


def declared_rules(module: ModuleType) -> Iterator[msgspec.Meta]:
    """Find msgspec's rules in a module's types, and in the fields of its structs."""
    for value in vars(module).values():
        yield from rules_in(value)
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            for one in msgspec.structs.fields(value):
                yield from rules_in(one.type)


def rules_in(hint: Any) -> Iterator[msgspec.Meta]:
    if isinstance(hint, msgspec.Meta):
        yield hint
    for part in get_args(hint):
        yield from rules_in(part)


@cache
def all_uses() -> list[Use]:
    found, rules = list[Use](), set[str]()
    for module in modules():
        tree = ast.parse(Path(str(module.__file__)).read_text())
        found += compiled_patterns(module, tree)
        found += inline_patterns(module, tree)
        rules.update(one.pattern for one in declared_rules(module) if one.pattern)
    return found + [Use(f"msgspec {one}", re.compile(one), "search") for one in sorted(rules)]


def sample(tree: Any) -> str:
    """Return a text that a part of a pattern matches, or nearly so."""
    return "".join(sample_of(code, value) for code, value in tree)


def sample_of(code: Any, value: Any) -> str:
    inner = inside(code, value)
    if inner:
        return sample(inner[0]) * (max(1, min(value[0], 3)) if code in REPEATS else 1)
    if code is codes.IN:
        return sample_of_set(value)
    if code is codes.LITERAL:
        return chr(value)
    return "ab"[value == ord("a")] if code in (codes.NOT_LITERAL, codes.ANY) else ""


def inside(code: Any, value: Any) -> Sequence[Any]:
    """Return the patterns that a part of a pattern is made of; of alternatives, all."""
    if code is codes.BRANCH:
        return list(value[1])
    if code in REPEATS:
        return [value[2]]
    return [value[3]] if code is codes.SUBPATTERN else [value] if code is codes.ATOMIC_GROUP else []


def sample_of_set(members: Sequence[Any]) -> str:
    inside = "".join(map(text_of_member, members))
    if members[0][0] is codes.NEGATE:
        return next((sign for sign in "a1 -/:(\0\xe9" if sign not in inside), "")
    return inside[0]


def text_of_member(member: Any) -> str:
    match member:
        case (codes.LITERAL, sign):
            return chr(sign)
        case (codes.RANGE, (low, high)):
            return "".join(map(chr, range(low, min(high, low + 128) + 1)))
        case (codes.CATEGORY, kind):
            return {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " \t\n", codes.CATEGORY_WORD: "a1_"}.get(kind, "-")
    return ""


def parts(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield every part of a pattern as a text, with the text that leads up to it."""
    for code, value in tree:
        yield before, sample_of(code, value)
        for inner in [value[1]] if code in (codes.ASSERT, codes.ASSERT_NOT) else inside(code, value):
            yield from parts(inner, before)
        before += sample_of(code, value)


def attacks(pattern: "re.Pattern[Any]") -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, what to repeat, and ends at which a match fails late."""
    found = set(parts(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)))
    found |= {(before, " ") for before, _ in found}
    return ((start, pump, end) for start, pump in sorted(found) if pump for end in ENDS)


def worst_seconds(use: Use, start: str, pump: str, end: str) -> tuple[float, int]:
    """Return the time of the first size that is slow, else of the last."""
    run: Callable[[Any], object] = getattr(use.pattern, use.method)
    if use.method == "sub":
        run = lambda text: use.pattern.sub(b"" if isinstance(text, bytes) else "", text)  # noqa: E731
    elif use.method == "finditer":
        run = lambda text: list(use.pattern.finditer(text))  # noqa: E731
    taken, size = 0.0, 0
    for size in SIZES:
        text = start + pump * (size // len(pump)) + end
        taken = timed(run, text.encode("latin-1", "replace") if isinstance(use.pattern.pattern, bytes) else text)
        if taken > SLOW_SECONDS:
            break
    return taken, size


def timed(run: Callable[[Any], object], text: Text) -> float:
    before = thread_time()
    run(text)
    return thread_time() - before


def find_slow_attack(use: Use) -> str | None:
    """Return the first text that is slow twice, and how slow; None when there is none."""
    for attack in attacks(use.pattern):
        if worst_seconds(use, *attack)[0] > SLOW_SECONDS:
            (taken, size), (start, pump, end) = worst_seconds(use, *attack), attack
            if taken > SLOW_SECONDS:
                return f"{use.where} .{use.method}: {start!r} + {pump!r} * {size // len(pump)} + {end!r}: {taken:.2f} s"
    return None


def test_every_pattern_is_found() -> None:
    uses = all_uses()
    where = {one.where for one in uses}
    assert "lcm.api.http.request._FENCE" in where
    assert any("[^@" in one for one in where), "the e-mail address of a session is a rule of msgspec's"
    assert len(where) > 100


def test_every_pattern_takes_linear_time() -> None:
    assert [found for use in all_uses() if (found := find_slow_attack(use))] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*(?P<name>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^,()]*?)\s*", "fullmatch"),
        (r"(a+)+b", "match"),
        (r"\s+$", "search"),
    ],
)
def test_a_pattern_that_takes_more_is_noticed(pattern: str, method: str) -> None:
    assert find_slow_attack(Use("planted", re.compile(pattern), method))
