"""Finding the object that a person means: definitions without their version, and suggestions for misspelt names.

Called by `connection` around the work of every command, and by commands that show one object.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from lcm.cli.output.follow import read_all
from lcm.cli.output.nouns import MissingObject, missing, noun_of
from lcm.cli.output.render import join_some
from lcm.control.plane.protocol import LONGEST_PAGE, Plane, Ref
from lcm.model.base.errors import Fault, Gone, Invalid, LcmError
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, version_key
from lcm.model.kinds.registry import Resource

T = TypeVar("T")
_SHOWN: Final = 5


async def read_object(plane: Plane, ref: Ref[Any]) -> Resource:
    """Read one object; of a definition without a version, the newest active one, else the newest.

    Raise Gone when there is none.
    """
    found: Resource | None = await plane.get(ref)
    if found is None and (versions := await read_versions(plane, ref)):
        found = versions[0]
    if found is None:
        raise missing(ref)
    return found


async def read_versions(plane: Plane, ref: Ref[Any]) -> Sequence[LabletDefinition]:
    """Read all versions of a definition that is named without one, the newest active one first; else nothing."""
    if ref.kind is not LabletDefinition or ":" in ref.name:
        return ()
    found = (await read_all(plane, LabletDefinition, namespace=ref.namespace)).items
    named = [one for one in found if one.metadata.name.partition(":")[0] == ref.name]
    return sorted(
        named, key=lambda one: (one.spec.state is DefinitionState.ACTIVE, version_key(one.spec.version)), reverse=True
    )


async def with_suggestions(plane: Plane, work: Callable[[Plane], Awaitable[T]]) -> T:
    """Do a command's work; suggest a name in an error that says that an object does not exist."""
    try:
        return await work(plane)
    except MissingObject as error:
        raise await suggest(plane, error) from error


async def suggest(plane: Plane, error: MissingObject) -> Gone:
    """Return the error with the name that was probably meant, its versions, or the namespace in which the object is."""
    ref = error.ref
    try:
        found = (await plane.list(ref.kind, limit=LONGEST_PAGE)).items
    except LcmError:
        return error  # whoever may not list them gets no suggestion
    elsewhere = [one.metadata.namespace for one in found if one.metadata.name == ref.name]
    if elsewhere:
        return Gone(f"{error}; there is one in namespace {elsewhere[0]}: add `-n {elsewhere[0]}`")
    here = [one.metadata.name for one in found if one.metadata.namespace == ref.namespace]
    if versions := [name for name in here if name.partition(":")[0] == ref.name]:
        return Gone(f"{error}; name a version: {join_some(versions, _SHOWN)}")
    close = _closest(ref.name, here)
    lists = f"`lcm get {noun_of(ref.kind).plural} -A` lists what is there"
    return Gone(f"{error}; did you mean {close}?" if close else f"{error}; {lists}")


@asynccontextmanager
async def suggesting_definition(plane: Plane, name: str, namespace: str) -> AsyncIterator[None]:
    """Suggest a name in an error that says that a booking's definition does not exist."""
    try:
        yield
    except Invalid as error:
        fault = error.faults[0]
        if not (fault.path.endswith("definition") and fault.problem.startswith("there is no")):
            raise
        found = (await read_all(plane, LabletDefinition, namespace=namespace)).items
        close = _closest(name, [one.metadata.name for one in found])
        remedy = f"did you mean {close}?" if close else "`lcm get definitions` lists them"
        raise Invalid(Fault(fault.path, fault.problem, remedy)) from error


def _closest(name: str, names: Iterable[str]) -> str:
    """Return the name most like a misspelt one; one without a version is compared without versions."""
    known = [*names] if ":" in name else list(dict.fromkeys(one.partition(":")[0] for one in names))
    return next(iter(get_close_matches(name, known, n=1)), "")
