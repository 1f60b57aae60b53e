"""Lab files that definitions name by path, and slots relative to now. Called by `apply`, `publish` and `up`.

`topology: {uri: labs/x.yaml}` is a path relative to the definition's file. Nothing is uploaded before everything that
is applied was found valid, and nothing at all in a dry run. `timeslot_start: +10m` becomes a moment; a booking that
exists already keeps its times, so that applying a file twice is the same as applying it once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from lcm.cli.documents.sources import STDIN, DocumentSource, fault_at_line, identity, message_at_line, trace_faults
from lcm.cli.documents.texts import ParsedDocument, split_line
from lcm.control.objects.lab_files import check_lab_file
from lcm.control.objects.records import is_nameable
from lcm.control.plane.protocol import Applied, Plane, Ref
from lcm.model.base.errors import Fault, Invalid, NoRoom, TooLarge
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.topology.lab import ParsedLab, compute_needs
from lcm.model.topology.lab_text import MAX_BYTES
from lcm.model.topology.node_definitions import shipped_nodes, sizes_of
from lcm.providers.protocols.artifacts import digest_of

_FROM_NOW: Final = re.compile(r"\+([0-9]{1,6})([smhd])")
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_TIMED_KINDS: Final = frozenset({"LabletSession", "Reservation"})
_TIME_FIELDS: Final = ("timeslot_start", "timeslot_end", "give_up_at")
_SERIES: Final = "recurrence"
_UNTIL: Final = "until"


def resolve_times(sources: Sequence[DocumentSource], now: datetime) -> tuple[list[DocumentSource], frozenset[int]]:
    """Replace times relative to now by moments, and return the positions of the documents that had any."""
    now = now.replace(microsecond=0) + _UNITS["s"]  # rounded up, so that it is never sooner than requested
    made = [_resolve_source(source, now) for source in sources]
    return made, frozenset(place for place, source in enumerate(sources) if made[place] is not source)


async def keep_existing_times(
    plane: Plane, sources: Sequence[DocumentSource], places: frozenset[int]
) -> list[DocumentSource]:
    """Give bookings that already exist the times that they have."""
    made = list(sources)
    for place in places:
        ref = _ref_of(made[place].value)
        if ref is not None and (found := await plane.get(ref)) is not None:
            made[place] = _with_times(made[place], dict(_read_times(msgspec.to_builtins(found.spec))))
    return made


def _resolve_source(source: DocumentSource, now: datetime) -> DocumentSource:
    if source.value.get("kind") not in _TIMED_KINDS:
        return source
    times = _read_times(source.value.get("spec"))
    found = {name: moment for name, text in times if (moment := _resolve_moment(name, text, now)) is not None}
    return _with_times(source, found) if found else source


def _read_times(spec: object) -> Iterator[tuple[str, object]]:
    """Yield a booking's time fields; that of its series under the field's name within the series."""
    if isinstance(spec, dict):
        yield from ((name, spec[name]) for name in _TIME_FIELDS if name in spec)
        if isinstance(series := spec.get(_SERIES), dict) and _UNTIL in series:
            yield _UNTIL, series[_UNTIL]


def _resolve_moment(name: str, text: object, now: datetime) -> str | None:
    found = _FROM_NOW.fullmatch(text) if isinstance(text, str) else None
    if not found:
        return None
    moment = now + int(found[1]) * _UNITS[found[2]]
    return moment.date().isoformat() if name == _UNTIL else moment.isoformat()


def _with_times(source: DocumentSource, times: Mapping[str, object]) -> DocumentSource:
    spec: dict[str, Any] = dict(source.value["spec"])
    spec |= {name: moment for name, moment in times.items() if name != _UNTIL}
    if _UNTIL in times:
        spec[_SERIES] = {**spec[_SERIES], _UNTIL: times[_UNTIL]}
    return DocumentSource(source.file, ParsedDocument({**source.value, "spec": spec}, source.written.place))


def _ref_of(value: dict[str, Any]) -> Ref[Resource] | None:
    who = identity(value)
    known = KINDS.get(who[0]) if who else None
    if who is None or known is None:
        return None
    ref: Ref[Resource] = Ref(known.struct, who[2], who[1])
    return ref if is_nameable(ref) else None


_URI: Final = "spec.topology.uri"
_DIGEST: Final = "spec.topology.digest"
_TOPOLOGY_PATH: Final = re.compile(r"documents\[([0-9]+)\]\.spec\.topology(\b.*)", re.DOTALL)
_BOOKING_PATH: Final = re.compile(r"documents\[([0-9]+)\]\.spec\.definition")
_ABSENT_DIGEST: Final = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class LocalLabFile:
    """A lab file that was read here and found valid."""

    file: str
    data: bytes
    lab: ParsedLab

    @property
    def digest(self) -> str:
        """The digest by which the file is known once it is stored."""
        return digest_of(self.data)


@dataclass(slots=True)
class PreparedDocuments:
    """Documents whose lab paths are replaced by addresses, with the lab files by the documents' positions."""

    sources: list[DocumentSource]
    labs: dict[int, LocalLabFile] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)
    """Positions of documents whose lab file is invalid."""
    faults: list[Fault] = field(default_factory=list)
    moving: frozenset[int] = frozenset()
    """Positions of bookings whose times were relative to now."""

    @property
    def values(self) -> list[dict[str, Any]]:
        """The documents themselves."""
        return [source.value for source in self.sources]


