"""Completion of names from the API, for shells: quick, or not at all."""

from typing import Final

import typer

from lcm.cli.nouns import ALL, NOUNS, noun
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
    return [*dict.fromkeys(one.plural for one in NOUNS), ALL]


def workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of workers."""
    try:
        return [name for name in _names("worker", ctx) if name.startswith(incomplete)]
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
