"""Puts the parts of a process together: the one place that names implementations and lists every controller.

Called by `cli`. Parts are closed in the opposite order, however the process ends.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from lcm.compose.api import (
    RunningApi,
    open_store,
    process_name,
    release_stale_lease,
    run_api,
    seal_key_file,
    simulated_secrets,
)
from lcm.compose.outside import AWS, SIM_FILE, SIMULATED, Providers, open_aws, open_simulated, secret_sources
from lcm.control.access.tokens import SERVICE_NAME, service_keys
from lcm.control.accounts.allocator import ResourceAllocator
from lcm.control.plane.protocol import Plane
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.runtime.election import ControllerParts
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.providers.local.sealed import InstalledKeys, ensure_keys
from lcm.providers.protocols.secrets import SecretSources
from lcm.settings.load import Settings
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, SystemStopwatch, new_seal_key, raise_file_limit, random_fraction
from lcm.system.data_folder import claim_folder
from lcm.system.tasks import Supervisor, run_until_first_ends

SERVE_PORT: Final = 8030
UP_PORT: Final = 8080
_log: Final = structlog.get_logger()


class ProcessPart(StrEnum):
    """What `lcm serve` can be asked to run."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER_CONTROLLER = "worker-controller"
    LABLET_CONTROLLER = "lablet-controller"
    POOL_CONTROLLER = "pool-controller"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What a controller is given besides its plane."""

    settings: Settings
    outside: Providers
    secrets: SecretSources
    process: str

    def common_parts(self) -> ControllerParts:
        """Return what every controller takes by name."""
        return {
            "clock": SystemClock(),
            "stopwatch": SystemStopwatch(),
            "chance": random_fraction,
            "settings": self.settings,
            "holder": self.process,
        }


@dataclass(frozen=True, slots=True)
class Controller:
    """A part that watches a plane and acts, until it is cancelled. Its lease has its name."""

    part: ProcessPart
    run: Callable[[Plane, ControllerContext], Coroutine[Any, Any, None]]

    @property
    def caller(self) -> Caller:
        return Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=self.part)


CONTROLLERS: Final[tuple[Controller, ...]] = (
    Controller(
        ProcessPart.WORKER_CONTROLLER,
        lambda plane, around: WorkerController(
            plane,
            around.outside.cloud,
            around.outside.hosts,
            around.secrets,
            speed=around.outside.speed,
            **around.common_parts(),
        ).run(),
    ),
    Controller(ProcessPart.SCHEDULER, lambda plane, around: SchedulerController(plane, **around.common_parts()).run()),
    Controller(ProcessPart.POOL_CONTROLLER, lambda plane, around: PoolController(plane, **around.common_parts()).run()),
    Controller(
        ProcessPart.LABLET_CONTROLLER,
        lambda plane, around: LabletController(
            plane,
            around.outside.hosts,
            around.outside.artifacts,
            speed=around.outside.speed,
            **around.common_parts(),
        ).run(),
    ),
)
"""Every controller."""


@dataclass(frozen=True, slots=True)
class EmbeddedProcess:
    """Everything in one process: the API with its control plane, an allocator, and a cloud."""

    running: RunningApi
    allocator: ResourceAllocator
    outside: Providers


BeforeStart = Callable[[EmbeddedProcess], Awaitable[None]]


@asynccontextmanager
async def run_embedded(
    settings: Settings,
    *,
    speed: float | None = None,
    controllers: Sequence[Controller] = CONTROLLERS,
    before: BeforeStart | None = None,
) -> AsyncIterator[EmbeddedProcess]:
    """Run everything in one process, on a file that no other process uses meanwhile.

    `speed` overrides the settings. `before` is called once the API answers and before anything acts on the cloud; it
    raises to prevent that.
    """
    raise_file_limit()
    settings = _with_default_cloud(settings, SIMULATED)
    if speed is not None:
        settings = msgspec.structs.replace(settings, sim_speed=speed)
    with claim_folder(settings.data_dir, alone=True) as file:
        if settings.seal_keys is None:
            await asyncio.to_thread(ensure_keys, seal_key_file(settings), new_key=new_seal_key)
        async with AsyncExitStack() as undo:
            store = await SqliteStore.open(file, alone=True)
            running = await undo.enter_async_context(run_api(store, settings, UP_PORT, alone=True))
            outside = await undo.enter_async_context(_open_providers(running, settings, settings.data_dir / SIM_FILE))
            allocator = await ResourceAllocator.open(
                settings.total_cpu_cores, settings.total_memory_gb, store=store, clock=SystemClock()
            )
            it = EmbeddedProcess(running, allocator, outside)
            if before is not None:
                await before(it)
            for controller in controllers:
                await release_stale_lease(store, controller.part)
                _start_controller(controller, running, outside, settings)
            yield it


@asynccontextmanager
async def serve(settings: Settings, asked: Collection[ProcessPart]) -> AsyncIterator[RunningApi]:
    """Run the API and other parts on a store that other processes may share; Refused for an unknown part."""
    raise_file_limit()
    _check_parts(asked)
    settings = _with_default_cloud(settings, AWS)
    service_key(settings)
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claim_folder(settings.data_dir, alone=False))
        running = await undo.enter_async_context(run_api(await open_store(settings), settings, SERVE_PORT))
        if controllers := _select_controllers(asked):
            outside = await undo.enter_async_context(_open_providers(running, settings))
            for controller in controllers:
                _start_controller(controller, running, outside, settings)
        yield running


@asynccontextmanager
async def run_controllers(settings: Settings, asked: Collection[ProcessPart]) -> AsyncIterator[Supervisor]:
    """Run only controllers, for an API in another process, as soon as that API answers."""
    raise_file_limit()
    _check_parts(asked)
    settings, process = _with_default_cloud(settings, AWS), process_name()
    key = service_key(settings)
    async with AsyncExitStack() as undo:
        keys = InstalledKeys(seal_key_file(settings), given=settings.seal_keys)
        secrets = await undo.enter_async_context(secret_sources(settings, keys, simulated_secrets(settings)))
        parts = await undo.enter_async_context(Supervisor())

        async def work() -> None:
            async with _open_cloud(settings, parts, secrets, await _read_installation_id(settings, key)) as outside:
                around = ControllerContext(settings, outside, secrets, process)
                await run_until_first_ends(
                    *(_run_remotely(controller, around, key) for controller in _select_controllers(asked))
                )

        parts.start("controllers", work())
        _log.info("started", process=process, api=settings.control_plane_api_url, parts=[str(part) for part in asked])
        yield parts
    _log.info("stopped", process=process)


async def _read_installation_id(settings: Settings, key: Secret) -> str:
    """Ask the API for the id of the installation, as soon as it answers."""
    from lcm.control.plane.client_streams import fetch_installation_id  # noqa: PLC0415 - httpx is slow to load, and few processes need it
    from lcm.control.plane.transport import ApiConnection, ClientTimeouts  # noqa: PLC0415 - likewise

    url = settings.control_plane_api_url
    line = ApiConnection(url, key, actor="", limits=ClientTimeouts(), trust=None, transport=None)
    try:
        return await fetch_installation_id(line, random_fraction)
    finally:
        await line.close()


async def _run_remotely(controller: Controller, around: ControllerContext, key: Secret) -> None:
    """Run a controller on the plane of another process."""
    from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - likewise

    url = around.settings.control_plane_api_url
    async with HttpPlane.open(url, key, actor=controller.part, caller=controller.caller) as plane:
        await controller.run(plane, around)


def service_key(settings: Settings) -> Secret:
    """Return the key with which services sign in; raises Invalid when none is set."""
    keys = service_keys(settings.control_plane_api_key)
    if not keys:
        remedy = "set it to a long random text, the same for the API and for every controller"
        raise Invalid(Fault("CONTROL_PLANE_API_KEY", "not set", remedy))
    return Secret(keys[0])


def _select_controllers(asked: Collection[ProcessPart]) -> list[Controller]:
    return [controller for controller in CONTROLLERS if ProcessPart.ALL in asked or controller.part in asked]


def _with_default_cloud(settings: Settings, usual: Literal["aws", "simulated"]) -> Settings:
    return settings if settings.cloud else msgspec.structs.replace(settings, cloud=usual)


def _open_providers(
    running: RunningApi, settings: Settings, file: Path | None = None
) -> AbstractAsyncContextManager[Providers]:
    return _open_cloud(settings, running.parts, running.secrets, running.installation_id, file=file)


def _open_cloud(
    settings: Settings, parts: Supervisor, secrets: SecretSources, owner: str, *, file: Path | None = None
) -> AbstractAsyncContextManager[Providers]:
    if settings.cloud == AWS:
        return open_aws(settings, secrets, owner=owner)
    return open_simulated(settings, parts, owner=owner, speed=settings.sim_speed, file=file)


def _start_controller(controller: Controller, running: RunningApi, outside: Providers, settings: Settings) -> None:
    around = ControllerContext(settings, outside, running.secrets, running.process)
    running.parts.start(controller.part, controller.run(running.control.plane_for(controller.caller), around))


def _check_parts(asked: Collection[ProcessPart]) -> None:
    built = {ProcessPart.API, ProcessPart.ALL, *(controller.part for controller in CONTROLLERS)}
    for part in asked:
        if part not in built:
            raise Refused(f"this version has no {part}; it can serve {', '.join(sorted(built))}")
