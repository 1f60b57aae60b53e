"""A process that serves the API: its store, the control plane on it, and their background tasks.

Called by `compose.process`, which adds controllers and a cloud; `lcm doctor` and `lcm backup` open stores with it.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.api.http.request import MachineConsoles
from lcm.api.openapi.description import describe
from lcm.api.routes.table import ROUTES
from lcm.compose.leases import LeaseKeeper, open_lease_keeper
from lcm.compose.outside import (
    AWS,
    SIM_SECRETS,
    SIMULATED,
    artifact_store,
    mail_sinks,
    make_notices,
    open_aws,
    secret_sources,
    simulated_ports,
)
from lcm.compose.plan_jobs import PlanJobs
from lcm.control.access.oidc import IssuerTrust, Verifier
from lcm.control.access.oidc_browser import BrowserSignIn, ProviderClient
from lcm.control.access.oidc_keys import HttpFetch
from lcm.control.access.tokens import Tokens
from lcm.control.booking.budget_watch import BudgetWatch
from lcm.control.booking.step_records import FleetSettings
from lcm.control.delivery.outbox import LEASE as DELIVERY
from lcm.control.delivery.outbox import Outbox
from lcm.control.delivery.sinks import SettingSecrets, SinkSettings, make_built_in_sinks
from lcm.control.objects.cache import Cache
from lcm.control.plane.local import ControlPlane
from lcm.control.telemetry.idleness import IdleCriteria
from lcm.control.upkeep.housekeeping import INTERVAL, Housekeeping
from lcm.control.upkeep.installation import Presence, read_installation_id
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.controllers.runtime.settings import owner_limits_of, terms_of
from lcm.model.access.address import TrustedProxies
from lcm.model.access.identity import Role
from lcm.model.access.webhook import WebhookPolicy, parse_networks
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Invalid, Refused
from lcm.model.money.licences import token_id
from lcm.model.telemetry.learning import ReviewPolicy
from lcm.model.telemetry.measurement import UsageThresholds
from lcm.model.topology.node_definitions import parse_node_size
from lcm.providers.local.outbound import Outbound
from lcm.providers.local.sealed import InstalledKeys
from lcm.providers.protocols.artifacts import Artifacts
from lcm.providers.protocols.secrets import SecretSources
from lcm.settings.checks import find_cleartext_api, read_prices
from lcm.settings.documents import LICENSE_TOKEN, document_defaults
from lcm.settings.load import Settings, describe_settings, read_configuration
from lcm.store.base import Store
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import serving
from lcm.system.clock import SystemClock, new_epoch, new_id, open_file_limit, random_fraction
from lcm.system.data_folder import STORE_FILE
from lcm.system.limits import ConnectionLimits
from lcm.system.loop_watch import LoopWatch
from lcm.system.tasks import Supervisor, run_until_first_ends
from lcm.system.tls import CertificateFiles

if TYPE_CHECKING:
    from lcm.store.etcd.wire import EtcdTls


_MOST_RESERVED_FILES: Final = 1_000
_MOST_CONSOLES: Final = 1_000
MESSAGE_BYTES: Final = 131_072
"""The longest message that a client may send to a console."""
_MB: Final = 1_000_000
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunningApi:
    """What one API process runs."""

    url: str
    store: Store
    control: ControlPlane
    tokens: Tokens
    parts: Supervisor
    secrets: SecretSources
    process: str
    installation_id: str
    """The installation's id, with which its machines are tagged."""
    machine_consoles: MachineConsoles
    leases: LeaseKeeper
    cache: Cache
    """What is known of the store, for controllers in this process."""
    counts: ControllerCounts
    """What controllers in this process count."""


async def open_store(settings: Settings, *, restoring: bool = False, patient: bool = False) -> Store:
    """Open the store that the settings name; `restoring` also opens one left by an interrupted restore.

    A `patient` store may hear of what others write a moment later than it could.
    """
    if settings.engine == "sqlite":
        return await SqliteStore.open(settings.data_dir / STORE_FILE, patient=patient)
    from lcm.store.etcd.engine import EtcdStore  # noqa: PLC0415 - gRPC is slow to load, and few processes need it

    return await EtcdStore.open(
        settings.etcd_addresses,
        root=settings.etcd_root,
        tls=await asyncio.to_thread(etcd_tls, settings),
        user=settings.etcd_user or "",
        password=settings.etcd_password.reveal() if settings.etcd_password else "",
        interrupted_load=restoring,
        quota_bytes=settings.etcd_quota_bytes,
    )


