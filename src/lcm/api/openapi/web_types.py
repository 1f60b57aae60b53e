"""The description from which the web interface's types are made: that of the API, and what the event stream sends.

`python -m lcm.api.openapi.web_types` writes it to standard output; `tools/pages.py check` calls it.
"""

import sys
from typing import Any, Final, get_args

import msgspec

from lcm.api.openapi.description import describe
from lcm.api.routes.row_snapshots import RowSnapshot
from lcm.api.routes.stream import Ready, RowEvent
from lcm.api.routes.table import ROUTES
from lcm.model.base.event import Data

_STREAMED: Final = (RowSnapshot, RowEvent, Ready, *get_args(Data))


def describe_for_web() -> bytes:
    """Return the OpenAPI document with the structs of the event stream among its components."""
    document: dict[str, Any] = msgspec.json.decode(describe(ROUTES))
    _, components = msgspec.json.schema_components(_STREAMED, ref_template="#/components/schemas/{name}")
    schemas = document["components"]["schemas"]
    document["components"]["schemas"] = {**components, **schemas}
    return msgspec.json.encode(document)


if __name__ == "__main__":
    sys.stdout.buffer.write(describe_for_web())
