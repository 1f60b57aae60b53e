"""A timetable in YAML, or as JSON with the same words: labs, a fleet, and sessions. Called by `reading`.

```yaml
zone: Europe/Berlin                     # what clocks mean; UTC if not said
definitions:                            # cpu in cores, memory and storage in GB
  - {name: ccna, track: ccna, cpu: 4, memory: 6, storage: 16, nodes: 6, ports: 4}
fleet:
  - {track: ccna, instance_type: m5zn.metal, region: eu-central-1, min: 0, max: 6, price: "4.80"}
prices: {m6i.metal: "6.14"}             # of types that are compared
sessions:
  - {definition: ccna, at: 2027-03-01T09:00, for: 2h, count: 40, every: weekday, until: 2027-03-05}
```
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds import validate
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.sim.plan.documents import Lab, Machines, definition_of, pool_of
from lcm.sim.plan.slots import WORKING, Row, Series, day_of, minutes_of, moment_of, sound_count, zone_of
from lcm.sim.plan.timetable import Extension, Wanted
from lcm.sim.plan.yaml_tree import Spot, entries, items, known, number, parsed, told, word

_TOP: Final = ("zone", "definitions", "fleet", "prices", "sessions", "title")
_LAB: Final = ("name", "track", "cpu", "memory", "storage", "nodes", "ports")
_POOL: Final = ("track", "instance_type", "region", "min", "max", "price")
_SESSION: Final = (
    *("definition", "at", "for", "count", "every", "until", "track", "owner"),
    *("booked_at", "cancelled_at", "extended"),
)
_EVERY: Final = ("day", "weekday", "week")
_MOST_LABS: Final = 1_000
_MOST_POOLS: Final = 100
_MOST_WORKERS: Final = 1_000
_MOST_ROWS: Final = 20_000


class Stock(msgspec.Struct, frozen=True, kw_only=True):
    """Labs and pools, and what a live system has promised already."""

    definitions: tuple[LabletDefinition, ...] = ()
    templates: tuple[WorkerTemplate, ...] = ()
    pools: tuple[LabWorkerPool, ...] = ()
    sessions: tuple[Wanted, ...] = ()
    prices: Mapping[str, Decimal] = {}
    zone: str = ""
    now: datetime | None = None


def read_yaml(text: str, *, lines: bool = True) -> tuple[Stock, Sequence[Row]]:
    """Read a timetable; Invalid with every fault. Without `lines` a fault says only where in the tree it is."""
    top = entries(parsed(text, lines=lines), "a timetable")
    known(top, _TOP)
    zone = word(top["zone"]) if "zone" in top else "UTC"
    if "zone" in top:
        zone_of(zone, top["zone"].where)
    faults: list[Fault] = []
    said_labs, said_pools = items(top.get("definitions"), _MOST_LABS), items(top.get("fleet"), _MOST_POOLS)
    labs, pools = told(faults, _lab, said_labs), told(faults, _pool, said_pools)
    faults += [*_twice(said_labs, "name"), *_twice(said_pools, "track")]
    prices = {kind: _dollars(price) for kind, price in entries(top.get("prices"), "prices").items()}
    rows = told(faults, lambda spot: _row(spot, zone), items(top.get("sessions"), _MOST_ROWS))
    if faults:
        raise Invalid(*faults)
    stock = Stock(
        definitions=tuple(labs),
        templates=tuple(template for template, _ in pools),
        pools=tuple(pool for _, pool in pools),
        prices=prices,
        zone=zone,
    )
    return stock, rows


def _twice(spots: Sequence[Spot], key: str) -> Iterator[Fault]:
    """Tell of each that is there again: only one of them would count."""
    seen: set[str] = set()
    for spot in spots:
        said = spot.value.get(key) if isinstance(spot.value, Mapping) else None
        if said is not None and isinstance(said.value, str):
            if said.value.strip() in seen:
                yield Fault(said.where, f"{said.value.strip()!r} is there twice", "make one of them")
            seen.add(said.value.strip())


def _sound(document: Resource, spot: Spot) -> None:
    """Refuse at its line what the production code would refuse."""
    try:
        validate.read(msgspec.to_builtins(document))
    except Invalid as error:
        told = {one.path.rpartition(".")[2].removeprefix("lab_"): one for one in error.faults}
        faults = [Fault(f"{spot.where}.{key}", one.problem, one.remedy) for key, one in told.items()]
        raise Invalid(*faults) from error


def _lab(spot: Spot) -> LabletDefinition:
    said = entries(spot, "a lab")
    known(said, _LAB)
    name, track = _needed(said, spot, "name", "ccna-exam"), _needed(said, spot, "track", "ccna")
    lab = Lab(
        name=word(name),
        track=word(track),
        cpu=number(_needed(said, spot, "cpu", "4"), 0.001, 10_000),
        memory=number(_needed(said, spot, "memory", "6"), 0.001, 100_000),
        storage=number(said["storage"], 0, 1_000_000) if "storage" in said else 0.0,
        nodes=int(number(said["nodes"], 1, 10_000, whole=True)) if "nodes" in said else 1,
        ports=int(number(said["ports"], 0, 2_000, whole=True)) if "ports" in said else 0,
    )
    made = definition_of(lab)
    _sound(made, spot)
    return made


def _pool(spot: Spot) -> tuple[WorkerTemplate, LabWorkerPool]:
    said = entries(spot, "a pool")
    known(said, _POOL)
    least = int(number(said["min"], 0, _MOST_WORKERS, whole=True)) if "min" in said else 0
    most = int(number(_needed(said, spot, "max", "6"), 1, _MOST_WORKERS, whole=True))
    if least > most:
        raise Invalid(Fault(said["min"].where, f"min {least} is above max {most}", "let min be max at most"))
    machines = Machines(
        track=word(_needed(said, spot, "track", "ccna")),
        instance_type=word(_needed(said, spot, "instance_type", "m5zn.metal")),
        region=word(said["region"]) if "region" in said else "us-east-1",
        least=least,
        most=most,
        price=_dollars(said["price"]) if "price" in said else None,
    )
    template, pool = pool_of(machines)
    _sound(template, spot)
    return template, pool


def _row(spot: Spot, zone: str) -> Row:
    said = entries(spot, "a session")
    known(said, _SESSION)
    length = _needed(said, spot, "for", "2h")
    start = _moment(said, "at", zone)
    booked = _moment(said, "booked_at", zone)
    if start is None and (booked is None or "every" in said):
        raise Invalid(Fault(spot.where, "it does not say when", "add at: 2027-03-01T09:00"))
    return Row(
        where=spot.where,
        definition=word(_needed(said, spot, "definition", "ccna-exam")),
        minutes=minutes_of(word(length), length.where),
        start=start,
        count=sound_count(word(said["count"]), said["count"].where) if "count" in said else 1,
        track=word(said["track"]) if "track" in said else "",
        owner=word(said["owner"]) if "owner" in said else "",
        series=_series(said, spot, zone),
        booked_at=booked,
        cancelled_at=_moment(said, "cancelled_at", zone),
        extended=tuple(_extension(one, zone) for one in items(said.get("extended"), 100)),
    )


def _series(said: Mapping[str, Spot], spot: Spot, zone: str) -> Series | None:
    if "every" not in said:
        if "until" in said:
            raise Invalid(Fault(said["until"].where, "until without every", "add every: week, or leave until out"))
        return None
    every = word(said["every"])
    if every not in _EVERY:
        raise Invalid(Fault(said["every"].where, f"{every!r}", f"use one of {', '.join(_EVERY)}"))
    until = _needed(said, spot, "until", "2027-03-05")
    return Series(
        every="day" if every == "day" else "week",
        until=day_of(word(until), until.where),
        zone=zone,
        weekdays=WORKING if every == "weekday" else (),
    )


def _extension(spot: Spot, zone: str) -> Extension:
    said = entries(spot, "an extension")
    known(said, ("at", "minutes"))
    at, minutes = _needed(said, spot, "at", "2027-03-01T10:30"), _needed(said, spot, "minutes", "30")
    return Extension(at=moment_of(word(at), zone, at.where), minutes=int(number(minutes, 1, 100_000, whole=True)))


def _moment(said: Mapping[str, Spot], key: str, zone: str) -> datetime | None:
    return moment_of(word(said[key]), zone, said[key].where) if key in said else None


def _needed(said: Mapping[str, Spot], spot: Spot, key: str, example: str) -> Spot:
    if key not in said:
        raise Invalid(Fault(spot.where, f"{key} is missing", f"add {key}: {example}"))
    return said[key]


def _dollars(spot: Spot) -> Decimal:
    try:
        price = Decimal(word(spot))
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or not 0 <= price <= 1_000_000:  # noqa: PLR2004  dollars an hour
        raise Invalid(Fault(spot.where, f"{spot.value!r} is no price", 'write dollars an hour, such as "4.80"'))
    return price
