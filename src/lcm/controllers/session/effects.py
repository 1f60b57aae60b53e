"""Carries out effects and returns their outcomes.

Every effect is one that the session's committed phase calls for, and may be repeated. The term's permit is checked at
the last moment: by the lab hosts' providers, and here before files are written. `observe_lab` turns what CML
reports about a lab into an observation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import structlog
from msgspec.structs import asdict

from lcm.control.objects.session_files import stored_name
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.runtime.lifecycle import Failure, Unknown, ask_host
from lcm.controllers.session.progress import collected_uri, held_name, prepared_name, prepared_uri, title_of
from lcm.controllers.session.starting import NOT_PREPARED
from lcm.controllers.session.view import (
    Collect,
    Discard,
    Effect,
    EffectOutcome,
    Import,
    LabEffect,
    Observe,
    Prepare,
    Remove,
    Restart,
    Save,
    SessionView,
    Start,
)
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Invalid, Later, Stuck, TooLarge
from lcm.model.kinds.definition import PortTemplate
from lcm.model.kinds.saved_lab import LAB_FILE, file_of_save
from lcm.model.telemetry.learning import build_observation
from lcm.model.telemetry.observation import (
    InterfaceObservation,
    NodeObservation,
    NodeStats,
    ResourceObservation,
    trim_observation,
)
from lcm.model.topology.lab import rewrite
from lcm.model.topology.lab_text import MAX_BYTES
from lcm.model.topology.ports import used_ports
from lcm.providers.protocols.artifacts import Artifacts, check_size
from lcm.providers.protocols.labhost import Hosts, LabHost, LabState, NodeFacts, NodeUse, SimulationStats
from lcm.providers.protocols.permit import check_permit
from lcm.system.tasks import TimeLimit

Observer = Literal["lablet-controller", "manual"]


def observe_lab(
    nodes: Sequence[NodeFacts],
    stats: SimulationStats | None,
    allocated: Mapping[str, int],
    template: PortTemplate,
    now: datetime,
    *,
    observer: Observer,
) -> ResourceObservation:
    """Build an observation of a lab; without `stats`, what its nodes were given is known all the same."""
    used = {ref: node_stats(use) for ref, use in stats.nodes.items()} if stats else None
    seen, ours = [_node_observation(node) for node in nodes], frozenset(allocated.values())
    return build_observation(seen, template, at=now, observer=observer, stats=used, allocated=ours)


def _node_observation(node: NodeFacts) -> NodeObservation:
    """Return the facts of a node as they are recorded, field by field."""
    links = tuple(InterfaceObservation(**asdict(one)) for one in node.interfaces)
    return NodeObservation(**asdict(node) | {"interfaces": links})


def node_stats(use: NodeUse) -> NodeStats:
    """Return CML's statistics of a node as they are recorded."""
    # CML reports how long ago a node started, and how long ago it had booted.
    started, booted = use.seconds_in_state.get("STARTED", 0.0), use.seconds_in_state.get("BOOTED", 0.0)
    took = started - booted if 0 < booted <= started else None
    return NodeStats(
        cpu_usage=use.cpu_usage,
        ram_usage=use.ram_usage,
        disk_usage=use.disk_usage,
        boot_seconds=took,
        cpus=use.cpus,
        ram_mb=use.ram_mb,
    )


