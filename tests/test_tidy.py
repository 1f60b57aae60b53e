"""The house rules as a test: what the linters cannot say."""

import ast
import re
import statistics
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from lcm.placement.rules import CLOSED_FILTERS, STATIC_FILTERS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src" / "lcm").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROSE = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]

LONGEST_FILE = 500
LONG_FUNCTION = 35
CATCH_ALL = {"sim/time/host.py", "api/http/app.py", "controllers/runtime/reconcile.py"}
"""Files that may catch everything: burying a dead host's coroutines, whatever their finally blocks say to that, and
answering a request, or leaving alone one object of many, that met a bug of ours."""

ENTROPY = {"time", "random", "uuid", "secrets"}
ENTROPY_ALLOWED = {
    "system/clock.py",
    "sim/time/chance.py",
    "store/etcd/wire.py",
    "store/sqlite/file.py",
    "store/sqlite/threads.py",
}
"""Time and chance are injected; these files make them, or wait for threads and sockets that keep no virtual time."""

VENDORS = {
    "aetcd": {"store/etcd/wire.py"},
    "grpc": {"store/etcd/wire.py"},
    "sqlite3": {"store/sqlite/"},
    "typer": {"cli/"},
    "aiobotocore": {"providers/aws/"},
    "botocore": {"providers/aws/"},
    "aiohttp": {"providers/aws/", "providers/cml/"},
    "yarl": {"providers/cml/"},
    "types_aiobotocore_ec2": {"providers/aws/"},
    "types_aiobotocore_s3": {"providers/aws/"},
    "types_aiobotocore_secretsmanager": {"providers/aws/"},
    "types_aiobotocore_cloudwatch": {"providers/aws/"},
    "httpx": {
        "providers/cml/",
        "control/plane/",
        "control/access/oidc_keys.py",
    },
    "httpcore": {"providers/local/outbound.py"},
    "uvicorn": {"system/connection.py", "system/serving.py", "system/websocket.py"},
    "websockets": {"system/", "cli/booking/connect.py"},
    "cryptography": {"sim/cml/rest/app.py", "control/access/oidc_keys.py", "providers/local/sealed.py"},
    "aiosmtplib": {"providers/mail/"},
    "icalendar": {"sim/plan/reading_ics.py", "control/notices/entries.py"},
    "joserfc": {"control/access/oidc"},
    "prometheus_client": {"api/http/metrics.py"},
    "yaml": {
        "cli/documents/texts.py",
        "model/base/yaml_tree.py",
        "sim/cml/",
    },
}
"""Each vendor's library stays behind the files named for it."""
EVERYWHERE = {"msgspec", "structlog"}
"""The libraries that any file may use, as far as the contracts of import-linter let it."""
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

FILTERS = "placement/rules.py"
ASKERS = {
    "placement/candidate.py",
    "placement/place_kinds.py",
    "placement/seat_choice.py",
    "control/booking/schedule.py",
}
"""Who turns sessions away: for an explanation, a plan, a promise, and a commit."""

WRITER = "control/objects/writer.py"
COMMITTERS = (WRITER, "store/", "sim/")
"""Who may call a store's commit: the one writer, the engines, and the simulated world's own store."""

VAGUE = re.compile(r"(Service|Manager|Helper|Util|Utils|Base|Impl)$|^(Base|Abstract)")


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "lcm").as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    return tuple(ast.walk(tree(path)))


def imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def functions() -> Iterator[tuple[str, int]]:
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1


