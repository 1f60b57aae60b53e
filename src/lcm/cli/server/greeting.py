"""What `lcm up` says once it runs: where it is, what it runs on, and what to type next. Called by `up`."""

import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import typer

from lcm.api.routes.access import KIND as TOKEN
from lcm.api.routes.access import LINK, link_path
from lcm.cli.documents import lab_files
from lcm.cli.documents.lab_files import attached
from lcm.cli.documents.sources import Gathered, Source, gather, placed, traced
from lcm.cli.output import connection, render
from lcm.cli.output.connection import Book, Stored
from lcm.cli.output.nouns import Noun, noun_of
from lcm.compose.api import Running
from lcm.compose.outside import SIM_SECRETS
from lcm.compose.process import Embedded
from lcm.control.access.audit import NOWHERE, Deed
from lcm.control.access.sign_in import SignIns
from lcm.control.objects.apply import ORDER
from lcm.control.plane.protocol import Applied, Plane
from lcm.control.upkeep.installation import begin, beginning, finish, is_empty
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, NoRoom
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.store.base import Put, everything
from lcm.system.clock import SystemClock
from lcm.system.data_folder import STORE

NAME: Final = "local"
ADMIN: Final = "local-admin"
_MADE_BY: Final = "lcm up"
_ANSWER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Kept:
    """The context that was written."""

    name: str
    current: bool
    """Not while another of these answers: commands in other terminals are meant for that one."""


async def keep(running: Running, folder: Path) -> Kept:
    """Make the command line work at once: with the token of last time if this store knows it, else with a new one."""
    place, book = _name_of(folder), connection.read()
    token = _known(running, book, place) or await _made(running)
    entry = Stored(running.url, token.reveal())
    kept = await _place(book, entry, book.own.get(place))
    connection.change(lambda latest: _with(latest, kept, place, entry))
    return kept


async def _place(book: Book, entry: Stored, last: Stored | None) -> Kept:
    """Find a name that is free, or was ours, or that of one which does not answer any more."""
    beside = False
    for name in _names(entry.url):
        there = book.contexts.get(name)
        if there is None or there == last or there.url == entry.url or there.token == entry.token:
            return Kept(name, current=not beside)
        if there in book.own.values():
            if not await _answers(there.url):
                return Kept(name, current=not beside)
            beside = True
    raise AssertionError("names do not end")


def _name_of(folder: Path) -> str:
    return str(folder.absolute())


def _names(url: str) -> Iterator[str]:
    yield NAME
    yield (here := f"{NAME}-{urlsplit(url).port}")
    yield from (f"{here}-{number}" for number in count(2))


async def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200")
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False


def note(running: Running, verb: str, kind: str, name: str) -> Put:
    """Write down what the administrator of this machine did."""
    return running.control.pen.note(Caller(name=ADMIN, role=Role.ADMIN), NOWHERE, Deed(verb=verb, kind=kind, name=name))


def _with(book: Book, kept: Kept, place: str, entry: Stored) -> Book:
    return msgspec.structs.replace(
        book,
        current=kept.name if kept.current or not book.current else book.current,
        contexts={**book.contexts, kept.name: entry},
        own={**book.own, place: entry},
    )


def _known(running: Running, book: Book, place: str) -> Secret | None:
    for one in (book.own.get(place), book.contexts.get(NAME)):
        caller = running.tokens.find(one.token) if one else None
        if one and caller and caller.role is Role.ADMIN:
            return Secret(one.token)
    return None


async def _made(running: Running) -> Secret:
    """Make a token; those that earlier starts made are lost to their owner, and end."""
    earlier = [one for one in await running.tokens.list() if one.name == ADMIN and one.made_by == _MADE_BY]
    token, _ = await running.tokens.make(
        ADMIN, Role.ADMIN, made_by=_MADE_BY, note=lambda one: [note(running, "create", TOKEN, one.id)]
    )
    for old in earlier:
        await running.tokens.revoke(old.id, note=lambda one: [note(running, "revoke", TOKEN, one.id)])
    return token