def prepare_documents(
    sources: Sequence[DocumentSource], given: Mapping[str, bytes] | None = None, *, now: datetime | None = None
) -> PreparedDocuments:
    """Read every lab file that a definition names by path; `given` are files that were read already.

    With `now`, slots may be relative to now.
    """
    sources, moving = resolve_times(sources, now) if now else (sources, frozenset())
    found = PreparedDocuments(list(sources), moving=moving)
    for place, source in enumerate(sources):
        if (path := _lab_path(source.value)) is None:
            continue
        digest = _ABSENT_DIGEST
        try:
            lab = _read_lab(source, path, given or {})
            digest = lab.digest
            wanted = source.value["spec"]["topology"].get("digest")
            if wanted and wanted != digest:
                fault = Fault(_DIGEST, f"{lab.file} has {digest}", "correct it, or leave it out")
                found.wrong.add(place)
                found.faults.append(source.locate_fault(fault))
            else:
                found.labs[place] = lab
        except Invalid as error:
            found.wrong.add(place)
            found.faults += error.faults
        found.sources[place] = _with_address(source, f"artifact://{digest}", digest)
    return found


async def apply_prepared(plane: Plane, what: PreparedDocuments, *, dry_run: bool) -> Sequence[Applied]:
    """Apply documents once all of them were checked and the lab files of new definitions were uploaded.

    Errors name the lines of the documents' files.
    """
    try:
        return await _apply(plane, what, dry_run=dry_run)
    except Invalid as error:
        raise Invalid(*trace_faults(error.faults, what.sources)) from error
    except NoRoom as error:
        raise NoRoom(message_at_line(str(error), what.sources), why=error.why, nearest=error.nearest) from error


async def _apply(plane: Plane, what: PreparedDocuments, *, dry_run: bool) -> Sequence[Applied]:
    what.sources = await keep_existing_times(plane, what.sources, what.moving)
    if not what.labs and not what.wrong:
        return await plane.apply(what.values, dry_run=dry_run)
    rehearsal = await _dry_run(plane, what)
    await _check_sizes(plane, what, rehearsal)
    if dry_run:
        return rehearsal
    for place, lab in what.labs.items():
        if rehearsal[place].outcome == "created":
            try:
                stored = await plane.upload_topology(lab.data)
            except Invalid as error:
                raise Invalid(*faults_in_file(lab.file, error.faults)) from error
            what.sources[place] = _with_address(what.sources[place], stored.uri, stored.digest)
    return await plane.apply(what.values)


async def _check_sizes(plane: Plane, what: PreparedDocuments, rehearsal: Sequence[Applied]) -> None:
    """Raise Invalid, with lines, for nodes of new definitions whose size neither the lab nor the API knows."""
    new = [
        lab
        for place, lab in what.labs.items()
        if rehearsal[place].outcome == "created"
        and _member(what.values[place], "spec").get("resource_requirements") is None
        and not shipped_nodes().keys() >= set(lab.lab.node_definitions)
    ]
    sizes, faults = sizes_of(await plane.node_definitions()) if new else {}, list[Fault]()
    for lab in new:
        try:
            compute_needs(lab.lab, sizes)
        except Invalid as error:
            faults += faults_in_file(lab.file, error.faults)
    if faults:
        raise Invalid(*faults)


