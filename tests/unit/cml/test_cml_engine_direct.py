"""The simulated CML's direct face: failures on request, and callers that die at any moment."""

import asyncio
from datetime import timedelta
from functools import partial

import msgspec
import pytest

from crash.everywhere import crash_everywhere
from harness.clouds import LONG, Bench, link, node, text
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, NoRoom, Throttled, Unreachable
from lcm.providers.protocols.labhost import (
    CmlApiError,
    CmlAuthenticationError,
    CmlLabCreationError,
    CmlLicensingError,
    LabHost,
)
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.documents import UserCreate
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run


def host_of(bench: Bench) -> DirectHost:
    return DirectHost(bench.cml)


async def test_a_verb_fails_as_often_as_asked_before_its_effect() -> None:
    bench = Bench()
    host = host_of(bench)
    host.fail_next("ensure", Unreachable("no answer"), times=2)
    for _ in range(2):
        with pytest.raises(Unreachable):
            await host.ensure("lab", text())
    assert len(bench.cml.labs) == 0
    await host.ensure("lab", text())


async def test_a_verb_may_fail_after_its_effect_as_when_an_answer_is_lost() -> None:
    bench = Bench()
    host = host_of(bench)
    host.fail_next("ensure", Unreachable("the answer was lost"), after_effect=True)
    with pytest.raises(Unreachable):
        await host.ensure("lab", text())
    assert len(bench.cml.labs) == 1
    await host.ensure("lab", text())
    assert len(bench.cml.labs) == 1


async def test_failures_wait_for_their_own_verb_and_come_in_order() -> None:
    host = host_of(Bench())
    host.fail_next("stats", Throttled("slow down"))
    host.fail_next("stats", Unreachable("gone"))
    assert await host.labs() == []
    with pytest.raises(Throttled):
        await host.stats()
    with pytest.raises(Unreachable):
        await host.stats()
    await host.stats()
    with pytest.raises(AssertionError, match="no verb"):
        host.fail_next("strat", Gone("typo"))
    with pytest.raises(AssertionError, match="no verb"):
        host.fail_next("fail_next", Gone("no verb either"))


async def test_a_wrong_password_and_an_ordinary_user_are_refused() -> None:
    bench = Bench()
    bench.cml.users.add(UserCreate("ann", "secret-word"))
    for name, password in (("admin", "wrong"), ("ann", "secret-word")):
        host = DirectHost(bench.cml, name, Secret(password))
        with pytest.raises(CmlAuthenticationError):
            await host.labs()
        assert (await host.system()).ready


async def test_refusals_have_the_meaning_of_the_verb() -> None:
    bench = Bench()
    host = host_of(bench)
    with pytest.raises(CmlLabCreationError):
        await host.ensure("broken", "lab: [")
    lab = await host.ensure("large", text(*(node(f"N{n}") for n in range(6))))
    with pytest.raises(NoRoom, match="6 of 5"):
        await host.start(lab.lab_id)
    with pytest.raises(Gone):
        await host.start("nowhere")


async def test_tags_and_tokens_that_the_rest_face_refuses_are_refused_here() -> None:
    bench = Bench()
    host = host_of(bench)
    lab = await host.ensure("lab", text())
    (only,) = await host.nodes(lab.lab_id)
    await host.set_tags(lab.lab_id, only.node_id, ["x" * 64])
    with pytest.raises(CmlApiError):
        await host.set_tags(lab.lab_id, only.node_id, ["x" * 65])
    for token in ("", "x" * 257, "clé", "two words"):
        with pytest.raises(CmlLicensingError) as refused:
            await host.register(product="CML_Enterprise", token=Secret(token))
        assert refused.value.reason == "CmlLicenceRefused"
        assert not token or token not in str(refused.value)
    assert (await host.licence()).registration == "NOT_REGISTERED"


async def test_what_it_tells_is_plain_as_if_it_had_come_over_a_wire() -> None:
    bench = Bench()
    host = host_of(bench)
    wires = text(node("R1"), node("R2"), links=[link("R1/i0", "R2/i0")])
    lab = await host.ensure("lab", wires)
    for _ in range(2):
        told = [
            *(await host.nodes(lab.lab_id)),
            *(await host.all_nodes())[lab.lab_id],
            *(await host.pools()),
            *(await host.node_definitions()),
            await host.elements(lab.lab_id),
            await host.simulation_stats(lab.lab_id),
            await host.stats(),
            await host.licence(),
            lab,
        ]
        for value in told:
            assert repr(value) == repr(msgspec.convert(msgspec.to_builtins(value), type(value)))
        await host.start(lab.lab_id)
        bench.wait(LONG)


async def test_a_lab_may_disappear() -> None:
    bench = Bench()
    host = host_of(bench)
    lab = await host.ensure("lab", text())
    await host.start(lab.lab_id)
    bench.cml.labs.lose_lab(bench.cml.labs.get(lab.lab_id))
    assert await host.look(lab.lab_id) is None
    with pytest.raises(Gone):
        await host.converged(lab.lab_id)
    await host.remove(lab.lab_id)


async def test_others_run_before_a_question_and_on_both_sides_of_an_effect() -> None:
    host = host_of(Bench())
    questions = (host.labs, host.stats, host.system, host.pools)
    effects = (host.sign_in, host.deregister, partial(host.set_telemetry, enabled=True))
    for verb, least in (*((one, 1) for one in questions), *((one, 2) for one in effects)):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        await verb()
        assert turns >= least
        other.cancel()


def test_a_caller_may_die_anywhere_and_another_finishes_the_work() -> None:
    async def live(cml: Cml) -> None:
        host: LabHost = DirectHost(cml)
        await host.register(product="CML_Enterprise", token=Secret("good"), expansion_nodes=10)
        lab = await host.ensure("lab", text())
        await host.start(lab.lab_id)
        while not await host.converged(lab.lab_id):
            await asyncio.sleep(30)
        await host.remove(lab.lab_id)
        await host.deregister()

    def gone(cml: Cml) -> None:
        assert len(cml.labs) == 0
        assert cml.licence_server.taken == {}

    awaits = crash_everywhere(
        "direct lab host", lambda: Cml(VirtualClock(), Chance(1)), live, gone, horizon=timedelta(hours=2)
    )
    assert awaits > 20


def test_removing_takes_the_time_that_stopping_and_wiping_take() -> None:
    async def main() -> timedelta:
        clock = VirtualClock()
        cml = Cml(clock, Chance(1))
        host = DirectHost(cml)
        lab = await host.ensure("lab", text())
        await host.start(lab.lab_id)
        await asyncio.sleep(300)
        begin = clock.now()
        await host.remove(lab.lab_id)
        assert await host.look(lab.lab_id) is None
        await host.close()
        return clock.now() - begin

    assert timedelta(seconds=5) <= run(main) < timedelta(seconds=20)
