"""Writes `docs/api.md` from the OpenAPI document: `make docs`."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lcm.api.http.problems import REASONS
from lcm.api.http.routing import Route
from lcm.api.openapi.description import document
from lcm.api.routes.table import ROUTES

Json = Any
"""A part of the description."""

_EXAMPLE_PARTS: Final = {"{file}": "lab.yaml", "{port}": "R1_serial"}
_EXAMPLE_NAMES: Final = {
    "workers": "ccna-worker-1",
    "worker-pools": "ccna",
    "worker-templates": "metal",
    "lablet-definitions": "basics:1.0.0",
    "lablet-sessions": "ada-monday",
    "instances": "ada-monday",
    "reservations": "class-7b",
    "settings": "system",
    "alerts": "ccna-worker-1",
    "licenses": "0b8e0f6e-7b1c-4b5e-9a37-0d2f6c1c7a10",
    "deleted-sessions": "5d6c8d9b-2f0e-4f4c-8f5e-6a1a9b0f3c77",
    "leases": "scheduler",
    "event-sinks": "pager",
    "sinks": "ops-chat",
    "tokens": "6e1f4a52-0c8b-4d1e-9a6b-2f4de2b1c001",
    "feeds": "lcm_SECRET",
    "plan": "b2c4d9f0-53a7-4a0e-8a51-6f1d0c9e7b22",
}
"""The object that the examples use, by the segment of the path that names its kind."""


_INTRODUCTION: Final = """\
# The HTTP API

JSON over HTTP. The description that programs read is at `/api/openapi.json`; this page is made from the same table, by
`make docs`. In the examples, `$LCM` is the address and `$TOKEN` a token:

```
export LCM=http://127.0.0.1:8080 TOKEN=$(lcm context token)
```

## Authentication

Send `Authorization: Bearer TOKEN`. `lcm up` keeps a token for the administrator of this machine in the user's
configuration folder, where the command line finds it; `lcm token create` makes others. Where `OIDC_ISSUER` is set,
its tokens (JWT) are accepted as well. Services send the key of `CONTROL_PLANE_API_KEY` as a bearer
token or as `X-API-Key`; `Lcm-Actor` says which controller it is, and `Lcm-Fence: NAME;TERM` binds a write to the term
of a lease.

A browser signs in with a link that `lcm up` or `lcm sign-in` prints, once and within ten minutes, and has a session
cookie for twelve hours then. Where `OIDC_CLIENT_ID` is set, it also signs in at the issuer; that session ends with the
issuer's token, or `OIDC_OUTLIVE_HOURS` later. What a browser changes needs the value of the cookie `lcm_csrf` in the
header `X-CSRF-Token`, and `Origin` or `Sec-Fetch-Site` to say that the page is ours. Sign-ins that fail are limited by
address, and answered 429 with `Retry-After`. A stream ends when its token or session does.

Every write is in the audit, which administrators read: who, what, when, from which address, with which token, and the
`X-Request-ID` that came with it. What controllers report, status and measurements, is in the objects' stories instead.

| role | may |
| --- | --- |
| admin, operator | everything but what services report |
| author | publish definitions, read the fleet, book for themselves |
| user | read definitions, and book, read and end their own sessions and reservations |
| service | read everything, write workers and sessions, and report what was seen under `/api/internal` |

Each route below names the roles that may call it; nobody else may. Somebody else's session is answered like one that
does not exist.

## What holds for every route

- `{id}` is an object's name or its uid. Objects are in namespace `default` unless `?namespace=` says otherwise.
- Lists come in pages: `limit`, and `cursor` from the answer's `next`. All pages are true at the first one's `revision`.
  A page may be shorter than `limit`, even empty, though others follow: there are no more once there is no `next`.
  `label_selector` takes `tier=exam,site!=ber,track in (a,b),!old`, `field_selector` takes `status.phase=READY`.
- An answer with one object carries its revision as `ETag`. `If-Match` with it makes a write fail with 412 if somebody
  was faster; so does a `resource_version` in a document, with 409.
- `?dry_run=true` checks everything, answers what would be, and writes nothing.
- `Idempotency-Key` on a POST: repeated with the same key within a day, it is done once.
- Status and bookkeeping in what you send are ignored.
- More requests than allowed are answered 429 with `Retry-After`, larger ones than allowed 413.

## Errors

Problem documents (RFC 9457). Programs look at `reason`; people read `detail`, and `faults` when a document is wrong.

```json
{"type": "about:blank", "title": "Not valid", "status": 422, "reason": "Invalid",
 "detail": "spec.lab_trak: unknown field; did you mean lab_track?",
 "faults": [{"path": "spec.lab_trak", "problem": "unknown field", "remedy": "did you mean lab_track?"}]}
```
"""


def page(routes: Sequence[Route]) -> str:
    """Return the whole page as Markdown."""
    errors = [f"| {status} | {reasons} |" for status, reasons in sorted(REASONS.items())]
    table = ["| status | reason |", "| --- | --- |", *errors, ""]
    return "\n".join([_INTRODUCTION, *table, *_sections(document(routes))])


def _sections(described: Json) -> Iterator[str]:
    tag = None
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                yield f"## {tag}\n"
            yield from _operation(method.upper(), path, operation)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    roles = ", ".join(operation["x-roles"]) or "anybody"
    yield f"### {method} {path}\n"
    yield f"{operation['summary']}. For {roles}."
    named = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
    if named:
        yield f"Query: {', '.join(f'`{name}`' for name in named)}."
    yield f"\n```\n{_curl(method, path, operation)}\n```\n"


def _curl(method: str, path: str, operation: Json) -> str:
    parts = ["curl -sS"]
    parts += [f"-X {method}"] if method != "GET" else []
    parts += ['-H "Authorization: Bearer $TOKEN"'] if operation["security"] else []
    body = operation.get("requestBody")
    if body is not None:
        media, content = next(iter(body["content"].items()))
        example = content["example"]
        sent = example if isinstance(example, str) else json.dumps(example)
        parts += [f"-H 'Content-Type: {media}'", f"-d '{sent}'"]
    return " ".join([*parts, f'"$LCM{_fill_path(path)}{_query_string(operation)}"'])


def _fill_path(path: str) -> str:
    parts = path.split("/")
    noun = next((part for part in reversed(parts) if part in _EXAMPLE_NAMES), "")
    return "/".join(
        _EXAMPLE_PARTS.get(part) or (_EXAMPLE_NAMES[noun] if part.startswith("{") else part) for part in parts
    )


def _query_string(operation: Json) -> str:
    wanted: Mapping[str, Json] = {
        one["name"]: one["schema"]["examples"][0]
        for one in operation["parameters"]
        if one["in"] == "query" and one["required"]
    }
    return "?" + "&".join(f"{name}={value}" for name, value in wanted.items()) if wanted else ""


if __name__ == "__main__":
    sys.stdout.write(page(ROUTES))
