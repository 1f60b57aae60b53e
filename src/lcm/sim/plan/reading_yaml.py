"""Reads a timetable in YAML, or in JSON with the same keys: labs, a fleet, and sessions. Called by `sim.plan.reading`.

```yaml
zone: Europe/Berlin                     # the zone of local times; UTC by default
definitions:                            # cpu in cores, memory and storage in GB
  - {name: ccna, track: ccna, cpu: 4, memory: 6, storage: 16, nodes: 6, ports: 4}
fleet:
  - {track: ccna, instance_type: m5zn.metal, region: eu-central-1, min: 0, max: 6, price: "4.80"}
  - {name: ccna-us, track: ccna, instance_type: m5zn.metal, region: us-east-1, max: 2}
prices: {m6i.metal: "6.14"}             # of types that are compared
sessions:
  - {definition: ccna, at: 2027-03-01T09:00, for: 2h, count: 40, every: weekday, until: 2027-03-05}
```
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Final, TypeVar

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Region
from lcm.model.base.yaml_tree import FlawKind, YamlFlaw, YamlLimits, YamlList, YamlMapping, YamlNode, parse_yaml
from lcm.model.kinds import validate
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.sim.plan.documents import LabOutline, PoolOutline, definition_of, pool_name, pool_of
from lcm.sim.plan.slots import (
    WORKDAYS,
    Series,
    TimetableRow,
    find_zone,
    parse_count,
    parse_day,
    parse_minutes,
    parse_moment,
)
from lcm.sim.plan.timetable import Extension, SessionRequest, SessionWish

T = TypeVar("T")
_MOST_NODES: Final = 500_000
_LIMITS: Final = YamlLimits(events=3 * _MOST_NODES, depth=8)
"""A node is at most a key, a start and an end."""
_TOO_MUCH: Final = ("too much", "plan a shorter time")
_SYNTAX_REMEDY: Final = "check colons, quotes and spaces at the line's beginning"
_WORDING: Final[Mapping[FlawKind, tuple[str, str]]] = {
    "syntax": ("no YAML: {flaw.text}", _SYNTAX_REMEDY),
    "document": ("no YAML: but found another document", _SYNTAX_REMEDY),
    "character": ("a character that YAML does not know: {flaw.text}", "remove it"),
    "events": _TOO_MUCH,
    "depth": ("nested too deep", "write it as the examples are"),
    "alias": ("an alias", "write the value out"),
    "duplicate": ("{flaw.text} appears twice", "remove one of them"),
}
"""What is refused: anchors and tags mean nothing, and unknown keys are told where they stand."""


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A text, a list or a mapping, and where it stands."""

    value: "str | Sequence[LocatedValue] | Mapping[str, LocatedValue]"
    where: str


def parse_tree(text: str, *, lines: bool) -> LocatedValue:
    """Parse one document. Raises Invalid when it is not YAML."""
    reader = _TreeReader(lines=lines)
    roots = parse_yaml(text, _LIMITS, reader.refuse).roots
    if not roots:
        raise Invalid(Fault("line 1", "the file is empty", "begin with `definitions:`, `fleet:` and `sessions:`"))
    return reader.convert(roots[0], "")


def entries(spot: LocatedValue | None, what: str) -> Mapping[str, LocatedValue]:
    """Return the entries of a mapping; none for None."""
    if spot is None:
        return {}
    if not isinstance(spot.value, Mapping):
        raise Invalid(Fault(spot.where, f"{what} is a list of keys and values", "write `key: value`, one on a line"))
    return spot.value


def items(spot: LocatedValue | None, most: int) -> Sequence[LocatedValue]:
    """Return the items of a list; none for None."""
    if spot is None:
        return ()
    if isinstance(spot.value, str | Mapping):
        raise Invalid(Fault(spot.where, "this is no list", "begin each item with `- `"))
    if len(spot.value) > most:
        raise Invalid(Fault(spot.where, f"{len(spot.value)} items", f"use {most} at most"))
    return spot.value


