"""Lists: pages, selectors, and what a caller sees of them."""

import base64

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ANNA, BOB, OTTO, ROOT, Stage, active, service
from lcm.control.objects import reads
from lcm.control.plane.protocol import LONGEST_PAGE, Listing, Plane, Ref
from lcm.model.base.errors import Forbidden, Invalid, Relist
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.selector import EVERYTHING, ObjectSelector, parse_selector
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker


async def workers(count: int) -> Stage:
    stage = Stage()
    for number in range(count):
        labels = {"parity": "even" if number % 2 == 0 else "odd", "tier": "gold" if number % 3 else "tin"}
        await stage[ROOT].create(given.worker(name=f"w{number:02}", labels=labels, lab_track=f"t{number % 2}"))
    return stage


async def pages(
    plane: Plane, kind: type[LabWorker] | type[LabletSession], limit: int, where: ObjectSelector = EVERYTHING
) -> list[list[str]]:
    found, cursor = [], None
    while True:
        page: Listing[LabWorker | LabletSession] = await plane.list(kind, where=where, limit=limit, cursor=cursor)
        found.append([one.metadata.name for one in page.items])
        cursor = page.next
        if cursor is None:
            return found


async def test_pages_hold_what_is_asked_for_and_the_last_one_says_so() -> None:
    plane = (await workers(7))[ROOT]
    assert await pages(plane, LabWorker, 3) == [["w00", "w01", "w02"], ["w03", "w04", "w05"], ["w06"]]
    assert [len(page) for page in await pages(plane, LabWorker, 7)] == [7]


