"""What `lcm up` does around its start: first documents, the local context, and the greeting. Called by `up`.

`--first PATH` applies documents once to a new folder before any controller acts, as `lcm apply` would; a folder that
is not new stays as it is. Several `lcm up` may run, each on its own folder and with a context of its own: none takes
over the context of another, nor one that a person made. The token of each folder is remembered for its next start.
"""

import asyncio
import os
import re
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

from lcm.api.routes.access import link_path
from lcm.cli.documents.lab_files import apply_prepared, prepare_documents
from lcm.cli.documents.sources import DocumentSource, GatheredDocuments, gather
from lcm.cli.output import connection, render
from lcm.cli.output.connection import ContextsFile, StoredContext
from lcm.cli.output.nouns import noun_of
from lcm.compose.api import RunningApi
from lcm.compose.outside import SIM_SECRETS
from lcm.compose.process import EmbeddedProcess
from lcm.control.access.sign_in import SignIns
from lcm.control.objects.apply import KIND_ORDER
from lcm.control.plane.protocol import Applied, Plane
from lcm.control.upkeep.installation import begin_setup, finish_setup, is_empty, read_setup
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, NoRoom
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.store.base import scan_all
from lcm.system.clock import SystemClock
from lcm.system.data_folder import STORE_FILE

NAME: Final = "local"
ADMIN: Final = "local-admin"
_ADMIN_CALLER: Final = Caller(name=ADMIN, role=Role.ADMIN)
_MADE_BY: Final = "lcm up"
_ANSWER_SECONDS: Final = 1.0
_LONGEST_WORD: Final = 40


@dataclass(frozen=True, slots=True)
class LocalContext:
    """The context that was written."""

    name: str
    current: bool
    """False while another local system answers: commands in other terminals are meant for that one."""
    previous: str | None = None
    """The context that was current until now, if it was another."""


async def write_local_context(running: RunningApi, folder: Path) -> LocalContext:
    """Write this folder's context: with the previous token if this store knows it, else with a new one."""
    place, book = _folder_key(folder), connection.read_contexts()
    token = _find_token(running, book, place) or await _make_token(running)
    entry = StoredContext(running.url, token.reveal())
    taken = await _is_current_elsewhere(book, place, entry)
    written: list[LocalContext] = []

    def edit(latest: ContextsFile) -> ContextsFile:
        latest = _without_lost_folders(latest, place)
        name = _choose_name(latest, place, entry)
        previous = latest.current if latest.current != name else None
        made = LocalContext(name, current=not taken or latest.current is None, previous=previous)
        written[:] = [made]
        return msgspec.structs.replace(
            latest,
            current=name if made.current else latest.current,
            contexts={**latest.contexts, name: entry},
            own={**latest.own, place: entry},
        )

    connection.change_contexts(edit)
    return written[0]


def _folder_key(folder: Path) -> str:
    return str(folder.absolute())


def _without_lost_folders(book: ContextsFile, place: str) -> ContextsFile:
    """Return the contexts without those of folders that are no longer there."""
    lost = {one: entry for one, entry in book.own.items() if one != place and not Path(one).exists()}
    kept = {name: entry for name, entry in book.contexts.items() if entry not in lost.values()}
    return msgspec.structs.replace(
        book,
        current=book.current if book.current in kept else None,
        contexts=kept,
        own={one: entry for one, entry in book.own.items() if one not in lost},
    )


def _choose_name(book: ContextsFile, place: str, entry: StoredContext) -> str:
    """Return the name that this folder's context has, else one that nobody uses: no context is taken over."""
    own = book.own.get(place)
    for name, there in book.contexts.items():
        if there == own or there.token == entry.token:
            return name
    return next(name for name in _candidate_names(place) if name not in book.contexts)


def _candidate_names(place: str) -> Iterator[str]:
    """Yield names for a folder's context: `local`, then one after the folder, or after the one that it is in."""
    yield NAME
    path = Path(place)
    word = path.name if not path.name.startswith(".") and path.name != "data" else path.parent.name
    here = f"{NAME}-{re.sub(r'[^a-z0-9]+', '-', word.lower()).strip('-')[:_LONGEST_WORD] or 'data'}"
    yield here
    yield from (f"{here}-{number}" for number in count(2))


async def _is_current_elsewhere(book: ContextsFile, place: str, entry: StoredContext) -> bool:
    """Return whether the current context is that of another local system, which answers."""
    current = book.contexts.get(book.current or "")
    if current is None or current == book.own.get(place) or current not in book.own.values():
        return False
    return current.url != entry.url and await _is_answering(current.url)


