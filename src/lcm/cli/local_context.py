"""The context through which the command line reaches what `lcm up` runs, and the token in it. Called by `up`.

Several may run at once, each on its own folder: none takes over the context of another that still answers, nor one that
a person made. The token of each folder is remembered, so that going back to a folder is going back to its token.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lcm.api.tokens import KIND as TOKEN
from lcm.cli import contexts
from lcm.cli.contexts import Book, Stored
from lcm.compose_api import Running
from lcm.control.audit import NOWHERE, Deed
from lcm.model.identity import Caller, Role
from lcm.model.secret import Secret
from lcm.store.base import Put

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
    place, book = _name_of(folder), contexts.read()
    token = _known(running, book, place) or await _made(running)
    entry = Stored(running.url, token.reveal())
    kept = await _place(book, entry, book.own.get(place))
    contexts.change(lambda latest: _with(latest, kept, place, entry))
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
