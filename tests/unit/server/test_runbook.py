"""Every alert, every reason of one, and every log line that operators are told to look for, is in the runbook.

Alerts and reasons are read from the source: who adds one need not know of this test to be reminded by it.
"""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache

from harness import suite

SOURCE = suite.ROOT / "src" / "lcm"
PACKAGES = ("controllers", "providers", "control/telemetry", "control/accounts", "model/kinds")
"""Where alerts come from, and what is wrong with workers, labs and secrets."""
FINDINGS = {"AlertFinding", "Alert"}
REASON_FIRST = re.compile(r"Stuck|Cml\w+Error|Failure|Risk|_to_stuck|_to_authentication_error")
WORD = re.compile(r"[A-Z][a-z][A-Za-z]+")
ROW = re.compile(r"^\| (.*?) \|", re.MULTILINE)


@cache
def modules() -> tuple[ast.Module, ...]:
    files = [file for package in PACKAGES for file in sorted((SOURCE / package).rglob("*.py"))]
    return tuple(ast.parse(file.read_text()) for file in files)


@cache
def constants() -> dict[str, set[str]]:
    """Return the texts that module constants have, by name; modules may use one name for different texts."""
    found: dict[str, set[str]] = {}
    for node in (one for module in modules() for one in module.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, set()).update(words(node.value, {}))
    return found


def words(node: ast.AST | None, known: dict[str, set[str]]) -> set[str]:
    """Return the words that an expression may be; none for what is only known at run time."""
    match node:
        case ast.Constant(value=str(text)):
            return {text} if WORD.fullmatch(text) else set()
        case ast.Name(id=name):
            return known.get(name, set())
        case ast.IfExp(body=one, orelse=other):
            return words(one, known) | words(other, known)
        case ast.BoolOp(values=values) | ast.Tuple(elts=values):
            return set[str]().union(*(words(one, known) for one in values))
    return set()


def nodes() -> Iterator[ast.AST]:
    return (node for module in modules() for node in ast.walk(module))


def calls_of(functions: Collection[str]) -> Iterator[ast.Call]:
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            yield node


def arguments(name: str, functions: Collection[str]) -> Iterator[ast.expr]:
    """Yield what is given by keyword in calls of some functions."""
    return (given.value for call in calls_of(functions) for given in call.keywords if given.arg == name)


def find_alerts() -> set[str]:
    named = [*arguments("alert", FINDINGS), *(call.args[0] for call in calls_of({"stuck_alert", "UsageLimit"}))]
    return set[str]().union(*(words(one, constants()) for one in named))


def find_reasons() -> set[str]:
    named = [*arguments("reason", FINDINGS), *(call.args[2] for call in calls_of({"stuck_alert"}))]
    found = set[str]().union(*(words(one, constants()) for one in named))
    for node in nodes():
        match node:
            case ast.ClassDef(name="RiskReason", body=members):
                found |= set[str]().union(*(words(one.value, {}) for one in members if isinstance(one, ast.Assign)))
            case ast.keyword(arg="failure", value=value):
                found |= words(value, constants())
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if REASON_FIRST.fullmatch(name):
                found |= words(first, constants())
            case ast.Call(func=ast.Attribute(attr="__init__"), args=[ast.Constant() as first, _]):
                found |= words(first, {})
            case ast.Assign(targets=[ast.Name(id="reason")], value=value):
                found |= words(value, {})
            case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id="reason"), _])], value=value):
                found |= words(value, {})
            case ast.Tuple(elts=parts) if any(_is_severity(one) for one in parts):
                found |= words(node, {})
    return found


def _is_severity(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Severity"


@cache
def runbook() -> str:
    return (suite.DOCS / "operate.md").read_text()


def first_column() -> str:
    return " ".join(ROW.findall(runbook()))


def test_every_alert_is_explained_to_operators() -> None:
    assert sorted(alert for alert in find_alerts() if f"`{alert}`" not in first_column()) == []


def test_every_reason_is_explained_to_operators() -> None:
    assert sorted(reason for reason in find_reasons() if f"`{reason}`" not in first_column()) == []


def test_every_log_line_to_search_for_is_logged() -> None:
    table = runbook().partition("### What to search for in the logs")[2].partition("\n## ")[0]
    named = {line for row in ROW.findall(table) for line in re.findall(r"`([^`]+)`", row)} - {"event"}
    logged = " ".join(file.read_text() for file in sorted(SOURCE.rglob("*.py")))
    assert named
    assert sorted(line for line in named if f'"{line}"' not in logged) == []


def test_the_scan_finds_what_is_there() -> None:
    alerts = {"PoolFailed", "PoolOverdue", "PoolStuck", "SessionAtRisk", "SessionStuck", "HighCpu", "LicenceOrphaned"}
    assert alerts <= find_alerts()
    literal, named, chosen = {"MinimumNotReady"}, {"NoWorkerInTime", "SecretMissing"}, {"StartedAgain", "NotHelped"}
    assert literal | named | chosen | {"MachineGone", "CmlCredentialsRefused", "LaunchTimeout"} <= find_reasons()
