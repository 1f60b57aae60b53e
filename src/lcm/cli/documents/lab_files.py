"""Lab files that definitions name by their path: read here, checked, uploaded. Called by `apply` and `as_definition`.

A definition that says `topology: {uri: labs/x.yaml}` means the file beside its own. Nothing is stored before all that
is applied was found to be right, and in a dry run nothing at all.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from lcm.cli.documents.sources import STDIN, Source, identity, located, traced
from lcm.cli.documents.texts import Written
from lcm.control.admission.topologies import looked_through
from lcm.control.objects.records import nameable
from lcm.control.plane.protocol import Applied, Plane, Ref
from lcm.model.base.errors import Fault, Invalid, TooLarge
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.topology.lab import Lab, needs
from lcm.model.topology.node_definitions import SHIPPED
from lcm.model.topology.yaml_tree import MOST_BYTES
from lcm.providers.protocols.artifacts import digest_of

_FROM_NOW: Final = re.compile(r"\+([0-9]{1,6})([smhd])")
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_BOOKINGS: Final = frozenset({"LabletSession", "Reservation"})
_MOMENTS: Final = ("timeslot_start", "timeslot_end", "give_up_at")
_SERIES: Final = "recurrence"
_UNTIL: Final = "until"


def fixed(sources: Sequence[Source], now: datetime) -> tuple[list[Source], frozenset[int]]:
    """Put moments in place of what is said from now on, and say at which places there was something."""
    now = now.replace(microsecond=0) + _UNITS["s"]  # rounded up, so that it is never sooner than was said
    made = [_fixed(source, now) for source in sources]
    places = frozenset(
        place for place, (one, before) in enumerate(zip(made, sources, strict=True)) if one is not before
    )
    return made, places


async def kept(plane: Plane, sources: Sequence[Source], places: frozenset[int]) -> list[Source]:
    """Give bookings that are there already the times that they have."""
    made = list(sources)
    for place in places:
        ref = _ref(made[place].value)
        if ref is not None and (found := await plane.get(ref)) is not None:
            made[place] = _with(made[place], dict(_times(msgspec.to_builtins(found.spec))))
    return made


def _fixed(source: Source, now: datetime) -> Source:
    if source.value.get("kind") not in _BOOKINGS:
        return source
    said = _times(source.value.get("spec"))
    found = {name: moment for name, text in said if (moment := _moment(name, text, now)) is not None}
    return _with(source, found) if found else source


def _times(spec: object) -> Iterator[tuple[str, object]]:
    """Give what a booking says of times; that of its series under the name of the field in it."""
    if isinstance(spec, dict):
        yield from ((name, spec[name]) for name in _MOMENTS if name in spec)
        if isinstance(series := spec.get(_SERIES), dict) and _UNTIL in series:
            yield _UNTIL, series[_UNTIL]


def _moment(name: str, text: object, now: datetime) -> str | None:
    found = _FROM_NOW.fullmatch(text) if isinstance(text, str) else None
    if not found:
        return None
    moment = now + int(found[1]) * _UNITS[found[2]]
    return moment.date().isoformat() if name == _UNTIL else moment.isoformat()


def _with(source: Source, times: Mapping[str, object]) -> Source:
    spec: dict[str, Any] = dict(source.value["spec"])
    spec |= {name: moment for name, moment in times.items() if name != _UNTIL}
    if _UNTIL in times:
        spec[_SERIES] = {**spec[_SERIES], _UNTIL: times[_UNTIL]}
    return Source(source.file, Written({**source.value, "spec": spec}, source.written.place))


def _ref(value: dict[str, Any]) -> Ref[Resource] | None:
    who = identity(value)
    known = KINDS.get(who[0]) if who else None
    if who is None or known is None:
        return None
    ref: Ref[Resource] = Ref(known.struct, who[2], who[1])
    return ref if nameable(ref) else None


_URI: Final = "spec.topology.uri"
_DIGEST: Final = "spec.topology.digest"
_OF_TOPOLOGY: Final = re.compile(r"documents\[([0-9]+)\]\.spec\.topology(\b.*)", re.DOTALL)
_OF_BOOKING: Final = re.compile(r"documents\[([0-9]+)\]\.spec\.definition")
_LINE: Final = re.compile(r"line ([0-9]+)(?:: (.*))?", re.DOTALL)
_NOWHERE: Final = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class LabFile:
    """A lab file that was read here and found to be right."""

    file: str
    data: bytes
    lab: Lab

    @property
    def digest(self) -> str:
        """The digest by which it is known once it is stored."""
        return digest_of(self.data)


@dataclass(slots=True)
class Attached:
    """Documents with the addresses of their lab files in place of paths, and the files, by the documents' places."""

    sources: list[Source]
    labs: dict[int, LabFile] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)
    """Places of documents whose lab file is of no use."""
    faults: list[Fault] = field(default_factory=list)
    moving: frozenset[int] = frozenset()
    """Places of bookings whose times were said from now on."""

    @property
    def values(self) -> list[dict[str, Any]]:
        """The documents themselves."""
        return [source.value for source in self.sources]

    def files(self) -> set[Path]:
        """Say which lab files are used."""
        return {Path(lab.file).resolve() for lab in self.labs.values()}


