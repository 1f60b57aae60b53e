"""Puts the parts of a process together: the one place that names implementations and lists every controller.

Called by `cli`. Parts are closed in the opposite order, however the process ends.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
import structlog

from lcm.api.http.metrics import ProcessMetrics
from lcm.api.http.request import MachineConsoles
from lcm.compose.api import (
    RunningApi,
    open_store,
    process_name,
    release_stale_lease,
    run_api,
    seal_key_file,
    simulated_secrets,
)
from lcm.compose.leases import keep_by
from lcm.compose.outside import AWS, SIM_FILE, SIMULATED, Providers, open_aws, open_simulated, secret_sources
from lcm.compose.packing_process import pack_in_process
from lcm.compose.status import ApiContact, StatusPage, serve_status
from lcm.control.access.tokens import SERVICE_NAME, service_keys
from lcm.control.accounts.allocator import ResourceAllocator
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.controllers.runtime.election import Beside, ControllerParts, Election
from lcm.controllers.runtime.terms import TermKeeper
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid, Later, Refused
from lcm.model.kinds.registry import Resource
from lcm.providers.local.sealed import InstalledKeys, ensure_keys
from lcm.providers.protocols.secrets import SecretSources
from lcm.settings.checks import find_cleartext_client, find_cleartext_status, read_prices
from lcm.settings.load import Settings
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, SystemStopwatch, new_seal_key, raise_file_limit, random_fraction
from lcm.system.data_folder import claim_file, claim_folder
from lcm.system.loop_watch import LoopWatch
from lcm.system.tasks import Supervisor, run_until_first_ends
from lcm.system.tls import trusted_authority

SIMULATED_CLOUD: Final = "simulated-cloud"
"""The lease of the process that runs the simulated cloud."""
SERVE_PORT: Final = 8030
UP_PORT: Final = 8080
_STORE_PAUSE_SECONDS: Final = 1.0
_log: Final = structlog.get_logger()


class ProcessPart(StrEnum):
    """What `lcm serve` can be asked to run."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER_CONTROLLER = "worker-controller"
    LABLET_CONTROLLER = "lablet-controller"
    POOL_CONTROLLER = "pool-controller"
    ALL = "all"


STATUS_PORTS: Final = {
    ProcessPart.SCHEDULER: 8031,
    ProcessPart.WORKER_CONTROLLER: 8032,
    ProcessPart.LABLET_CONTROLLER: 8033,
    ProcessPart.POOL_CONTROLLER: 8034,
}
"""Where a process answers that has no API, by the first of its parts here."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What a controller is given besides its plane."""

    settings: Settings
    secrets: SecretSources
    process: str
    beside: Beside
    """Where terms are kept."""
    cache: Cache
    """What is known of the store in this process, which somebody runs."""
    providers: Providers | None = None
    """What controllers that act on the outside world act on."""
    keeper: TermKeeper = field(default_factory=lambda: TermKeeper(SystemStopwatch()))
    """Keeps the terms of all controllers."""
    counts: ControllerCounts = field(default_factory=ControllerCounts)

    @property
    def outside(self) -> Providers:
        assert self.providers is not None, "it was made for a controller that needs none"
        return self.providers

    def common_parts(self) -> ControllerParts:
        """Return what every controller takes by name."""
        return {
            "clock": SystemClock(),
            "stopwatch": SystemStopwatch(),
            "chance": random_fraction,
            "settings": self.settings,
            "holder": self.process,
            "beside": self.beside,
            "keeper": self.keeper,
            "cache": self.cache,
            "counts": self.counts,
        }


@dataclass(frozen=True, slots=True)
class Controller:
    """A part that watches a plane and acts, until it is cancelled. Its lease has its name."""

    part: ProcessPart
    kinds: Sequence[type[Resource]]
    """The kinds that it reads, in the order in which they are listed."""
    run: Callable[[Plane, ControllerContext], Coroutine[Any, Any, None]]
    acts_outside: bool = False

    @property
    def caller(self) -> Caller:
        return Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=self.part)


