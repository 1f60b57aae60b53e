"""What every artifact store must do."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.stores import MAX_BYTES, Depot
from lcm.model.base.errors import Gone, Invalid, Stuck, TooLarge
from lcm.providers.protocols.artifacts import Artifacts, digest_of

HOUR = timedelta(hours=1)
LAB = b"lab:\n  title: \xc3\xbc\n"
NOWHERE = f"artifact://{digest_of(b'nowhere')}"
CONTENTS = [b"", b"\0", bytes(range(256)) * 40, b"a\r\nb\n\n", b"x" * 2_500_000]
NAMES = ["a", "6f1c2d3e-0000-4000-8000-000000000001", "default/s1/lab.yaml", "ccna:1.0.0", "a..b", "a_b", "x" * 200]
ESCAPES = [
    "",
    ".",
    "..",
    "../x",
    "../../etc/passwd",
    "a/../b",
    "a/..",
    "a/./b",
    "/etc/passwd",
    "//host/share",
    "a//b",
    "a/",
    "/",
    "~",
    "~root/x",
    "a\0b",
    "a\nb",
    "a b",
    "..\\x",
    "a\\..\\b",
    "c:/x",
    "C:\\x",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "a%00",
    "\uff0e\uff0e/x",
    "\u2024\u2024/x",
    "\u2025/x",
    "a\uff0f..\uff0fb",
    "a\u2215b",
    "a\u202e",
    "é",
    "\ud800",
    "A",
    "-x",
    ".x",
    "x.",
    "a@b",
    "$HOME",
    "*",
    "x" * 201,
]
NOT_ARTIFACTS = [
    "",
    "artifact:",
    "artifact://",
    "artifact://tmp",
    "artifact://sha256:",
    f"artifact://sha256:{'0' * 63}",
    f"artifact://sha256:{'0' * 65}",
    f"artifact://sha256:{'A' * 64}",
    f"artifact://sha256:{'0' * 64}\n",
    f"artifact://sha256:{'0' * 64}/../x",
    f"artifact://sha1:{'0' * 40}",
    f"artifact://md5:{'0' * 64}",
    f"Artifact://sha256:{'0' * 64}",
]


@pytest.fixture
def artifacts(depot: Depot) -> Artifacts:
    return depot.artifacts


async def test_what_was_stored_comes_back(artifacts: Artifacts) -> None:
    for data in CONTENTS:
        stored = await artifacts.put(data)
        assert (stored.digest, stored.size_bytes) == (digest_of(data), len(data))
        assert stored.uri == f"artifact://{stored.digest}"
        assert await artifacts.get(stored.uri) == data
        assert await artifacts.get(stored.uri, digest=stored.digest) == data
        assert await artifacts.find(stored.uri) == stored


async def test_what_was_stored_under_a_name_comes_back_and_is_listed(artifacts: Artifacts) -> None:
    stored = [await artifacts.put_temporary(name, LAB) for name in NAMES]
    assert [one.uri for one in stored] == [f"artifact://tmp/{name}" for name in NAMES]
    for one in stored:
        assert await artifacts.get(one.uri, digest=digest_of(LAB)) == LAB
        assert await artifacts.find(one.uri) == one
    listed = {(one.uri, one.size_bytes, one.stored_at) for one in await artifacts.list_temporary()}
    assert listed == {(one.uri, len(LAB), one.stored_at) for one in stored}


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2_000), name=st.from_regex(r"[a-z0-9]([a-z0-9._:-]{0,9}[a-z0-9])?", fullmatch=True))
async def test_any_bytes_survive(artifacts: Artifacts, data: bytes, name: str) -> None:
    for stored in (await artifacts.put(data), await artifacts.put_temporary(name, data)):
        assert await artifacts.get(stored.uri) == data
        found = await artifacts.find(stored.uri)
        assert found is not None
        assert (found.digest, found.size_bytes) == (digest_of(data), len(data))


async def test_storing_twice_is_storing_once(artifacts: Artifacts) -> None:
    first, second = await artifacts.put(LAB), await artifacts.put(LAB)
    assert first.uri == second.uri
    assert [one.uri for one in await artifacts.list_stored(before=second.stored_at + HOUR)] == [first.uri]


async def test_a_name_holds_what_was_stored_last(artifacts: Artifacts) -> None:
    first, second = await artifacts.put_temporary("s1", b"one"), await artifacts.put_temporary("s1", b"second")
    assert first.uri == second.uri
    assert await artifacts.get(first.uri) == b"second"
    assert await artifacts.find(first.uri) == second
    assert [one.size_bytes for one in await artifacts.list_temporary()] == [6]


async def test_many_may_store_the_same_at_once(artifacts: Artifacts) -> None:
    stored = await asyncio.gather(*(artifacts.put(LAB) for _ in range(8)))
    assert {await artifacts.get(one.uri) for one in stored} == {LAB}
    texts = [b"%d" % number * 1000 for number in range(8)]
    named = await asyncio.gather(*(artifacts.put_temporary("s1", text) for text in texts))
    assert await artifacts.get(named[0].uri) in texts


async def test_what_is_missing_is_gone_and_not_an_error_of_the_store(artifacts: Artifacts) -> None:
    for uri in (NOWHERE, "artifact://tmp/nowhere"):
        assert await artifacts.find(uri) is None
        with pytest.raises(Gone):
            await artifacts.get(uri)
        await artifacts.remove(uri)
        await artifacts.remove(uri, before=(await artifacts.put(b"")).stored_at)
    assert await artifacts.list_temporary() == []


async def test_what_is_removed_is_gone_and_may_be_removed_again(artifacts: Artifacts) -> None:
    for stored in (await artifacts.put(LAB), await artifacts.put_temporary("s1", LAB)):
        await artifacts.remove(stored.uri)
        await artifacts.remove(stored.uri)
        assert await artifacts.find(stored.uri) is None
        with pytest.raises(Gone):
            await artifacts.get(stored.uri)
    assert await artifacts.list_temporary() == []


async def test_removing_a_name_takes_nothing_from_others_with_the_same_bytes(artifacts: Artifacts) -> None:
    shared = await artifacts.put(LAB)
    mine, yours = await artifacts.put_temporary("mine", LAB), await artifacts.put_temporary("yours", LAB)
    await artifacts.remove(mine.uri)
    assert await artifacts.get(shared.uri) == await artifacts.get(yours.uri) == LAB
    await artifacts.remove(shared.uri)
    assert await artifacts.get(yours.uri) == LAB


async def test_a_sweep_takes_only_what_is_older(artifacts: Artifacts) -> None:
    stored = await artifacts.put(LAB)
    temporary = await artifacts.put_temporary("s1", LAB)
    early, late = stored.stored_at, stored.stored_at + HOUR
    assert await artifacts.list_stored(before=early) == []
    (listed,) = await artifacts.list_stored(before=late)
    assert (listed.uri, listed.size_bytes, listed.stored_at) == (stored.uri, len(LAB), stored.stored_at)
    for one in (stored, temporary):
        await artifacts.remove(one.uri, before=one.stored_at)
        assert await artifacts.find(one.uri) == one
        await artifacts.remove(one.uri, before=late)
        assert await artifacts.find(one.uri) is None


async def test_a_name_that_would_escape_is_refused(artifacts: Artifacts) -> None:
    for name in ESCAPES:
        with pytest.raises(Invalid):
            await artifacts.put_temporary(name, LAB)
        await refused(artifacts, f"artifact://tmp/{name}")
    assert await artifacts.list_temporary() == []


async def test_an_address_that_is_none_is_refused(artifacts: Artifacts) -> None:
    for uri in NOT_ARTIFACTS:
        await refused(artifacts, uri)


async def refused(artifacts: Artifacts, uri: str) -> None:
    for call in (artifacts.get(uri), artifacts.find(uri), artifacts.remove(uri)):
        with pytest.raises(Invalid):
            await call


async def test_bytes_that_do_not_have_their_digest_are_not_handed_out(artifacts: Artifacts) -> None:
    stored, temporary = await artifacts.put(LAB), await artifacts.put_temporary("s1", LAB)
    for wrong, error in ((digest_of(b"other"), Stuck), ("sha256:0", Invalid), ("x", Invalid)):
        with pytest.raises(error):
            await artifacts.get(temporary.uri, digest=wrong)
    with pytest.raises(Invalid, match="contradicts"):
        await artifacts.get(stored.uri, digest=digest_of(b"other"))


async def test_damage_is_noticed_and_storing_again_heals_it(depot: Depot) -> None:
    artifacts = depot.artifacts
    stored, temporary = await artifacts.put(LAB), await artifacts.put_temporary("s1", LAB)
    for one in (stored, temporary):
        await depot.damage(one.uri)
        with pytest.raises(Stuck) as stuck:
            await artifacts.get(one.uri)
        assert stuck.value.reason == "DigestMismatch"
    await artifacts.put(LAB)
    await artifacts.put_temporary("s1", LAB)
    assert await artifacts.get(stored.uri) == await artifacts.get(temporary.uri) == LAB


async def test_what_is_too_large_is_neither_stored_nor_read(depot: Depot) -> None:
    artifacts, large = depot.artifacts, bytes(MAX_BYTES + 1)
    for call in (artifacts.put(large), artifacts.put_temporary("s1", large)):
        with pytest.raises(TooLarge):
            await call
    assert await artifacts.list_temporary() == []
    stored, temporary = await artifacts.put(LAB), await artifacts.put_temporary("s1", LAB)
    published = await depot.publish("lab.yaml", LAB)
    for uri in (stored.uri, temporary.uri, published):
        assert await artifacts.get(uri, limit_bytes=len(LAB)) == LAB
        with pytest.raises(TooLarge):
            await artifacts.get(uri, limit_bytes=len(LAB) - 1)
    with pytest.raises(TooLarge):
        await artifacts.get(await depot.publish("large.yaml", large))


async def test_a_source_is_read_and_its_digest_checked(depot: Depot) -> None:
    uri = await depot.publish("lab.yaml", LAB)
    assert await depot.artifacts.get(uri) == LAB
    assert await depot.artifacts.get(uri, digest=digest_of(LAB)) == LAB
    with pytest.raises(Stuck):
        await depot.artifacts.get(uri, digest=digest_of(b"other"))
    with pytest.raises(Gone):
        await depot.artifacts.get(depot.missing)
    with pytest.raises(Invalid):
        await depot.artifacts.find(uri)
    with pytest.raises(Invalid):
        await depot.artifacts.remove(uri)


async def test_what_no_source_covers_is_not_read(artifacts: Artifacts) -> None:
    for uri in ("http://127.0.0.1/x", "https://x/y", "ftp://x/y", "/etc/passwd", "data:,x", "lab.yaml"):
        await refused(artifacts, uri)


async def test_closing_may_be_repeated(artifacts: Artifacts) -> None:
    await artifacts.put(LAB)
    await artifacts.close()
    await artifacts.close()