@asynccontextmanager
async def run_api(
    store: Store, settings: Settings, usual_port: int, *, alone: bool = False
) -> AsyncIterator[RunningApi]:
    """Serve the API on a store, with everything it needs; `alone`: no other process uses that store."""
    clock, process, watch, counts = SystemClock(), process_name(), LoopWatch(), ControllerCounts()
    async with AsyncExitStack() as undo:
        undo.push_async_callback(store.close)
        undo.enter_context(watch.run())
        leases = await undo.enter_async_context(open_lease_keeper(partial(open_store, settings, patient=True), watch))
        tls = await asyncio.to_thread(_tls_files, settings)
        listening = undo.enter_context(_listen(settings, usual_port))
        presence = Presence(store, process)
        await presence.begin()
        undo.push_async_callback(presence.end)
        tokens = Tokens(store, clock=clock, service_key=settings.control_plane_api_key)
        await tokens.start()
        undo.push_async_callback(tokens.close)
        keys = InstalledKeys(seal_key_file(settings), given=settings.seal_keys)
        secrets = await undo.enter_async_context(secret_sources(settings, keys, simulated_secrets(settings)))
        artifacts = await undo.enter_async_context(artifact_store(settings))
        fleet = await asyncio.to_thread(_fleet_settings, settings)
        built_in, parts_of_urls = make_built_in_sinks(settings.worker_notification_webhooks)
        sinks = SinkSettings(_reach(settings), (*built_in, *mail_sinks(settings)))
        control = ControlPlane(
            store,
            clock=clock,
            defaults=document_defaults(settings),
            sealer=keys,
            judgement=_idle_criteria(settings),
            fleet=fleet,
            terms=terms_of(settings),
            limits=owner_limits_of(settings),
            artifacts=artifacts,
            chance=random_fraction,
            review=ReviewPolicy(settings.review_difference, settings.review_sessions),
            thresholds=UsageThresholds(
                settings.cpu_alert_percent, settings.memory_alert_percent, settings.disk_alert_percent
            ),
            node_sizes=dict(map(parse_node_size, settings.node_sizes)),
            sinks=sinks,
            store_alert_percent=settings.store_alert_percent,
            quota_bytes=settings.artifacts_author_mb * _MB,
        )
        outbound = await asyncio.to_thread(Outbound, sinks.reach)  # it loads the system's authorities
        undo.push_async_callback(outbound.close)
        parts = await undo.enter_async_context(Supervisor())
        parts.start("store health", control.health.run())
        parts.start("presence", leases.run(presence.keep))
        assert control.promises is not None, "it was made with terms"
        calendar = control.promises.calendar
        keeping = _housekeeping(settings, store, clock, artifacts, calendar.cache).run()
        parts.start("calendar", calendar.run())
        parts.start(
            "housekeeping", run_until_first_ends(keeping, BudgetWatch(store, control.promises, clock=clock).run())
        )
        verifier = make_verifier(settings)
        plans = await undo.enter_async_context(PlanJobs(clock=clock, ids=new_id))
        networks = parse_networks(settings.trusted_proxies)
        proxies = TrustedProxies(networks, rfc7239=settings.proxy_header == "Forwarded")
        await asyncio.to_thread(describe, ROUTES)  # long enough to be noticed by who waits for the loop
        app = Api(
            control,
            tokens,
            clock=clock,
            limits=_limits(settings),
            verifier=verifier,
            plans=plans,
            proxies=proxies,
            provider=make_browser_sign_in(settings, verifier),
            configuration=partial(describe_settings, read_configuration(), settings),
            loop_watch=watch,
            counts=counts,
        )
        parts.start("event feed", app.run())
        called = await read_installation_id(store, new_id)
        if settings.cloud == AWS:
            app.machine_consoles.read = partial(_read_console, settings, secrets, called)
        outbox = Outbox(
            store,
            outbound.post,
            SettingSecrets(parts_of_urls, secrets).reveal,
            clock=clock,
            chance=random_fraction,
            source=settings.event_source or f"urn:lcm:{called}",
            holder=process,
            built_in=built_in,
            beside=leases.run,
            notices=make_notices(settings, calendar.cache, clock),
        )
        if alone:
            await release_stale_lease(store, DELIVERY)
        parts.start("outbox", outbox.run())
        await undo.enter_async_context(
            _serve_requests(app, listening, parts, tls, connection_limits(settings, proxies))
        )
        url = _local_url(settings.host, listening, "https" if tls else "http")
        _log.info("started", process=process, url=url, store=settings.engine, epoch=store.epoch)
        yield RunningApi(
            url,
            store,
            control,
            tokens,
            parts,
            secrets,
            process,
            called,
            app.machine_consoles,
            leases,
            calendar.cache,
            counts,
        )
    _log.info("stopped", process=process)


