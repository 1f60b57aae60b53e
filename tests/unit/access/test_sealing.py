"""Secrets that people write in clear: sealed on every way in, the same when they are the same, and never repeated."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import documents as filled
from harness import given
from harness.credentials import NEW, OLD, given_keys
from harness.plane_world import NOW, OTTO, ROOT, Stage, service
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import License, Pause, Ref
from lcm.model.access.secret import Secret, check_use, fingerprint_of, list_secrets
from lcm.model.base.errors import Conflict, Invalid, Stuck
from lcm.model.base.resource import PhaseChange, SecretUse
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker
from lcm.providers.local.sealed import InstalledKeys
from lcm.store.base import scan_all

WORD = "swordfish"
W1 = Ref(LabWorker, "w1")
CONTROLLER = service("")
FAULTY: list[Any] = [
    "plain:",
    f"plain:{WORD * 400}",
    f"plain:{WORD}\ud800",
    WORD,
    f"Plain:{WORD}",
    f" plain:{WORD}",
    [f"plain:{WORD}"],
    {"text": f"plain:{WORD}"},
    f"sealed:{WORD}",
    f"sealed:0123456789ab:{WORD}",
    f"env:{WORD}\n",
]


def document(password: Any = f"plain:{WORD}", name: str = "w1", **spec: Any) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(given.worker(name=name))
    spec = made["spec"] | {"cml": {"admin_password": password}} | spec
    return {"kind": "LabWorker", "metadata": {"name": name}, "spec": spec}


def password_of(worker: LabWorker | None) -> str:
    assert worker is not None
    return worker.spec.cml.admin_password


async def sealed_password(stage: Stage) -> str:
    return password_of(await stage[CONTROLLER].get(W1))


async def stored_bytes(stage: Stage) -> bytes:
    return b"".join(entry.value for entry in (await scan_all(stage.store, "")).entries)


async def applied(stage: Stage, *documents: dict[str, Any], dry_run: bool = False) -> list[str]:
    return [one.outcome for one in await stage[OTTO].apply(documents, dry_run=dry_run)]


async def test_what_is_written_in_clear_is_stored_sealed() -> None:
    stage = Stage()
    await applied(stage, document())
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == WORD
    assert WORD.encode() not in await stored_bytes(stage)


async def test_the_same_file_applied_twice_changes_nothing() -> None:
    stage = Stage()
    assert await applied(stage, document()) == ["created"]
    before = await stage[OTTO].get(W1)
    assert await applied(stage, document()) == ["unchanged"]
    assert await applied(stage, document("plain:other")) == ["configured"]
    assert await applied(stage, document()) == ["configured"]
    after = await stage[OTTO].get(W1)
    assert password_of(after) != password_of(before)
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == WORD


async def test_a_change_of_something_else_keeps_the_sealed_text() -> None:
    stage = Stage()
    await applied(stage, document())
    before = password_of(await stage[OTTO].get(W1))
    assert await applied(stage, document(lab_track="ccnp")) == ["configured"]
    after = await stage[OTTO].get(W1)
    assert after is not None
    assert (password_of(after), after.spec.lab_track, after.metadata.generation) == (before, "ccnp", 2)


async def test_a_document_that_was_read_can_be_applied_as_it_is() -> None:
    stage = Stage()
    await applied(stage, document())
    read = msgspec.to_builtins(await stage[OTTO].get(W1))
    assert await applied(stage, {**read, "metadata": {"name": "w1"}}) == ["unchanged"]
    with pytest.raises(Invalid, match="a fingerprint of a secret that this object does not have"):
        await applied(stage, {**read, "metadata": {"name": "copy"}})


async def test_people_see_fingerprints_and_services_what_is_sealed() -> None:
    stage = Stage()
    made = await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}))
    sealed, revision = await sealed_password(stage), await stage.revision()
    async with stage[OTTO].watch(LabWorker, after=revision - 1) as watch:
        changes = await anext(watch)
    [seen] = (one.resource for one in changes.seen)
    assert isinstance(seen, LabWorker)
    [listed] = (await stage[ROOT].list(LabWorker)).items
    patched = await stage[OTTO].patch(W1, {"metadata": {"labels": {"tier": "exam"}}})
    acted = await stage[OTTO].act(W1, Pause())
    removed = await stage[OTTO].delete(W1)
    for shown in (made, seen, listed, patched, acted, removed, await stage[OTTO].get(W1)):
        assert password_of(shown) == fingerprint_of(sealed)
    assert await sealed_password(stage) == sealed


async def test_what_is_sealed_for_one_field_is_not_accepted_in_another() -> None:
    """Otherwise an operator could have a sink's secret sent to a CML of his own."""
    stage = Stage()
    await stage[ROOT].create(given.sink(secret=f"plain:{WORD}"))
    sink = await stage[CONTROLLER].get(Ref(Sink, "pager"))
    assert sink is not None
    assert sink.spec.secret is not None
    for text, problem in (
        (sink.spec.secret, "it was sealed for Sink.secret, not for LabWorker.license_token"),
        (sink.spec.secret.replace("Sink.secret", "LabWorker.license_token"), "cannot be opened"),
        (fingerprint_of(sink.spec.secret), "a fingerprint of a secret that this object does not have"),
        (stage.sealer.seal(Secret(WORD), ""), "it was sealed for no field, not for LabWorker.license_token"),
    ):
        with pytest.raises(Invalid, match=problem):
            await applied(stage, document("env:CML_X", cml={"license_token": text}))
        await applied(stage, document("env:CML_X"))
        with pytest.raises(Invalid, match=problem):
            await stage[OTTO].act(W1, License(license_token=text))
    with pytest.raises(Stuck, match=r"sealed for Sink\.secret"):
        check_use(sink.spec.secret, SecretUse.LICENSE_TOKEN)