def check_keys(said: Mapping[str, LocatedValue], names: Sequence[str]) -> None:
    """Raise Invalid for keys that are not known."""
    faults = []
    for key, spot in said.items():
        if key not in names:
            close = get_close_matches(key, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"
            faults.append(Fault(spot.where, f"unknown key {key!r}", remedy))
    if faults:
        raise Invalid(*faults)


def text_of(spot: LocatedValue) -> str:
    """Return a text that is not empty."""
    if not isinstance(spot.value, str) or not spot.value.strip():
        raise Invalid(Fault(spot.where, "a value is missing", "write one value behind the colon"))
    return spot.value.strip()


def number_of(spot: LocatedValue, least: float, most: float, *, whole: bool = False) -> float:
    """Return a number within bounds."""
    text = text_of(spot)
    try:
        found = int(text) if whole else float(text)
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        kind = "a whole number" if whole else "a number"
        raise Invalid(Fault(spot.where, f"{text!r}", f"use {kind} from {least:g} to {most:g}"))
    return found


def read_each(faults: list[Fault], read: Callable[[LocatedValue], T], spots: Iterable[LocatedValue]) -> list[T]:
    """Read each value, and go on after one that is wrong, so that a user learns of all faults at once."""
    found: list[T] = []
    for spot in spots:
        try:
            found.append(read(spot))
        except Invalid as error:
            faults += error.faults
    return found


class _TreeReader:
    """Refuses what no timetable needs, and gives each value its place."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._count = 0

    def refuse(self, flaw: YamlFlaw) -> None:
        if flaw.kind not in _WORDING:
            return
        where = f"line {flaw.line}"
        if flaw.kind == "character":
            where = "file"
        elif flaw.kind == "events":
            where = self._where(flaw.line, flaw.path)
        elif flaw.kind == "duplicate":
            where = self._where(flaw.line, f"{flaw.path}.{flaw.text}".removeprefix("."))
        raise Invalid(Fault(where, *flaw.explain(_WORDING)))

    def convert(self, node: YamlNode, path: str) -> LocatedValue:
        where = self._where(node.line, path)
        self._count += 1
        if self._count > _MOST_NODES:
            raise Invalid(Fault(where, *_TOO_MUCH))
        match node:
            case YamlMapping(inside):
                found = {key: self.convert(one, f"{path}.{key}" if path else key) for key, one in inside.items()}
                return LocatedValue(found, where)
            case YamlList(members):
                return LocatedValue([self.convert(one, f"{path}[{place}]") for place, one in enumerate(members)], where)
        return LocatedValue(node.value, where)

    def _where(self, line: int, path: str) -> str:
        if not self._lines:
            return path or "timetable"
        return f"line {line}: {path}" if path else f"line {line}"


_TOP_KEYS: Final = ("zone", "definitions", "fleet", "prices", "sessions", "title")
_LAB_KEYS: Final = ("name", "track", "cpu", "memory", "storage", "nodes", "ports")
_POOL_KEYS: Final = ("name", "track", "instance_type", "region", "min", "max", "price", "spot", "policy", "warm")
_SESSION_KEYS: Final = (
    *("definition", "at", "for", "count", "every", "until", "track", "owner"),
    *("booked_at", "cancelled_at", "extended", "region", "prefer_region", "spot"),
)
_EVERY: Final = ("day", "weekday", "week")
_MOST_LABS: Final = 1_000
_MOST_POOLS: Final = 100
_MOST_WORKERS: Final = 1_000
_MOST_ROWS: Final = 20_000


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Labs and pools, and what a live system has promised already."""

    definitions: tuple[LabletDefinition, ...] = ()
    templates: tuple[WorkerTemplate, ...] = ()
    pools: tuple[LabWorkerPool, ...] = ()
    sessions: tuple[SessionRequest, ...] = ()
    prices: Mapping[str, Decimal] = {}
    zone: str = ""
    now: datetime | None = None


def read_yaml(text: str, *, lines: bool = True) -> tuple[Inventory, Sequence[TimetableRow]]:
    """Read a timetable. Raises Invalid with every fault. Without `lines` a fault says only where in the tree it is."""
    top = entries(parse_tree(text, lines=lines), "a timetable")
    check_keys(top, _TOP_KEYS)
    zone = text_of(top["zone"]) if "zone" in top else "UTC"
    if "zone" in top:
        find_zone(zone, top["zone"].where)
    faults: list[Fault] = []
    said_labs, said_pools = items(top.get("definitions"), _MOST_LABS), items(top.get("fleet"), _MOST_POOLS)
    labs, faults_before = read_each(faults, _read_lab, said_labs), len(faults)
    outlines = read_each(faults, _read_outline, said_pools)
    pools = list(_make_pools(faults, outlines, said_pools)) if len(faults) == faults_before else []
    faults += _duplicates(said_labs, "name")
    prices = {kind: _read_price(price) for kind, price in entries(top.get("prices"), "prices").items()}
    rows = read_each(faults, lambda spot: _read_row(spot, zone), items(top.get("sessions"), _MOST_ROWS))
    if faults:
        raise Invalid(*faults)
    stock = Inventory(
        definitions=tuple(labs),
        templates=tuple(template for template, _ in pools),
        pools=tuple(pool for _, pool in pools),
        prices=prices,
        zone=zone,
    )
    return stock, rows


def _duplicates(spots: Sequence[LocatedValue], key: str) -> Iterator[Fault]:
    """Yield a fault for each repeated name: only one of them would count."""
    seen: set[str] = set()
    for spot in spots:
        said = spot.value.get(key) if isinstance(spot.value, Mapping) else None
        if said is not None and isinstance(said.value, str):
            if said.value.strip() in seen:
                yield Fault(said.where, f"{said.value.strip()!r} appears twice", "remove one of them")
            seen.add(said.value.strip())


def _check_document(document: Resource, spot: LocatedValue) -> None:
    """Raise Invalid, with the place in the file, for what the production code would refuse."""
    try:
        validate.parse_document(msgspec.to_builtins(document))
    except Invalid as error:
        told = {one.path.rpartition(".")[2].removeprefix("lab_"): one for one in error.faults}
        faults = [Fault(f"{spot.where}.{key}", one.problem, one.remedy) for key, one in told.items()]
        raise Invalid(*faults) from error


def _read_lab(spot: LocatedValue) -> LabletDefinition:
    said = entries(spot, "a lab")
    check_keys(said, _LAB_KEYS)
    name, track = _require_key(said, spot, "name", "ccna-exam"), _require_key(said, spot, "track", "ccna")
    lab = LabOutline(
        name=text_of(name),
        track=text_of(track),
        cpu=number_of(_require_key(said, spot, "cpu", "4"), 0.001, 10_000),
        memory=number_of(_require_key(said, spot, "memory", "6"), 0.001, 100_000),
        storage=number_of(said["storage"], 0, 1_000_000) if "storage" in said else 0.0,
        nodes=int(number_of(said["nodes"], 1, 10_000, whole=True)) if "nodes" in said else 1,
        ports=int(number_of(said["ports"], 0, 2_000, whole=True)) if "ports" in said else 0,
    )
    made = definition_of(lab)
    _check_document(made, spot)
    return made


def _make_pools(
    faults: list[Fault], outlines: Sequence[PoolOutline], spots: Sequence[LocatedValue]
) -> Iterator[tuple[WorkerTemplate, LabWorkerPool]]:
    """Yield the pools, of which each needs a name of its own; those of one track may be called after their regions."""
    tracks, names = Counter(one.track for one in outlines), set[str]()
    for outline, spot in zip(outlines, spots, strict=True):
        own = pool_name(outline.track)
        name = outline.name or (own if tracks[outline.track] == 1 else f"{own}-{outline.region}")
        if name in names:
            faults.append(Fault(spot.where, f"two pools are called {name!r}", "give one of them another name"))
            continue
        names.add(name)
        made = pool_of(msgspec.structs.replace(outline, name=name))
        try:
            for document in made:
                _check_document(document, spot)
        except Invalid as error:
            faults += error.faults
        else:
            yield made


def _read_outline(spot: LocatedValue) -> PoolOutline:
    said = entries(spot, "a pool")
    check_keys(said, _POOL_KEYS)
    least = int(number_of(said["min"], 0, _MOST_WORKERS, whole=True)) if "min" in said else 0
    most = int(number_of(_require_key(said, spot, "max", "6"), 1, _MOST_WORKERS, whole=True))
    if least > most:
        raise Invalid(Fault(said["min"].where, f"min {least} is above max {most}", f"set min to {most} at most"))
    return PoolOutline(
        name=text_of(said["name"]) if "name" in said else "",
        track=text_of(_require_key(said, spot, "track", "ccna")),
        instance_type=text_of(_require_key(said, spot, "instance_type", "m5zn.metal")),
        region=text_of(said["region"]) if "region" in said else "us-east-1",
        least=least,
        most=most,
        price=_read_price(said["price"]) if "price" in said else None,
        spot="spot" in said and _read_flag(said["spot"]),
        policy=_read_policy(said["policy"]) if "policy" in said else ScalingPolicy.SCHEDULED,
        warm=int(number_of(said["warm"], 0, _MOST_WORKERS, whole=True)) if "warm" in said else 0,
    )


def _read_row(spot: LocatedValue, zone: str) -> TimetableRow:
    said = entries(spot, "a session")
    check_keys(said, _SESSION_KEYS)
    length = _require_key(said, spot, "for", "2h")
    start = _read_moment(said, "at", zone)
    booked = _read_moment(said, "booked_at", zone)
    if start is None and (booked is None or "every" in said):
        raise Invalid(Fault(spot.where, "no start is given", "add at: 2027-03-01T09:00"))
    return TimetableRow(
        where=spot.where,
        definition=text_of(_require_key(said, spot, "definition", "ccna-exam")),
        minutes=parse_minutes(text_of(length), length.where),
        start=start,
        count=parse_count(text_of(said["count"]), said["count"].where) if "count" in said else 1,
        track=text_of(said["track"]) if "track" in said else "",
        owner=text_of(said["owner"]) if "owner" in said else "",
        series=_read_series(said, spot, zone),
        booked_at=booked,
        cancelled_at=_read_moment(said, "cancelled_at", zone),
        extended=tuple(_read_extension(one, zone) for one in items(said.get("extended"), 100)),
        wish=_read_wish(said, spot, start),
    )


def _read_wish(said: Mapping[str, LocatedValue], spot: LocatedValue, start: datetime | None) -> SessionWish:
    allows = "spot" in said and _read_flag(said["spot"])
    if allows and start is not None:
        raise Invalid(Fault(spot.where, "a slot is promised, and a spot machine is not", "leave spot or at out"))
    return SessionWish(
        region_required=_read_region(said["region"]) if "region" in said else None,
        region_preferred=_read_region(said["prefer_region"]) if "prefer_region" in said else None,
        allow_spot=allows,
    )


def _read_region(spot: LocatedValue) -> str:
    try:
        return msgspec.convert(text_of(spot), Region)
    except msgspec.ValidationError as error:
        raise Invalid(Fault(spot.where, f"{spot.value!r} is no region", "write one such as eu-central-1")) from error


def _read_policy(spot: LocatedValue) -> ScalingPolicy:
    word = text_of(spot)
    if word not in set(ScalingPolicy):
        raise Invalid(Fault(spot.where, f"{word!r} is no scaling policy", f"use one of {', '.join(ScalingPolicy)}"))
    return ScalingPolicy(word)


def _read_flag(spot: LocatedValue) -> bool:
    word = text_of(spot).lower()
    if word not in {"true", "false"}:
        raise Invalid(Fault(spot.where, f"{spot.value!r} is neither true nor false", "write true or false"))
    return word == "true"


def _read_series(said: Mapping[str, LocatedValue], spot: LocatedValue, zone: str) -> Series | None:
    if "every" not in said:
        if "until" in said:
            raise Invalid(Fault(said["until"].where, "until without every", "add every: week, or leave until out"))
        return None
    every = text_of(said["every"])
    if every not in _EVERY:
        raise Invalid(Fault(said["every"].where, f"{every!r}", f"use one of {', '.join(_EVERY)}"))
    until = _require_key(said, spot, "until", "2027-03-05")
    return Series(
        every="day" if every == "day" else "week",
        until=parse_day(text_of(until), until.where),
        zone=zone,
        weekdays=WORKDAYS if every == "weekday" else (),
    )


def _read_extension(spot: LocatedValue, zone: str) -> Extension:
    said = entries(spot, "an extension")
    check_keys(said, ("at", "minutes"))
    at, minutes = _require_key(said, spot, "at", "2027-03-01T10:30"), _require_key(said, spot, "minutes", "30")
    return Extension(
        at=parse_moment(text_of(at), zone, at.where), minutes=int(number_of(minutes, 1, 100_000, whole=True))
    )


def _read_moment(said: Mapping[str, LocatedValue], key: str, zone: str) -> datetime | None:
    return parse_moment(text_of(said[key]), zone, said[key].where) if key in said else None


def _require_key(said: Mapping[str, LocatedValue], spot: LocatedValue, key: str, example: str) -> LocatedValue:
    if key not in said:
        raise Invalid(Fault(spot.where, f"{key} is missing", f"add {key}: {example}"))
    return said[key]


def _read_price(spot: LocatedValue) -> Decimal:
    try:
        price = Decimal(text_of(spot))
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or not 0 <= price <= 1_000_000:  # noqa: PLR2004  dollars an hour
        raise Invalid(Fault(spot.where, f"{spot.value!r} is no price", 'write dollars an hour, such as "4.80"'))
    return price
