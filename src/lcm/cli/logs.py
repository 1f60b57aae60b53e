"""`lcm logs`: a session's story, its progress and the decisions about it, line by line."""

from typing import Annotated, Final

import typer

from lcm.cli import names, render, run
from lcm.cli.extend import session_named
from lcm.cli.nouns import title_of
from lcm.cli.options import DEFAULT_NAMESPACE, ContextName, Namespace
from lcm.control.plane import Plane, Ref
from lcm.model.errors import Gone
from lcm.model.session import LabletSession

_USAGE: Final = "write `lcm logs NAME`, such as `lcm logs basics-x7k2p`"


def logs(
    words: Annotated[
        list[str], typer.Argument(metavar="[session] NAME", help="A session.", autocompletion=names.sessions)
    ],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Tell what happened to a session, what was decided about it and what went wrong, line by line."""
    ref: Ref[LabletSession] = Ref(LabletSession, session_named(words, _USAGE), namespace)

    async def work(plane: Plane) -> None:
        try:
            told = await plane.logs(ref)
        except Gone:
            raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
        for line in told.splitlines():
            render.out(render.clean(line))

    run.with_plane(work, context)
