"""Documents as people write them: what is read, what is refused, and what they are told."""

import copy
import itertools
import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness import documents, given
from harness.documents import AWS, SLOT, document, faults, paths
from harness.suite import for_all
from lcm.model.base.errors import Invalid
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.validate import check_rules, parse_document


@pytest.mark.parametrize("kind", KINDS)
def test_a_minimal_document_is_read(kind: str) -> None:
    resource = parse_document(document(kind))
    assert type(resource) is KINDS[kind].struct
    assert (resource.kind, resource.api_version) == (kind, "lcm/v1")
    assert resource.metadata.namespace == "default"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_understood(kind: str) -> None:
    full = documents.filled_document(KINDS[kind].struct)
    found = faults(full | {"kind": kind, "extra": 1})
    assert [fault for fault in found if fault.problem == "unknown field"] == [found[0]]
    assert found[0].path == "extra"


def test_faulty_fields_and_broken_rules_are_reported_together() -> None:
    wrong = document("LabWorkerPool", lab_track=7, min_workers=9, max_workers=3, polcy="HYBRID")
    wrong["metadata"] = {"name": "Not A Name", "labels": {"a": 1, "b": 2}, "created_at": "2026-11-02T09:00:00"}
    wrong["spec"] |= {"thresholds": {"cpu_scale_down": 1.5, "min_labs_per_worker": 20}}
    wrong["spec"] |= {"budget": {"hourly_usd": "-1", "monthly_usd": "NaN"}}
    wrong["api_version"] = "lcm/v9"
    del wrong["spec"]["template"]
    found = faults(wrong)
    assert {fault.path for fault in found} == {
        "api_version",
        "metadata.name",
        "metadata.labels.a",
        "metadata.labels.b",
        "metadata.created_at",
        "spec.lab_track",
        "spec.polcy",
        "spec.template",
        "spec.thresholds.cpu_scale_down",
        "spec.min_workers",
        "spec.budget.hourly_usd",
        "spec.budget.monthly_usd",
    }
    assert all(fault.problem and fault.remedy for fault in found)


@pytest.mark.parametrize("spec", [5, None, [], {"worker": 5}, {"worker": {"aws": []}}])
def test_no_rule_speaks_about_what_a_faulty_field_swallowed(spec: object) -> None:
    (path,) = paths(document("WorkerTemplate") | {"spec": spec})
    assert path in ("spec", "spec.worker", "spec.worker.aws")


def test_a_near_miss_of_a_name_does_not_silence_a_rule() -> None:
    wrong = document("Reservation", count=1, counts=3, student_emails=["a@b.c", "d@e.f"])
    assert paths(wrong) == ["spec.counts", "spec.student_emails"]


@pytest.mark.parametrize(
    ("wrong", "path", "remedy"),
    [
        ({"kind": "LabWorkr"}, "kind", "did you mean LabWorker?"),
        ({"kind": "LabletSession", "spec": {"definitoin": "x"}}, "spec.definitoin", "did you mean definition?"),
        ({"kind": "LabletSession", "metdata": {}}, "metdata", "did you mean metadata?"),
        (
            {"kind": "SystemSettings", "spec": {"discovery": {"region": []}}},
            "spec.discovery.region",
            "did you mean regions?",
        ),
        ({"kind": "SystemSettings", "zzz": 1}, "zzz", "use one of metadata, api_version, kind, spec, status"),
        ({"kind": "LabWorkerPool", "spec": {"policy": "HYBRYD"}}, "spec.policy", "use one of NONE, CAPACITY_BASED"),
    ],
)
def test_a_slip_of_the_pen_gets_a_suggestion(wrong: dict[str, Any], path: str, remedy: str) -> None:
    (fault,) = (one for one in faults(wrong) if one.path == path)
    assert fault.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("wrong", "want"),
    [
        (None, ["document"]),
        ([], ["document"]),
        ("kind: LabWorker", ["document"]),
        ({}, ["kind", "metadata"]),
        ({"kind": None, "metadata": {"name": "a"}}, ["kind"]),
        ({"kind": ["LabWorker"], "metadata": {"name": "a"}}, ["kind"]),
        ({"kind": 7, "metadata": {"name": "A"}, "api_version": "v2"}, ["kind", "metadata.name", "api_version"]),
        ({"kind": "LabWorker", "metadata": []}, ["metadata", "spec.aws"]),
        ({"kind": "LabWorker", "metadata": {}}, ["metadata.name", "spec.aws"]),
        ({"kind": "LabWorker", 7: 7, "metadata": {"name": "a"}, "spec": {"aws": AWS}}, ["7"]),
        ({"kind": "LabletSession", "metadata": {"name": "a"}}, ["spec"]),
    ],
)
def test_what_is_no_document_is_refused(wrong: object, want: list[str]) -> None:
    assert paths(wrong) == want