async def _is_answering(url: str) -> bool:
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


def _find_token(running: RunningApi, book: ContextsFile, place: str) -> Secret | None:
    for one in (book.own.get(place), book.contexts.get(NAME)):
        caller = running.tokens.find_caller(one.token) if one else None
        if one and caller and caller.role is Role.ADMIN:
            return Secret(one.token)
    return None


async def _make_token(running: RunningApi) -> Secret:
    """Make a token and revoke those of earlier starts, whose text is lost; what was made with them stays valid."""
    earlier = [one for one in await running.tokens.list() if one.name == ADMIN and one.made_by == _MADE_BY]
    writer = running.control.writer_for(_ADMIN_CALLER)
    token, _ = await running.tokens.make(ADMIN, Role.ADMIN, made_by=_MADE_BY, writer=writer)
    for old in earlier:
        await running.tokens.revoke(old.id, writer=writer, alone=True)
    return token


_BOOKING_KINDS: Final = frozenset({"Reservation", "LabletSession"})


@dataclass(slots=True)
class FirstDocuments:
    """Documents for a new folder, read before it is touched, and a short text on what became of them."""

    paths: Sequence[str]
    found: GatheredDocuments
    outcome: str = ""

    async def __call__(self, it: EmbeddedProcess) -> None:
        """Apply them if the store is new, or if an earlier process died while doing so.

        Raise Invalid with every fault.
        """
        store, clock = it.running.store, SystemClock()
        begun = await read_setup(store)
        if begun is not None and begun.done_at is not None:
            self.outcome = f"applied on {begun.done_at:%Y-%m-%d}, when this folder was new"
            return
        if begun is None and not await is_empty(store):
            self.outcome = f"not applied, because this folder is not new; `lcm apply -f {self.paths[0]}` applies them"
            return
        # An earlier start may have died in between: continue it. Objects that exist already stay as they are.
        begun = begun or await begin_setup(store, clock.now())
        self.outcome = await self._apply_all(it.running.control.plane_for(_ADMIN_CALLER))
        await finish_setup(store, begun, clock.now())

    async def _apply_all(self, plane: Plane) -> str:
        sources = self.found.sources
        results = [
            *await _apply_sources(plane, [one for one in sources if one.value.get("kind") not in _BOOKING_KINDS])
        ]
        refused = list[NoRoom]()
        # One by one, as people book: at another speed some slots may be too soon, which must not affect the others.
        for booking in (one for one in sources if one.value.get("kind") in _BOOKING_KINDS):
            try:
                results += await _apply_sources(plane, [booking])
            except NoRoom as error:
                refused.append(error)
        return count_by_kind(results) + (
            f"; {len(refused)} more bookings have no room: {refused[0]}" if refused else ""
        )


async def _apply_sources(plane: Plane, sources: Sequence[DocumentSource]) -> Sequence[Applied]:
    what = prepare_documents(sources, now=SystemClock().now())
    if what.faults:
        raise Invalid(*what.faults)
    return await apply_prepared(plane, what, dry_run=False)


def read_first_documents(paths: Sequence[str]) -> FirstDocuments | None:
    """Read the documents for a new folder; None without paths. Raise Invalid when something cannot be read."""
    if not paths:
        return None
    try:
        found = gather(paths, recursive=False)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--first") from error
    if faults := [*found.faults, *prepare_documents(found.sources).faults]:
        raise Invalid(*faults)
    return FirstDocuments(paths, found)


def count_by_kind(results: Iterable[Applied]) -> str:
    """Return how many objects of each kind there are: `2 pools, 1 definition`."""
    counts = Counter(one.kind for one in results)
    texts = []
    for noun, number in ((noun_of(kind), counts[kind]) for kind in KIND_ORDER if counts[kind]):
        counted = f"{number} {noun.singular if number == 1 else noun.plural}"
        texts.append(noun.plural if noun.singular == noun.plural else counted)
    return ", ".join(texts)


_LABEL: Final = 12
NextSteps = Sequence[tuple[str, str]]