async def test_the_url_of_a_sink_is_stored_sealed() -> None:
    stage, url, shown = Stage(), "https://events.example.org/hooks/swordfish", "https://events.example.org/***"
    made = await stage[ROOT].create(given.sink(url=url))
    assert made.spec.url == shown
    assert WORD.encode() not in await stored_bytes(stage)
    stored = await stage[CONTROLLER].get(Ref(Sink, "pager"))
    assert stored is not None
    assert stored.spec.sealed_url is not None
    assert stage.sealer.unseal(stored.spec.sealed_url) == Secret(url)
    for same in (given.sink(url=url), given.sink(url=shown), made):
        assert await stage[ROOT].replace(same) == made
    other = await stage[ROOT].replace(given.sink(url=f"{url}/2"))
    assert other.spec.sealed_url != made.spec.sealed_url
    with pytest.raises(Invalid, match="stands for the part that is not shown"):
        await stage[ROOT].replace(given.sink(url="https://elsewhere.example.org/***", sealed_url=other.spec.sealed_url))
    bare = await stage[ROOT].replace(given.sink(url="https://events.example.org/"))
    assert bare.spec.sealed_url is None


async def test_a_url_that_was_stored_in_clear_works_and_is_sealed_with_the_next_change() -> None:
    stage, url = Stage(), "https://events.example.org/hooks/swordfish"
    await stage.put(given.sink(url=url))
    shown = await stage[ROOT].get(Ref(Sink, "pager"))
    assert shown is not None
    assert shown.spec.url == "https://events.example.org/***"
    assert await stage[ROOT].replace(shown) == shown
    await stage[ROOT].patch(Ref(Sink, "pager"), {"spec": {"enabled": False}})
    assert WORD.encode() not in await stored_bytes(stage)


async def test_a_sinks_secret_becomes_its_previous_one_by_its_fingerprint() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.sink(secret=f"plain:{WORD}"))
    wanted = given.sink(secret="plain:newer", previous_secret=made.spec.secret)
    assert (await stage[ROOT].replace(wanted)).spec.previous_secret == made.spec.secret


async def test_what_an_older_version_sealed_stays_and_opens() -> None:
    stage = Stage()
    old = stage.sealer.seal(Secret(WORD), "")
    assert old.count(":") == 2
    await stage.put(given.worker(cml={"admin_password": old}))
    for same in (old, fingerprint_of(old), f"plain:{WORD}"):
        assert await applied(stage, document(same)) == ["unchanged"]
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == WORD
    check_use(old, SecretUse.ADMIN_PASSWORD)
    copied = await stage[CONTROLLER].create(given.worker(name="of-a-pool", cml={"admin_password": old}))
    assert password_of(copied) == old
    with pytest.raises(Invalid, match="sealed for no field"):
        await applied(stage, document(old, name="w2"))