def offenders(paths: list[Path], bad: Callable[[Path], object]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {found}" for path in paths if (found := bad(path))]


def test_no_file_is_long() -> None:
    assert not offenders(SOURCES, lambda path: len(path.read_text().splitlines()) > LONGEST_FILE)


def filters(path: Path) -> list[str]:
    """Find what looks like a filter: what says of a place and a request why not, or stands for the name of one."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "str | None":
            kinds = [ast.unparse(one.annotation) for one in node.args.args if one.annotation]
            found += [node.name] if kinds == ["Place", "PlacementRequest"] else []
        elif isinstance(node, ast.Dict):
            called = [key for key, value in zip(node.keys, node.values, strict=True) if isinstance(value, ast.Lambda)]
            found += [
                key.value
                for key in called
                if isinstance(key, ast.Constant) and key.value in {*STATIC_FILTERS, *CLOSED_FILTERS}
            ]
    return found


def test_lesson_36_no_file_is_long_and_every_filter_exists_once() -> None:
    test_no_file_is_long()
    written = {name(path): found for path in SOURCES if (found := filters(path))}
    assert written == {FILTERS: [rejects.__name__ for rejects in {**STATIC_FILTERS, **CLOSED_FILTERS}.values()]}
    users = {name(path) for path in SOURCES if "static_rejection(" in path.read_text()} - {FILTERS}
    assert users >= ASKERS
    tables = re.compile(
        r"placement\.rules import .*\b(STATIC_FILTERS|CLOSED_FILTERS)\b|rules\.(STATIC_FILTERS|CLOSED_FILTERS)\b"
    )
    assert not offenders(SOURCES, lambda path: tables.search(path.read_text()))


def test_every_file_says_what_it_is() -> None:
    assert not offenders(SOURCES, lambda path: not ast.get_docstring(tree(path)))


def test_a_package_file_holds_a_docstring_only() -> None:
    assert not offenders([path for path in SOURCES if path.name == "__init__.py"], lambda path: tree(path).body[1:])


def test_nine_functions_in_ten_are_short() -> None:
    lengths = [length for _, length in functions()]
    assert statistics.quantiles(lengths, n=10)[-1] <= LONG_FUNCTION


def test_nothing_catches_everything() -> None:
    def broad(path: Path) -> list[str]:
        handlers = [node for node in nodes(path) if isinstance(node, ast.ExceptHandler)]
        caught = [ast.unparse(node.type) if node.type else "BaseException" for node in handlers]
        caught += re.findall(r"suppress\(([^)]*)\)", path.read_text())
        return [one for one in caught if re.search(r"\b(Exception|BaseException)\b", one)]

    assert not offenders([path for path in SOURCES if name(path) not in CATCH_ALL], broad)


def test_time_and_chance_come_from_outside() -> None:
    def entropy(path: Path) -> set[str]:
        return (ENTROPY & set(imports(path))) | set(re.findall(r"datetime\.now\(", path.read_text()))

    assert not offenders([path for path in SOURCES if name(path) not in ENTROPY_ALLOWED], entropy)


def test_vendors_stay_behind_their_files() -> None:
    def strays(path: Path) -> list[str]:
        found = set(imports(path)) & VENDORS.keys()
        return [vendor for vendor in found if not name(path).startswith(tuple(VENDORS[vendor]))]

    assert not offenders(SOURCES, strays)


def test_every_write_goes_through_the_one_writer() -> None:
    def commits(path: Path) -> list[str]:
        calls = [node for node in nodes(path) if isinstance(node, ast.Attribute) and node.attr == "commit"]
        return [f"line {call.lineno}: {ast.unparse(call)}; use Writer or commit_ops of {WRITER}" for call in calls]

    assert not offenders([path for path in SOURCES if not name(path).startswith(COMMITTERS)], commits)


def test_names_say_what_a_thing_is() -> None:
    def vague(path: Path) -> list[str]:
        classes = [node.name for node in nodes(path) if isinstance(node, ast.ClassDef) and VAGUE.search(node.name)]
        verbs = [node.name for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return classes + [verb for verb in verbs if verb.endswith("_async")]

    assert not offenders(SOURCES, vague)


def test_log_messages_are_constant() -> None:
    assert not offenders(SOURCES, lambda path: re.findall(r"\blog\w*\.\w+\(\s*f[\"']", path.read_text()))


def test_no_pattern_lets_a_line_break_follow() -> None:
    """A `$` also matches before a final line break: patterns end with END of `lcm.model.base.resource`, or \\Z."""

    def text(node: ast.AST) -> str:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "_" for one in parts)

    def loose(path: Path) -> list[str]:
        every = nodes(path)
        calls = [node for node in every if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")]
        lines = [call for call in calls if "MULTILINE" in ast.unparse(call)]
        whole = {id(one) for call in calls if call not in lines for one in call.args[:1]}
        exempt = {id(one) for call in lines for one in ast.walk(call)}
        strings = [one for one in every if isinstance(one, ast.JoinedStr) or isinstance(getattr(one, "value", 0), str)]
        return [
            text(one)
            for one in strings
            if re.search(r"[^\\]\$\Z", text(one))
            and (id(one) in whole or text(one).startswith("^"))
            and id(one) not in exempt
        ]

    assert not offenders(SOURCES, loose)


def test_every_permission_at_aws_is_documented() -> None:
    asked = re.compile(r'"((?:ec2|cloudwatch|s3|secretsmanager):[A-Za-z]+)"')
    known = (ROOT / "docs" / "operate.md").read_text().partition("## Permissions at AWS")[2].partition("\n## ")[0]
    aws = [path for path in SOURCES if name(path).startswith("providers/aws/")]
    assert not offenders(aws, lambda path: {one for one in asked.findall(path.read_text()) if f"`{one}`" not in known})


def test_nothing_is_left_for_later() -> None:
    written = [path for path in (*SOURCES, *TESTS, *PROSE) if path != Path(__file__).resolve()]
    assert not offenders(written, lambda path: re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text()))


def test_nothing_is_mocked() -> None:
    suspects = [path for path in TESTS if re.search("mock|unittest", path.read_text())]
    assert not offenders(suspects, lambda path: {"mock", "unittest"} & set(imports(path)))


def test_nothing_waits_for_tasks_in_an_order_that_differs_from_run_to_run() -> None:
    assert not offenders(SOURCES, lambda path: "as_completed" in path.read_text())