_STEPS_WHEN_EMPTY: Final[NextSteps] = (
    ("apply -f examples/first", "a template, a pool, two workers, a lab, settings"),
    ("get workers --watch", "watch them start"),
    ("describe worker workshop", "show everything about one worker"),
    ("doctor", "check this installation"),
)
_STEPS_WITH_EXAMPLES: Final[NextSteps] = (
    ("get sessions --watch", "watch sessions start and end"),
    ("get workers", "show their machines"),
    ("get calendar --hours 2", "show what is booked on each planned worker"),
    ("explain session class-1-1", "show where a session runs, and why"),
    ("book ccna-basics --now --watch", "book a session yourself"),
    ("doctor", "check this installation"),
)


async def print_greeting(
    it: EmbeddedProcess, settings: Settings, kept: LocalContext, first: FirstDocuments | None, log_file: Path | None
) -> None:
    """Print what runs, and what can be done with it."""
    rows = [*await _greeting_rows(it, settings, kept, first)]
    if log_file:
        rows.append(("log", [str(log_file), "`--log` prints it here instead"]))
    render.print_line(f"Lablet Cloud Manager {metadata.version('lablet-cloud-manager')} runs at {it.running.url}")
    for label, lines in rows:
        _print_row(label, lines)
    lcm, steps = _program_name(), _STEPS_WITH_EXAMPLES if first else _STEPS_WHEN_EMPTY
    wide = max(len(words) for words, _ in steps)
    render.print_line("\nIn another terminal:")
    for words, meaning in steps:
        render.print_line(f"  {lcm} {words:<{wide}}  {meaning}")
    render.print_line("\nCtrl-C stops it; nothing is lost.")


async def _greeting_rows(
    it: EmbeddedProcess, settings: Settings, kept: LocalContext, first: FirstDocuments | None
) -> Sequence[tuple[str, list[str]]]:
    state = await scan_all(it.running.store, "")
    keys = f"{len(state.entries)} keys, revision {state.revision}, epoch {it.running.store.epoch}"
    lcm = _program_name()
    before = f", in place of {kept.previous!r}" if kept.previous else ""
    use = f"which is now current{before}"
    if not kept.current:
        use = f"while {kept.previous!r}, which is running, stays current; `{lcm} context use {kept.name}` changes that"
    rows = [
        ("data", [f"{(settings.data_dir / STORE_FILE).absolute()}", keys]),
        ("allocator", [_free_resources(it)]),
        ("cloud", list(_cloud_lines(it, settings))),
        ("sign-in", [f"{ADMIN}, through the context {kept.name!r}, {use}", f"{connection.contexts_path()}"]),
        (
            "browser",
            [await _sign_in_link(it.running), f"signs in once, within ten minutes; `{lcm} sign-in` prints another"],
        ),
    ]
    return [*rows, ("examples", [", ".join(first.paths), first.outcome])] if first else rows


def _print_row(label: str, lines: Sequence[str]) -> None:
    room = render.output_width()
    for line in lines:
        for piece in [line] if room is None else render.wrap_text(line, room - _LABEL):
            render.print_line(f"  {label:<{_LABEL - 2}}{piece}")
            label = ""


async def _sign_in_link(running: RunningApi) -> str:
    """Make a link with which a browser signs in as the administrator."""
    sign_ins = SignIns(running.store, running.tokens, clock=SystemClock())
    code, _ = await sign_ins.make_code(ADMIN, Role.ADMIN, writer=running.control.writer_for(_ADMIN_CALLER))
    return running.url + link_path(code.reveal())


def _cloud_lines(it: EmbeddedProcess, settings: Settings) -> Iterator[str]:
    fleet = it.outside.fleet
    if fleet is None:
        yield f"AWS, region {settings.aws_region}: machines there cost money"
        return
    there = sum(one.is_listed(SystemClock().now()) for one in fleet.cloud.account.machines.values())
    yield f"simulated, at {it.outside.speed:g} times real speed, {there} machines"
    yield "no money is spent"
    if unset := [name for name in SIM_SECRETS if name not in {*os.environ, *load.referenced_secrets(settings)}]:
        yield f"{' and '.join(unset)}: not set, so generated"


def _free_resources(it: EmbeddedProcess) -> str:
    usage = it.allocator.get_resource_usage()
    return (
        f"{usage['available_cpu']:g} of {usage['total_cpu']:g} CPU and {usage['available_memory_mb']:g} of"
        f" {usage['total_memory_mb']:g} MB free"
    )


def _program_name() -> str:
    """Return how this program is called: in an inactive virtual environment it has a longer name."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("lcm")
    if own.name != "lcm" or (found and Path(found).absolute() == own):
        return "lcm"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
