"""Every variable: its name, its type, its default and its meaning.

Each field of `Settings` is a variable: its name in capitals, its meaning the text among its annotations.
`settings.load` reads them; the documentation and `lcm doctor` list them from here.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.resource import END, Minutes, Positive, Region
from lcm.model.kinds.settings import (
    AlertPercent,
    Days,
    FewestSessions,
    FewestWorkers,
    MostBookings,
    MostDollars,
    MostHours,
    MostWorkers,
    NamePattern,
    ScanSeconds,
    Seconds,
    Share,
    Strategy,
)
from lcm.model.topology.node_definitions import NODE_SIZE_FORM, NODE_SIZE_PATTERN
from lcm.settings.sources import declared_variables

ALIASES: Final = {"WORKER_METRICS_POLL_INTERVAL": "METRICS_POLL_INTERVAL"}
OTHER_VARIABLES: Final = {
    "LCM_CONFIG": "file of settings, in place of `./lcm.toml` and `/etc/lcm/lcm.toml`",
    "LCM_URL": "address of the API that the command line talks to, in place of the current context's",
    "LCM_TOKEN": "token that the command line presents there",
    "LCM_CONTEXT": "name of the context that the command line uses",
    "LCM_TZ": "time zone in which the command line reads and shows times, such as Europe/Berlin; default: the system's",
}
"""Our variables that are not settings: they cannot stand in the file."""

_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+)"

_BUCKET: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"


def _text_meta(pattern: str, description: str) -> msgspec.Meta:
    return msgspec.Meta(pattern=f"^{pattern}{END}", max_length=2000, description=description)


LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Engine = Literal["sqlite", "etcd"]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535, description="a port number from 0 to 65535")]
LeaseSeconds = Annotated[int, msgspec.Meta(ge=2, le=86_400, description="whole seconds from 2 to 86400")]
CpuCores = Annotated[float, msgspec.Meta(gt=0, le=1_000_000, description="a number above 0")]
Speed = Annotated[float, msgspec.Meta(gt=0, le=10_000, description="a number above 0, at most 10000")]
PositiveCount = Annotated[Positive, msgspec.Meta(description="a whole number above 0")]
AtLeastTen = Annotated[int, msgspec.Meta(ge=10, le=1_000_000, description="a whole number from 10 to 1000000")]
BodyBytes = Annotated[
    int, msgspec.Meta(ge=65_536, le=1 << 30, description="a number of bytes from 65536 to 1073741824")
]
TextLine = Annotated[str, _text_meta(r"\S(.*\S)?", "a line of text")]
Scope = Annotated[str, _text_meta(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}", "a word such as email")]
Host = Annotated[str, _text_meta(_HOST, "a host's name or address without a port")]
Endpoint = Annotated[str, _text_meta(rf"(https?://)?{_HOST}:[0-9]{{1,5}}", "HOST:PORT or https://HOST:PORT")]
Url = Annotated[
    str,
    _text_meta(
        rf"https?://{_HOST}(:[0-9]{{1,5}})?(/[^\s?#]*)?", "an address such as http://127.0.0.1:8030, without a user"
    ),
]
_API_URL: Final = rf"https?://{_HOST}(:[0-9]{{1,5}})?(/[^\s?#,]*)?"
ApiUrls = Annotated[
    str,
    _text_meta(
        rf"{_API_URL}(,{_API_URL}){{0,15}}", "an address such as http://127.0.0.1:8030, or several separated by commas"
    ),
]
EtcdRoot = Annotated[str, _text_meta(r"/(\S*/)?", "a path that begins and ends with /")]
Ami = Annotated[str, _text_meta(r"ami-[0-9a-z]+", "an image such as ami-0abc")]
Vpc = Annotated[str, _text_meta(r"vpc-[0-9a-z]+", "a VPC such as vpc-0abc")]
Subnet = Annotated[str, _text_meta(r"subnet-[0-9a-z]+", "a subnet such as subnet-0abc")]
SecurityGroup = Annotated[str, _text_meta(r"sg-[0-9a-z]+", "a security group such as sg-0abc")]
ImageOwner = Annotated[
    str, _text_meta(r"self|amazon|aws-marketplace|[0-9]{12}", "an account's number of 12 digits, or self")
]
InstanceType = Annotated[str, _text_meta(r"[a-z0-9-]+\.[a-z0-9-]+", "an instance type such as m5zn.metal")]
Bucket = Annotated[str, _text_meta(_BUCKET, "a bucket's name")]
S3KeyPrefix = Annotated[
    str, _text_meta(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)*", "words separated by /, and a / at the end, such as lcm/")
]
S3Location = Annotated[str, _text_meta(_BUCKET + r"(/[^/\s]+)*/?", "a bucket, or a prefix in one such as labs/ccna/")]
Network = Annotated[str, _text_meta(r"[0-9A-Fa-f.:]+(/[0-9]{1,3})?", "a network such as 10.20.0.0/16")]
Uri = Annotated[str, _text_meta(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", "a URI such as https://lcm.example.org")]
EnvPattern = Annotated[
    str, _text_meta(r"[A-Za-z_*?][A-Za-z0-9_*?]*", "a variable's name, in which * stands for any part")
]
AwsPattern = Annotated[
    str, _text_meta(r"[A-Za-z0-9/_+=.@:*?-]+", "a secret's name in AWS, or its ARN, in which * stands for any part")
]
ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]
GrantedRole = Literal["admin", "operator", "author", "instructor", "user", "viewer"]
RoleGrant = Annotated[
    str,
    _text_meta(
        r"[^\s=,](.*[^\s=,])?=(admin|operator|author|instructor|user|viewer)",
        "VALUE=ROLE with a role of people, such as ops=operator",
    ),
]
QuotaBytes = Annotated[int, msgspec.Meta(ge=1_000_000, le=2**63 - 1, description="a number of bytes, at least 1000000")]
Percent = Annotated[int, msgspec.Meta(ge=1, le=99, description="a whole number from 1 to 99")]
NodeSizeText = Annotated[str, _text_meta(NODE_SIZE_PATTERN, NODE_SIZE_FORM)]
HistoryMinutes = Annotated[int, msgspec.Meta(ge=1, le=720, description="whole minutes from 1 to 720")]
Hours = Annotated[int, msgspec.Meta(ge=1, le=8760, description="whole hours from 1 to 8760")]
Leeway = Annotated[int, msgspec.Meta(ge=0, le=600, description="whole seconds from 0 to 600")]
OutliveHours = Annotated[int, msgspec.Meta(ge=0, le=8760, description="whole hours from 0 to 8760")]
Regions = Annotated[tuple[Region, ...], msgspec.Meta(min_length=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="upper"):
    """Every setting of a process."""

    data_dir: Annotated[Path, "folder of the embedded store and of other files"] = msgspec.field(
        default=Path(".data"), name="LCM_DATA_DIR"
    )
    host: Annotated[TextLine, "address on which the API listens"] = msgspec.field(default="127.0.0.1", name="LCM_HOST")
    port: Annotated[Port | None, "port of the API; if not set, 8030 for `lcm serve` and 8080 for `lcm up`"] = (
        msgspec.field(default=None, name="LCM_PORT")
    )
    status_host: Annotated[TextLine, "address on which a process without the API tells its state and metrics"] = (
        msgspec.field(default="127.0.0.1", name="LCM_STATUS_HOST")
    )
    status_port: Annotated[
        Port | None,
        "port for that; if not set, 8031 for the scheduler, 8032 for the worker, 8033 for the lablet and 8034 for the "
        "pool controller, or a free one where it is taken",
    ] = msgspec.field(default=None, name="LCM_STATUS_PORT")
    log_level: Annotated[LogLevel, "how much is logged"] = "INFO"
    requests_per_second: Annotated[PositiveCount, "requests a second that one caller may make on average"] = (
        msgspec.field(default=100, name="LCM_REQUESTS_PER_SECOND")
    )
    request_burst: Annotated[AtLeastTen, "requests that one caller may make at once"] = msgspec.field(
        default=200, name="LCM_REQUEST_BURST"
    )
    writes_per_hour: Annotated[
        PositiveCount, "changes an hour that one user or author may make on average; 500 at once"
    ] = msgspec.field(default=1_800, name="LCM_WRITES_PER_HOUR")
    max_connections: Annotated[AtLeastTen, "connections to the API at once; more are answered 503"] = msgspec.field(
        default=10_000, name="LCM_MAX_CONNECTIONS"
    )
    connections_per_address: Annotated[
        AtLeastTen, "connections from one address, unless it is a trusted proxy; at most half of those there may be"
    ] = msgspec.field(default=1_000, name="LCM_CONNECTIONS_PER_ADDRESS")
    trusted_proxies: Annotated[
        tuple[Network, ...], "networks of proxies that are believed in what they say of their clients"
    ] = msgspec.field(default=(), name="LCM_TRUSTED_PROXIES")
    proxy_header: Annotated[
        ProxyHeader, "header in which those proxies say it; the other one is ignored, as clients may write it"
    ] = msgspec.field(default="X-Forwarded-For", name="LCM_PROXY_HEADER")
    tls_cert_file: Annotated[Path | None, "PEM file of the API's certificate and chain; read again when it changes"] = (
        msgspec.field(default=None, name="LCM_TLS_CERT_FILE")
    )
    tls_key_file: Annotated[Path | None, "PEM file of that certificate's key"] = msgspec.field(
        default=None, name="LCM_TLS_KEY_FILE"
    )
    ca_file: Annotated[
        Path | None,
        "PEM file of the authority that signed it, for controllers and the command line",
    ] = msgspec.field(default=None, name="LCM_CA_FILE")
    cleartext_allowed: Annotated[
        bool, "whether tokens may cross a network unencrypted: the API beyond this machine, and CONTROL_PLANE_API_URL"
    ] = msgspec.field(default=False, name="LCM_CLEARTEXT_ALLOWED")
    body_bytes: Annotated[BodyBytes, "longest body of a request"] = msgspec.field(
        default=1_000_000, name="LCM_BODY_BYTES"
    )
    apply_bytes: Annotated[BodyBytes, "longest body of an apply"] = msgspec.field(
        default=32_000_000, name="LCM_APPLY_BYTES"
    )
    bodies_bytes: Annotated[BodyBytes, "bytes of all bodies that are being read at once; more are answered 503"] = (
        msgspec.field(default=128_000_000, name="LCM_BODIES_BYTES")
    )

    store: Annotated[
        Literal["auto", "sqlite", "etcd"], "where state is kept; auto: etcd if its address is set, else a SQLite file"
    ] = msgspec.field(default="auto", name="LCM_STORE")
    etcd_host: Annotated[Host | None, "etcd's host"] = None
    etcd_port: Annotated[Port, "etcd's port on ETCD_HOST"] = 2379
    etcd_endpoints: Annotated[tuple[Endpoint, ...], "etcd's members, in place of ETCD_HOST and ETCD_PORT"] = ()
    etcd_root: Annotated[EtcdRoot, "prefix of our keys in etcd"] = "/lcm/"
    etcd_user: Annotated[TextLine | None, "user to sign in to etcd as"] = None
    etcd_password: Annotated[Secret | None, "that user's password"] = None
    etcd_ca_file: Annotated[Path | None, "PEM file of the authority that signed etcd's certificate"] = None
    etcd_cert_file: Annotated[Path | None, "PEM file of the certificate that we present to etcd"] = None
    etcd_key_file: Annotated[Path | None, "PEM file of that certificate's key"] = None
    etcd_server_name: Annotated[Host | None, "name in etcd's certificate, if it is not its address"] = None
    etcd_quota_bytes: Annotated[
        QuotaBytes, "how large etcd may grow: its `--quota-backend-bytes`, which it does not tell its clients"
    ] = 2_147_483_648
    store_alert_percent: Annotated[Percent, "how full the store may be before an alert is raised, in percent"] = (
        msgspec.field(default=80, name="LCM_STORE_ALERT_PERCENT")
    )
    store_history_minutes: Annotated[
        HistoryMinutes,
        "minutes for which the store keeps what was changed, so that a client may be away as long and resume",
    ] = msgspec.field(default=60, name="LCM_STORE_HISTORY_MINUTES")

    seal_keys: Annotated[
        Secret | None,
        "keys that secrets are sealed with, in base64, the first one seals; used in place of LCM_SEAL_KEY_FILE",
    ] = msgspec.field(default=None, name="LCM_SEAL_KEYS")
    seal_key_file: Annotated[
        Path | None, "file of those keys, which `lcm up` makes; if not set, `seal.key` in LCM_DATA_DIR"
    ] = msgspec.field(default=None, name="LCM_SEAL_KEY_FILE")
    secret_env_allowed: Annotated[tuple[EnvPattern, ...], "variables that env: in a document may name"] = (
        "CML_*",
        "SECRET_*",
    )
    secret_file_dirs: Annotated[tuple[Path, ...], "folders from which file: in a document may read"] = (
        Path("/run/secrets"),
    )
    secret_aws_allowed: Annotated[tuple[AwsPattern, ...], "secrets that aws: in a document may name"] = (
        "lcm/*",
        "lcm-*",
    )

    oidc_issuer: Annotated[Url | None, "issuer whose tokens are accepted, as they name it in `iss`"] = None
    oidc_audience: Annotated[tuple[TextLine, ...], "audiences of which a token must have one"] = ()
    oidc_jwks_url: Annotated[Url | None, "address of its keys; if not set, the one in its discovery document"] = None
    oidc_subject_claim: Annotated[
        TextLine, "claim that names a caller; where a token lacks it, the name is oidc+ and its `sub`"
    ] = "email"
    oidc_require_verified_email: Annotated[bool, "whether an e-mail address must come with `email_verified`"] = True
    oidc_role_claim: Annotated[TextLine, "claim that lists a caller's roles; dots separate nested names"] = "roles"
    oidc_roles: Annotated[
        tuple[RoleGrant, ...], "which value of that claim gives which role; if not set, the values are names of roles"
    ] = ()
    oidc_default_role: Annotated[
        GrantedRole | None, "role of callers without a listed value; if not set, they are refused"
    ] = None
    oidc_leeway_seconds: Annotated[Leeway, "how far the issuer's clock may be from ours"] = 60
    oidc_outlive_hours: Annotated[
        OutliveHours, "hours by which tokens and browser sessions made with an issuer's token may outlive it"
    ] = 0
    oidc_client_id: Annotated[
        TextLine | None, "client id with which people sign in at the issuer by browser; if not set, they cannot"
    ] = None
    oidc_client_secret: Annotated[Secret | None, "secret of that client; not set for a public client"] = None
    oidc_scopes: Annotated[tuple[Scope, ...], "scopes to ask for besides `openid`"] = ("email", "profile")
    oidc_provider_name: Annotated[
        TextLine | None, "what the sign-in page calls the issuer; if not set, the host of its address"
    ] = None
    oidc_redirect_url: Annotated[
        Url | None,
        "address of `/api/sign-in/oidc/callback` as the issuer knows it; if not set, on the host that is asked",
    ] = None
    oidc_end_session: Annotated[bool, "whether signing out here also leads to the issuer's own sign-out"] = False
    audit_retention_days: Annotated[Days, "days for which the audit is kept"] = 90

    session_linger_hours: Annotated[
        Hours, "hours after its end at which a session moves to the archive; only the 200 that ended last stay as long"
    ] = 24
    session_archive_days: Annotated[Days, "days after its end for which a session is kept in the archive"] = 365

    artifacts_dir: Annotated[
        Path | None, "folder of lab files and of collected work; if not set, `artifacts` in LCM_DATA_DIR"
    ] = None
    artifacts_file_dirs: Annotated[tuple[Path, ...], "folders from which file:// in a definition may read"] = ()
    artifacts_s3_bucket: Annotated[Bucket | None, "bucket for lab files and collected work, in place of a folder"] = (
        None
    )
    artifacts_s3_prefix: Annotated[S3KeyPrefix, "prefix of our keys in that bucket"] = ""
    artifacts_s3_endpoint: Annotated[Url | None, "address of an S3-like store; if not set, AWS in AWS_REGION"] = None
    artifacts_s3_allowed: Annotated[
        tuple[S3Location, ...], "buckets or prefixes that s3:// in a definition may name"
    ] = ()
    artifacts_author_mb: Annotated[PositiveCount, "megabytes of lab files that one author may store"] = 1_000
    artifacts_retention_days: Annotated[Days, "days for which what is collected from a session is kept"] = 30

    node_sizes: Annotated[
        tuple[NodeSizeText, ...],
        "sizes of nodes that CML does not ship, or that differ; on a simulated cloud, every CML has them",
    ] = ()

    control_plane_api_url: Annotated[
        ApiUrls, "where controllers in other processes find the API; of several the first that answers"
    ] = "http://127.0.0.1:8030"
    control_plane_api_key: Annotated[
        Secret | None,
        "key with which they sign in; two with a comma between are both valid, and the first one is sent",
    ] = None
    worker_controller_leader_lease_ttl: Annotated[LeaseSeconds, "seconds after which a silent leader is replaced"] = 15
    worker_controller_reconcile_interval: Annotated[Seconds, "seconds between two checks of every worker"] = 30
    lablet_watch_interval: Annotated[Seconds, "seconds between two checks of a running lab"] = 15
    lab_access: Annotated[
        Literal["public", "gateway"],
        "addresses of labs that people are shown: the workers' own, or the gateway's, so that those can be closed",
    ] = "public"

    scheduler_enabled: Annotated[bool, "whether sessions are placed"] = True
    scheduler_reconcile_interval: Annotated[Seconds, "seconds between two checks of every waiting session"] = 30
    scheduler_strategy: Annotated[Strategy, "how a worker is chosen among those that fit"] = Strategy.BIN_PACK
    require_licensed_for_cml: Annotated[bool, "whether CML labs need a licensed worker; else 5 nodes run on one"] = True
    worker_bootup_delay_minutes: Annotated[Minutes, "how long a worker takes to boot, for planning"] = 20
    lablet_instantiation_delay_minutes: Annotated[Minutes, "how long a lab takes to start, for planning"] = 15

    max_pending_per_owner: Annotated[MostBookings, "sessions without a slot that one owner may have waiting"] = 10
    max_live_per_owner: Annotated[MostBookings, "sessions that one owner may have at the same time"] = 10
    max_ahead_per_owner: Annotated[MostBookings, "slots that one owner may have booked that have not begun"] = 50
    booking_horizon_days: Annotated[Days, "days ahead that an owner may book, or wait"] = 90
    max_nodes_per_owner: Annotated[MostBookings, "CML nodes that one owner may have at the same time"] = 200
    max_hours_ahead_per_owner: Annotated[MostHours, "hours of an owner's slots that have not begun"] = 200
    max_hours_per_owner_month: Annotated[MostHours, "hours of an owner's sessions in a calendar month"] = 400
    max_usd_per_owner_month: Annotated[MostDollars, "US dollars for an owner's sessions in a calendar month"] = 500

    min_workers_per_pool: Annotated[FewestWorkers, "default of the fewest workers in a pool"] = 1
    max_workers_per_pool: Annotated[MostWorkers, "default of the most workers in a pool"] = 10
    scale_up_threshold_cpu: Annotated[Share, "default of the CPU use above which a pool grows"] = 0.75
    scale_down_threshold_cpu: Annotated[Share, "default of the CPU use below which a pool shrinks"] = 0.30

    review_difference: Annotated[Share, "difference of use from need at which a lab should be reviewed"] = 0.25
    review_sessions: Annotated[FewestSessions, "fewest sessions of a lab before that is checked"] = 3

    worker_discovery_enabled: Annotated[bool, "whether instances that others launched are looked for"] = True
    worker_discovery_interval: Annotated[ScanSeconds, "seconds between two searches"] = 300
    worker_discovery_ami_name: Annotated[NamePattern, "name of the images whose instances are ours"] = "CML-*"
    worker_discovery_regions: Annotated[Regions, "regions that are searched; if not set, AWS_REGION"] = ("us-east-1",)

    worker_monitoring_enabled: Annotated[bool, "whether workers are measured"] = True
    metrics_poll_interval: Annotated[Seconds, "seconds between two measurements of a worker"] = 60
    cpu_alert_percent: Annotated[AlertPercent, "CPU use of a worker from which on an alert is raised"] = 90.0
    memory_alert_percent: Annotated[AlertPercent, "memory use of a worker from which on an alert is raised"] = 90.0
    disk_alert_percent: Annotated[AlertPercent, "disk use of a worker from which on an alert is raised"] = 90.0
    idle_check_interval: Annotated[Seconds, "seconds between two searches for idle workers"] = 60
    idle_threshold_minutes: Annotated[Minutes, "minutes without activity after which a worker is idle"] = 30
    worker_notification_webhooks: Annotated[
        tuple[Secret, ...], "addresses to which alerts are sent, and notices of workers about to be paused"
    ] = ()

    webhook_networks: Annotated[tuple[Network, ...], "private networks that sinks may be in"] = ()
    webhook_http_allowed: Annotated[bool, "whether sinks may be reached without TLS"] = False
    event_source: Annotated[
        Uri | None, "source that events name; if not set, urn:lcm: and the id of the installation"
    ] = None

    smtp_host: Annotated[Host | None, "mail server to which notices are handed; if not set, no mail is sent"] = None
    smtp_port: Annotated[Port, "port of that server; 465 has TLS from the first byte"] = 587
    smtp_starttls: Annotated[bool, "whether TLS begins with STARTTLS, without which nothing is sent"] = True
    smtp_ca_file: Annotated[Path | None, "PEM file of the authority that signed the server's certificate"] = None
    smtp_user: Annotated[TextLine | None, "user to sign in to the mail server as"] = None
    smtp_password: Annotated[Secret | None, "that user's password"] = None
    mail_from: Annotated[TextLine | None, "address from which notices come"] = None
    mail_from_name: Annotated[TextLine, "name that stands before that address"] = "Lablet Cloud Manager"
    mail_per_minute: Annotated[PositiveCount, "mails that are sent in a minute, at most"] = 120
    mail_time_zone: Annotated[TextLine, "time zone in which notices write times, such as Europe/Berlin"] = "UTC"
    public_url: Annotated[Url | None, "address of this installation, for links in notices"] = msgspec.field(
        default=None, name="LCM_PUBLIC_URL"
    )

    cloud: Annotated[
        Literal["aws", "simulated"] | None,
        "where machines are; if not set, simulated for `lcm up` and aws for `lcm serve`",
    ] = msgspec.field(default=None, name="LCM_CLOUD")
    sim_speed: Annotated[Speed, "how much faster than the clock simulated machines boot"] = msgspec.field(
        default=1.0, name="LCM_SIM_SPEED"
    )
    aws_region: Annotated[Region, "default region of workers"] = "us-east-1"
    aws_access_key_id: Annotated[Secret | None, "AWS access key; if not set, the AWS SDK looks in its usual places"] = (
        None
    )
    aws_secret_access_key: Annotated[Secret | None, "secret of the AWS access key"] = None
    ec2_ami_id: Annotated[Ami | None, "default image of workers"] = None
    ec2_image_owners: Annotated[
        tuple[ImageOwner, ...], "accounts whose images are found by name; `self` is your own"
    ] = ("self",)
    ec2_instance_type: Annotated[InstanceType, "default instance type of workers"] = "m5zn.metal"
    ec2_vpc_id: Annotated[Vpc | None, "default VPC of workers; needs EC2_SUBNET_ID"] = None
    ec2_subnet_id: Annotated[Subnet | None, "default subnet of workers"] = None
    ec2_security_group_ids: Annotated[tuple[SecurityGroup, ...], "default security groups of workers"] = ()
    ec2_iam_instance_profile: Annotated[TextLine | None, "default instance profile of workers"] = None

    cml_certificate_trust: Annotated[
        Literal["first-use", "console"],
        "which certificate of a new worker is trusted: the first one, or one whose fingerprint its console shows",
    ] = "first-use"
    cml_admin_username: Annotated[TextLine, "CML's administrator"] = "admin"
    cml_admin_password: Annotated[Secret | None, "that administrator's password"] = None
    cml_worker_api_username: Annotated[
        TextLine | None, "user for the API of workers, in place of CML_ADMIN_USERNAME"
    ] = None
    cml_worker_api_password: Annotated[Secret | None, "that user's password, in place of CML_ADMIN_PASSWORD"] = None
    cml_license_token: Annotated[Secret | None, "registration token of CML's smart licence"] = None
    cml_license_seats: Annotated[
        PositiveCount | None, "workers that this token may license at once; if not set, there is no limit"
    ] = None

    price_book: Annotated[
        Path | None,
        "TOML file, or a folder of them, of prices over the built-in ones: as_of = DAY, [hourly.REGION] or"
        " [spot.REGION] TYPE = USD",
    ] = None

    total_cpu_cores: Annotated[CpuCores, "CPU cores that the resource allocator may allocate"] = 32.0
    total_memory_gb: Annotated[PositiveCount, "memory that the resource allocator may allocate, in GB"] = 128

    @property
    def engine(self) -> Engine:
        """The store engine to use; `auto` is resolved."""
        if self.store == "auto":
            return "etcd" if self.etcd_addresses else "sqlite"
        return self.store

    @property
    def etcd_addresses(self) -> tuple[str, ...]:
        """The addresses of etcd's members, whichever settings name them."""
        if self.etcd_endpoints or self.etcd_host is None:
            return self.etcd_endpoints
        return (f"{self.etcd_host}:{self.etcd_port}",)


HEADINGS: Final = {
    "data_dir": "The process and its API",
    "store": "The store",
    "seal_keys": "Secrets in documents",
    "oidc_issuer": "Sign-in and audit",
    "session_linger_hours": "The archive",
    "artifacts_dir": "Lab files and collected work",
    "control_plane_api_url": "Controllers",
    "scheduler_enabled": "Scheduling",
    "max_pending_per_owner": "Limits of owners, which staff may exceed",
    "min_workers_per_pool": "Scaling",
    "review_difference": "Learning",
    "worker_discovery_enabled": "Discovery",
    "worker_monitoring_enabled": "Monitoring and idleness",
    "webhook_networks": "Sinks",
    "smtp_host": "Notices by mail",
    "cloud": "AWS",
    "cml_certificate_trust": "CML",
    "price_book": "Money",
    "total_cpu_cores": "The resource allocator",
}
"""Groups of variables, each by its first field."""

VARIABLES: Final = declared_variables(Settings, ALIASES)
