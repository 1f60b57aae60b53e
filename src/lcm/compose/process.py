"""The one place that names implementations, lists every controller, and puts the parts of a process together.

Called by `cli`. What is put together is taken apart in the opposite order, however the process ends.
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

from lcm.compose.api import Running, api_running, made_up_secrets, open_store, process_name, released, seal_key_file
from lcm.compose.outside import AWS, SIM_FILE, SIMULATED, Outside, on_aws, secret_sources, simulated
from lcm.control.access.tokens import SERVICE_NAME, keys_in
from lcm.control.accounts.allocator import ResourceAllocator
from lcm.control.plane.protocol import Plane
from lcm.controllers.pool.controller import PoolController
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
from lcm.system.clock import SystemClock, SystemStopwatch, allow_many_files, chance, new_seal_key
from lcm.system.data_folder import claimed
from lcm.system.tasks import Parts, together

SERVE_PORT: Final = 8030
UP_PORT: Final = 8080
_log: Final = structlog.get_logger()


class Part(StrEnum):
    """What `lcm serve` can be asked for."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER_CONTROLLER = "worker-controller"
    LABLET_CONTROLLER = "lablet-controller"
    POOL_CONTROLLER = "pool-controller"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Around:
    """What a controller is given besides its plane."""

    settings: Settings
    outside: Outside
    secrets: SecretSources
    process: str


@dataclass(frozen=True, slots=True)
class Controller:
    """A part that watches a plane and acts, until it is cancelled. Its lease has its name."""

    part: Part
    run: Callable[[Plane, Around], Coroutine[Any, Any, None]]


async def _workers(plane: Plane, around: Around) -> None:
    await WorkerController(
        plane,
        around.outside.cloud,
        around.outside.hosts,
        around.secrets,
        clock=SystemClock(),
        stopwatch=SystemStopwatch(),
        chance=chance,
        settings=around.settings,
        holder=around.process,
        speed=around.outside.speed,
    ).run()


async def _sessions(plane: Plane, around: Around) -> None:
    await SchedulerController(
        plane,
        clock=SystemClock(),
        stopwatch=SystemStopwatch(),
        chance=chance,
        settings=around.settings,
        holder=around.process,
    ).run()


async def _pools(plane: Plane, around: Around) -> None:
    await PoolController(
        plane,
        clock=SystemClock(),
        stopwatch=SystemStopwatch(),
        chance=chance,
        settings=around.settings,
        holder=around.process,
    ).run()


async def _labs(plane: Plane, around: Around) -> None:
    await LabletController(
        plane,
        around.outside.hosts,
        around.outside.artifacts,
        clock=SystemClock(),
        stopwatch=SystemStopwatch(),
        chance=chance,
        settings=around.settings,
        holder=around.process,
        speed=around.outside.speed,
    ).run()


CONTROLLERS: Final[tuple[Controller, ...]] = (
    Controller(Part.WORKER_CONTROLLER, _workers),
    Controller(Part.SCHEDULER, _sessions),
    Controller(Part.POOL_CONTROLLER, _pools),
    Controller(Part.LABLET_CONTROLLER, _labs),
)
"""Every controller."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Everything in one process: what serves, an allocator, and a cloud."""

    running: Running
    allocator: ResourceAllocator
    outside: Outside


Ask = Callable[["Embedded"], Awaitable[None]]


@asynccontextmanager
async def embedded(
    settings: Settings,
    *,
    speed: float | None = None,
    controllers: Sequence[Controller] = CONTROLLERS,
    before: Ask | None = None,
) -> AsyncIterator[Embedded]:
    """Run everything in one process, on a file that no other process uses meanwhile; `speed` wins over the settings'.

    `before` is done once the API answers and before anything acts on the cloud, and raises if nothing shall.
    """
    allow_many_files()
    settings = _choosing(settings, SIMULATED)
    if speed is not None:
        settings = msgspec.structs.replace(settings, sim_speed=speed)
    with claimed(settings.data_dir, alone=True) as file:
        if settings.seal_keys is None:
            await asyncio.to_thread(ensure_keys, seal_key_file(settings), new_key=new_seal_key)
        async with AsyncExitStack() as undo:
            store = await SqliteStore.open(file, alone=True)
            running = await undo.enter_async_context(api_running(store, settings, UP_PORT, alone=True))
            outside = await undo.enter_async_context(_outside(running, settings, settings.data_dir / SIM_FILE))
            allocator = await ResourceAllocator.open(
                settings.total_cpu_cores, settings.total_memory_gb, store=store, clock=SystemClock()
            )
            it = Embedded(running, allocator, outside)
            if before is not None:
                await before(it)
            for controller in controllers:
                await released(store, controller.part)
                _start(controller, running, outside, settings)
            yield it