@pytest.mark.parametrize("selector", ["", "absent!=x"])
async def test_a_page_of_large_objects_ends_before_its_limit(selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand definitions of 35 kB took 1.6 s of the loop, for one request of anybody."""
    stage = await workers(7)
    size = max(len(entry.value) for entry in (await stage.store.scan(KINDS["LabWorker"].prefix)).entries)
    monkeypatch.setattr(reads, "PAGE_BYTES", 3 * size)
    found = await pages(stage[ROOT], LabWorker, LONGEST_PAGE, parse_selector(LabWorker, selector))
    assert [len(page) for page in found] == [3, 3, 1]
    monkeypatch.setattr(reads, "PAGE_BYTES", 1)
    found = await pages(stage[ROOT], LabWorker, LONGEST_PAGE, parse_selector(LabWorker, selector))
    assert found == [[f"w{number:02}"] for number in range(7)]


@pytest.mark.parametrize(
    ("selectors", "wanted"),
    [
        (("parity=even", ""), [["w00", "w02"], ["w04"]]),
        (("parity!=even", ""), [["w01", "w03"], ["w05"]]),
        (("parity in (even,odd),tier=gold", ""), [["w01", "w02"], ["w04", "w05"]]),
        (("", "spec.lab_track=t1"), [["w01", "w03"], ["w05"]]),
        (("tier=gold", "spec.lab_track=t1"), [["w01", "w05"]]),
        (("!parity", ""), [[]]),
        (("parity=even,parity=odd", ""), [[]]),
    ],
)
async def test_selectors_leave_no_gap_and_no_empty_page(selectors: tuple[str, str], wanted: list[list[str]]) -> None:
    plane = (await workers(6))[ROOT]
    assert await pages(plane, LabWorker, 2, parse_selector(LabWorker, *selectors)) == wanted


async def test_a_search_for_what_nothing_has_looks_at_so_many_objects_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    monkeypatch.setattr(reads, "MOST_EXAMINED", 4)
    plane = (await workers(9))[ROOT]
    where = parse_selector(LabWorker, "", "status.phase=DRAINING")
    assert await pages(plane, LabWorker, 5, where) == [[], [], []]
    assert await pages(plane, LabWorker, 5, parse_selector(LabWorker, "", "spec.lab_track=t1")) == [
        ["w01", "w03"],
        ["w05", "w07"],
        [],
    ]


async def test_pages_are_true_at_the_first_ones_revision() -> None:
    stage = await workers(4)
    first = await stage[ROOT].list(LabWorker, limit=2)
    await stage[ROOT].create(given.worker(name="w009"))
    await stage[ROOT].patch(Ref(LabWorker, "w03"), {"metadata": {"labels": {"late": "yes"}}})
    second = await stage[ROOT].list(LabWorker, limit=2, cursor=first.next)
    assert [one.metadata.name for one in second.items] == ["w02", "w03"]
    assert "late" not in second.items[1].metadata.labels
    assert second.revision == first.revision
    await stage.store.compact(await stage.revision())
    with pytest.raises(Relist):
        await stage[ROOT].list(LabWorker, limit=2, cursor=first.next)


async def test_a_learner_lists_their_own_page_by_page() -> None:
    stage = Stage()
    await stage.put(active())
    for number in range(9):
        await stage[OTTO].create(given.session(name=f"s{number}", owner="ada" if number % 3 == 0 else "bob"))
    assert await pages(stage[ADA], LabletSession, 2) == [["s0", "s3"], ["s6"]]
    assert await pages(stage[BOB], LabletSession, 3) == [["s1", "s2", "s4"], ["s5", "s7", "s8"]]
    assert await pages(stage[ANNA], LabletSession, 3) == [[]]
    assert len((await stage[service(SCHEDULER)].list(LabletSession)).items) == 9


async def test_namespaces_are_kept_apart() -> None:
    stage = await workers(2)
    await stage[ROOT].create(given.worker(name="w9", namespace="exam"))
    assert [one.metadata.name for one in (await stage[ROOT].list(LabWorker, namespace="exam")).items] == ["w9"]
    assert len((await stage[ROOT].list(LabWorker)).items) == 3
    with pytest.raises(Invalid):
        await stage[ROOT].list(LabWorker, namespace="no/namespace")


@pytest.mark.parametrize("limit", [0, -1, LONGEST_PAGE + 1])
async def test_a_page_has_a_size(limit: int) -> None:
    with pytest.raises(Invalid):
        await Stage()[ROOT].list(LabWorker, limit=limit)


def forged(revision: int, key: str) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((revision, key))).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "%%%%",
        "ü",
        forged(2, "uids/x"),
        forged(2, "tokens/"),
        forged(0, "workers/a/b"),
        forged(2**60, "workers/a/b"),
    ],
)
async def test_a_cursor_that_is_not_ours_is_refused(cursor: str) -> None:
    stage = await workers(3)
    with pytest.raises(Invalid) as raised:
        await stage[ROOT].list(LabWorker, cursor=cursor)
    assert [fault.path for fault in raised.value.faults] == ["cursor"]


async def test_a_cursor_from_the_future_says_relist() -> None:
    stage = await workers(3)
    with pytest.raises(Relist):
        await stage[ROOT].list(LabWorker, cursor=forged(10_000, "workers/default/w00"))


async def test_an_object_is_found_by_name_and_by_uid() -> None:
    stage = await workers(1)
    worker = await stage[ROOT].get(Ref(LabWorker, "w00"))
    assert worker is not None
    assert await stage[ROOT].get(Ref(LabWorker, worker.metadata.uid)) == worker
    assert await stage[OTTO].get(Ref(LabletSession, worker.metadata.uid)) is None
    assert (
        await stage[ROOT].patch(Ref(LabWorker, worker.metadata.uid), {"spec": {"lab_track": "x"}})
    ).spec.lab_track == "x"


@pytest.mark.parametrize("name", ["", "../w00", "W00", "w 0", "w00/", "ü", 600 * "x", "w00\n"])
async def test_what_could_have_no_name_is_not_there(name: str) -> None:
    stage = await workers(1)
    assert await stage[ROOT].get(Ref(LabWorker, name)) is None
    assert await stage[ROOT].get(Ref(LabWorker, "w00", name)) is None


async def test_foreign_objects_are_like_missing_ones() -> None:
    stage = Stage()
    await stage.put(active())
    made = await stage[BOB].create(given.session())
    for ref in (Ref(LabletSession, "s1"), Ref(LabletSession, made.metadata.uid), Ref(LabletSession, "nobody")):
        assert await stage[ADA].get(ref) is None
    with pytest.raises(Forbidden):
        await stage[ADA].get(Ref(LabWorker, "w1"))