@asynccontextmanager
async def _serve_requests(
    app: Api, listening: socket.socket, parts: Supervisor, tls: CertificateFiles | None, limits: ConnectionLimits
) -> AsyncIterator[None]:
    """Serve; at the end let requests finish before anything they use is closed."""
    stop = asyncio.Event()
    context = tls.context if tls else None
    serving_it = parts.start("api", serving.serve(app, listening, context, stop, limits=limits))
    if tls:
        parts.start("certificate", tls.follow())
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait([serving_it])


async def _read_console(settings: Settings, secrets: SecretSources, owner: str, region: str, instance_id: str) -> str:
    async with open_aws(settings, secrets, owner=owner) as outside:
        return await outside.cloud.console(region, instance_id)


def seal_key_file(settings: Settings) -> Path:
    """Return the file of the sealing keys, for when the settings do not give the keys themselves."""
    return settings.seal_key_file or settings.data_dir / "seal.key"


def _idle_criteria(settings: Settings) -> IdleCriteria:
    return IdleCriteria(
        boot_minutes=settings.worker_bootup_delay_minutes,
        instantiation_minutes=settings.lablet_instantiation_delay_minutes,
        poll_seconds=settings.metrics_poll_interval,
        threshold_minutes=settings.idle_threshold_minutes,
    )


def _housekeeping(settings: Settings, store: Store, clock: Clock, artifacts: Artifacts, cache: Cache) -> Housekeeping:
    history = timedelta(minutes=settings.store_history_minutes)
    return Housekeeping(
        store,
        clock=clock,
        every=min(INTERVAL, history),
        history=history,
        audit_kept=timedelta(days=settings.audit_retention_days),
        linger=timedelta(hours=settings.session_linger_hours),
        archived=timedelta(days=settings.session_archive_days),
        artifacts=artifacts,
        cache=cache,
    )


def _fleet_settings(settings: Settings) -> FleetSettings:
    seats = settings.cml_license_seats
    totals = {} if seats is None else {token_id(LICENSE_TOKEN): seats}
    return FleetSettings(totals, read_prices(settings.price_book), _idle_criteria(settings).horizon)


def make_verifier(settings: Settings) -> Verifier | None:
    """Make the verifier of the configured issuer's tokens; None without an issuer.

    Raises Invalid with every fault.
    """
    if settings.oidc_issuer is None:
        return None
    grants = (grant.rpartition("=") for grant in settings.oidc_roles)
    roles = {"roles": {value: Role(role) for value, _, role in grants}} if settings.oidc_roles else {}
    trust = IssuerTrust(
        issuer=settings.oidc_issuer,
        audiences=frozenset(settings.oidc_audience),
        jwks_url=settings.oidc_jwks_url or "",
        subject_claim=settings.oidc_subject_claim,
        require_verified_email=settings.oidc_require_verified_email,
        role_claim=settings.oidc_role_claim,
        default_role=Role(settings.oidc_default_role) if settings.oidc_default_role else None,
        leeway=timedelta(seconds=settings.oidc_leeway_seconds),
        outlive=timedelta(hours=settings.oidc_outlive_hours),
        **roles,
    )
    return Verifier(trust, fetch=HttpFetch(), clock=SystemClock())


