"""What goes wrong on CMLs, with their licences and with artifacts, and what people do there by hand."""

import asyncio
from typing import Final

from lcm.providers.protocols.labhost import NotReady
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import SimLab
from lcm.sim.cml.rest.documents import NodeUpdate
from lcm.sim.time.faults import FaultKind, FaultPeriod
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import SECRET, lab_topology
from lcm.sim.world.scenario import ScenarioLab as Wanted

_VERBS: Final = ("ensure", "start", "stop", "remove", "register", "deregister", "topology")
_AT_ONCE: Final = 4
_MANY: Final = 150
_SETTLE_SECONDS: Final = 15.0
"""A lab stops, and is wiped, within this time."""


async def cml_hangs(trouble: Trouble) -> None:
    """Make a CML accept calls without answering them."""
    if (found := await trouble.find_soon(trouble.choose_cml)) is not None:
        trouble.tell(f"CML on {found[0]} hangs")
        with found[1].spells.inject(FaultPeriod(FaultKind.HANGING, seconds=trouble.dice.uniform(5, 60))):
            await trouble.stay(60, 1_200)
        trouble.tell(f"CML on {found[0]} answers")


async def cml_is_out_of_order(trouble: Trouble) -> None:
    """Make the web server in front of a CML answer that CML is not ready."""
    if (found := await trouble.find_soon(trouble.choose_cml)) is not None:
        trouble.tell(f"CML on {found[0]} answers 502")
        with found[1].spells.inject(
            FaultPeriod(FaultKind.SILENT, error=NotReady("CML is not ready behind its web server"))
        ):
            await trouble.stay(30, 900)


async def cml_is_silent(trouble: Trouble) -> None:
    """Make a CML unreachable."""
    if (found := await trouble.find_soon(trouble.choose_cml)) is not None:
        trouble.tell(f"CML on {found[0]} is not reached")
        with found[1].spells.inject(FaultPeriod(FaultKind.SILENT)):
            await trouble.stay(30, 1_800)


async def answers_of_cml_are_lost(trouble: Trouble) -> None:
    """Make CMLs carry out calls without answering them."""
    verbs = frozenset(trouble.dice.sample(_VERBS, _AT_ONCE))
    trouble.tell(f"CML does not answer {', '.join(sorted(verbs))}, and does it")
    with trouble.stage.hosts.spells.inject(FaultPeriod(FaultKind.DEAF, verbs=verbs)):
        await trouble.stay(60, 900)


async def licence_server_is_away(trouble: Trouble) -> None:
    """Make the licence server unreachable for all CMLs."""
    trouble.tell("the licence server is away")
    trouble.stage.licences.reachable = False
    await trouble.stay(60, 1_800)
    trouble.stage.licences.reachable = True
    trouble.tell("the licence server is back")


async def licence_is_refused(trouble: Trouble) -> None:
    """Make the licence server refuse our token."""
    trouble.tell("the licence server refuses the token")
    trouble.stage.licences.bad_tokens.add(SECRET)
    await trouble.stay(60, 1_200)
    trouble.stage.licences.bad_tokens.discard(SECRET)


async def licences_run_out(trouble: Trouble) -> None:
    """Make all seats of the token taken."""
    server = trouble.stage.licences
    trouble.tell("no licence seat is free")
    server.seats, before = len(server.taken), server.seats
    await trouble.stay(60, 1_800)
    server.seats = max(before, server.seats)


async def lab_vanishes(trouble: Trouble) -> None:
    """Remove a lab by hand."""
    if (found := await trouble.find_soon(trouble.choose_lab)) is not None:
        cml, lab = found
        trouble.tell(f"the lab {lab.title} vanishes")
        cml.labs.restore_labs([one for one in cml.labs if one.id != lab.id])


async def lab_is_stopped_by_hand(trouble: Trouble) -> None:
    """Stop a lab by hand."""
    if (found := await trouble.find_soon(trouble.choose_lab)) is not None:
        trouble.tell(f"somebody stops the lab {found[1].title}")
        found[0].labs.stop(found[1])


async def lab_is_wiped_by_hand(trouble: Trouble) -> None:
    """Stop and wipe a lab by hand."""
    if (found := await trouble.find_soon(trouble.choose_lab)) is not None:
        trouble.tell(f"somebody wipes the lab {found[1].title}")
        found[0].labs.stop(found[1])
        await trouble.stay(_SETTLE_SECONDS, _SETTLE_SECONDS)
        found[0].labs.wipe(found[0].labs.get(found[1].id))


async def tags_are_edited_by_hand(trouble: Trouble) -> None:
    """Change the port of a node by hand, or add a whole range of ports."""
    found = await trouble.find_soon(trouble.choose_lab)
    if found is None or not found[1].nodes:
        return
    cml, lab = found
    node = trouble.dice.choice(list(lab.nodes.values()))
    tags = [f"serial:{_random_port(trouble)}"] if trouble.dice.random() < 0.5 else _port_range_tags(trouble)  # noqa: PLR2004  either
    trouble.tell(f"somebody gives {node.id} of {lab.title} {len(tags)} tags from {tags[0]} on")
    cml.labs.change_node(lab, node, NodeUpdate(tags=tags))


async def somebody_imports_a_lab(trouble: Trouble) -> None:
    """Run somebody's own lab on one of our machines, and remove it some hours later."""
    if (found := await trouble.find_soon(trouble.choose_cml)) is None:
        return
    instance_id, cml = found
    text = lab_topology(Wanted(name="by hand", track="", nodes=3)).decode()
    text = text.replace("- serial:2000", "\n  ".join(f"- {tag}" for tag in _port_range_tags(trouble)))
    lab, _ = cml.import_lab(text, cml.users.administrator, "by hand")
    trouble.tell(f"somebody imports a lab on {instance_id}")
    cml.labs.start(lab)
    await trouble.stay(600, 3 * 3_600)
    await _remove_lab(cml, lab)
    trouble.tell(f"somebody has removed their lab from {instance_id}")


async def files_are_away(trouble: Trouble) -> None:
    """Make the artifact store unreachable."""
    trouble.tell("files are not reached")
    with trouble.stage.artifacts.spells.inject(FaultPeriod(FaultKind.SILENT)):
        await trouble.stay(30, 900)
    trouble.tell("files are reached")


async def files_are_slow(trouble: Trouble) -> None:
    """Make the artifact store so slow that callers give up."""
    trouble.tell("files are slow")
    with trouble.stage.artifacts.spells.inject(FaultPeriod(FaultKind.HANGING, seconds=20)):
        await trouble.stay(30, 600)


async def _remove_lab(cml: Cml, lab: SimLab) -> None:
    """Stop, wipe and delete a lab, as a person does: with a look in between, and only while the machine is up."""
    for step in (cml.labs.stop, cml.labs.wipe, cml.labs.delete):
        if any(one.id == lab.id for one in cml.labs):
            step(lab)
            await asyncio.sleep(_SETTLE_SECONDS)


def _port_range_tags(trouble: Trouble) -> list[str]:
    """Return tags that forward so many ports that one of ours is likely among them."""
    first = _random_port(trouble, _MANY)
    return [f"pat:tcp:{first + number}:{1_000 + number}" for number in range(_MANY)]


def _random_port(trouble: Trouble, room: int = 0) -> int:
    return trouble.dice.randrange(2_000, 8_000 - room)
