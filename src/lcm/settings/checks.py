"""Checks across several variables, and the site's own prices from the file that PRICE_BOOK names.

Called by `settings.load`; `compose.api` reads the prices too.
"""

import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lcm.model.access.address import is_loopback
from lcm.model.access.identity import find_token_problem
from lcm.model.access.mail_address import IMPLICIT_TLS_PORT, find_mail_address
from lcm.model.access.webhook import WebhookPolicy, parse_networks
from lcm.model.base.errors import Fault, Invalid
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook, parse_price_file
from lcm.settings.values import Settings


def read_prices(path: Path | None) -> PriceBook:
    """Return the built-in prices with those of a file over them, or of all files of a folder; raises Invalid."""
    paths = [] if path is None else sorted(path.glob("*.toml")) if path.is_dir() else [path]
    files = [parse_price_file(_price_toml(one)) for one in paths]
    dated = [one for one in files if one.as_of is not None]
    if len({one.as_of for one in dated}) < len(dated):
        raise Invalid(Fault("PRICE_BOOK", "two of its files have the same as_of", "use another day, or join them"))
    book = SHIPPED_PRICES
    for file in sorted(files, key=lambda one: one.as_of or date.min):
        book = book.with_file(file)
    return book


def _price_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise Invalid(
            Fault("PRICE_BOOK", f"{path} cannot be read ({error.strerror})", "correct it, or unset it")
        ) from error
    except ValueError as error:
        remedy = 'write for example [hourly.us-east-1] and "m5zn.metal" = 3.9641 below it'
        raise Invalid(Fault("PRICE_BOOK", f"{path} is no TOML ({error})", remedy)) from error


SettingsCheck = Callable[[Settings], Iterator[Fault]]
_MAX_SERVICE_KEYS: Final = 2
_MIN_KEY_LENGTH: Final = 16
_MIN_DIFFERENT: Final = 6
"""Of sixteen random hexadecimal digits, all but three in 100,000 keys have so many."""
_TLS_REMEDY: Final = (
    "set LCM_TLS_CERT_FILE and LCM_TLS_KEY_FILE; LCM_CLEARTEXT_ALLOWED=true if something before it has TLS"
)
_KEY_REMEDY: Final = "make a new one: `openssl rand -hex 32` prints one"
_CHECKS: Final[list[tuple[tuple[str, ...], SettingsCheck]]] = []


def find_contradictions(settings: Settings, faulty: Collection[str]) -> Iterator[Fault]:
    """Yield what does not go together.

    Checks that concern a variable which is faulty in itself are skipped.
    """
    for about, check in _CHECKS:
        if not set(about) & set(faulty):
            yield from check(settings)


def find_warnings(settings: Settings) -> Iterator[Fault]:
    """Yield what has no effect as it is set, which may be a mistake, and what a start that needs it would refuse."""
    if settings.ec2_vpc_id and not settings.ec2_subnet_id:
        remedy = "set EC2_SUBNET_ID to a subnet of it, or unset it for the default VPC"
        yield Fault("EC2_VPC_ID", "has no effect without EC2_SUBNET_ID", remedy)
    if settings.artifacts_s3_bucket and settings.artifacts_dir:
        yield Fault("ARTIFACTS_DIR", "has no effect beside ARTIFACTS_S3_BUCKET", "unset one of them")
    if settings.seal_keys and settings.seal_key_file:
        yield Fault("LCM_SEAL_KEY_FILE", "has no effect beside LCM_SEAL_KEYS", "unset one of them")
    if settings.store == "sqlite" and settings.etcd_addresses:
        yield Fault("LCM_STORE", "sqlite, although etcd's address is set", "unset one of them")
    for find in (find_cleartext_api, find_cleartext_status, find_cleartext_client):
        if fault := find(settings):
            yield fault


