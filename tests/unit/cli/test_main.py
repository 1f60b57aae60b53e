"""The entry: what is loaded and when, exit codes, completion in a real shell."""

import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import given, suite
from harness.api_world import ApiServer, Shell, shell
from lcm.cli.main import COMMANDS, app
from lcm.cli.output import exit_codes, options
from lcm.control.plane.protocol import Plane
from lcm.model.base.errors import (
    Conflict,
    Deposed,
    Fault,
    Forbidden,
    Gone,
    IllegalStep,
    Invalid,
    LcmError,
    NoRoom,
    Relist,
    Stuck,
    Throttled,
    TooLarge,
    Unreachable,
)

LCM = [sys.executable, "-m", "lcm.cli.main"]
HEAVY = ("httpx", "pydantic", "rich", "yaml", "msgspec", "asyncio", "lcm.model.kinds.registry", "lcm.settings.load")


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["--version"], ["-h"], []])
def test_help_and_version_load_no_command_but_themselves(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *LCM[1:], *arguments], capture_output=True, text=True, check=False
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "typer.main" in loaded
    assert not loaded & set(HEAVY)


def test_help_and_version_take_well_under_a_quarter_of_a_second() -> None:
    for arguments in (["version"], ["--help"]):
        assert min(_cpu_seconds(arguments) for _ in range(3)) < suite.here(0.25)


