"""The simulator's own face, beside CML's: speed, faults, and what learners and machines do behind CML's back.

It needs no sign-in. docs/cml-sim.md shows every call.
"""

from dataclasses import asdict
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from lcm.sim.cml.faults import HttpFault
from lcm.sim.cml.labs import files
from lcm.sim.cml.parts import Node, State
from lcm.sim.cml.rest.documents import Configuration
from lcm.sim.cml.rest.routing import ANYBODY, DONE, LARGE, Call, Json, Reply, Route


class Speed(Struct, forbid_unknown_fields=True):
    """How much faster than the clock the machine lives."""

    speed: Annotated[float, Meta(gt=0, le=1_000_000)]


class Power(Struct, forbid_unknown_fields=True):
    """Whether the machine is on."""

    on: bool


class Inside(Struct, forbid_unknown_fields=True):
    """What a learner has done to a node's configuration."""

    configuration: Configuration


class Forced(Struct, forbid_unknown_fields=True):
    """A state that a node falls into."""

    state: State


class NeverBoot(Struct, forbid_unknown_fields=True):
    """Nodes of this label hang in STARTED the next times."""

    label: str
    times: Annotated[int, Meta(ge=1)] = 1


class Licences(Struct, forbid_unknown_fields=True):
    """What the licence server does."""

    reachable: bool | UnsetType = UNSET
    bad_tokens: list[str] | UnsetType = UNSET
    seats: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    expansion_nodes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class Ailments(Struct, forbid_unknown_fields=True):
    """What the health check complains about, such as `libvirt`."""

    ailments: list[str]


def overview(call: Call) -> Json:
    """Say how the simulator is set."""
    server = call.cml.licence_server
    return {
        "speed": call.cml.pace.speed,
        "up": call.cml.up,
        "labs": len(call.cml.labs),
        "faults": call.cml.faults.waiting(),
        "ailments": call.cml.ailments,
        "licence_server": asdict(server) | {"bad_tokens": sorted(server.bad_tokens)},
    }


def speed(call: Call) -> Reply:
    """Let the machine live faster or slower from now on."""
    call.cml.pace.speed = call.read(Speed).speed
    return DONE


def faults(call: Call) -> list[HttpFault]:
    """List the faults that wait for their requests."""
    return list(call.cml.faults.waiting())


def add_fault(call: Call) -> Reply:
    """Inject a fault."""
    call.cml.faults.add(call.read(HttpFault))
    return DONE


def clear_faults(call: Call) -> Reply:
    """Forget all faults."""
    call.cml.faults.clear()
    return DONE


def configure(call: Call) -> Reply:
    """Change the configuration inside a running node, as a learner does."""
    node = _node(call)
    node.running = files(call.read(Inside).configuration, node.kind)
    return DONE


def force(call: Call) -> Reply:
    """Let a node fall into a state."""
    call.cml.labs.force(_node(call), call.read(Forced).state)
    return DONE


def lose(call: Call) -> Reply:
    """Let a lab disappear."""
    call.cml.labs.lose(call.cml.labs.get(call.params[0]))
    return DONE


def never_boot(call: Call) -> Reply:
    """Let nodes hang while they boot."""
    wanted = call.read(NeverBoot)
    call.cml.labs.never_boot(wanted.label, wanted.times)
    return DONE


def licences(call: Call) -> Reply:
    """Set what the licence server does."""
    wanted, server = call.read(Licences), call.cml.licence_server
    for name in ("reachable", "seats", "expansion_nodes"):
        if (value := getattr(wanted, name)) is not UNSET:
            setattr(server, name, value)
    if not isinstance(wanted.bad_tokens, UnsetType):
        server.bad_tokens = set(wanted.bad_tokens)
    return DONE


def power(call: Call) -> Reply:
    """Switch the machine on or off."""
    if call.read(Power).on:
        call.cml.power_on()
    else:
        call.cml.power_off()
    return DONE


def restart(call: Call) -> Reply:
    """Switch the machine off and on."""
    call.cml.restart()
    return DONE


def expire_tokens(call: Call) -> Reply:
    """Sign everybody out."""
    call.cml.users.expire_tokens()
    return DONE


def ail(call: Call) -> Reply:
    """Set what the health check complains about."""
    call.cml.ailments = call.read(Ailments).ailments
    return DONE


def patty(call: Call) -> list[Json]:
    """List the ports that are open for nodes."""
    ports = [*call.cml.patty("tcp").values(), *call.cml.patty("udp").values()]
    return [asdict(one) for one in ports]


def _node(call: Call) -> Node:
    return call.cml.labs.node(call.cml.labs.get(call.params[0]), call.params[1])


ROUTES: Final = (
    Route("GET", "sim", overview, ANYBODY),
    Route("POST", "sim/speed", speed, ANYBODY),
    Route("GET", "sim/faults", faults, ANYBODY),
    Route("POST", "sim/faults", add_fault, ANYBODY),
    Route("DELETE", "sim/faults", clear_faults, ANYBODY),
    Route("DELETE", "sim/labs/{}", lose, ANYBODY),
    Route("POST", "sim/labs/{}/nodes/{}/configuration", configure, ANYBODY, LARGE),
    Route("POST", "sim/labs/{}/nodes/{}/state", force, ANYBODY),
    Route("POST", "sim/never-boot", never_boot, ANYBODY),
    Route("POST", "sim/license", licences, ANYBODY),
    Route("POST", "sim/power", power, ANYBODY),
    Route("POST", "sim/restart", restart, ANYBODY),
    Route("POST", "sim/tokens/expire", expire_tokens, ANYBODY),
    Route("POST", "sim/health", ail, ANYBODY),
    Route("GET", "sim/patty", patty, ANYBODY),
)