def make_browser_sign_in(settings: Settings, verifier: Verifier | None) -> BrowserSignIn | None:
    """Make what signs people in at the issuer with a browser; None where that is not configured."""
    if verifier is None or settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    client = ProviderClient(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=settings.oidc_client_secret,
        scopes=settings.oidc_scopes,
        name=settings.oidc_provider_name or "",
        redirect_url=settings.oidc_redirect_url or "",
        ends_session=settings.oidc_end_session,
    )
    return BrowserSignIn(client, verifier, fetch=HttpFetch(), clock=SystemClock())


def connection_limits(settings: Settings, proxies: TrustedProxies) -> ConnectionLimits:
    """Return how many connections there may be, in all and from one address.

    They leave enough of the files that the process may open to everything else it does.
    """
    files = open_file_limit()
    ports = simulated_ports() if settings.cloud == SIMULATED else 0
    others = ports + min(_MOST_RESERVED_FILES, files // 4) + most_consoles()
    most = min(settings.max_connections, files - others)
    return ConnectionLimits(
        most=most,
        per_address=min(settings.connections_per_address, most // 2),
        is_proxy=proxies.trusts,
        message_bytes=MESSAGE_BYTES,
    )


def most_consoles() -> int:
    """Return how many consoles may be open: each has a connection to a worker, which is a file of this process."""
    return min(_MOST_CONSOLES, open_file_limit() // 8)


def _tls_files(settings: Settings) -> CertificateFiles | None:
    """Read the API's certificate; None without one. Raise Invalid where tokens would cross a network unencrypted."""
    if fault := find_cleartext_api(settings):
        raise Invalid(fault)
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return CertificateFiles(settings.tls_cert_file, settings.tls_key_file)


def _listen(settings: Settings, usual_port: int) -> socket.socket:
    port = usual_port if settings.port is None else settings.port
    try:
        return serving.listen(settings.host, port)
    except serving.NotLocalAddress as error:
        raise Refused(f"LCM_HOST: {error}. Choose one of its own, such as 127.0.0.1, or 0.0.0.0 for all") from error
    except Refused as error:
        raise Refused(f"{error}. Stop what listens there, or choose another port with --port") from error


def _reach(settings: Settings) -> WebhookPolicy:
    return WebhookPolicy(parse_networks(settings.webhook_networks), plain_http=settings.webhook_http_allowed)


def _limits(settings: Settings) -> ApiLimits:
    return ApiLimits(
        body_bytes=settings.body_bytes,
        apply_bytes=settings.apply_bytes,
        requests_per_second=settings.requests_per_second,
        burst=settings.request_burst,
        writes_per_hour=settings.writes_per_hour,
        bodies_bytes=settings.bodies_bytes,
        all_consoles=most_consoles(),
    )


def _local_url(host: str, listening: socket.socket, scheme: str) -> str:
    """Return the URL at which this machine reaches it; a wildcard host becomes the loopback address."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a comparison
    return f"{scheme}://{serving.url_host(here)}:{listening.getsockname()[1]}"


def process_name() -> str:
    """Return a name for this process that a person recognises and that no other process ever has."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{machine}-{getpid()}-{new_epoch()}"


def etcd_tls(settings: Settings) -> "EtcdTls | None":
    """Read the TLS files that the settings name for etcd; None when they name none."""
    from lcm.store.etcd.wire import EtcdTls  # noqa: PLC0415 - likewise

    files = (settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file)
    if not any(files) and not settings.etcd_server_name:
        return None
    ca, certificate, key = (path.read_bytes() if path else None for path in files)
    return EtcdTls(ca=ca, certificate=certificate, key=key, name=settings.etcd_server_name or "")


async def release_stale_lease(store: Store, lease: str) -> None:
    """Release the lease that a killed process left behind, so that its successor need not wait.

    Only for a process that is alone on the store.
    """
    if left := await store.lease(lease):
        await store.release(left)


def simulated_secrets(settings: Settings) -> Mapping[str, str]:
    """Return the secrets of a simulated cloud, for variables that are not set; none for a real cloud."""
    return SIM_SECRETS if settings.cloud == SIMULATED else {}
