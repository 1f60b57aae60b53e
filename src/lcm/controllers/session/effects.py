"""Having effects, and hearing what was answered. Refusals become values here; silence rises, and is asked about again.

Every effect is one that the session's committed phase calls for, and may be repeated; the term's permit is asked for at
the last moment, by the hosts' providers, and here before files are written.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import structlog

from lcm.control.objects.session_files import kept_name
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.session.progress import LAB_FILE, collected_uri, prepared_name, prepared_uri, title_of
from lcm.controllers.session.starting import NOT_PREPARED
from lcm.controllers.session.view import (
    Collect,
    Discard,
    Effect,
    Failure,
    Import,
    Observe,
    Outcome,
    Prepare,
    Remove,
    Restart,
    Start,
    View,
)
from lcm.controllers.worker.look import answered
from lcm.controllers.worker.view import Unknown
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Invalid, Later, Refused, Stuck, TooLarge
from lcm.model.kinds.definition import PortTemplate
from lcm.model.telemetry.learning import observation_of
from lcm.model.telemetry.observation import (
    InterfaceObservation,
    NodeObservation,
    NodeStats,
    ResourceObservation,
    bounded,
)
from lcm.model.topology.lab import rewrite
from lcm.model.topology.ports import used_ports
from lcm.providers.protocols.artifacts import Artifacts
from lcm.providers.protocols.labhost import (
    Hosts,
    InterfaceFacts,
    LabHost,
    LabSummary,
    NodeFacts,
    NodeUse,
    SimulationStats,
)
from lcm.providers.protocols.permit import permit

Observer = Literal["lablet-controller", "manual"]


def observe(
    nodes: Sequence[NodeFacts],
    stats: SimulationStats | None,
    allocated: Mapping[str, int],
    template: PortTemplate,
    now: datetime,
    *,
    observer: Observer,
) -> ResourceObservation:
    """Put together what was seen of a lab; without `stats` what its nodes were given is known all the same."""
    used = {ref: _stats(use) for ref, use in stats.nodes.items()} if stats else None
    seen, ours = [_node(node) for node in nodes], frozenset(allocated.values())
    return observation_of(seen, template, at=now, observer=observer, stats=used, allocated=ours)


def _node(node: NodeFacts) -> NodeObservation:
    return NodeObservation(
        node_id=node.node_id,
        label=node.label,
        node_definition=node.node_definition,
        state=node.state,
        cpu_limit=node.cpu_limit,
        ram_mb=node.ram_mb,
        tags=node.tags,
        interfaces=tuple(map(_interface, node.interfaces)),
        cpus=node.cpus,
        disk_gb=node.disk_gb,
    )


def _interface(one: InterfaceFacts) -> InterfaceObservation:
    return InterfaceObservation(
        interface_id=one.interface_id,
        label=one.label,
        slot=one.slot,
        state=one.state,
        mac_address=one.mac_address,
        ip4=one.ip4,
    )


def _stats(use: NodeUse) -> NodeStats:
    return NodeStats(
        cpu_usage=use.cpu_usage, ram_usage=use.ram_usage, disk_usage=use.disk_usage, boot_seconds=_boot_seconds(use)
    )


def _boot_seconds(use: NodeUse) -> float | None:
    """Say how long a node booted: CML tells how long ago it started, and how long ago it had booted."""
    started, booted = use.seconds_in_state.get("STARTED", 0.0), use.seconds_in_state.get("BOOTED", 0.0)
    return started - booted if 0 < booted <= started else None


EFFECT_SECONDS: Final = 60.0
"""How long one effect may keep others waiting; what takes longer goes on at the next look."""
OBSERVE_SECONDS: Final = 25.0
DISCARD_SECONDS: Final = 10.0
_NOT_REMOVED: Final = "NotRemoved"
_HOPELESS: Final = (Gone, Invalid, TooLarge)
_DIGEST: Final = "DigestMismatch"
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hands:
    """Does what was decided."""

    plane: Plane
    hosts: Hosts
    artifacts: Artifacts
    clock: Clock

    async def do(self, view: View, effect: Effect) -> Outcome:
        """Have an effect; a refusal is an outcome, and so is a lab that is gone meanwhile: the next look says so."""
        seconds = OBSERVE_SECONDS if isinstance(effect, Observe) else EFFECT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                if isinstance(effect, Prepare | Discard):
                    return await self._files(view, effect)
                return await self._lab(view, effect)
        except TimeoutError:
            raise Later(f"{type(effect).__name__.lower()} takes longer than {seconds:g} s") from None
        except Stuck as error:
            return Failure(error.reason, str(error))
        except Refused as error:
            return Failure(type(error).__name__, str(error))
        except Gone:
            return None

    async def _files(self, view: View, effect: Prepare | Discard) -> Outcome:
        return await (self._discard(view) if isinstance(effect, Discard) else self._prepare(view))

    async def _discard(self, view: View) -> Outcome:
        """Remove what nobody reads any more; where files are kept may be silent: who sweeps there comes later."""
        uris = [prepared_uri(view.session), *([collected_uri(view.session)] if view.deleted else [])]
        permit()
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                for uri in uris:
                    await self.artifacts.remove(uri)
        except TimeoutError:
            return Failure(_NOT_REMOVED, f"its files could not be removed within {DISCARD_SECONDS:g} s")
        except Later as error:
            return Failure(_NOT_REMOVED, str(error))
        return None

    async def _prepare(self, view: View) -> Outcome:
        assert view.definition is not None
        wanted = view.definition.spec.topology
        try:
            data = await self.artifacts.get(wanted.uri, digest=wanted.digest)
            text = rewrite(data, view.status.allocated_ports or {})
            text.decode()
        except _HOPELESS as error:
            return Failure("TopologyRefused", str(error), hopeless=True)
        except UnicodeDecodeError as error:
            return Failure("TopologyRefused", f"the lab file is no UTF-8: {error}", hopeless=True)
        except Stuck as error:
            return Failure(error.reason, str(error), hopeless=error.reason == _DIGEST)
        permit()
        return await self.artifacts.put_temporary(prepared_name(view.session), text)

    async def _lab(self, view: View, effect: Import | Start | Restart | Observe | Collect | Remove) -> Outcome:
        assert view.worker is not None, "what is on no worker has no lab"
        host = await self.hosts.of(view.worker)
        match effect:
            case Import():
                return await self._import(host, view)
            case Start(lab_id=lab_id) | Restart(lab_id=lab_id):
                await host.start(lab_id)
            case Remove(lab_id=lab_id):
                await host.remove(lab_id)
            case Collect(lab_id=lab_id):
                return await self._collect(host, view, lab_id)
            case Observe():
                await self._observe(host, view, effect)
        return None

    async def _import(self, host: LabHost, view: View) -> Outcome:
        try:
            data = await self.artifacts.get(prepared_uri(view.session))
        except Gone as error:
            return Failure(NOT_PREPARED, str(error))
        lab = await host.ensure(title_of(view.session), data.decode())
        if strays := await _strays(host, lab, view):
            # An earlier try's, which came to be after everybody had looked for it.
            await host.remove(lab.lab_id)
            return Failure("OtherPorts", f"its lab was there, on ports that are not its own: {strays[:5]}")
        return lab

    async def _collect(self, host: LabHost, view: View, lab_id: str) -> Outcome:
        text = await host.topology(lab_id)
        permit()
        try:
            return await self.artifacts.put_temporary(kept_name(view.session, LAB_FILE), text.encode())
        except TooLarge as error:
            return Failure("TooLarge", str(error), hopeless=True)

    async def _observe(self, host: LabHost, view: View, effect: Observe) -> None:
        nodes = await host.nodes(effect.lab_id)
        stats = await answered(host.simulation_stats(effect.lab_id))
        template = (view.definition.spec.port_template if view.definition else None) or {}
        observer: Observer = "lablet-controller" if effect.request_id is None else "manual"
        seen = observe(
            nodes,
            None if isinstance(stats, Unknown) else stats,
            view.status.allocated_ports or {},
            template,
            self.clock.now(),
            observer=observer,
        )
        ref = ref_of(view.session)
        status = (await self.plane.record_observation(ref, bounded(seen), request_id=effect.request_id)).status
        if status.port_drift_detected and status.observed_ports != view.status.observed_ports:
            _log.warning("ports drifted", session=str(ref), worker=view.on_worker, seen=status.observed_ports)


async def _strays(host: LabHost, lab: LabSummary, view: View) -> Sequence[int]:
    """Tell which ports a lab that was found or made holds that its session was not given."""
    tags = (tag for node in await host.nodes(lab.lab_id) for tag in node.tags)
    return sorted(used_ports(tags) - set((view.status.allocated_ports or {}).values()))
