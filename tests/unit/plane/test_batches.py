"""Batches in one commit keep the rules of what they do one by one."""

import msgspec
import pytest

from harness import given
from harness.documents import document
from harness.plane_world import OTTO, ROOT, Stage
from lcm.control.objects.records import CODEC
from lcm.control.objects.requests import PREFIX, RequestRecord
from lcm.control.plane.batch import ActionItem, BatchItem, BatchMode, BatchRequest, CreateItem, DeleteItem
from lcm.control.plane.protocol import License
from lcm.model.base.errors import Invalid
from lcm.store.base import scan_all

TOKEN = "plain:secret-token"
RENEWAL = ActionItem(kind="LabWorker", name="w1", action=License(license_token=TOKEN))


def new_worker() -> CreateItem:
    made = document("LabWorker") | {"metadata": {"name": "w2"}}
    made["spec"]["cml"] = {"license_token": TOKEN}
    return CreateItem(document=made)


@pytest.mark.parametrize("mode", ["each", "all"])
@pytest.mark.parametrize("item", [RENEWAL, new_worker()], ids=["action", "document"])
async def test_a_secret_is_sealed_before_anybody_sees_it_and_cannot_be_guessed_from_the_record_of_the_request(
    item: BatchItem, mode: BatchMode
) -> None:
    stage = Stage()
    await stage.put(given.worker())
    asked = BatchRequest(items=(item,), mode=mode)
    answer = await stage[OTTO].batch(asked, request="once")
    assert (answer.done, b"secret-token" in msgspec.json.encode(answer)) == (1, False)
    stored = (await scan_all(stage.store, "")).entries
    assert not [entry.key for entry in stored if b"secret-token" in entry.value]
    records = [CODEC.decode(one.value, RequestRecord) for one in stored if one.key.startswith(PREFIX)]
    assert [one.digest.startswith("sealed:") for one in records] == [True]
    assert (await stage[OTTO].batch(asked, request="once")).done == 1, "the same request is known again"


async def test_a_sink_is_not_deleted_in_one_commit_as_its_dead_letters_go_with_it() -> None:
    stage = Stage()
    with pytest.raises(Invalid, match="a Sink is deleted in two commits"):
        await stage[ROOT].batch(BatchRequest(items=(DeleteItem(kind="Sink", name="s"),), mode="all"))
