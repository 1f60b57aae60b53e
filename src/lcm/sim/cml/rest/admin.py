"""The simulator's own REST calls, next to CML's: speed, faults, and what learners and machines do without CML's API.

No sign-in is needed. docs/cml-sim.md shows every call.
"""

from dataclasses import asdict
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.sim.cml.faults import HttpFault
from lcm.sim.cml.labs import to_files
from lcm.sim.cml.parts import Node, NodeState
from lcm.sim.cml.rest.documents import CmlDocument, Configuration, Json
from lcm.sim.cml.rest.routing import ANYBODY, LARGE, Call, CmlRoute


class SpeedSetting(CmlDocument):
    """How much faster than the clock the machine's time runs."""

    speed: Annotated[float, Meta(gt=0, le=1_000_000)]


class PowerSwitch(CmlDocument):
    """Whether the machine is on."""

    on: bool


class NodeConfiguration(CmlDocument):
    """What a learner has done to a node's configuration."""

    configuration: Configuration


class ForcedState(CmlDocument):
    """A state that a node is forced into."""

    state: NodeState


class NeverBoot(CmlDocument):
    """Nodes of this label hang in STARTED for their next starts."""

    label: str
    times: Annotated[int, Meta(ge=1)] = 1


class LicenceServerUpdate(CmlDocument):
    """How the licence server behaves."""

    reachable: bool | UnsetType = UNSET
    bad_tokens: list[str] | UnsetType = UNSET
    seats: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    expansion_nodes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class FailingChecks(CmlDocument):
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


def speed(call: Call) -> None:
    """Change the machine's speed from now on."""
    call.cml.pace.speed = call.read(SpeedSetting).speed


def configure(call: Call) -> None:
    """Change the configuration inside a running node, as a learner does."""
    node = _node(call)
    node.running = to_files(call.read(NodeConfiguration).configuration, node.kind)


def never_boot(call: Call) -> None:
    """Make nodes hang while they boot."""
    wanted = call.read(NeverBoot)
    call.cml.labs.never_boot(wanted.label, wanted.times)


def licences(call: Call) -> None:
    """Set how the licence server behaves."""
    given = call.read(LicenceServerUpdate).given()
    if "bad_tokens" in given:
        given["bad_tokens"] = set(given["bad_tokens"])
    for name, value in given.items():
        setattr(call.cml.licence_server, name, value)


def power(call: Call) -> None:
    """Switch the machine on or off."""
    if call.read(PowerSwitch).on:
        call.cml.power_on()
    else:
        call.cml.power_off()


def fail_checks(call: Call) -> None:
    """Set which health checks fail."""
    call.cml.ailments = call.read(FailingChecks).ailments


def patty(call: Call) -> list[Json]:
    """List the ports that are open for nodes."""
    ports = [*call.cml.patty_ports("tcp").values(), *call.cml.patty_ports("udp").values()]
    return [asdict(one) for one in ports]


def _node(call: Call) -> Node:
    return call.cml.labs.node(call.cml.labs.get(call.params[0]), call.params[1])


ROUTES: Final = (
    CmlRoute("GET", "sim", overview, ANYBODY),
    CmlRoute("POST", "sim/speed", speed, ANYBODY),
    CmlRoute("GET", "sim/faults", lambda call: call.cml.faults.pending(), ANYBODY),
    CmlRoute("POST", "sim/faults", lambda call: call.cml.faults.add(call.read(HttpFault)), ANYBODY),
    CmlRoute("DELETE", "sim/faults", lambda call: call.cml.faults.clear(), ANYBODY),
    CmlRoute("DELETE", "sim/labs/{}", lambda call: call.cml.labs.lose_lab(call.cml.labs.get(call.params[0])), ANYBODY),
    CmlRoute("POST", "sim/labs/{}/nodes/{}/configuration", configure, ANYBODY, LARGE),
    CmlRoute(
        "POST",
        "sim/labs/{}/nodes/{}/state",
        lambda call: call.cml.labs.force_state(_node(call), call.read(ForcedState).state),
        ANYBODY,
    ),
    CmlRoute("POST", "sim/never-boot", never_boot, ANYBODY),
    CmlRoute("POST", "sim/license", licences, ANYBODY),
    CmlRoute("POST", "sim/power", power, ANYBODY),
    CmlRoute("POST", "sim/restart", lambda call: call.cml.restart(), ANYBODY),
    CmlRoute("POST", "sim/tokens/expire", lambda call: call.cml.users.expire_tokens(), ANYBODY),
    CmlRoute("POST", "sim/health", fail_checks, ANYBODY),
    CmlRoute("GET", "sim/patty", patty, ANYBODY),
)
