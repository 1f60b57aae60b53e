"""Selectors: what a person writes, and which objects it means."""

import time

import msgspec
import pytest

from harness import given
from lcm.model.base.errors import Invalid
from lcm.model.base.selector import EVERYTHING, SelectorTerm, find_needed_texts, format_terms, parse_selector, selects
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase

READY = given.worker(phase=WorkerPhase.READY, labels={"tier": "gold", "site": "ber"}, lab_track="ccna")


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        ("", True),
        ("tier=gold", True),
        ("tier==gold", True),
        (" tier = gold , site = ber ", True),
        ("tier=silver", False),
        ("tier!=silver", True),
        ("tier!=gold", False),
        ("absent!=gold", True),
        ("tier in (gold, silver)", True),
        ("tier in (silver,bronze),site=ber", False),
        ("tier notin (silver)", True),
        ("tier\tin(gold),site == ber", True),
        ("tier", True),
        ("absent", False),
        ("!absent", True),
        ("!tier", False),
        ("tier=", False),
    ],
)
def test_labels_are_selected_as_written(labels: str, *, chosen: bool) -> None:
    assert selects(parse_selector(LabWorker, labels), READY) is chosen


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ("status.phase=READY", True),
        ("status.phase!=READY", False),
        ("status.phase in (READY,ACTIVE)", True),
        ("spec.lab_track=ccna,metadata.name=w1", True),
        ("spec.aws.public_ip=true", True),
        ("spec.aws.ami_id", False),
        ("!spec.aws.ami_id", True),
        ("status.idle.idle=true", False),
        ("status.idle.idle!=true", True),
    ],
)
def test_fields_are_selected_by_their_path(fields: str, *, chosen: bool) -> None:
    assert selects(parse_selector(LabWorker, fields=fields), READY) is chosen


@pytest.mark.parametrize(
    "text",
    [
        "=",
        "a=b=c(",
        "a=b=c",
        "a b",
        "tier in gold",
        "a in (b",
        "a (b)",
        "in (b)",
        "a in ((b))",
        ",",
        "a=1,,b=2",
        "x" * 1025,
    ],
)
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(Invalid, match="label_selector"):
        parse_selector(LabWorker, text)


@pytest.mark.parametrize(
    "path", ["status.phse", "spec", "spec.aws", "metadata.labels", "status.history", "nothing.at.all"]
)
def test_a_field_that_cannot_be_compared_is_named(path: str) -> None:
    with pytest.raises(Invalid, match=path):
        parse_selector(LabWorker, fields=f"{path}=x")


def test_the_most_terms_are_read_in_no_time() -> None:
    """Each looked at its whole kind anew: 146 terms held the loop for 0.4 s."""
    parse_selector(LabletSession, fields="kind=a")
    began = time.process_time()
    where = parse_selector(LabletSession, fields=",".join(["kind=a"] * 146))
    assert time.process_time() - began < 0.05
    assert len(where.fields) == 146


def test_terms_survive_being_written() -> None:
    where = parse_selector(LabletSession, "a=b,c!=d,e in (f,g),h notin (i,j),k,!l", "status.phase=RUNNING")
    assert parse_selector(LabletSession, format_terms(where.labels), format_terms(where.fields)) == where


def test_the_store_filters_by_what_is_exact() -> None:
    where = parse_selector(LabWorker, "a=b,c!=d,e in (f,g),h")
    assert where.exact_labels == {"a": "b"}
    assert EVERYTHING.exact_labels == {}


def test_a_term_without_values_asks_whether_it_is_there() -> None:
    assert SelectorTerm("x", ()).holds("anything")
    assert not SelectorTerm("x", ()).holds(None)


def test_phases_compare_as_they_are_written() -> None:
    running = given.session(phase=SessionPhase.RUNNING)
    assert selects(parse_selector(LabletSession, fields="status.phase=RUNNING,status.outcome!=FAILED"), running)


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ("status.phase=READY", [[b'"READY"']]),
        ("status.phase in (READY,ACTIVE),spec.lab_track=ccna", [[b'"READY"', b'"ACTIVE"'], [b'"ccna"']]),
        ("status.phase=PENDING", []),  # a document that lacks the field has it
        ("spec.aws.region=us-east-1", []),  # likewise
        ("spec.wanted_state in (stopped,running)", []),
        ("status.phase!=READY", []),
        ("status.ec2.private_ip", []),
        ("spec.aws.public_ip=true", []),  # JSON writes no quotes
        ("metadata.generation=1", []),
        ("spec.lab_track=ré", []),
    ],
)
def test_what_the_json_of_a_selected_object_must_contain(fields: str, needed: list[list[bytes]]) -> None:
    where = parse_selector(LabWorker, "", fields)
    assert find_needed_texts(LabWorker, where) == needed
    if selects(where, READY):
        assert all(any(text in msgspec.json.encode(READY) for text in texts) for texts in needed)
