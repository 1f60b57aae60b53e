"""The one place that names implementations, lists every controller, and puts the parts of a process together.

Called by `cli`. What is put together is taken apart in the opposite order, however the process ends.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from os import getpid
from typing import TYPE_CHECKING, Any, Final

import structlog

from lcm import serving
from lcm.api.app import Api
from lcm.api.limits import Limits
from lcm.config import Settings
from lcm.config_documents import document_defaults
from lcm.control.allocator import ResourceAllocator
from lcm.control.housekeeping import Housekeeping
from lcm.control.local import ControlPlane
from lcm.control.plane import Plane
from lcm.control.presence import Presence
from lcm.control.tokens import SERVICE_NAME, Tokens
from lcm.data_folder import STORE, claimed
from lcm.model.errors import Fault, Invalid, Refused
from lcm.model.identity import Caller, Role
from lcm.sim.chance import Chance
from lcm.sim.compute import SimCloud
from lcm.sim.compute_account import Nature
from lcm.store.base import Store
from lcm.store.sqlite import SqliteStore
from lcm.supervise import Parts
from lcm.system import SystemClock, new_epoch

if TYPE_CHECKING:
    from lcm.store.etcd_wire import EtcdTls

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
class Controller:
    """A part that watches a plane and acts, until it is cancelled."""

    part: Part
    run: Callable[[Plane, Settings], Coroutine[Any, Any, None]]


CONTROLLERS: Final[tuple[Controller, ...]] = ()
"""Every controller."""


@dataclass(frozen=True, slots=True)
class Running:
    """What one process runs."""

    url: str
    store: Store
    control: ControlPlane
    tokens: Tokens
    parts: Parts


@dataclass(frozen=True, slots=True)
class Embedded:
    """Everything in one process: what serves, an allocator, and a cloud of its own."""

    running: Running
    allocator: ResourceAllocator
    cloud: SimCloud


@asynccontextmanager
async def embedded(
    settings: Settings, *, speed: float = 1.0, controllers: Sequence[Controller] = CONTROLLERS
) -> AsyncIterator[Embedded]:
    """Run everything in one process, on a file that no other process uses meanwhile."""
    with claimed(settings.data_dir, alone=True) as file:
        async with _running(await SqliteStore.open(file), settings, UP_PORT) as running:
            for controller in controllers:
                _start(controller, running, settings)
            allocator = await ResourceAllocator.open(
                settings.total_cpu_cores, settings.total_memory_gb, store=running.store, clock=SystemClock()
            )
            cloud = SimCloud(SystemClock(), Chance(new_epoch()), nature=Nature(speed=speed))
            yield Embedded(running, allocator, cloud)


@asynccontextmanager
async def serve(settings: Settings, asked: Collection[Part]) -> AsyncIterator[Running]:
    """Run some parts on a store that other processes may share; Refused for a part that there is not."""
    _check_parts(asked)
    if not settings.control_plane_api_key:
        remedy = "set it to a long random text, the same for the API and for every controller"
        raise Invalid(Fault("CONTROL_PLANE_API_KEY", "not set", remedy))
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claimed(settings.data_dir, alone=False))
        running = await undo.enter_async_context(_running(await open_store(settings), settings, SERVE_PORT))
        for controller in CONTROLLERS:
            if Part.ALL in asked or controller.part in asked:
                _start(controller, running, settings)
        yield running


async def open_store(settings: Settings, *, restoring: bool = False) -> Store:
    """Open the store that the settings name; `restoring`: also one that an interrupted restore left behind."""
    if settings.engine == "sqlite":
        return await SqliteStore.open(settings.data_dir / STORE)
    from lcm.store.etcd import EtcdStore  # noqa: PLC0415 - gRPC is slow to load, and few processes need it

    return await EtcdStore.open(
        settings.etcd_addresses,
        root=settings.etcd_root,
        tls=await asyncio.to_thread(etcd_tls, settings),
        user=settings.etcd_user or "",
        password=settings.etcd_password.reveal() if settings.etcd_password else "",
        interrupted_load=restoring,
    )


@asynccontextmanager
async def _running(store: Store, settings: Settings, usual_port: int) -> AsyncIterator[Running]:
    clock, process = SystemClock(), _process()
    async with AsyncExitStack() as undo:
        undo.push_async_callback(store.close)
        listening = undo.enter_context(_listen(settings, usual_port))
        presence = Presence(store, process)
        await presence.begin()
        undo.push_async_callback(presence.end)
        tokens = Tokens(store, clock=clock, service_key=settings.control_plane_api_key)
        await tokens.start()
        undo.push_async_callback(tokens.close)
        control = ControlPlane(store, clock=clock, defaults=document_defaults(settings))
        parts = await undo.enter_async_context(Parts())
        parts.start("presence", presence.keep())
        parts.start("housekeeping", Housekeeping(store, clock=clock).run())
        app = Api(control, tokens, clock=clock, limits=_limits(settings))
        await undo.enter_async_context(_served(app, listening, parts))
        url = _url(settings.host, listening)
        _log.info("started", process=process, url=url, store=settings.engine, epoch=store.epoch)
        yield Running(url, store, control, tokens, parts)
    _log.info("stopped", process=process)


@asynccontextmanager
async def _served(app: Api, listening: socket.socket, parts: Parts) -> AsyncIterator[None]:
    """Serve; at the end let requests finish before anything beneath them is taken away."""
    stop = asyncio.Event()
    serving_it = parts.start("api", serving.serve(app, listening, None, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait([serving_it])


def _start(controller: Controller, running: Running, settings: Settings) -> None:
    caller = Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=controller.part)
    running.parts.start(controller.part, controller.run(running.control.acting(caller), settings))


def _check_parts(asked: Collection[Part]) -> None:
    built = {Part.API, Part.ALL, *(controller.part for controller in CONTROLLERS)}
    for part in asked:
        if part not in built:
            raise Refused(f"this version has no {part}; it can serve {', '.join(sorted(built))}")


def _listen(settings: Settings, usual_port: int) -> socket.socket:
    port = usual_port if settings.port is None else settings.port
    try:
        return serving.listen(settings.host, port)
    except Refused as error:
        raise Refused(f"{error}. Stop what listens there, or choose another port with --port") from error


def _limits(settings: Settings) -> Limits:
    return Limits(
        body_bytes=settings.body_bytes,
        apply_bytes=settings.apply_bytes,
        requests_per_second=settings.requests_per_second,
        burst=settings.request_burst,
    )


def _url(host: str, listening: socket.socket) -> str:
    """Say where this machine reaches it: what listens everywhere listens here."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a comparison
    return f"http://{serving.in_url(here)}:{listening.getsockname()[1]}"


def _process() -> str:
    """Name this process so that a person finds it, and unlike any other that ever was."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{machine}-{getpid()}-{new_epoch()}"


def etcd_tls(settings: Settings) -> "EtcdTls | None":
    """Read the files that the settings name for TLS with etcd; None when they name none."""
    from lcm.store.etcd_wire import EtcdTls  # noqa: PLC0415 - likewise

    files = (settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file)
    if not any(files) and not settings.etcd_server_name:
        return None
    ca, certificate, key = (path.read_bytes() if path else None for path in files)
    return EtcdTls(ca=ca, certificate=certificate, key=key, name=settings.etcd_server_name or "")
