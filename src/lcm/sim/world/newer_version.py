"""How a newer version of this software writes objects: in a schema that ours can read, with more fields.

`StoreLink` writes with it for processes that are of that version.
"""

from typing import Any, Final

import msgspec

from lcm.control.objects.records import CODEC, codec_of, ref_of_key
from lcm.store.base import Op, Put

NEWER_FIELD: Final = "newer_fact"
"""A field that only the newer version knows; its first value is its value for ever."""
NEWER_HEAD: Final = b"2/1"


def write_as_newer(op: Op) -> Op:
    """Return an operation as the newer version writes it."""
    ref = ref_of_key(op.key)
    if not isinstance(op, Put) or ref is None or codec_of(ref.kind) is not CODEC:
        return op
    document = msgspec.json.decode(op.value.partition(b"\n")[2], type=dict[str, Any])
    for part in ("spec", "status"):
        if isinstance(document.get(part), dict):
            document[part].setdefault(NEWER_FIELD, f"{op.key} {part} at {op.at}")
    return msgspec.structs.replace(op, value=NEWER_HEAD + b"\n" + msgspec.json.encode(document))