def find_cleartext_api(settings: Settings) -> Fault | None:
    """Return the fault of an API that others would reach without TLS; None when there is none."""
    if settings.cleartext_allowed or settings.tls_cert_file or is_loopback(settings.host):
        return None
    return Fault("LCM_HOST", f"{settings.host} without TLS: tokens would cross the network unencrypted", _TLS_REMEDY)


def find_cleartext_status(settings: Settings) -> Fault | None:
    """Return the fault of controllers whose metrics others would read without TLS; None when there is none."""
    if settings.cleartext_allowed or settings.tls_cert_file or is_loopback(settings.status_host):
        return None
    problem = f"{settings.status_host} without TLS: the key for /metrics would cross the network unencrypted"
    return Fault("LCM_STATUS_HOST", problem, _TLS_REMEDY)


def find_cleartext_client(settings: Settings) -> Fault | None:
    """Return the fault of controllers that would send their key without TLS; None when there is none."""
    urls = settings.control_plane_api_url.split(",")
    bare = [one for one in urls if one.startswith("http:") and not is_loopback(urlsplit(one).hostname or "")]
    if settings.cleartext_allowed or not bare:
        return None
    remedy = "use https:// (and LCM_CA_FILE for an authority of your own); LCM_CLEARTEXT_ALLOWED=true accepts it"
    return Fault("CONTROL_PLANE_API_URL", f"{bare[0]}: the key would cross the network unencrypted", remedy)


def _register_check(*variables: str) -> Callable[[SettingsCheck], SettingsCheck]:
    def add(check: SettingsCheck) -> SettingsCheck:
        _CHECKS.append((variables, check))
        return check

    return add


@_register_check("LCM_STORE", "ETCD_HOST", "ETCD_PORT", "ETCD_ENDPOINTS")
def _etcd_has_one_address(settings: Settings) -> Iterator[Fault]:
    if settings.store == "etcd" and not settings.etcd_addresses:
        yield Fault("LCM_STORE", "etcd without an address", "set ETCD_ENDPOINTS, or ETCD_HOST and ETCD_PORT")
    host, members = f"{settings.etcd_host}:{settings.etcd_port}", settings.etcd_endpoints
    if settings.etcd_host and members and host not in {one.rpartition("://")[2] for one in members}:
        problem = f"{', '.join(members)} does not include {host}, which ETCD_HOST and ETCD_PORT name"
        yield Fault("ETCD_ENDPOINTS", problem, "unset ETCD_HOST, or name it among the endpoints")


@_register_check("LCM_TLS_CERT_FILE", "LCM_TLS_KEY_FILE", "LCM_CA_FILE")
def _tls_files_are_there(settings: Settings) -> Iterator[Fault]:
    files = {
        "LCM_TLS_CERT_FILE": settings.tls_cert_file,
        "LCM_TLS_KEY_FILE": settings.tls_key_file,
        "LCM_CA_FILE": settings.ca_file,
    }
    yield from _missing_files(files)
    yield from _both_or_neither("LCM_TLS_CERT_FILE", settings.tls_cert_file, "LCM_TLS_KEY_FILE", settings.tls_key_file)


@_register_check("ETCD_CA_FILE", "ETCD_CERT_FILE", "ETCD_KEY_FILE")
def _etcd_files_are_there(settings: Settings) -> Iterator[Fault]:
    files = {
        "ETCD_CA_FILE": settings.etcd_ca_file,
        "ETCD_CERT_FILE": settings.etcd_cert_file,
        "ETCD_KEY_FILE": settings.etcd_key_file,
    }
    yield from _missing_files(files)
    yield from _both_or_neither("ETCD_CERT_FILE", settings.etcd_cert_file, "ETCD_KEY_FILE", settings.etcd_key_file)


@_register_check("LCM_DATA_DIR", "ARTIFACTS_DIR", "ARTIFACTS_FILE_DIRS")
def _definitions_read_nothing_of_ours(settings: Settings) -> Iterator[Fault]:
    own = [folder.resolve() for folder in (settings.data_dir, settings.artifacts_dir) if folder is not None]
    for folder in settings.artifacts_file_dirs:
        real = folder.resolve()
        if any(real.is_relative_to(one) or one.is_relative_to(real) for one in own):
            problem = f"{folder} would let a definition read the data of everybody"
            yield Fault("ARTIFACTS_FILE_DIRS", problem, "name a folder beside LCM_DATA_DIR and ARTIFACTS_DIR")


