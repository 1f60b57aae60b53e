"""The roster of a class: who has which seat when, in which session, and where it is reached; and lists of learners.

Used by `lcm hand-out`, `lcm learners` and `lcm describe reservation`.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import typer

from lcm.control.plane.protocol import LONGEST_PAGE, Plane, Ref
from lcm.model.access.mail_address import find_mail_address
from lcm.model.base.resource import shorten_text
from lcm.model.base.selector import parse_selector
from lcm.model.kinds.reservation import (
    OCCURRENCES_LIMIT,
    Reservation,
    Slot,
    held_slot,
    learner_of,
    occurrence_of,
    place_of,
)
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession

MAX_LIST_BYTES: Final = 1_000_000
_MAX_NAME_LENGTH: Final = 200
_EMAIL, _NAME = "email", "name"
_BOOKED: Final = "BOOKED"
_GONE: Final = "GONE"


@dataclass(frozen=True, slots=True)
class RosterRow:
    """One seat of a class in one slot. `state` is the phase of its session, or that it is booked."""

    occurrence: int
    place: int
    learner: str
    slot: Slot
    state: str
    session: str = ""
    worker: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)


async def read_roster(plane: Plane, whole: Reservation) -> Sequence[RosterRow]:
    """Return the seats of a class in the order of their slots and places, with what became of their sessions."""
    sessions = await _read_sessions(plane, whole) if any(one.session for one in whole.status.held) else {}
    return sorted(_build_rows(whole, sessions), key=lambda one: (one.slot, one.occurrence, one.place))


async def _read_sessions(plane: Plane, whole: Reservation) -> Mapping[str, LabletSession]:
    where = parse_selector(LabletSession, "", f"metadata.owner.uid={whole.metadata.uid}")
    page = await plane.list(LabletSession, namespace=whole.metadata.namespace, where=where, limit=LONGEST_PAGE)
    found = {one.metadata.name: one for one in page.items}
    for name in [one.session for one in whole.status.held if one.session and one.session not in found]:
        archived = await plane.get(Ref(LabletSession, name, whole.metadata.namespace))
        owner = archived.metadata.owner if archived else None
        if archived is not None and owner is not None and owner.uid == whole.metadata.uid:
            found[name] = archived
    return found


def _build_rows(whole: Reservation, sessions: Mapping[str, LabletSession]) -> Iterator[RosterRow]:
    spec = whole.spec
    for held in whole.status.held:
        numbers = occurrence_of(spec, held), place_of(spec, held)
        if held.session is None:
            yield RosterRow(*numbers, learner_of(spec, held) or "", held_slot(spec, held), _BOOKED)
            continue
        session = sessions.get(held.session)
        if session is None:
            yield RosterRow(*numbers, learner_of(spec, held) or "", held_slot(spec, held), _GONE, held.session)
            continue
        status = session.status
        start, end = session.spec.timeslot_start, status.ends_at or session.spec.timeslot_end
        live = status.phase not in SESSION_MACHINE.final
        yield RosterRow(
            *numbers,
            session.spec.student_email or "",
            (start, end) if start and end else held_slot(spec, held),
            str(status.phase),
            held.session,
            (status.worker_name or "") if live else "",
            dict(status.access_urls) or ({"lab": status.access_url} if status.access_url else {}) if live else {},
        )


def read_learners(path: Path) -> Mapping[str, str]:
    """Read who is in a file: the name of each address, "" where there is none.

    It is a CSV file with the header `email` or `email,name`, or a list of addresses, one on each line. A fault in it is
    wrong usage, with its line.
    """
    hint = str(path)
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_LIST_BYTES else None
        text = raw.decode("utf-8-sig") if raw is not None else None
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot be read as text: {error}", param_hint=hint) from error
    if text is None:
        raise typer.BadParameter(f"larger than {MAX_LIST_BYTES} bytes; keep the addresses alone", param_hint=hint)
    try:
        return _parse_learners(text, hint)
    except csv.Error as error:
        raise typer.BadParameter(f"is no CSV file: {error}", param_hint=hint) from error


def _parse_learners(text: str, hint: str) -> Mapping[str, str]:
    first = text.partition("\n")[0]
    rows = csv.reader(io.StringIO(text), delimiter=";" if ";" in first and "," not in first else ",", strict=True)
    header, found = [_EMAIL], dict[str, str]()
    for number, row in enumerate(rows, start=1):
        cells = [one.strip() for one in row]
        if not any(cells):
            continue
        if number == 1 and "@" not in "".join(cells):
            header = _check_header([one.lower() for one in cells], hint)
            continue
        said = dict(zip(header, cells, strict=False))
        _add_learner(found, said.get(_EMAIL, ""), said.get(_NAME, ""), number, hint)
    if not found:
        raise typer.BadParameter("names nobody; write one address on each line", param_hint=hint)
    return found


def _check_header(header: list[str], hint: str) -> list[str]:
    if _EMAIL not in header:
        raise typer.BadParameter("has no column `email`; begin it with the line `email,name`", param_hint=hint)
    return header


def _add_learner(found: dict[str, str], email: str, name: str, line: int, hint: str) -> None:
    address = find_mail_address(email)
    if address is None:
        problem = f"line {line}: {shorten_text(email, 80)!r} is no e-mail address; write one such as ada@example.org"
        raise typer.BadParameter(problem, param_hint=hint)
    if address.casefold() in map(str.casefold, found):
        raise typer.BadParameter(f"line {line}: {address} is there twice; keep one", param_hint=hint)
    if len(found) == OCCURRENCES_LIMIT:
        raise typer.BadParameter(f"more than {OCCURRENCES_LIMIT} learners; make several classes", param_hint=hint)
    found[address] = shorten_text(name, _MAX_NAME_LENGTH)
