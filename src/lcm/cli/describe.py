"""`lcm describe`: everything about one object, what matters most first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.cli import documents, render, run
from lcm.cli.digest import digest
from lcm.cli.digest_worker import Line
from lcm.cli.nouns import one, wanted
from lcm.cli.options import DEFAULT_NAMESPACE, ContextName, Namespace, Targets
from lcm.cli.story import find, told
from lcm.cli.table import Column, Table
from lcm.control.plane import Plane, Ref
from lcm.model.kinds import Resource
from lcm.model.resource import Condition
from lcm.system import SystemClock

_LABEL: Final = 14
_INDENT: Final = 2
_BOOKKEEPING: Final = ("name", "namespace", "labels", "annotations", "created_at")


def describe(targets: Targets = None, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Show everything about an object."""
    parts = wanted(targets or [])
    refs: list[Ref[Any]] = [Ref(part.noun.struct, name, namespace) for part in parts for name in part.names]
    if not refs:
        one(targets or [])

    async def work(plane: Plane) -> None:
        for number, ref in enumerate(refs):
            resource = await find(plane, ref)
            around = await digest(plane, resource, SystemClock().now())
            if number:
                render.out()
            for line in described(resource, around, SystemClock().now()):
                render.out(line)

    run.with_plane(work, context)


def described(resource: Resource, matters: Iterable[Line], now: datetime) -> Iterator[str]:
    """Write an object in words, then all of it."""
    meta = resource.metadata
    yield from _lines([("Name", meta.name), ("Namespace", meta.namespace), ("Kind", resource.kind)])
    yield from _lines(matters)
    yield from _lines(_about(resource, now))
    if resource.status.conditions:
        yield "Conditions:"
        yield from _indented(_conditions(resource.status.conditions, now))
    if resource.status.history:
        yield "Story:"
        yield from _indented(told(resource, now, _room() - _INDENT))
    yield from _section("Spec", msgspec.to_builtins(resource.spec))
    status = msgspec.to_builtins(resource.status)
    yield from _section(
        "Status", {name: part for name, part in status.items() if name not in {"conditions", "history"}}
    )


def _about(resource: Resource, now: datetime) -> Iterator[Line]:
    meta = resource.metadata
    yield from _pairs("Labels", meta.labels)
    yield from _pairs("Annotations", meta.annotations)
    if meta.created_at:
        yield "Created", render.relative(meta.created_at, now)
    if meta.deletion_timestamp:
        yield "Deleted", render.relative(meta.deletion_timestamp, now) + ", not gone yet"
    if meta.owner:
        yield "Made by", f"{meta.owner.kind} {meta.owner.name}"
    yield "Revision", f"{meta.resource_version}, generation {meta.generation}"
    yield "Uid", meta.uid


def _pairs(label: str, pairs: Mapping[str, str]) -> Iterator[Line]:
    for number, (name, value) in enumerate(pairs.items()):
        yield "" if number else label, f"{name}={value}"


def _lines(pairs: Iterable[Line]) -> Iterator[str]:
    for label, text in pairs:
        head = f"{label}:" if label else ""
        first, *rest = render.wrapped(text, _room() - _LABEL)
        yield f"{head:<{_LABEL}}{first}".rstrip()
        yield from (" " * _LABEL + line for line in rest)


def _conditions(conditions: Sequence[Condition], now: datetime) -> Iterator[str]:
    """Write each condition in a line; its message follows where it does not fit."""
    columns: Sequence[Column[Condition]] = (
        Column("TYPE", lambda one, _: one.type),
        Column("STATUS", lambda one, _: one.status, colour=render.phase_colour),
        Column("AGE", lambda one, now: render.age(one.last_transition_at, now)),
        Column("REASON", lambda one, _: one.reason),
    )
    heading, *rows = Table(columns, _room() - _INDENT).lines(conditions, now)
    yield heading
    for condition, row in zip(conditions, rows, strict=True):
        yield row
        if condition.message:
            yield from _indented(render.wrapped(condition.message, _room() - 2 * _INDENT))


def _section(heading: str, part: Any) -> Iterator[str]:  # noqa: ANN401 - a JSON object
    filled = _filled(part)
    if filled:
        yield f"{heading}:"
        yield from _indented(documents.write(filled).splitlines())


def _filled(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Leave out what says nothing."""
    if isinstance(value, dict):
        return {name: kept for name, item in value.items() if (kept := _filled(item)) not in (None, "", [], {})}
    return [_filled(item) for item in value] if isinstance(value, list | tuple) else value


def _room() -> int:
    return min(render.room() or render.WIDEST, render.WIDEST)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (" " * _INDENT + line for line in lines)
