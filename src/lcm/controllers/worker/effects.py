"""Carrying out a decided effect and returning its outcome. Called by `lifecycle`.

Every effect is one that the worker's committed phase calls for, and may be repeated. The providers check the term's
permit at the last moment.
"""

from dataclasses import dataclass

from lcm.control.plane.protocol import Plane, Ref, Terminate, ref_of
from lcm.controllers.worker.view import (
    BeginDrain,
    Deregister,
    Effect,
    EffectOutcome,
    EndSessions,
    LaunchMachine,
    RebootMachine,
    Register,
    RemoveMachine,
    SetTelemetry,
    StartMachine,
    StopLabs,
    StopMachine,
    WorkerView,
)
from lcm.model.access.secret import check_use
from lcm.model.base.errors import Conflict
from lcm.model.base.resource import SecretUse
from lcm.model.kinds.session import LabletSession
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts
from lcm.providers.protocols.secrets import Secrets


@dataclass(frozen=True, slots=True)
class WorkerEffects:
    """Carries out what was decided."""

    plane: Plane
    cloud: Compute
    hosts: Hosts
    secrets: Secrets

    async def do(self, view: WorkerView, effect: Effect) -> EffectOutcome:
        """Carry out an effect and return its outcome."""
        match effect:
            case Register() | Deregister() | SetTelemetry() | StopLabs():
                return await self._on_host(view, effect)
            case BeginDrain():
                await self.plane.delete(ref_of(view.worker))
                return None
            case EndSessions():
                await self._check_unchanged(view)
                for namespace, name in effect.names:
                    await self.plane.act(Ref(LabletSession, name, namespace), Terminate(reason=effect.reason))
                return None
            case _:
                return await self._on_machine(view, effect)

    async def _on_machine(self, view: WorkerView, effect: Effect) -> EffectOutcome:
        region, instance_id = view.worker.spec.aws.region, view.status.ec2.instance_id
        match effect:
            case LaunchMachine(launch=launch):
                return await self.cloud.ensure(launch)
            case StartMachine():
                await self.cloud.start(region, instance_id)
            case StopMachine():
                await self.cloud.stop(region, instance_id)
            case RebootMachine():
                await self.cloud.reboot(region, instance_id)
            case RemoveMachine():
                await self.cloud.remove(region, instance_id)
        return None

    async def _on_host(
        self, view: WorkerView, effect: Register | Deregister | SetTelemetry | StopLabs
    ) -> EffectOutcome:
        host = await self.hosts.of(view.worker)
        match effect:
            case Register(product=product, token=token, expansion_nodes=more):
                check_use(token, SecretUse.LICENSE_TOKEN)
                secret = await self.secrets.reveal(token)
                return await host.register(product=product, token=secret, expansion_nodes=more)
            case Deregister():
                return await host.deregister()
            case SetTelemetry(enabled=enabled):
                await host.set_telemetry(enabled=enabled)
            case StopLabs(lab_ids=lab_ids):
                for lab_id in lab_ids:
                    await host.stop(lab_id)
        return None

    async def _check_unchanged(self, view: WorkerView) -> None:
        """Raise Conflict if the worker was changed meanwhile: a drain may be cancelled at the last moment."""
        seen, ref = view.worker.metadata.resource_version, ref_of(view.worker)
        found = await self.plane.get(ref)
        if found is None or found.metadata.resource_version != seen:
            raise Conflict(ref.key, wanted=seen, found=found.metadata.resource_version if found else 0)