@pytest.mark.parametrize(
    "moment",
    ["2026-11-02T09:00:00", "2026-11-02", "nine", "", 1793610000, datetime(2026, 11, 2, 9)],  # noqa: DTZ001
)
def test_a_moment_without_its_offset_is_refused(moment: object) -> None:
    (fault,) = faults(document("LabletSession", timeslot_start=moment))
    assert fault.path == "spec.timeslot_start"
    assert fault.remedy == "write for example 2026-11-02T09:00:00Z"


@pytest.mark.parametrize("moment", ["2026-11-02T09:00:00Z", "2026-11-02T10:00:00+01:00", given.moment("09:00")])
def test_a_moment_may_be_written_in_any_offset(moment: object) -> None:
    session = parse_document(document("LabletSession", timeslot_start=moment))
    assert isinstance(session, LabletSession)
    assert session.spec.timeslot_start == given.moment("09:00")


@pytest.mark.parametrize("name", ["w1", "a", "ccna-worker-1", "basics:1.0.0", "0", "a" * 63])
def test_a_name_is_read(name: str) -> None:
    assert parse_document(document("LabWorker") | {"metadata": {"name": name}}).metadata.name == name


@pytest.mark.parametrize(
    "name", ["", "W1", "-a", "a-", "a_b", "a b", "a/b", "ä", "a\n", "\na", "a" * 64, "..", "!x", None, 1]
)
def test_what_is_no_name_is_refused_with_a_remedy(name: object) -> None:
    (fault,) = faults(document("LabWorker") | {"metadata": {"name": name}})
    assert fault.path == "metadata.name"
    assert fault.remedy.startswith("use lower-case letters")


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("spec.cml.license_token", "secret-token"),
        ("spec.cml.admin_password", "hunter2"),
        ("spec.cml.admin_password", "env:\n"),
    ],
)
def test_a_secret_written_instead_of_its_place_is_refused_and_not_repeated(path: str, wrong: str) -> None:
    (fault,) = faults(document("LabWorker", cml={path.rpartition(".")[2]: wrong}))
    assert fault.path == path
    assert wrong.strip() not in str(fault) or wrong == "env:\n"
    assert "env:NAME" in fault.remedy


@pytest.mark.parametrize("cores", [math.nan, math.inf, -1, "4", None, True])
def test_needs_are_numbers_that_exist(cores: object) -> None:
    wrong = document("LabletDefinition", resource_requirements={"cpu_cores": cores, "memory_gb": 8})
    assert paths(wrong) == ["spec.resource_requirements.cpu_cores"]


def test_a_number_without_quotes_is_explained() -> None:
    (fault,) = faults(document("LabletSession", resource_limits={"cpu": 1, "memory": "1Gi"}))
    assert str(fault) == (
        "spec.resource_limits.cpu: expected str, got int; use text of at most 128 characters, none of them a control "
        "character; in quotes if it looks like a number"
    )


def test_faults_in_lists_and_maps_are_named_one_by_one() -> None:
    wrong = document("Reservation", count=3, student_emails=["a@b.c", "nobody", 7])
    assert paths(wrong) == ["spec.student_emails[1]", "spec.student_emails[2]"]
    wrong = document("LabletDefinition", port_template={"a b": {"kind": "vnc"}, "c": {"kind": "usb", "nod": "x"}})
    assert paths(wrong) == ["spec.port_template.a b", "spec.port_template.c.kind", "spec.port_template.c.nod"]


def test_the_members_of_a_list_over_its_limit_are_not_looked_at() -> None:
    held = {"number": 0, "claim": {"start": SLOT["timeslot_start"], "end": SLOT["timeslot_end"], "need": {}}}
    wrong = document("Reservation") | {"status": {"held": [held] * 401}}
    assert paths(wrong) == ["status.held"]
    wrong["status"]["held"][3] = held | {"sesion": "s1"}
    assert paths(wrong) == ["status.held"]


def test_a_typed_object_is_held_against_the_same_rules() -> None:
    check_rules(given.pool())
    with pytest.raises(Invalid, match=r"spec\.min_workers"):
        check_rules(given.pool(min_workers=4, max_workers=2))


@pytest.mark.parametrize("resource", given.every(), ids=lambda one: one.kind)
def test_the_objects_tests_begin_with_are_sound_themselves(resource: Any) -> None:
    check_rules(resource)
    assert parse_document(msgspec.to_builtins(resource)) == resource