def attached(
    sources: Sequence[Source], given: Mapping[str, bytes] | None = None, *, now: datetime | None = None
) -> Attached:
    """Read every lab file that a definition names by its path; `given` are files that were read already.

    With `now`, slots may be said from now on.
    """
    sources, moving = fixed(sources, now) if now else (sources, frozenset())
    found = Attached(list(sources), moving=moving)
    for place, source in enumerate(sources):
        if (path := _path(source.value)) is None:
            continue
        digest = _NOWHERE
        try:
            lab = _read(source, path, given or {})
            digest = lab.digest
            _hold_digest(source, lab)
            found.labs[place] = lab
        except Invalid as error:
            found.wrong.add(place)
            found.faults += error.faults
        found.sources[place] = _addressed(source, f"artifact://{digest}", digest)
    return found


async def applied(plane: Plane, what: Attached, *, dry_run: bool) -> Sequence[Applied]:
    """Apply documents, after all of them were checked and the lab files of new definitions were uploaded."""
    what.sources = await kept(plane, what.sources, what.moving)
    if not what.labs and not what.wrong:
        return await plane.apply(what.values, dry_run=dry_run)
    rehearsal = await _rehearsed(plane, what)
    if dry_run:
        return rehearsal
    for place, lab in what.labs.items():
        if rehearsal[place].outcome == "created":
            what.sources[place] = await _uploaded(plane, what.sources[place], lab)
    return await plane.apply(what.values)