CONTROLLERS: Final[tuple[Controller, ...]] = (
    Controller(
        ProcessPart.WORKER_CONTROLLER,
        WorkerController.kinds,
        lambda plane, around: WorkerController(
            plane,
            around.outside.cloud,
            around.outside.hosts,
            around.secrets,
            speed=around.outside.speed,
            **around.common_parts(),
        ).run(),
        acts_outside=True,
    ),
    Controller(
        ProcessPart.SCHEDULER,
        SchedulerController.kinds,
        lambda plane, around: SchedulerController(
            plane, prices=read_prices(around.settings.price_book), **around.common_parts()
        ).run(),
    ),
    Controller(
        ProcessPart.POOL_CONTROLLER,
        PoolController.kinds,
        lambda plane, around: PoolController(
            plane, pack=pack_in_process, prices=read_prices(around.settings.price_book), **around.common_parts()
        ).run(),
    ),
    Controller(
        ProcessPart.LABLET_CONTROLLER,
        LabletController.kinds,
        lambda plane, around: LabletController(
            plane,
            around.outside.hosts,
            around.outside.artifacts,
            speed=around.outside.speed,
            **around.common_parts(),
        ).run(),
        acts_outside=True,
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
            outside = await undo.enter_async_context(
                _open_cloud(settings, running.parts, running.secrets, running.installation_id)
            )
            undo.enter_context(running.machine_consoles.read_with(outside.cloud.console))
            allocator = await ResourceAllocator.open(
                settings.total_cpu_cores, settings.total_memory_gb, store=store, clock=SystemClock()
            )
            it = EmbeddedProcess(running, allocator, outside)
            if before is not None:
                await before(it)
            beside = running.leases.keep_term
            around = ControllerContext(
                settings, running.secrets, running.process, beside, running.cache, outside, counts=running.counts
            )
            for controller in controllers:
                await release_stale_lease(store, controller.part)
                plane = running.control.plane_for(controller.caller)
                running.parts.start(controller.part, controller.run(plane, around))
            yield it


@asynccontextmanager
async def serve(
    settings: Settings, asked: Collection[ProcessPart], stop: asyncio.Event | None = None
) -> AsyncIterator[RunningApi]:
    """Run the API and other parts on a store that other processes may share; Refused for an unknown part.

    Waits for a store that does not answer or takes no writes; when `stop` is set meanwhile, its error is raised.
    """
    raise_file_limit()
    settings = _with_default_cloud(settings, AWS)
    _check_parts(asked, settings)
    service_key(settings)
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claim_folder(settings.data_dir, alone=False))
        running = await _start_api(undo, settings, stop or asyncio.Event())
        if controllers := _select_controllers(asked):
            beside = running.leases.keep_term
            around = ControllerContext(
                settings, running.secrets, running.process, beside, running.cache, counts=running.counts
            )

            @asynccontextmanager
            async def open_plane(controller: Controller) -> AsyncIterator[Plane]:
                yield running.control.plane_for(controller.caller)

            work = _run_with_cloud(controllers, open_plane, around, running.installation_id, running.machine_consoles)
            running.parts.start("controllers", work)
        yield running


async def _start_api(undo: AsyncExitStack, settings: Settings, stop: asyncio.Event) -> RunningApi:
    trouble = ""
    while True:
        try:
            return await undo.enter_async_context(run_api(await open_store(settings), settings, SERVE_PORT))
        except Later as error:
            if str(error) != trouble:
                _log.warning("waiting for the store", store=settings.engine, error=str(error))
            trouble = str(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _STORE_PAUSE_SECONDS)
            if stop.is_set():
                raise


class RunningControllers(NamedTuple):
    """Controllers of a process without the API."""

    parts: Supervisor
    status_url: str
    """Where the process tells its state and metrics."""


@asynccontextmanager
async def run_controllers(settings: Settings, asked: Collection[ProcessPart]) -> AsyncIterator[RunningControllers]:
    """Run only controllers, for an API in another process, as soon as that API answers."""
    raise_file_limit()
    settings, process = _with_default_cloud(settings, AWS), process_name()
    _check_parts(asked, settings)
    key = service_key(settings)
    if fault := find_cleartext_client(settings) or find_cleartext_status(settings):
        raise Invalid(fault)
    async with AsyncExitStack() as undo:
        keys = InstalledKeys(seal_key_file(settings), given=settings.seal_keys)
        secrets = await undo.enter_async_context(secret_sources(settings, keys, simulated_secrets(settings)))
        parts = await undo.enter_async_context(Supervisor())
        watch, controllers = LoopWatch(), _select_controllers(asked)
        counts, contact = ControllerCounts(), ApiContact(SystemStopwatch())
        undo.enter_context(watch.run())
        page = StatusPage(ProcessMetrics(watch, counts), contact.check, settings, SystemClock())
        port = STATUS_PORTS[controllers[0].part]
        url = await undo.enter_async_context(serve_status(page, settings, port, parts))

        def open_plane(controller: Controller) -> AbstractAsyncContextManager[Plane]:
            from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - httpx is slow to load, and few need it

            url, trust = settings.control_plane_api_url, trusted_authority(settings.ca_file)
            return HttpPlane.open(url, key, actor=controller.part, caller=controller.caller, trust=trust)

        async def work() -> None:
            owner = await _read_installation_id(settings, key)
            open_first = partial(open_plane, controllers[0])
            async with keep_by(open_first, watch) as beside, open_first() as reading:
                kinds = dict.fromkeys(kind for one in controllers for kind in one.kinds)
                cache = Cache(reading, *kinds, chance=random_fraction)
                contact.begin(reading, cache)
                around = ControllerContext(settings, secrets, process, beside, cache, counts=counts)
                await run_until_first_ends(
                    cache.run(), _run_with_cloud(controllers, open_plane, around, owner, MachineConsoles())
                )

        parts.start("controllers", work())
        api, names = settings.control_plane_api_url, [str(part) for part in asked]
        _log.info("started", process=process, api=api, parts=names, status=url)
        yield RunningControllers(parts, url)
    _log.info("stopped", process=process)


async def _read_installation_id(settings: Settings, key: Secret) -> str:
    """Ask the API for the id of the installation, as soon as it answers."""
    from lcm.control.plane.client_streams import fetch_installation_id  # noqa: PLC0415 - httpx is slow to load, and few processes need it
    from lcm.control.plane.transport import ApiConnection, ClientTimeouts  # noqa: PLC0415 - likewise

    url, trust = settings.control_plane_api_url, trusted_authority(settings.ca_file)
    line = ApiConnection(url, key, actor="", limits=ClientTimeouts(), trust=trust, transport=None)
    try:
        return await fetch_installation_id(line, random_fraction)
    finally:
        await line.close()


OpenPlane = Callable[[Controller], AbstractAsyncContextManager[Plane]]


async def _run_with_cloud(
    controllers: Sequence[Controller],
    open_plane: OpenPlane,
    around: ControllerContext,
    owner: str,
    consoles: MachineConsoles,
) -> None:
    """Run controllers, those that act outside on the cloud of the settings.

    A simulated cloud is in the memory of one process, and its state in a file. Of the processes that could run it the
    elected one does, together with everything that acts on it; another one takes over from the file.
    """
    outer = [one for one in controllers if one.acts_outside]

    async def run(controller: Controller, known: ControllerContext) -> None:
        async with open_plane(controller) as plane:
            await controller.run(plane, known)

    async def run_outer() -> None:
        async with Supervisor() as parts, _open_cloud(around.settings, parts, around.secrets, owner) as outside:
            known = replace(around, providers=outside)
            with consoles.read_with(outside.cloud.console):
                await run_until_first_ends(*(run(one, known) for one in outer), parts.wait_until(asyncio.Event()))

    async def run_elected(_: Plane) -> None:
        with claim_file(around.settings.data_dir / SIM_FILE):
            await run_outer()

    async def compete() -> None:
        async with open_plane(outer[0]) as plane:
            election = Election(
                plane,
                SIMULATED_CLOUD,
                around.process,
                ttl_seconds=around.settings.worker_controller_leader_lease_ttl,
                stopwatch=SystemStopwatch(),
                chance=random_fraction,
                beside=around.beside,
                keeper=around.keeper,
                counts=around.counts,
            )
            await election.run(run_elected)

    work = [run(one, around) for one in controllers if not one.acts_outside]
    if outer:
        work.append(compete() if around.settings.cloud == SIMULATED else run_outer())
    await run_until_first_ends(*work)


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


def _open_cloud(
    settings: Settings, parts: Supervisor, secrets: SecretSources, owner: str
) -> AbstractAsyncContextManager[Providers]:
    if settings.cloud == AWS:
        return open_aws(settings, secrets, owner=owner)
    file = settings.data_dir / SIM_FILE
    return open_simulated(settings, parts, owner=owner, speed=settings.sim_speed, file=file)


def _check_parts(asked: Collection[ProcessPart], settings: Settings) -> None:
    outer = {one.part for one in CONTROLLERS if one.acts_outside}
    given = {one.part for one in _select_controllers(asked)} & outer
    if settings.cloud == SIMULATED and given and given != outer:
        names = " and ".join(sorted(outer))
        raise Refused(
            f"LCM_CLOUD=simulated: {names} share one simulated cloud, which is in the memory of one process; "
            f"serve both of them in it, such as `lcm serve {' '.join(sorted(outer))}`"
        )
    built = {ProcessPart.API, ProcessPart.ALL, *(controller.part for controller in CONTROLLERS)}
    for part in asked:
        if part not in built:
            raise Refused(f"this version has no {part}; it can serve {', '.join(sorted(built))}")