def test_an_author_reads_the_remedy_for_a_version_that_cannot_be_a_name() -> None:
    (fault,) = (one for one in faults(document("LabletDefinition", version="1.0.0-RC1")) if one.path == "spec.version")
    assert "lower-case" in fault.remedy


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "2026.11.2", "1.0.0-rc1", "1.0-a.b", "1.0.dev1"])
def test_a_name_can_carry_every_version(version: str) -> None:
    parse_document(document("LabletDefinition", version=version) | {"metadata": {"name": f"basics:{version}"}})


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["NaN", "0", "2026-11-02T09:00:00", "CML", "env:X", "Europe/Berlin", "1.0.0", "a\n", b"a"]),
    st.sampled_from([date(2026, 11, 2), datetime(2026, 11, 2), given.moment("09:00")]),  # noqa: DTZ001 - on purpose
)
keys = st.one_of(st.text(max_size=4), st.integers(), st.none())
garbage = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """List every place in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def placed(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    if not path:
        return new
    made = copy.copy(value)
    made[path[0]] = placed(made[path[0]], path[1:], new)
    return made


FULL = [documents.filled_document(kind.struct) | {"kind": kind.name} for kind in KINDS.values()]
PLACES = [(number, place) for number, full in enumerate(FULL) for place in places(full) if place]


def refuses_or_reads(value: object) -> None:
    try:
        parse_document(value)
    except Invalid as error:
        vague = [fault for fault in error.faults if not fault.path or not fault.problem]
        assert error.faults and not vague  # noqa: PT017, PT018 - either outcome is right, no other is


@for_all(garbage)
def test_nothing_but_invalid_comes_of_garbage(value: object) -> None:
    refuses_or_reads(value)


@for_all(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), garbage))
def test_nothing_but_invalid_comes_of_garbage_of_a_kind(kind: str, parts: dict[str, object]) -> None:
    refuses_or_reads({"kind": kind, **parts})


@for_all(st.lists(st.tuples(st.integers(0, len(PLACES) - 1), garbage), min_size=1, max_size=3))
def test_nothing_but_invalid_comes_of_garbage_anywhere(changes: list[tuple[int, object]]) -> None:
    number = PLACES[changes[0][0]][0]
    value: object = FULL[number]
    for place, new in changes:
        if PLACES[place][0] == number and PLACES[place][1] in set(places(value)):
            value = placed(value, PLACES[place][1], new)
    refuses_or_reads(value)


def test_nothing_but_invalid_comes_of_junk_at_any_place() -> None:
    junk = itertools.cycle([7, [7], {7: 7}, "a\n", math.nan])
    for number, place in PLACES:
        refuses_or_reads(placed(FULL[number], place, next(junk)))


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (document("LabletSession", duration_minutes=10**15), "spec.duration_minutes"),
        (document("LabWorkerPool", max_workers=10**40), "spec.max_workers"),
        (document("LabWorker", max_concurrent_labs=21), "spec.max_concurrent_labs"),
        (document("LabWorker", aws={"ami_id": "ami-1", "region": " "}), "spec.aws.region"),
        (
            document("LabWorker") | {"metadata": {"name": "w1", "labels": {str(n): "" for n in range(65)}}},
            "metadata.labels",
        ),
    ],
)
def test_no_number_text_or_map_is_without_bounds(wrong: dict[str, Any], path: str) -> None:
    assert [fault.path for fault in faults(wrong)] == [path]


def test_not_more_faults_are_told_than_somebody_reads() -> None:
    wrong = document("LabWorker") | {f"field-{number}": number for number in range(1000)}
    found = faults(wrong)
    assert len(found) == 101
    assert (found[-1].path, found[-1].problem) == ("document", "and more faults")
    assert len(faults({"kind": "Nothing", "metadata": {str(number): 1 for number in range(1000)}})) == 101


def test_a_document_of_too_many_values_is_not_walked_through() -> None:
    assert [str(fault) for fault in faults(document("LabWorker", extra=[[1] * 1000] * 60))] == [
        "document: more than 50000 values; no document of any kind is as large"
    ]


def test_what_a_fault_repeats_of_a_document_is_short() -> None:
    long = "x" * 100_000
    bad = {"kind": "usb", "also": [{"kind": long}] * 50}
    wrong = document("LabletDefinition", port_template={long: bad}, lab_type=long, **{long: 1})
    assert max(len(str(fault)) for fault in faults(wrong | {long: 1})) < 1_000
    assert max(len(str(fault)) for fault in faults({"kind": long})) < 1_000