async def test_creates_and_replaces_by_code_are_sealed_too() -> None:
    stage = Stage()
    worker = given.worker(cml={"admin_password": f"plain:{WORD}"})
    made = await stage[OTTO].create(worker)
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == WORD
    assert await stage[OTTO].replace(worker) == made
    await stage[OTTO].replace(given.worker(cml={"admin_password": "plain:other"}))
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == "other"


async def test_a_patch_is_sealed_and_the_same_one_changes_nothing() -> None:
    stage = Stage()
    await applied(stage, document("env:CML_ADMIN_PASSWORD"))
    patch = {"spec": {"cml": {"admin_password": f"plain:{WORD}"}}}
    made = await stage[OTTO].patch(W1, patch)
    assert stage.sealer.unseal(await sealed_password(stage)).reveal() == WORD
    assert await stage[OTTO].patch(W1, patch) == made
    assert WORD.encode() not in await stored_bytes(stage)


async def test_a_dry_run_answers_what_is_sealed_and_writes_nothing() -> None:
    stage = Stage()
    would = await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}), dry_run=True)
    assert password_of(would).startswith("sealed:")
    assert await applied(stage, document(), dry_run=True) == ["created"]
    await applied(stage, document())
    assert await applied(stage, document(), dry_run=True) == ["unchanged"]
    patch = {"spec": {"cml": {"license_token": f"plain:{WORD}"}}}
    patched = await stage[OTTO].patch(W1, patch, dry_run=True)
    assert (patched.spec.cml.license_token or "").startswith("sealed:")


async def test_a_request_with_a_secret_can_be_sent_again_but_not_with_another() -> None:
    stage = Stage()
    first = await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}), request="r-1")
    again = await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}), request="r-1")
    assert again == first
    with pytest.raises(Invalid, match="another request"):
        await stage[OTTO].create(given.worker(cml={"admin_password": "plain:other"}), request="r-1")
    with pytest.raises(Conflict):
        await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}), request="r-2")


async def test_what_is_kept_of_a_request_cannot_be_guessed_at() -> None:
    """With a digest in clear, whoever has a backup could try out passwords."""
    stage = Stage()
    await stage[OTTO].create(given.worker(cml={"admin_password": f"plain:{WORD}"}), request="r-1")
    [record] = (await scan_all(stage.store, "requests/")).entries
    assert b'"digest":"sealed:' in record.value


@pytest.mark.parametrize("password", FAULTY, ids=itertools.count())
async def test_what_cannot_be_a_secret_is_refused_and_not_repeated(password: object) -> None:
    stage = Stage()
    await applied(stage, document("env:CML_ADMIN_PASSWORD"))
    revision = await stage.revision()
    for attempt in (
        stage[OTTO].apply([document(password)]),
        stage[OTTO].apply([document(password, name="w2")]),
        stage[OTTO].patch(W1, {"spec": {"cml": {"admin_password": password}}}),
    ):
        with pytest.raises(Invalid) as raised:
            await attempt
        [fault] = raised.value.faults
        assert "spec.cml.admin_password" in fault.path
        assert fault.remedy
        assert WORD not in str(raised.value)
    assert await stage.revision() == revision


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"kind": f"plain:{WORD}"}, "documents[0].kind"),
        ({"kind": "LabWorkr"}, "documents[0].spec.cml.admin_password"),
        ({"spec": f"plain:{WORD}"}, "documents[0].spec"),
        ({"spec": {"cml": {"admin_username": f"plain:{WORD}"}}}, "documents[0].spec.cml.admin_username"),
        ({"spec": {"wanted_state": f"plain:{WORD}"}}, "documents[0].spec.wanted_state"),
        ({"spec": {"lab_types": [[f"plain:{WORD}"]]}}, "documents[0].spec.lab_types[0][0]"),
        ({"spec": {"cml": {f"plain:{WORD}": 1}}}, "documents[0].spec.cml"),
        ({"metadata": {"name": "w1", "labels": {"a": f"plain:{WORD}"}}}, "documents[0].metadata.labels.a"),
    ],
)
async def test_a_secret_where_none_is_kept_is_refused_and_not_repeated(wrong: dict[str, Any], path: str) -> None:
    """Stored where it stands, it would be shown to everybody."""
    with pytest.raises(Invalid) as raised:
        await Stage()[OTTO].apply([{**document(), **wrong}])
    assert path in {fault.path for fault in raised.value.faults}
    assert WORD not in str(raised.value)


