"""What `lcm up` says once it runs: where it is, what it runs on, and what to type next. Called by `up`."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from lcm import config
from lcm.api.sign_in import LINK, link_path
from lcm.cli import contexts, local_context, render
from lcm.cli.first import First
from lcm.cli.local_context import ADMIN, Kept
from lcm.compose import Embedded
from lcm.compose_api import Running
from lcm.compose_outside import SIM_SECRETS
from lcm.config import Settings
from lcm.control.sign_in import SignIns
from lcm.data_folder import STORE
from lcm.model.identity import Role
from lcm.store.base import everything
from lcm.system import SystemClock

_LABEL: Final = 12
Steps = Sequence[tuple[str, str]]

_BARE: Final[Steps] = (
    ("apply -f examples/first", "a template, a pool, two workers, a lab, settings"),
    ("get workers --watch", "see them come alive"),
    ("describe worker workshop", "everything about one"),
    ("doctor", "what this installation is made of"),
)
_FILLED: Final[Steps] = (
    ("get sessions --watch", "see them come and go"),
    ("get workers", "the machines that they run on"),
    ("get calendar --hours 2", "what is booked, seat by seat"),
    ("explain session class-1-1", "where one goes, and why"),
    ("book ccna-basics --now --watch", "one of your own"),
    ("doctor", "what this installation is made of"),
)


async def greet(it: Embedded, settings: Settings, kept: Kept, first: First | None) -> None:
    """Say what runs, and what can be done with it."""
    rows = await _rows(it, settings, kept, first)
    render.out(f"Lablet Cloud Manager {metadata.version('lablet-cloud-manager')} runs at {it.running.url}")
    for label, lines in rows:
        _show(label, lines)
    lcm, steps = _command(), _FILLED if first else _BARE
    wide = max(len(words) for words, _ in steps)
    render.out("\nIn another terminal:")
    for words, meaning in steps:
        render.out(f"  {lcm} {words:<{wide}}  {meaning}")
    render.out("\nCtrl-C stops it; nothing is lost.")


async def _rows(it: Embedded, settings: Settings, kept: Kept, first: First | None) -> Sequence[tuple[str, list[str]]]:
    state = await everything(it.running.store, "")
    keys = f"{len(state.entries)} keys, revision {state.revision}, epoch {it.running.store.epoch}"
    lcm = _command()
    use = "which is now the current one" if kept.current else f"for `{lcm} context use {kept.name}`: another one runs"
    rows = [
        ("data", [f"{(settings.data_dir / STORE).absolute()}", keys]),
        ("allocator", [_free(it)]),
        ("cloud", list(_cloud(it, settings))),
        ("sign-in", [f"{ADMIN}, through the context {kept.name!r}, {use}", f"{contexts.file()}"]),
        ("browser", [await _link(it.running), f"signs in once, within ten minutes; `{lcm} sign-in` prints another"]),
    ]
    return [*rows, ("examples", [", ".join(first.paths), first.outcome])] if first else rows


def _show(label: str, lines: Sequence[str]) -> None:
    room = render.room()
    for line in lines:
        for piece in [line] if room is None else render.wrapped(line, room - _LABEL):
            render.out(f"  {label:<{_LABEL - 2}}{piece}")
            label = ""


async def _link(running: Running) -> str:
    """Make a link with which a browser signs in as the administrator."""
    sign_ins = SignIns(running.store, running.tokens, clock=SystemClock())
    code, _ = await sign_ins.invite(ADMIN, Role.ADMIN, also=[local_context.note(running, "create", LINK, ADMIN)])
    return running.url + link_path(code.reveal())


def _cloud(it: Embedded, settings: Settings) -> Iterator[str]:
    fleet = it.outside.fleet
    if fleet is None:
        yield f"AWS, region {settings.aws_region}: what is launched there costs money"
        return
    there = sum(one.shown(SystemClock().now()) for one in fleet.cloud.account.machines.values())
    yield f"simulated, at {it.outside.speed:g} times the clock's speed, {there} machines there"
    yield "no money is spent"
    if unset := [name for name in SIM_SECRETS if name not in {*os.environ, *config.referred(settings)}]:
        yield f"{' and '.join(unset)}: not set, so made up"


def _free(it: Embedded) -> str:
    usage = it.allocator.get_resource_usage()
    return (
        f"{usage['available_cpu']:g} of {usage['total_cpu']:g} CPU and {usage['available_memory_mb']:g} of"
        f" {usage['total_memory_mb']:g} MB free"
    )


def _command() -> str:
    """Say how this very program is called: a virtual environment that is not active has it under a longer name."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("lcm")
    if own.name != "lcm" or (found and Path(found).absolute() == own):
        return "lcm"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
