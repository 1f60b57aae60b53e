"""Bearer tokens: who they tell, how long they are good, and how other processes hear of them."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from harness.plane_world import NOW
from lcm.control.access.tokens import TOKENS_PREFIX, Tokens
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Invalid, Unreachable
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

KEY = Secret("the-key-of-our-services")


class Flaky(MemoryStore):
    """A store that cannot be scanned while it is away."""

    away = False

    async def scan(self, *arguments: Any, **more: Any) -> Any:
        if self.away:
            raise Unreachable("the store is away")
        return await super().scan(*arguments, **more)


def in_time(body: Callable[[Flaky, Tokens], Awaitable[None]]) -> None:
    async def main() -> None:
        store = Flaky()
        tokens = Tokens(store, clock=VirtualClock(), service_key=KEY)
        await tokens.start()
        try:
            await body(store, tokens)
        finally:
            await tokens.close()
            await store.close()

    run(main, start=NOW)


def test_a_token_tells_who_presents_it_and_is_kept_as_a_hash_only() -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        secret, made = await tokens.make("ada@example.org", Role.USER)
        assert tokens.find_caller(secret.reveal()) == Caller(name="ada@example.org", role=Role.USER)
        assert tokens.find_caller(secret.reveal(), "scheduler") == Caller(name="ada@example.org", role=Role.USER)
        assert tokens.find_caller(secret.reveal() + "x") is None
        assert tokens.find_caller("") is None
        stored = [entry.key.encode() + entry.value for entry in (await store.scan("")).entries]
        assert stored
        assert not any(secret.reveal().encode() in raw for raw in stored)
        assert secret.reveal() not in repr(made)

    in_time(body)


def test_the_key_of_services_acts_under_the_name_it_is_given() -> None:
    async def body(_: Flaky, tokens: Tokens) -> None:
        assert tokens.find_caller(KEY.reveal(), "scheduler") == Caller(
            name="service", role=Role.SERVICE, actor="scheduler"
        )
        made, _token = await tokens.make("other-site", Role.SERVICE)
        assert tokens.find_caller(made.reveal(), "scheduler") == Caller(
            name="other-site", role=Role.SERVICE, actor="scheduler"
        )

    in_time(body)


def test_without_a_key_there_is_no_service() -> None:
    async def main() -> None:
        for key in (None, Secret("")):
            tokens = Tokens(MemoryStore(), clock=VirtualClock(), service_key=key)
            assert tokens.find_caller("") is None

    run(main, start=NOW)


def test_a_token_ends_when_its_time_is_over() -> None:
    async def body(_: Flaky, tokens: Tokens) -> None:
        secret, _token = await tokens.make("ada", Role.USER, expires_at=NOW + timedelta(hours=1))
        assert tokens.find_caller(secret.reveal()) is not None
        await asyncio.sleep(3599)
        assert tokens.find_caller(secret.reveal()) is not None
        await asyncio.sleep(2)
        assert tokens.find_caller(secret.reveal()) is None

    in_time(body)


def test_a_token_is_listed_and_revoked_by_its_id() -> None:
    async def body(_: Flaky, tokens: Tokens) -> None:
        secret, made = await tokens.make("ada", Role.USER)
        await asyncio.sleep(1)
        other, _token = await tokens.make("bob", Role.USER)
        assert [one.name for one in await tokens.list()] == ["ada", "bob"]
        await tokens.revoke(made.id)
        assert tokens.find_caller(secret.reveal()) is None
        assert tokens.find_caller(other.reveal()) is not None
        assert [one.name for one in await tokens.list()] == ["bob"]
        with pytest.raises(Gone):
            await tokens.revoke(made.id)

    in_time(body)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-a", "a" * 129, "ä"])
def test_a_token_needs_somebody_to_belong_to(name: str) -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        with pytest.raises(Invalid):
            await tokens.make(name, Role.USER)
        assert not (await store.scan(TOKENS_PREFIX)).entries

    in_time(body)


def test_what_one_process_makes_and_revokes_the_others_hear_of() -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        elsewhere = Tokens(store, clock=VirtualClock())
        await elsewhere.start()
        secret, made = await elsewhere.make("ada", Role.USER)
        await asyncio.sleep(0.1)
        assert tokens.find_caller(secret.reveal()) is not None
        await elsewhere.revoke(made.id)
        await asyncio.sleep(0.1)
        assert tokens.find_caller(secret.reveal()) is None
        await elsewhere.close()

    in_time(body)


def test_a_process_that_starts_knows_the_tokens_made_before() -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        secret, _token = await tokens.make("ada", Role.USER)
        fresh = Tokens(store, clock=VirtualClock())
        assert not fresh.caught_up
        await fresh.start()
        assert fresh.caught_up
        assert fresh.find_caller(secret.reveal()) is not None
        await fresh.close()
        assert not fresh.caught_up

    in_time(body)


def test_a_process_that_cannot_follow_says_so_and_reads_everything_anew() -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        kept, _token = await tokens.make("ada", Role.USER)
        ended, gone = await tokens.make("bob", Role.USER)
        store.away = True
        store._hub.end(Unreachable("the connection is lost"))
        await store.commit(Put(TOKENS_PREFIX + "unreadable", b"nonsense"))
        await asyncio.sleep(10)
        assert not tokens.caught_up
        assert tokens.find_caller(kept.reveal()) is not None
        await Tokens(store, clock=VirtualClock()).close()
        store.away = False
        await Tokens(store, clock=VirtualClock()).revoke(gone.id)
        await asyncio.sleep(3)
        assert tokens.caught_up
        assert tokens.find_caller(kept.reveal()) is not None
        assert tokens.find_caller(ended.reveal()) is None

    in_time(body)


def test_a_token_that_cannot_be_read_keeps_nobody_else_out() -> None:
    async def body(store: Flaky, tokens: Tokens) -> None:
        await store.commit(Put(TOKENS_PREFIX + "0" * 64, b"nonsense"))
        secret, _token = await tokens.make("ada", Role.USER)
        assert tokens.caught_up
        assert tokens.find_caller(secret.reveal()) is not None

    in_time(body)