async def test_words_of_people_in_a_status_are_no_secrets() -> None:
    stage = Stage()
    line = PhaseChange(phase="PENDING", at=NOW, by="ada", reason="plain: I had enough")
    worker = await stage.put(given.worker(history=(line,)))
    assert await stage[OTTO].replace(worker) == worker
    assert await applied(stage, {**msgspec.to_builtins(worker), "metadata": {"name": "w1"}}) == ["unchanged"]


@pytest.mark.parametrize("field", ["spec", "status"])
async def test_a_value_that_is_none_of_those_allowed_is_not_repeated(field: str) -> None:
    with pytest.raises(Invalid) as raised:
        await Stage()[OTTO].apply([{**document(), field: {"wanted_state": WORD, "phase": WORD}}])
    assert "none of its values" in str(raised.value)
    assert WORD not in str(raised.value)


async def test_every_fault_is_told_besides_those_of_secrets() -> None:
    stage = Stage()
    with pytest.raises(Invalid) as raised:
        await applied(stage, document("plain:", nonsense=1))
    assert {fault.path for fault in raised.value.faults} == {
        "documents[0].spec.cml.admin_password",
        "documents[0].spec.nonsense",
    }


async def test_without_keys_a_secret_in_clear_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for sealer in (None, InstalledKeys(tmp_path / "seal.key")):
        stage = Stage()
        stage.core = ControlPlane(stage.store, clock=stage.clock, sealer=sealer)
        await applied(stage, document("env:CML_ADMIN_PASSWORD"))
        with pytest.raises(Invalid, match="LCM_SEAL_KEY_FILE") as raised:
            await applied(stage, document())
        assert WORD not in str(raised.value)
        with pytest.raises(Invalid, match="cannot be opened here"):
            await applied(stage, document(given_keys().seal(Secret(WORD), SecretUse.ADMIN_PASSWORD)))


async def test_an_object_whose_key_was_lost_can_still_be_changed() -> None:
    stage = Stage()
    await applied(stage, document())
    lost = Stage(store=stage.store, sealer=given_keys(NEW))
    await lost[OTTO].patch(W1, {"metadata": {"labels": {"tier": "exam"}}})
    await lost[OTTO].patch(W1, {"spec": {"cml": {"admin_password": f"plain:{WORD}"}}})
    assert lost.sealer.unseal(await sealed_password(lost)).reveal() == WORD


async def test_a_text_of_an_older_key_stays_what_the_newer_one_made_of_it() -> None:
    stage = Stage(sealer=given_keys(NEW, OLD))
    await applied(stage, document())
    before = password_of(await stage[OTTO].get(W1))
    assert await applied(stage, document(given_keys(OLD).seal(Secret(WORD), SecretUse.ADMIN_PASSWORD))) == ["unchanged"]
    assert password_of(await stage[OTTO].get(W1)) == before


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_only_specs_hold_secrets(kind: Any) -> None:
    """What controllers report is not sealed."""
    full = msgspec.convert(filled.filled_document(kind.struct), kind.struct)
    assert all(path.startswith("spec.") for path, _ in list_secrets(full))


async def test_a_document_may_be_as_deep_as_somebody_likes() -> None:
    deep: Any = f"plain:{WORD}"
    for _ in range(500):
        deep = {"cml": [deep]}
    with pytest.raises(Invalid) as raised:
        await Stage()[ROOT].apply([document(), document(name="w2", nonsense=deep, cml=deep)])
    assert WORD not in str(raised.value)