@asynccontextmanager
async def serve(settings: Settings, asked: Collection[Part]) -> AsyncIterator[Running]:
    """Run the API, and other parts beside it, on a store that other processes may share; Refused for a strange part."""
    allow_many_files()
    _check_parts(asked)
    settings = _choosing(settings, AWS)
    service_key(settings)
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claimed(settings.data_dir, alone=False))
        running = await undo.enter_async_context(api_running(await open_store(settings), settings, SERVE_PORT))
        if controllers := _wanted(asked):
            outside = await undo.enter_async_context(_outside(running, settings))
            for controller in controllers:
                _start(controller, running, outside, settings)
        yield running


@asynccontextmanager
async def attend(settings: Settings, asked: Collection[Part]) -> AsyncIterator[Parts]:
    """Run controllers alone, for an API in another process, from when that answers."""
    allow_many_files()
    _check_parts(asked)
    settings, process = _choosing(settings, AWS), process_name()
    key = service_key(settings)
    async with AsyncExitStack() as undo:
        keys = InstalledKeys(seal_key_file(settings), given=settings.seal_keys)
        secrets = await undo.enter_async_context(secret_sources(settings, keys, made_up_secrets(settings)))
        parts = await undo.enter_async_context(Parts())

        async def work() -> None:
            async with _cloud(settings, parts, secrets, await _called(settings, key)) as outside:
                around = Around(settings, outside, secrets, process)
                await together(*(_distant(controller, around, key) for controller in _wanted(asked)))

        parts.start("controllers", work())
        _log.info("started", process=process, api=settings.control_plane_api_url, parts=[str(part) for part in asked])
        yield parts
    _log.info("stopped", process=process)


async def _called(settings: Settings, key: Secret) -> str:
    """Ask the API what the installation is called, as soon as it answers."""
    from lcm.control.plane.client_streams import called  # noqa: PLC0415 - httpx is slow to load, and few processes need it
    from lcm.control.plane.transport import Limits as Patience  # noqa: PLC0415 - likewise
    from lcm.control.plane.transport import Line  # noqa: PLC0415 - likewise

    line = Line(settings.control_plane_api_url, key, actor="", limits=Patience(), trust=None, transport=None)
    try:
        return await called(line, chance)
    finally:
        await line.close()


async def _distant(controller: Controller, around: Around, key: Secret) -> None:
    """Run a controller on the plane of another process."""
    from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - likewise

    caller = Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=controller.part)
    url = around.settings.control_plane_api_url
    async with HttpPlane.open(url, key, actor=controller.part, caller=caller) as plane:
        await controller.run(plane, around)


def service_key(settings: Settings) -> Secret:
    """Give the key with which services sign in; Invalid when nobody set one."""
    keys = keys_in(settings.control_plane_api_key)
    if not keys:
        remedy = "set it to a long random text, the same for the API and for every controller"
        raise Invalid(Fault("CONTROL_PLANE_API_KEY", "not set", remedy))
    return Secret(keys[0])


def _wanted(asked: Collection[Part]) -> list[Controller]:
    return [controller for controller in CONTROLLERS if Part.ALL in asked or controller.part in asked]


def _choosing(settings: Settings, usual: Literal["aws", "simulated"]) -> Settings:
    return settings if settings.cloud else msgspec.structs.replace(settings, cloud=usual)


def _outside(running: Running, settings: Settings, file: Path | None = None) -> AbstractAsyncContextManager[Outside]:
    return _cloud(settings, running.parts, running.secrets, running.called, file=file)


def _cloud(
    settings: Settings, parts: Parts, secrets: SecretSources, owner: str, *, file: Path | None = None
) -> AbstractAsyncContextManager[Outside]:
    if settings.cloud == AWS:
        return on_aws(settings, secrets, owner=owner)
    return simulated(settings, parts, owner=owner, speed=settings.sim_speed, file=file)


def _start(controller: Controller, running: Running, outside: Outside, settings: Settings) -> None:
    caller = Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=controller.part)
    around = Around(settings, outside, running.secrets, running.process)
    running.parts.start(controller.part, controller.run(running.control.acting(caller), around))


def _check_parts(asked: Collection[Part]) -> None:
    built = {Part.API, Part.ALL, *(controller.part for controller in CONTROLLERS)}
    for part in asked:
        if part not in built:
            raise Refused(f"this version has no {part}; it can serve {', '.join(sorted(built))}")