@_register_check("PRICE_BOOK")
def _prices_can_be_read(settings: Settings) -> Iterator[Fault]:
    try:
        read_prices(settings.price_book)
    except Invalid as error:
        yield from error.faults


@_register_check("ETCD_USER", "ETCD_PASSWORD")
def _etcd_sign_in_is_whole(settings: Settings) -> Iterator[Fault]:
    yield from _both_or_neither("ETCD_USER", settings.etcd_user, "ETCD_PASSWORD", settings.etcd_password)


@_register_check("SMTP_HOST", "SMTP_USER", "SMTP_PASSWORD", "SMTP_STARTTLS", "SMTP_CA_FILE", "MAIL_FROM")
def _mail_can_be_sent(settings: Settings) -> Iterator[Fault]:
    yield from _missing_files({"SMTP_CA_FILE": settings.smtp_ca_file})
    yield from _both_or_neither("SMTP_USER", settings.smtp_user, "SMTP_PASSWORD", settings.smtp_password)
    yield from _both_or_neither("SMTP_HOST", settings.smtp_host, "MAIL_FROM", settings.mail_from)
    if settings.mail_from is not None and find_mail_address(settings.mail_from) is None:
        yield Fault("MAIL_FROM", f"{settings.mail_from!r} is no address", "use one such as lcm@example.org")
    is_clear = not settings.smtp_starttls and settings.smtp_port != IMPLICIT_TLS_PORT
    if is_clear and settings.smtp_host and not (settings.cleartext_allowed or is_loopback(settings.smtp_host)):
        remedy = "set SMTP_STARTTLS=true; LCM_CLEARTEXT_ALLOWED=true accepts it"
        yield Fault("SMTP_STARTTLS", "false: mail would cross the network unencrypted", remedy)


@_register_check("MAIL_TIME_ZONE")
def _mail_zone_is_known(settings: Settings) -> Iterator[Fault]:
    try:
        ZoneInfo(settings.mail_time_zone)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        yield Fault("MAIL_TIME_ZONE", f"{settings.mail_time_zone!r} is no time zone", "use one such as Europe/Berlin")


@_register_check("OIDC_ISSUER", "OIDC_AUDIENCE")
def _issuer_has_an_audience(settings: Settings) -> Iterator[Fault]:
    if settings.oidc_issuer and not settings.oidc_audience:
        remedy = "set it to the audience of your tokens: others of the same issuer are not accepted"
        yield Fault("OIDC_ISSUER", "set without OIDC_AUDIENCE", remedy)


@_register_check("OIDC_CLIENT_ID", "OIDC_ISSUER")
def _client_has_an_issuer(settings: Settings) -> Iterator[Fault]:
    if settings.oidc_client_id and not settings.oidc_issuer:
        yield Fault("OIDC_CLIENT_ID", "set without OIDC_ISSUER", "set it to the issuer at which the client is known")
    if settings.oidc_client_secret and not settings.oidc_client_id:
        yield Fault("OIDC_CLIENT_SECRET", "set without OIDC_CLIENT_ID", "set both, or leave the secret out")


@_register_check("CONTROL_PLANE_API_KEY")
def _service_keys_are_two_at_most(settings: Settings) -> Iterator[Fault]:
    key = settings.control_plane_api_key
    keys = [part.strip() for part in key.reveal().split(",")] if key else []
    if keys and not all(keys):
        yield Fault("CONTROL_PLANE_API_KEY", "an empty key beside a comma", "write KEY, or NEW,OLD while rotating")
    if len(keys) > _MAX_SERVICE_KEYS:
        yield Fault("CONTROL_PLANE_API_KEY", f"{len(keys)} keys", "keep the new one and the one it replaces")