_BOOKINGS: Final = frozenset({"Reservation", "LabletSession"})


@dataclass(slots=True)
class First:
    """Documents for a new folder, read before it is touched, and in a few words what became of them."""

    paths: Sequence[str]
    found: Gathered
    outcome: str = ""

    async def __call__(self, it: Embedded) -> None:
        """Apply them if the store is new, or if a process that did so died over it; Invalid with every fault."""
        store, clock = it.running.store, SystemClock()
        begun = await beginning(store)
        if begun is not None and begun.done_at is not None:
            self.outcome = f"applied on {begun.done_at:%Y-%m-%d}, when this folder was new"
            return
        if begun is None and not await is_empty(store):
            self.outcome = f"not applied, for this folder is not new; `lcm apply -f {self.paths[0]}` does it"
            return
        # A start that died over it is gone on with: what is there already stays as it is.
        begun = begun or await begin(store, clock.now())
        self.outcome = await self._applied(it.running.control.acting(Caller(name=ADMIN, role=Role.ADMIN)))
        await finish(store, begun, clock.now())

    async def _applied(self, plane: Plane) -> str:
        sources = self.found.sources
        results = [*await _apply(plane, [one for one in sources if one.value.get("kind") not in _BOOKINGS])]
        refused = list[NoRoom]()
        # One by one, as people book: at another speed some slots are too soon, which is nothing to the others.
        for booking in (one for one in sources if one.value.get("kind") in _BOOKINGS):
            try:
                results += await _apply(plane, [booking])
            except NoRoom as error:
                refused.append(error)
        return counted(results) + (f"; {len(refused)} more bookings have no room: {refused[0]}" if refused else "")


async def _apply(plane: Plane, sources: Sequence[Source]) -> Sequence[Applied]:
    what = attached(sources, now=SystemClock().now())
    if what.faults:
        raise Invalid(*what.faults)
    try:
        return await lab_files.applied(plane, what, dry_run=False)
    except Invalid as error:
        raise Invalid(*traced(error.faults, what.sources)) from error
    except NoRoom as error:
        raise NoRoom(placed(str(error), what.sources), why=error.why) from error


def first(paths: Sequence[str]) -> First | None:
    """Read what a new folder begins with; None for nothing. Invalid when something cannot be read."""
    if not paths:
        return None
    try:
        found = gather(paths, recursive=False)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--first") from error
    if faults := [*found.faults, *attached(found.sources).faults]:
        raise Invalid(*faults)
    return First(paths, found)


def counted(results: Iterable[Applied]) -> str:
    """Say how many there are of each kind: `2 pools, 1 definition`."""
    counts = Counter(one.kind for one in results)
    nouns = ((noun_of(kind), counts[kind]) for kind in ORDER if counts[kind])
    return ", ".join(_many(noun, count) for noun, count in nouns)


def _many(noun: Noun, count: int) -> str:
    if noun.singular == noun.plural:
        return noun.plural
    return f"{count} {noun.singular if count == 1 else noun.plural}"


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
        ("sign-in", [f"{ADMIN}, through the context {kept.name!r}, {use}", f"{connection.file()}"]),
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
    code, _ = await sign_ins.invite(ADMIN, Role.ADMIN, also=[note(running, "create", LINK, ADMIN)])
    return running.url + link_path(code.reveal())


def _cloud(it: Embedded, settings: Settings) -> Iterator[str]:
    fleet = it.outside.fleet
    if fleet is None:
        yield f"AWS, region {settings.aws_region}: what is launched there costs money"
        return
    there = sum(one.shown(SystemClock().now()) for one in fleet.cloud.account.machines.values())
    yield f"simulated, at {it.outside.speed:g} times the clock's speed, {there} machines there"
    yield "no money is spent"
    if unset := [name for name in SIM_SECRETS if name not in {*os.environ, *load.referred(settings)}]:
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
