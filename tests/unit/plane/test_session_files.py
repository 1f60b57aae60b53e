"""What a session leaves to its owner: files that only he and staff read, and its story as lines."""

from datetime import timedelta
from typing import Any

import pytest

from harness import given
from harness.plane_world import NOW, World, either, on
from lcm.control.objects.records import creation_ops
from lcm.control.objects.session_files import stored_name, story_lines
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Gone, Refused
from lcm.model.kinds.session import Artifact, LabletSession, Progress, SchedulingDecision, SessionPhase, Waiting
from lcm.providers.protocols.artifacts import digest_of

S1 = Ref(LabletSession, "s1")
LAB = b"lab:\n  title: with its final configurations\n"
DAYS = timedelta(days=30)
kept = on("memory", "memory-http", "sqlite-http", files={})


def entry(name: str = "lab.yaml", data: bytes = LAB, **more: object) -> Artifact:
    plain = Artifact(name=name, digest=digest_of(data), size_bytes=len(data), collected_at=NOW, expires_at=NOW + DAYS)
    return given.changed(plain, more)


def ended(*artifacts: Artifact, **more: Any) -> LabletSession:
    return given.session(owner="ada", phase=SessionPhase.COMPLETED, artifacts=artifacts, **more)


async def there(world: World, session: LabletSession, **files: bytes) -> None:
    await world.store.commit(*creation_ops(session))
    assert world.artifacts is not None
    for name, data in files.items():
        await world.artifacts.put_temporary(stored_name(session, f"{name}.yaml"), data)


@kept
async def test_an_owner_lists_and_downloads_what_was_collected(world: World) -> None:
    await there(world, ended(entry()), lab=LAB)
    for plane in (world.ada, world.root, world.person("otto")):
        assert list(await plane.artifacts(S1)) == [entry()]
        assert await plane.download(S1, "lab.yaml") == LAB


@kept
async def test_nobody_else_learns_even_that_there_is_something(world: World) -> None:
    await there(world, ended(entry()), lab=LAB)
    for plane in (world.bob, world.person("anna")):
        told = []
        for ref in (S1, Ref(LabletSession, "s2")):
            for ask in (plane.artifacts(ref), plane.download(ref, "lab.yaml"), plane.logs(ref)):
                with pytest.raises(Gone) as caught:
                    await ask
                told.append(str(caught.value).replace(ref.name, "NAME"))
        assert len(set(told)) == 1


@kept
async def test_what_was_not_collected_is_not_there(world: World) -> None:
    other = given.session(name="s2", uid="uid-s2", owner="bob")
    await there(world, ended(entry()), lab=LAB)
    await there(world, other, lab=b"of somebody else")
    for name in ("other.yaml", "", ".", "..", "../uid-s2/lab.yaml", "%2e%2e", "a" * 300):
        with pytest.raises(Gone):
            await world.ada.download(S1, name)


@kept
async def test_a_file_expires(world: World) -> None:
    await there(world, ended(entry(), entry("notes.yaml", expires_at=None)), lab=LAB, notes=LAB)
    await world.pass_time(DAYS.total_seconds())
    assert [one.name for one in await world.ada.artifacts(S1)] == ["notes.yaml"]
    with pytest.raises(Gone, match=r"lab.yaml of session s1 expired at 2026-12-02T08:00:00Z: .*retention_days"):
        await world.ada.download(S1, "lab.yaml")
    assert await world.ada.download(S1, "notes.yaml") == LAB


@kept
async def test_a_file_that_was_swept_is_gone(world: World) -> None:
    await there(world, ended(entry()))
    with pytest.raises(Gone, match="is missing from the file store"):
        await world.ada.download(S1, "lab.yaml")


@either
async def test_where_no_files_are_kept_none_are_given(world: World) -> None:
    await world.store.commit(*creation_ops(ended(entry())))
    assert [one.name for one in await world.ada.artifacts(S1)] == ["lab.yaml"]
    with pytest.raises(Refused, match="keeps no files"):
        await world.ada.download(S1, "lab.yaml")
    with pytest.raises(Gone):
        await world.bob.download(S1, "lab.yaml")


@kept
async def test_a_session_s_story_is_read_as_text(world: World) -> None:
    session = ended(entry(), history=given.history("PENDING", "RUNNING", "COMPLETED"))
    await there(world, session)
    told = await world.ada.logs(S1)
    assert told.splitlines() == list(story_lines(session))
    assert told.startswith("2026-11-02T09:00:00Z PENDING by test: reason 0\n")
    until = "2026-12-02T08:00:00Z"
    assert told.endswith(f"2026-11-02T08:00:00Z collected: lab.yaml, {len(LAB)} bytes, kept until {until}\n")


def test_lines_say_how_far_it_is_why_and_what_went_wrong() -> None:
    session = given.session(
        history=given.history("PENDING"),
        last_decision=SchedulingDecision("wait", reason="a seat boots"),
        waiting=Waiting(queue_position=2, estimated_start=given.moment("09:30"), basis="by a boot that is under way"),
        progress=Progress(step="import", percent=40, message="importing the lab", at=given.moment("09:05")),
        observed_at=given.moment("09:10"),
        observation_count=2,
        port_drift_detected=True,
        last_error="CML did not answer",
    )
    assert list(story_lines(session)) == [
        "2026-11-02T09:00:00Z PENDING by test: reason 0",
        "decision: wait: a seat boots",
        "waiting: position 2, about 2026-11-02T09:30:00Z: by a boot that is under way",
        "2026-11-02T09:05:00Z progress: import, 40 %: importing the lab",
        "2026-11-02T09:10:00Z observed: 2 times so far, its ports have drifted",
        "error: CML did not answer",
    ]
    assert list(story_lines(given.session())) == []


def test_nobodys_words_look_like_a_line_of_the_story() -> None:
    (line,) = given.history("RUNNING")
    forged = "bye\n2026-01-01T00:00:00Z RUNNING by root\u2028: all is well"
    session = given.session(history=[given.changed(line, {"reason": forged})], last_error=forged)
    told = "".join(f"{one}\n" for one in story_lines(session)).splitlines()
    assert told == [
        "2026-11-02T09:00:00Z RUNNING by test: bye 2026-01-01T00:00:00Z RUNNING by root : all is well",
        "error: bye 2026-01-01T00:00:00Z RUNNING by root : all is well",
    ]