@_register_check("CONTROL_PLANE_API_KEY")
def _service_keys_are_long_and_can_be_sent(settings: Settings) -> Iterator[Fault]:
    key = settings.control_plane_api_key
    for one in filter(None, map(str.strip, key.reveal().split(","))) if key else ():
        if problem := find_token_problem(one):
            yield Fault("CONTROL_PLANE_API_KEY", problem, _KEY_REMEDY)
        elif len(one) < _MIN_KEY_LENGTH:
            yield Fault("CONTROL_PLANE_API_KEY", f"shorter than {_MIN_KEY_LENGTH} characters", _KEY_REMEDY)
        elif len(set(one)) < _MIN_DIFFERENT:
            yield Fault("CONTROL_PLANE_API_KEY", f"fewer than {_MIN_DIFFERENT} different characters", _KEY_REMEDY)


@_register_check("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
def _aws_key_is_whole(settings: Settings) -> Iterator[Fault]:
    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    yield from _both_or_neither("AWS_ACCESS_KEY_ID", key, "AWS_SECRET_ACCESS_KEY", secret)


@_register_check("MIN_WORKERS_PER_POOL", "MAX_WORKERS_PER_POOL")
def _pool_bounds_are_in_order(settings: Settings) -> Iterator[Fault]:
    fewest, most = settings.min_workers_per_pool, settings.max_workers_per_pool
    if fewest > most:
        yield Fault(
            "MIN_WORKERS_PER_POOL", f"{fewest} is more than MAX_WORKERS_PER_POOL ({most})", f"use at most {most}"
        )


@_register_check("SCALE_UP_THRESHOLD_CPU", "SCALE_DOWN_THRESHOLD_CPU")
def _thresholds_are_in_order(settings: Settings) -> Iterator[Fault]:
    low, high = settings.scale_down_threshold_cpu, settings.scale_up_threshold_cpu
    if low >= high:
        problem = f"{low:g} is not below SCALE_UP_THRESHOLD_CPU ({high:g}): pools would grow and shrink at once"
        yield Fault("SCALE_DOWN_THRESHOLD_CPU", problem, f"use less than {high:g}")


@_register_check("WEBHOOK_NETWORKS", "LCM_TRUSTED_PROXIES")
def _networks_are_networks(settings: Settings) -> Iterator[Fault]:
    for name, texts in (
        ("WEBHOOK_NETWORKS", settings.webhook_networks),
        ("LCM_TRUSTED_PROXIES", settings.trusted_proxies),
    ):
        try:
            parse_networks(texts)
        except Invalid as error:
            yield from (Fault(name, fault.problem, fault.remedy) for fault in error.faults)


@_register_check("WORKER_NOTIFICATION_WEBHOOKS", "WEBHOOK_NETWORKS", "WEBHOOK_HTTP_ALLOWED")
def _webhooks_are_addresses(settings: Settings) -> Iterator[Fault]:
    try:
        reach = WebhookPolicy(parse_networks(settings.webhook_networks), plain_http=settings.webhook_http_allowed)
    except Invalid:
        return  # reported already
    for number, hook in enumerate(settings.worker_notification_webhooks, start=1):
        try:
            reach.parse_url(hook.reveal())
        except Invalid as error:
            problem = f"number {number} is no address to send to: {error.faults[0].problem}"
            yield Fault("WORKER_NOTIFICATION_WEBHOOKS", problem, error.faults[0].remedy)


def _missing_files(files: Mapping[str, Path | None]) -> Iterator[Fault]:
    for name, path in files.items():
        if path is not None and not path.is_file():
            yield Fault(name, f"there is no file {path}", "correct it, or leave it out")


def _both_or_neither(one: str, first: object, other: str, second: object) -> Iterator[Fault]:
    if (first is None) is not (second is None):
        said, missing = (other, one) if first is None else (one, other)
        yield Fault(said, f"has no effect without {missing}", f"set {missing} too, or leave both out")