EFFECT_SECONDS: Final = 60.0
"""How long one effect may take; what takes longer continues at the next look."""
OBSERVE_SECONDS: Final = 25.0
DISCARD_SECONDS: Final = 10.0
_NOT_REMOVED: Final = "NotRemoved"
_PERMANENT_ERRORS: Final = (Gone, Invalid, TooLarge)
_DIGEST_MISMATCH: Final = "DigestMismatch"
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SessionEffects:
    """Carries out what was decided."""

    plane: Plane
    hosts: Hosts
    artifacts: Artifacts
    clock: Clock

    async def do(self, view: SessionView, effect: Effect) -> EffectOutcome:
        """Carry out an effect and return its outcome; raise Later when it takes too long."""
        seconds = OBSERVE_SECONDS if isinstance(effect, Observe) else EFFECT_SECONDS
        try:
            with TimeLimit(seconds):
                if isinstance(effect, Prepare):
                    return await self._prepare(view)
                if isinstance(effect, Discard):
                    return await self._discard(view)
                return await self._do_with_lab(view, effect)
        except TimeoutError:
            raise Later(f"{type(effect).__name__.lower()} takes longer than {seconds:g} s") from None

    async def _discard(self, view: SessionView) -> EffectOutcome:
        """Remove files that nobody reads any more. If the store does not answer, `FileSweep` removes them later."""
        files = dict.fromkeys((LAB_FILE, *(one.name for one in view.status.artifacts))) if view.is_deleted else ()
        uris = [prepared_uri(view.session), *(collected_uri(view.session, file) for file in files)]
        check_permit()
        try:
            with TimeLimit(DISCARD_SECONDS):
                for uri in uris:
                    await self.artifacts.remove(uri)
        except TimeoutError:
            return Failure(_NOT_REMOVED, f"its files could not be removed within {DISCARD_SECONDS:g} s")
        except Later as error:
            return Failure(_NOT_REMOVED, str(error))
        return None

    async def _prepare(self, view: SessionView) -> EffectOutcome:
        assert view.definition is not None
        wanted = view.definition.spec.topology
        try:
            data = await self.artifacts.get(wanted.uri, digest=wanted.digest)
            text = rewrite(data, view.status.allocated_ports or {})
            text.decode()
        except _PERMANENT_ERRORS as error:
            return Failure("TopologyRefused", str(error), hopeless=True)
        except UnicodeDecodeError as error:
            return Failure("TopologyRefused", f"the lab file is no UTF-8: {error}", hopeless=True)
        except Stuck as error:
            return Failure(error.reason, str(error), hopeless=error.reason == _DIGEST_MISMATCH)
        check_permit()
        return await self.artifacts.put_temporary(prepared_name(view.session), text)

    async def _do_with_lab(self, view: SessionView, effect: Import | LabEffect) -> EffectOutcome:
        assert view.worker is not None, "what is on no worker has no lab"
        host = await self.hosts.of(view.worker)
        match effect:
            case Import():
                return await self._import(host, view)
            case Start() | Restart():
                await host.start(effect.lab_id)
            case Remove():
                await host.remove(effect.lab_id)
            case Collect():
                return await self._save(host, view, effect.lab_id, LAB_FILE)
            case Save():
                return await self._save(host, view, effect.lab_id, file_of_save(effect.request.name), MAX_BYTES)
            case Observe():
                await self._observe(host, view, effect)
        return None

    async def _import(self, host: LabHost, view: SessionView) -> EffectOutcome:
        try:
            data = await self.artifacts.get(prepared_uri(view.session))
        except Gone as error:
            return Failure(NOT_PREPARED, str(error))
        lab = await host.ensure(title_of(view.session), data.decode())
        tags = [tag for node in await host.nodes(lab.lab_id) for tag in node.tags]
        if strays := sorted(used_ports(tags) - set((view.status.allocated_ports or {}).values())):
            # A lab of an earlier attempt, which appeared after it had been looked for; or of a life after the backup
            # from which the session was restored, in which somebody may have worked.
            if lab.state is not LabState.DEFINED:
                await self.artifacts.put_temporary(held_name(lab), (await host.topology(lab.lab_id)).encode())
            await host.remove(lab.lab_id)
            return Failure("OtherPorts", f"its lab was there, on ports that are not its own: {strays[:5]}")
        return lab

    async def _save(
        self, host: LabHost, view: SessionView, lab_id: str, file: str, most: int | None = None
    ) -> EffectOutcome:
        data = (await host.topology(lab_id)).encode()
        check_permit()
        try:
            if most is not None:
                check_size("the lab file", len(data), most)
            return await self.artifacts.put_temporary(stored_name(view.session, file), data)
        except TooLarge as error:
            return Failure("TooLarge", str(error), hopeless=True)

    async def _observe(self, host: LabHost, view: SessionView, effect: Observe) -> None:
        nodes = await host.nodes(effect.lab_id)
        stats = await ask_host(host.simulation_stats(effect.lab_id))
        template = (view.definition.spec.port_template if view.definition else None) or {}
        observer: Observer = "lablet-controller" if effect.request_id is None else "manual"
        seen = observe_lab(
            nodes,
            None if isinstance(stats, Unknown) else stats,
            view.status.allocated_ports or {},
            template,
            self.clock.now(),
            observer=observer,
        )
        ref = ref_of(view.session)
        status = (await self.plane.record_observation(ref, trim_observation(seen), request_id=effect.request_id)).status
        if status.port_drift_detected and status.observed_ports != view.status.observed_ports:
            _log.warning("ports drifted", session=str(ref), worker=view.worker_label, seen=status.observed_ports)
