"""What a session's lab and files are called outside. Pure; whoever looks for them asks here.

Every name carries the session's uid: names of sessions are used again, in other namespaces and at other times.
"""

import re
from typing import Final

from lcm.control.session_files import kept_name
from lcm.model.session import LabletSession
from lcm.providers.artifacts import named

LAB_FILE: Final = "lab.yaml"
_LONGEST_TITLE: Final = 64
"""What CML allows."""
_OURS: Final = re.compile(r".* \[([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\]", re.DOTALL)


def title_of(session: LabletSession) -> str:
    """Name a session's lab on its host; what does not fit of the readable part is left out, never of the uid."""
    meta = session.metadata
    tail = f" [{meta.uid}]"
    return f"{meta.namespace}/{meta.name}"[: _LONGEST_TITLE - len(tail)] + tail


def owner_of(title: str) -> str | None:
    """Name the session, by its uid, that a lab of this title is of; None for a stranger's."""
    found = _OURS.fullmatch(title)
    return found[1] if found else None


def prepared_name(session: LabletSession) -> str:
    """Name the file that is imported: the topology with the session's own ports. It ends with the session."""
    return f"{session.metadata.uid}/{LAB_FILE}"


def prepared_uri(session: LabletSession) -> str:
    """Say where the file that is imported is kept."""
    return named(prepared_name(session)).uri


def collected_uri(session: LabletSession, file: str = LAB_FILE) -> str:
    """Say where a file that was collected from a session's lab is kept."""
    return named(kept_name(session, file)).uri