def faults_in_file(file: str, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Turn faults of `line 13: nodes[0]…` into faults at a line of a lab file."""
    for fault in faults:
        line, path = split_line(fault.path, otherwise="lab")
        yield fault_at_line(file, line, Fault(path, fault.problem, fault.remedy))


async def _dry_run(plane: Plane, what: PreparedDocuments) -> Sequence[Applied]:
    """Return what would become of documents, as if their lab files were already uploaded."""
    try:
        return await plane.apply(what.values, dry_run=True)
    except Invalid as error:
        absent = {place for fault in error.faults if (place := _position_of_absent_lab(fault, what)) is not None}
        waiting = absent | _bookings_of(what, absent)
        left = [fault for fault in error.faults if not _is_cured_by_upload(fault, what, waiting)]
        if left or not absent:
            raise Invalid(*left) from error
    return await _dry_run_without(plane, what, waiting)


async def _dry_run_without(plane: Plane, what: PreparedDocuments, waiting: set[int]) -> Sequence[Applied]:
    """Dry-run all but definitions whose lab files are not uploaded yet and bookings of them; those count as created."""
    rest = [place for place in range(len(what.sources)) if place not in waiting]
    try:
        results = await plane.apply([what.values[place] for place in rest], dry_run=True) if rest else ()
    except Invalid as error:
        raise Invalid(*trace_faults(error.faults, [what.sources[place] for place in rest])) from error
    known = dict(zip(rest, results, strict=True))
    for place in waiting:
        kind, namespace, name = identity(what.values[place]) or ("", "", "")
        known[place] = Applied(kind=kind, namespace=namespace, name=name, outcome="created", resource_version=0)
    return [known[place] for place in sorted(known)]


def _position_of_absent_lab(fault: Fault, what: PreparedDocuments) -> int | None:
    """Return a document's position if the API only misses its lab file, which is known here; else None."""
    found = _TOPOLOGY_PATH.fullmatch(fault.path)
    if not found:
        return None
    place = int(found[1])
    of_uri = place in what.labs and found[2] == ".uri"
    return place if of_uri or place in what.wrong else None


def _is_cured_by_upload(fault: Fault, what: PreparedDocuments, waiting: set[int]) -> bool:
    """Return whether a fault goes away once a lab file is uploaded."""
    booked = _BOOKING_PATH.fullmatch(fault.path)
    return _position_of_absent_lab(fault, what) is not None or (booked is not None and int(booked[1]) in waiting)


def _bookings_of(what: PreparedDocuments, absent: set[int]) -> set[int]:
    """Return the positions of bookings of definitions whose lab files are not uploaded yet."""
    names = [identity(value) or ("", "", "") for value in what.values]
    labs = {(namespace, name) for _, namespace, name in (names[place] for place in absent)}
    labs |= {(namespace, name.partition(":")[0]) for namespace, name in labs}  # a booking may leave out the version
    return {
        place
        for place, value in enumerate(what.values)
        if value.get("kind") in _TIMED_KINDS and (names[place][1], _member(value, "spec").get("definition")) in labs
    }


def _lab_path(value: dict[str, Any]) -> str | None:
    """Return the path of a definition's lab file; None when it gives an address, or nothing that could be a path."""
    uri = _member(_member(value, "spec"), "topology").get("uri")
    known = value.get("kind") == "LabletDefinition" and isinstance(uri, str) and uri and "://" not in uri
    return str(uri) if known else None


def _read_lab(source: DocumentSource, path: str, given: Mapping[str, bytes]) -> LocalLabFile:
    folder = Path() if source.file == STDIN else Path(source.file).parent
    file = str(folder / path)
    data = given[path] if path in given else _read_lab_bytes(source, file)
    try:
        lab = check_lab_file(data)
    except Invalid as error:
        raise Invalid(*faults_in_file(file, error.faults)) from error
    except TooLarge as error:
        raise Invalid(source.locate_fault(Fault(_URI, str(error), "use a smaller lab"))) from error
    return LocalLabFile(file, data, lab)


def _read_lab_bytes(source: DocumentSource, file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        remedy = "correct the path, which is relative to this file, or use an address such as s3://bucket/key"
        raise Invalid(source.locate_fault(Fault(_URI, f"there is no file {file}", remedy))) from error
    except (OSError, ValueError) as error:
        problem = f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise Invalid(source.locate_fault(Fault(_URI, problem, "make it readable"))) from error


def _with_address(source: DocumentSource, uri: str, digest: str) -> DocumentSource:
    """Put the address of a lab file into its definition."""
    value, spec = source.value, source.value["spec"]
    made = {**value, "spec": {**spec, "topology": {**spec["topology"], "uri": uri, "digest": digest}}}
    return DocumentSource(source.file, ParsedDocument(made, source.written.place))


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}
