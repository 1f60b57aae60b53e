"""Completion of names from the API, for shells: quick, or not at all."""

from typing import Final

import typer

from lcm.cli.nouns import ALL, CALENDAR, NOUNS, noun
from lcm.control.plane import LONGEST_PAGE, Plane
from lcm.model.errors import LcmError

_PATIENCE_SECONDS: Final = 1.0


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a kind, then names of that kind."""
    given = list(ctx.params.get("targets") or ctx.params.get("target") or ())
    try:
        if given:
            return _names(given[0], ctx)
        kind, slash, _ = incomplete.partition("/")
        if slash:
            return [f"{kind}/{name}" for name in _names(kind, ctx)]
    except (LcmError, TimeoutError, typer.BadParameter):
        return []
    more = [CALENDAR] if ctx.info_name == "get" else []
    return [*dict.fromkeys(one.plural for one in NOUNS), ALL, *more]


def workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of workers."""
    return _of("worker", ctx, incomplete)


def definitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of definitions."""
    return _of("definition", ctx, incomplete)


def sessions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of sessions."""
    return _of("session", ctx, incomplete)


def _of(kind: str, ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        return [name for name in _names(kind, ctx) if name.startswith(incomplete)]
    except (LcmError, TimeoutError):
        return []


def _names(kind: str, ctx: typer.Context) -> list[str]:
    from lcm.cli import run  # noqa: PLC0415 - a shell that completes a kind needs no connection

    namespace = None if ctx.params.get("all_namespaces") else ctx.params.get("namespace")
    struct = noun(kind).struct

    async def ask(plane: Plane) -> list[str]:
        listing = await plane.list(struct, namespace=namespace, limit=LONGEST_PAGE)
        return [one.metadata.name for one in listing.items]

    return run.with_plane(ask, ctx.params.get("context"), within_seconds=_PATIENCE_SECONDS)