def in_file(file: str, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Turn faults of `line 13: nodes[0]…` into faults of a lab file's line."""
    for fault in faults:
        found = _LINE.fullmatch(fault.path)
        line, path = (int(found[1]), found[2] or "lab") if found else (1, fault.path)
        yield located(file, line, Fault(path, fault.problem, fault.remedy))


async def _rehearsed(plane: Plane, what: Attached) -> Sequence[Applied]:
    """Say what would become of documents, as if their lab files were there."""
    try:
        return await plane.apply(what.values, dry_run=True)
    except Invalid as error:
        absent = {place for fault in error.faults if (place := _missed(fault, what)) is not None}
        waiting = absent | _bookings(what, absent)
        left = [fault for fault in error.faults if not _excused(fault, what, waiting)]
        if left or not absent:
            raise Invalid(*left) from error
    return await _around(plane, what, waiting)


async def _around(plane: Plane, what: Attached, waiting: set[int]) -> Sequence[Applied]:
    """Rehearse all but definitions whose lab files are not there yet, and bookings of them, which are new."""
    rest = [place for place in range(len(what.sources)) if place not in waiting]
    try:
        told = await plane.apply([what.values[place] for place in rest], dry_run=True) if rest else ()
    except Invalid as error:
        raise Invalid(*traced(error.faults, [what.sources[place] for place in rest])) from error
    known = dict(zip(rest, told, strict=True))
    return [known.get(place) or _new(value) for place, value in enumerate(what.values)]


async def _uploaded(plane: Plane, source: Source, lab: LabFile) -> Source:
    try:
        told = await plane.upload_topology(lab.data)
    except Invalid as error:
        raise Invalid(*in_file(lab.file, error.faults)) from error
    return _addressed(source, told.uri, told.digest)


def _missed(fault: Fault, what: Attached) -> int | None:
    """Give the place of a document of which the API only says that its lab file, known here, is not there."""
    found = _OF_TOPOLOGY.fullmatch(fault.path)
    if not found:
        return None
    place = int(found[1])
    of_uri = place in what.labs and found[2] == ".uri"
    return place if of_uri or place in what.wrong else None


def _excused(fault: Fault, what: Attached, waiting: set[int]) -> bool:
    """Tell whether a fault goes away with the upload of a lab file."""
    booked = _OF_BOOKING.fullmatch(fault.path)
    return _missed(fault, what) is not None or (booked is not None and int(booked[1]) in waiting)


def _bookings(what: Attached, absent: set[int]) -> set[int]:
    """Give the places of bookings of definitions whose lab files are not there yet."""
    labs = {name for place in absent for name in _names(what.values[place])}
    return {
        place
        for place, value in enumerate(what.values)
        if value.get("kind") in _BOOKINGS and (_namespace(value), _part(value, "spec").get("definition")) in labs
    }


def _path(value: dict[str, Any]) -> str | None:
    """Give the path of a definition's lab file; None when it says an address, or nothing that could be a path."""
    uri = _part(_part(value, "spec"), "topology").get("uri")
    known = value.get("kind") == "LabletDefinition" and isinstance(uri, str) and uri and "://" not in uri
    return str(uri) if known else None


def _read(source: Source, path: str, given: Mapping[str, bytes]) -> LabFile:
    beside = Path() if source.file == STDIN else Path(source.file).parent
    file = str(beside / path)
    data = given[path] if path in given else _bytes(source, file)
    sized = _part(source.value, "spec").get("resource_requirements") is not None
    try:
        lab = looked_through(data)
        if not sized:
            needs(lab, SHIPPED)
    except Invalid as error:
        raise Invalid(*in_file(file, error.faults)) from error
    except TooLarge as error:
        raise Invalid(source.fault(Fault(_URI, str(error), "use a smaller lab"))) from error
    return LabFile(file, data, lab)


def _bytes(source: Source, file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        remedy = "correct the path, which begins beside this file, or give an address such as s3://bucket/key"
        raise Invalid(source.fault(Fault(_URI, f"there is no file {file}", remedy))) from error
    except (OSError, ValueError) as error:
        problem = f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise Invalid(source.fault(Fault(_URI, problem, "have it made readable"))) from error


def _hold_digest(source: Source, lab: LabFile) -> None:
    """Refuse a digest that somebody wrote beside the path, and that is another file's."""
    said = _part(_part(source.value, "spec"), "topology").get("digest")
    if said and said != lab.digest:
        raise Invalid(source.fault(Fault(_DIGEST, f"{lab.file} has {lab.digest}", "correct it, or leave it out")))


def _addressed(source: Source, uri: str, digest: str) -> Source:
    """Put the address of a lab file into its definition."""
    value, spec = source.value, source.value["spec"]
    made = {**value, "spec": {**spec, "topology": {**spec["topology"], "uri": uri, "digest": digest}}}
    return Source(source.file, Written(made, source.written.place))


def _new(value: dict[str, Any]) -> Applied:
    kind, namespace, name = identity(value) or ("", "", "")
    return Applied(kind=kind, namespace=namespace, name=name, outcome="created", resource_version=0)


def _names(definition: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say by which names, with and without its version, a booking may mean a definition."""
    _, namespace, name = identity(definition) or ("", "", "")
    yield namespace, name
    yield namespace, name.partition(":")[0]


def _namespace(booking: dict[str, Any]) -> str:
    return (identity(booking) or ("", "", ""))[1]


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}
