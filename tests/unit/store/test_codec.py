"""Documents across versions: what an older reader does not know survives what it writes."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from harness import documents, given
from harness.suite import for_all
from lcm.control.accounts.allocator import Allocation
from lcm.model.base.errors import Stuck
from lcm.model.base.resource import with_change
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerTelemetry
from lcm.store.codec import Codec

CODEC = Codec()
STORED: list[type[msgspec.Struct]] = [*(kind.struct for kind in KINDS.values()), WorkerTelemetry]
NEW = {"a field": ["of a newer", {"version": 1}]}


def stored(document: object, head: bytes = b"1/1") -> bytes:
    return head + b"\n" + msgspec.json.encode(document)


def opened(raw: bytes) -> Any:
    return msgspec.json.decode(raw.partition(b"\n")[2])


def head(raw: bytes) -> bytes:
    return raw.partition(b"\n")[0]


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_what_is_written_is_read_back(kind: type[msgspec.Struct]) -> None:
    value = msgspec.convert(documents.filled_document(kind), kind)
    raw = CODEC.encode(value)
    assert CODEC.decode(raw, kind) == value
    assert CODEC.encode(value, onto=raw) == raw


@pytest.mark.parametrize("resource", given.every(), ids=lambda one: one.kind)
def test_a_small_document_is_read_back(resource: Any) -> None:
    assert CODEC.decode(CODEC.encode(resource), type(resource)) == resource


def with_news(document: Any, info: inspect.Type) -> Any:
    """Add a field that no struct knows, to every struct in a document."""
    match info:
        case inspect.Metadata(type=inner):
            return with_news(document, inner)
        case inspect.UnionType(types=types):
            return with_news(document, next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType(fields=fields):
            return {one.encode_name: with_news(document[one.encode_name], one.type) for one in fields} | {"new": NEW}
        case inspect.DictType(value_type=item):
            return {name: with_news(value, item) for name, value in document.items()}
        case inspect.VarTupleType(item_type=item):
            return [with_news(value, item) for value in document]
    return document


def news(document: Any) -> int:
    if isinstance(document, dict):
        return sum(1 if name == "new" else news(value) for name, value in document.items())
    return sum(map(news, document)) if isinstance(document, list) else 0


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("version", [b"1/1", b"3/1"])
def test_unknown_fields_survive_an_older_reader_wherever_they_are(kind: type[msgspec.Struct], version: bytes) -> None:
    document = with_news(documents.filled_document(kind), inspect.type_info(kind))
    raw = stored(document, version)
    value = CODEC.decode(raw, kind)
    assert value == msgspec.convert(documents.filled_document(kind), kind)
    again = CODEC.encode(value, onto=raw)
    assert opened(again) == document
    assert news(document) >= len(documents.structs(kind)) - 1
    assert head(again) == version


def session(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(given.session())
    document["status"] |= changes
    return document


def rewritten(document: dict[str, Any], **status: Any) -> Any:
    """Read a session, change its status, write it again."""
    raw = stored(document)
    old = CODEC.decode(raw, LabletSession)
    return opened(CODEC.encode(replace(old, status=replace(old.status, **status)), onto=raw))


def test_a_change_is_written_and_what_is_unknown_is_kept_beside_it() -> None:
    document = session(new=1) | {"news": 2}
    document["metadata"]["labels"] = {"track": "ccna"}
    document["metadata"]["new"] = 3
    after = rewritten(document, phase=SessionPhase.SCHEDULED, worker_id="uid-w1")
    assert (after["news"], after["status"]["new"], after["metadata"]["new"]) == (2, 1, 3)
    assert (after["status"]["phase"], after["status"]["worker_id"]) == ("SCHEDULED", "uid-w1")


def test_a_part_that_was_removed_stays_removed() -> None:
    progress = {"step": "import", "percent": 5, "message": "", "at": "2026-11-02T09:00:00Z", "new": 1}
    assert rewritten(session(progress=progress))["status"]["progress"]["new"] == 1
    assert rewritten(session(progress=progress), progress=None)["status"]["progress"] is None


def test_a_part_that_was_replaced_keeps_what_is_unknown() -> None:
    waiting = {"queue_position": 3, "estimated_start": None, "basis": "", "new": 1}
    old = CODEC.decode(stored(session(waiting=waiting)), LabletSession).status.waiting
    assert old is not None
    after = rewritten(session(waiting=waiting), waiting=replace(old, queue_position=2))
    assert after["status"]["waiting"] == waiting | {"queue_position": 2}


def test_an_entry_that_was_removed_from_a_map_stays_removed() -> None:
    document = msgspec.to_builtins(given.definition())
    document["spec"]["port_template"] = {"a": {"kind": "vnc", "new": 1}, "b": {"kind": "serial", "new": 2}}
    raw = stored(document)
    old = CODEC.decode(raw, KINDS["LabletDefinition"].struct)
    template = getattr(old.spec, "port_template")  # noqa: B009 - the union of all kinds does not have it
    kept = given.changed(old, {"spec": {"port_template": {"b": template["b"]}}})
    after = opened(CODEC.encode(kept, onto=raw))["spec"]["port_template"]
    assert set(after) == {"b"}
    assert after["b"]["new"] == 2


CONDITIONS = [
    {
        "type": name,
        "status": "True",
        "last_transition_at": "2026-11-02T09:00:00Z",
        "reason": "",
        "message": "",
        "new": name,
    }
    for name in ("WorkerAssigned", "AtRisk")
]


def test_members_of_a_list_are_recognized_by_identity() -> None:
    document = session(conditions=CONDITIONS)
    first, second = CODEC.decode(stored(document), LabletSession).status.conditions
    after = rewritten(document, conditions=(replace(second, reason="Smaller"), first))["status"]["conditions"]
    assert [(one["type"], one["reason"], one["new"]) for one in after] == [
        ("AtRisk", "Smaller", "AtRisk"),
        ("WorkerAssigned", "", "WorkerAssigned"),
    ]


def test_a_member_that_was_removed_from_a_list_stays_removed() -> None:
    document = session(conditions=CONDITIONS)
    _, second = CODEC.decode(stored(document), LabletSession).status.conditions
    (after,) = rewritten(document, conditions=(second,))["status"]["conditions"]
    assert after["new"] == "AtRisk"
    assert rewritten(document, conditions=())["status"]["conditions"] == []


def test_members_without_an_identity_are_recognized_by_what_is_known_of_them() -> None:
    lines = [msgspec.to_builtins(one) | {"new": one.phase} for one in given.history("PENDING", "SCHEDULED")]
    document = session(history=lines)
    old = CODEC.decode(stored(document), LabletSession).status.history
    longer = with_change(old[1:], given.history("RUNNING")[0])
    after = rewritten(document, history=longer)["status"]["history"]
    assert [(one["phase"], one.get("new")) for one in after] == [("SCHEDULED", "SCHEDULED"), ("RUNNING", None)]


def test_members_are_recognized_however_another_version_writes_them() -> None:
    line = {"phase": "PENDING", "at": "2026-11-02T09:00:00+00:00", "by": "test", "new": 1}
    (after,) = rewritten(session(history=[line]))["status"]["history"]
    assert (after["new"], after["reason"]) == (1, "")


def test_members_that_cannot_be_read_are_nobodys_past() -> None:
    (change,) = given.history("PENDING")
    line = msgspec.to_builtins(change)
    raw = stored(session(history=[7, {"phase": "PENDING"}, line | {"new": 1}]))
    after = opened(CODEC.encode(given.session(history=(change,)), onto=raw))
    assert after["status"]["history"] == [line | {"new": 1}]


def test_equal_members_keep_each_their_own() -> None:
    line = msgspec.to_builtins(given.history("PENDING")[0])
    document = session(history=[line | {"new": 1}, line | {"new": 2}])
    assert [one["new"] for one in rewritten(document)["status"]["history"]] == [1, 2]


def test_a_promise_keeps_what_is_unknown_when_its_session_takes_it_over() -> None:
    claim = msgspec.to_builtins(given.claim())
    document = msgspec.to_builtins(given.reservation())
    document["status"]["held"] = [
        {"number": n, "claim": claim, "seat": None, "session": None, "new": n} for n in (0, 1)
    ]
    raw = stored(document)
    old = CODEC.decode(raw, Reservation)
    held = (old.status.held[0], replace(old.status.held[1], session="s1"))
    after = opened(CODEC.encode(given.changed(old, {"status": {"held": held}}), onto=raw))
    assert [(one["session"], one["new"]) for one in after["status"]["held"]] == [(None, 0), ("s1", 1)]


def test_a_known_field_that_an_old_document_lacks_takes_its_default() -> None:
    raw = stored({"metadata": {"name": "w1", "new": 1}})
    worker = CODEC.decode(raw, LabWorker)
    assert worker == LabWorker(metadata=worker.metadata)
    after = opened(CODEC.encode(worker, onto=raw))
    assert after["metadata"]["new"] == 1
    assert after["spec"]["max_concurrent_labs"] == 20


def rename(document: dict[str, Any]) -> dict[str, Any]:
    spec = dict(document["spec"])
    spec["lab_track"] = spec.pop("track")
    return document | {"spec": spec}


def grow(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    return document | {"spec": spec | {"max_workers": spec["max_workers"] * 10}}


THIRD = Codec(3, reads=2, upgrades={1: {"LabWorkerPool": rename}, 2: {"LabWorkerPool": grow, "LabWorker": rename}})


def pool(**spec: Any) -> dict[str, Any]:
    return {"kind": "LabWorkerPool", "metadata": {"name": "ccna"}, "spec": {"template": "metal"} | spec, "new": 1}


@pytest.mark.parametrize(
    "raw",
    [
        stored(pool(track="ccna", max_workers=1), b"1/1"),
        stored(pool(lab_track="ccna", max_workers=1), b"2/1"),
        stored(pool(lab_track="ccna", max_workers=10), b"3/2"),
        stored(pool(lab_track="ccna", max_workers=10), b"4/3"),
    ],
    ids=["two steps", "one step", "same", "newer"],
)
def test_an_older_document_is_upgraded_step_by_step(raw: bytes) -> None:
    upgraded = THIRD.decode(raw, LabWorkerPool)
    assert (upgraded.spec.lab_track, upgraded.spec.max_workers) == ("ccna", 10)
    again = THIRD.encode(upgraded, onto=raw)
    assert head(again) == (b"4/3" if head(raw) == b"4/3" else b"3/2")
    assert opened(again)["new"] == 1
    assert "track" not in opened(again)["spec"]
    assert THIRD.decode(again, LabWorkerPool) == upgraded


@pytest.mark.parametrize("kind", [Allocation, WorkerTelemetry, LabWorkerPool])
def test_every_struct_can_be_upgraded_whether_or_not_its_document_names_its_kind(kind: type[msgspec.Struct]) -> None:
    def upgrade(document: dict[str, Any]) -> dict[str, Any]:
        return document | {"upgraded": True}

    raw = stored(documents.filled_document(kind))
    newer = Codec(2, upgrades={1: {kind.__name__: upgrade}})
    value = newer.decode(raw, kind)
    assert opened(newer.encode(value, onto=raw))["upgraded"]


def test_a_new_document_carries_the_versions_of_its_writer() -> None:
    assert head(THIRD.encode(given.pool())) == b"3/2"
    assert head(CODEC.encode(given.pool())) == b"1/1"


def test_an_older_writer_leaves_the_versions_of_a_newer_one() -> None:
    newer = Codec(2, reads=1).encode(given.pool())
    assert head(CODEC.encode(given.pool(max_workers=3), onto=newer)) == b"2/1"


def test_a_document_that_needs_a_newer_reader_is_refused() -> None:
    raw = THIRD.encode(given.pool())
    for verb in (lambda: CODEC.decode(raw, LabWorkerPool), lambda: CODEC.encode(given.pool(), onto=raw)):
        with pytest.raises(Stuck, match="needs schema 2, this version reads up to 1; upgrade it") as raised:
            verb()
        assert raised.value.reason == "NewerSchema"


GARBAGE = [
    b"",
    b"\n",
    b"{}",
    b"1\n{}",
    b"1/1/1\n{}",
    b"a/b\n{}",
    b"-9999999999999/1\n{}",
    b" 1/1\n{}",
    b"1/1",
    b"1/1\n",
    b"1/1\n{",
    b"1/1\n[]",
    b"1/1\nnull",
    b"1/1\n\xff\xfe",
    b'1/1\n{"metadata": {"name": "\xff"}}',
    b"2/1\n\xff",
    b"1/1\n" + b'{"a":' * 100_000,
    b"2/1\n" + b"[" * 100_000,
]


@pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: repr(raw[:20]))
def test_garbage_is_refused_and_not_overwritten(raw: bytes) -> None:
    for verb in (lambda: CODEC.decode(raw, LabWorker), lambda: CODEC.encode(given.worker(), onto=raw)):
        with pytest.raises(Stuck) as raised:
            verb()
        assert raised.value.reason == "UnreadableDocument"


@pytest.mark.parametrize(
    "document",
    [{}, {"metadata": {}}, {"metadata": {"name": "w1"}, "kind": "LabletSession"}, {"metadata": {"name": 7}}],
)
def test_a_document_of_another_shape_is_refused(document: object) -> None:
    with pytest.raises(Stuck, match="a stored LabWorker cannot be read") as raised:
        CODEC.decode(stored(document), LabWorker)
    assert raised.value.reason == "UnreadableDocument"


@for_all(st.binary(max_size=40))
def test_nothing_but_stuck_comes_of_any_bytes(raw: bytes) -> None:
    with pytest.raises(Stuck):
        CODEC.decode(b"1/1\n" + raw, LabWorker)


def cuts(raw: bytes) -> Iterator[bytes]:
    yield from (raw[:length] for length in range(0, len(raw), 7))


def test_a_document_cut_short_is_refused() -> None:
    for raw in cuts(CODEC.encode(given.session())):
        with pytest.raises(Stuck):
            CODEC.decode(raw, LabletSession)
