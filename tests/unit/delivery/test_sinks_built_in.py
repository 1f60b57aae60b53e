"""Sinks that the settings make are delivered to like any other, from their first delivery on, across restarts."""

import asyncio

from harness.event_clients import SOURCE, delivering, happen, virtual
from lcm.control.delivery.outbox import Outbox
from lcm.control.delivery.sinks import SettingSecrets, make_built_in_sinks
from lcm.control.objects.records import SINK_CURSORS
from lcm.control.upkeep.installation import read_installation_id
from lcm.model.access.secret import Secret
from lcm.providers.protocols.secrets import SecretSources
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock
from lcm.store.memory import MemoryStore

HOOKS = [Secret("https://hooks.slack.com/services/T0/hush"), Secret("https://alerts.example.org:8443/hush?key=1")]
BUILT_IN, PARTS = make_built_in_sinks(HOOKS)


class Post:
    """Notes what is sent where."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    async def __call__(self, url: str, body: bytes, _: object) -> None:
        self.sent.append((url, body))


def outbox(store: MemoryStore, post: Post, count: int = 2) -> Outbox:
    return Outbox(
        store,
        post,
        SettingSecrets(PARTS, SecretSources({})).reveal,
        clock=VirtualClock(),
        chance=Chance(1).random,
        source=SOURCE,
        built_in=BUILT_IN[:count],
    )


async def settled() -> None:
    """Wait until everything that happened was looked at; virtual time costs nothing."""
    await asyncio.sleep(5)


@virtual
async def test_alerts_are_sent_to_the_whole_address_and_nothing_else_is() -> None:
    store, post = MemoryStore(), Post()
    await happen(store, 3, type="alert.raised")
    async with delivering(outbox(store, post)):
        await settled()
        assert post.sent == []
        await happen(store, 1, type="worker.created")
        await happen(store, 1, type="alert.raised")
        await settled()
    assert {url for url, _ in post.sent} == {one.reveal() for one in HOOKS}
    (slack,) = [body for url, body in post.sent if "slack" in url]
    assert b'"text":' in slack


@virtual
async def test_what_happens_while_nobody_delivers_is_sent_afterwards() -> None:
    store, post = MemoryStore(), Post()
    async with delivering(outbox(store, post)):
        await settled()
    await happen(store, 1, type="worker.idle.warning")
    async with delivering(outbox(store, post)):
        await settled()
    assert len(post.sent) == 2


@virtual
async def test_an_address_that_is_taken_out_of_the_settings_leaves_nothing_behind() -> None:
    store, post = MemoryStore(), Post()
    async with delivering(outbox(store, post)):
        await settled()
    assert len((await store.scan(SINK_CURSORS)).entries) == 2
    async with delivering(outbox(store, post, count=1)):
        await settled()
    assert [one.key for one in (await store.scan(SINK_CURSORS)).entries] == [SINK_CURSORS + BUILT_IN[0].metadata.name]


async def test_an_installation_keeps_its_name() -> None:
    store, names = MemoryStore(), iter(["first", "second"])
    assert await read_installation_id(store, lambda: next(names)) == "first"
    assert await read_installation_id(store, lambda: next(names)) == "first"