def _cpu_seconds(arguments: list[str]) -> float:
    """Measure a run by the processor's time, so that a busy machine makes no difference."""
    program = (
        "import os, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
        " used = os.times(); print(used.children_user + used.children_system)"
    )
    uncounted = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", program, *LCM, *arguments], capture_output=True, text=True, check=True, env=uncounted
    )
    return float(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_has_help(tmp_path: Path, name: str) -> None:
    told = Shell(tmp_path).out(name, "--help")
    assert told.startswith(f"Usage: lcm {name} ")
    module, _, attribute = COMMANDS[name].target.partition(":")
    assert hasattr(import_module(module), attribute)


def test_help_lists_every_command_in_sixty_columns() -> None:
    done = subprocess.run([*LCM, "--help"], capture_output=True, text=True, check=True, env={"COLUMNS": "60"})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= set(COMMANDS)


def test_what_goes_wrong_is_told_within_the_terminal(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path, columns=80)
    for arguments in (["book", "basics", "--at", "tomorow 9:00"], ["context", "use", "nowhere"], ["get", "w", "nope"]):
        told = desk.lcm(*arguments)
        assert told.exit_code
        assert max(map(len, told.stderr.splitlines())) <= 80
    assert "write 2026-12-01 09:00" in " ".join(desk.lcm("book", "basics", "--at", "tomorow 9:00").stderr.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exit_codes.NoContext("no API is configured"), 1),
        (Stuck("Disk", "the disk is full"), 1),
        (Gone("there is no w1"), 3),
        (Conflict("workers/default/w1", wanted=1, found=2), 4),
        (Relist("history is gone"), 4),
        (Deposed("the term is over"), 4),
        (Forbidden("you may not"), 5),
        (Invalid(Fault("spec", "wrong", "mend it"), Fault("metadata", "missing")), 5),
        (IllegalStep("no such step"), 5),
        (NoRoom("no room"), 5),
        (TooLarge("too much"), 5),
        (Unreachable("no answer"), 6),
        (Throttled("slow down"), 6),
        (exit_codes.WaitTimedOut("not yet"), 7),
        (exit_codes.Impossible("never"), 8),
    ],
)
def test_every_error_has_its_exit_code_and_its_text(
    capsys: pytest.CaptureFixture[str], error: LcmError, code: int
) -> None:
    assert exit_codes.report_error(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(error) in captured.err
    assert captured.err.startswith("error: ")


def test_every_error_of_the_tree_is_mapped() -> None:
    left = [LcmError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        assert any(issubclass(kind, row[0]) for row in exit_codes._EXIT_CODES)


def test_a_row_never_hides_behind_a_more_general_one() -> None:
    kinds = [row[0] for row in exit_codes._EXIT_CODES]
    assert not [(a, b) for number, a in enumerate(kinds) for b in kinds[number + 1 :] if issubclass(b, a)]


COMPLETE = """\
source <({lcm} completion bash)
lcm() {{ {lcm} "$@"; }}
ask() {{ COMP_LINE="$1" COMP_POINT=${{#1}}; _lcm_completion lcm; printf '%s\\n' "${{COMPREPLY[@]}}"; echo .; }}
"""


PATIENT = """\
from lcm.cli import main
from lcm.cli.output import options
assert options._TIMEOUT_SECONDS, "set below; under another name this would change nothing"
options._TIMEOUT_SECONDS = 60
main.app(prog_name="lcm")
"""
"""It waits for names on slow machines too."""


def completed(desk: Shell, *lines: str) -> list[list[str]]:
    """Return what bash offers for each line, in one bash."""
    program = desk.home / "patient.py"
    program.write_text(PATIENT)
    script = COMPLETE.format(lcm=f"{sys.executable} {program}") + "\n".join(f"ask '{line}'" for line in lines)
    environment = {name: value for name, value in desk.environment.items() if value}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=True,
    )
    assert done.stderr == ""
    return [part.split() for part in done.stdout.split(".\n")[:-1]]


def offered(desk: Shell, *words: str) -> list[str]:
    """Return what is offered for the last of these words."""
    typed = {"_LCM_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner(env={**desk.environment, **typed}).invoke(app, [], prog_name="lcm")
    assert result.stderr == ""
    return result.stdout.split()


@pytest.fixture(name="full")
def api_with_objects(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(options, "_TIMEOUT_SECONDS", 60)  # a busy machine may take longer than a person would wait

    async def fill(plane: Plane) -> None:
        await plane.create(given.worker(name="w1"))
        await plane.create(given.worker(name="w2", namespace="lab"))
        await plane.create(given.definition())

    api.do(fill)
    return api


def test_commands_kinds_options_and_names_are_completed(full: ApiServer, tmp_path: Path) -> None:
    desk = shell(full, tmp_path)
    assert offered(desk, "lcm", "de") == ["describe", "delete"]
    assert offered(desk, "lcm", "get", "w") == ["workers"]
    assert offered(desk, "lcm", "get", "workers", "") == ["w1"]
    assert offered(desk, "lcm", "get", "-n", "lab", "w", "") == ["w2"]
    assert offered(desk, "lcm", "get", "-A", "w", "") == ["w1", "w2"]
    assert offered(desk, "lcm", "describe", "worker/") == ["worker/w1"]
    assert offered(desk, "lcm", "get", "w", "--wa") == ["--watch"]


def test_bash_completes_names_with_a_colon_as_well(full: ApiServer, tmp_path: Path) -> None:
    lines = ("lcm de", "lcm get def basics:", "lcm get w ")
    assert completed(shell(full, tmp_path), *lines) == [["describe", "delete"], ["1.0.0"], ["w1"]]


def test_without_an_api_names_are_not_completed_and_nothing_is_said(tmp_path: Path) -> None:
    away = Shell(tmp_path, LCM_URL="http://127.0.0.1:1", LCM_TOKEN="t")
    for words in (["get", "workers", ""], ["get", "nonsense", ""], ["context", "use", ""]):
        assert offered(away, "lcm", *words) == []
    assert offered(Shell(tmp_path), "lcm", "get", "workers", "") == []


def test_names_are_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = Shell(tmp_path, LCM_URL=f"http://127.0.0.1:{silent.getsockname()[1]}", LCM_TOKEN="t")
        begun = suite.own_time()
        assert offered(mute, "lcm", "get", "workers", "") == []
    assert suite.own_time() - begun < suite.here(5)


def test_contexts_are_completed(tmp_path: Path) -> None:
    desk = Shell(tmp_path)
    desk.out("context", "set", "local", "--url", "http://x", "--token", "t")
    assert offered(desk, "lcm", "context", "use", "") == ["local"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_printed(tmp_path: Path, name: str) -> None:
    told = Shell(tmp_path).out("completion", name)
    assert f"_LCM_COMPLETE=complete_{name}" in told
    assert Shell(tmp_path).lcm("completion", "tcsh").exit_code == 2
