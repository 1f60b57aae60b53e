"""The simulator's own REST calls, next to CML's: speed, faults, and what learners and machines do without CML's API.

No sign-in is needed. docs/cml-sim.md shows every call.
"""

from dataclasses import asdict
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from lcm.sim.cml.faults import HttpFault
from lcm.sim.cml.labs import to_files
from lcm.sim.cml.parts import Node, NodeState
from lcm.sim.cml.rest.documents import Configuration
from lcm.sim.cml.rest.routing import ANYBODY, DONE, LARGE, Call, CmlRoute, Json, Reply


class SpeedSetting(Struct, forbid_unknown_fields=True):
    """How much faster than the clock the machine's time runs."""

    speed: Annotated[float, Meta(gt=0, le=1_000_000)]


class PowerSwitch(Struct, forbid_unknown_fields=True):
    """Whether the machine is on."""

    on: bool


class NodeConfiguration(Struct, forbid_unknown_fields=True):
    """What a learner has done to a node's configuration."""

    configuration: Configuration


class ForcedState(Struct, forbid_unknown_fields=True):
    """A state that a node is forced into."""

    state: NodeState


class NeverBoot(Struct, forbid_unknown_fields=True):
    """Nodes of this label hang in STARTED for their next starts."""

    label: str
    times: Annotated[int, Meta(ge=1)] = 1


class LicenceServerUpdate(Struct, forbid_unknown_fields=True):
    """How the licence server behaves."""

    reachable: bool | UnsetType = UNSET
    bad_tokens: list[str] | UnsetType = UNSET
    seats: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    expansion_nodes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class FailingChecks(Struct, forbid_unknown_fields=True):
    """The health checks that fail, such as `libvirt`."""

    ailments: list[str]


def overview(call: Call) -> Json:
    """Return the simulator's settings."""
    server = call.cml.licence_server
    return {
        "speed": call.cml.pace.speed,
        "up": call.cml.is_up,
        "labs": len(call.cml.labs),
        "faults": call.cml.faults.pending(),
        "ailments": call.cml.ailments,
        "licence_server": asdict(server) | {"bad_tokens": sorted(server.bad_tokens)},
    }


def speed(call: Call) -> Reply:
    """Change the machine's speed from now on."""
    call.cml.pace.speed = call.read(SpeedSetting).speed
    return DONE


def faults(call: Call) -> list[HttpFault]:
    """List the faults that wait for their requests."""
    return list(call.cml.faults.pending())


def add_fault(call: Call) -> Reply:
    """Inject a fault."""
    call.cml.faults.add(call.read(HttpFault))
    return DONE


def clear_faults(call: Call) -> Reply:
    """Remove all faults."""
    call.cml.faults.clear()
    return DONE


def configure(call: Call) -> Reply:
    """Change the configuration inside a running node, as a learner does."""
    node = _node(call)
    node.running = to_files(call.read(NodeConfiguration).configuration, node.kind)
    return DONE


def force(call: Call) -> Reply:
    """Force a node into a state."""
    call.cml.labs.force_state(_node(call), call.read(ForcedState).state)
    return DONE


def lose(call: Call) -> Reply:
    """Make a lab disappear."""
    call.cml.labs.lose_lab(call.cml.labs.get(call.params[0]))
    return DONE


def never_boot(call: Call) -> Reply:
    """Make nodes hang while they boot."""
    wanted = call.read(NeverBoot)
    call.cml.labs.never_boot(wanted.label, wanted.times)
    return DONE


def licences(call: Call) -> Reply:
    """Set how the licence server behaves."""
    wanted, server = call.read(LicenceServerUpdate), call.cml.licence_server
    for name in ("reachable", "seats", "expansion_nodes"):
        if (value := getattr(wanted, name)) is not UNSET:
            setattr(server, name, value)
    if not isinstance(wanted.bad_tokens, UnsetType):
        server.bad_tokens = set(wanted.bad_tokens)
    return DONE


def power(call: Call) -> Reply:
    """Switch the machine on or off."""
    if call.read(PowerSwitch).on:
        call.cml.power_on()
    else:
        call.cml.power_off()
    return DONE


def restart(call: Call) -> Reply:
    """Switch the machine off and on."""
    call.cml.restart()
    return DONE


def expire_tokens(call: Call) -> Reply:
    """Invalidate every token."""
    call.cml.users.expire_tokens()
    return DONE


def fail_checks(call: Call) -> Reply:
    """Set which health checks fail."""
    call.cml.ailments = call.read(FailingChecks).ailments
    return DONE


def patty(call: Call) -> list[Json]:
    """List the ports that are open for nodes."""
    ports = [*call.cml.patty_ports("tcp").values(), *call.cml.patty_ports("udp").values()]
    return [asdict(one) for one in ports]


def _node(call: Call) -> Node:
    return call.cml.labs.node(call.cml.labs.get(call.params[0]), call.params[1])


ROUTES: Final = (
    CmlRoute("GET", "sim", overview, ANYBODY),
    CmlRoute("POST", "sim/speed", speed, ANYBODY),
    CmlRoute("GET", "sim/faults", faults, ANYBODY),
    CmlRoute("POST", "sim/faults", add_fault, ANYBODY),
    CmlRoute("DELETE", "sim/faults", clear_faults, ANYBODY),
    CmlRoute("DELETE", "sim/labs/{}", lose, ANYBODY),
    CmlRoute("POST", "sim/labs/{}/nodes/{}/configuration", configure, ANYBODY, LARGE),
    CmlRoute("POST", "sim/labs/{}/nodes/{}/state", force, ANYBODY),
    CmlRoute("POST", "sim/never-boot", never_boot, ANYBODY),
    CmlRoute("POST", "sim/license", licences, ANYBODY),
    CmlRoute("POST", "sim/power", power, ANYBODY),
    CmlRoute("POST", "sim/restart", restart, ANYBODY),
    CmlRoute("POST", "sim/tokens/expire", expire_tokens, ANYBODY),
    CmlRoute("POST", "sim/health", fail_checks, ANYBODY),
    CmlRoute("GET", "sim/patty", patty, ANYBODY),
)
