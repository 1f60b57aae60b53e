"""`lcm` as a person or an operator runs it: a process, a folder, a context, signals, and every environment variable."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from harness.suite import own_time

SOON = 60
COMMAND = (sys.executable, "-m", "lcm.cli.main")
_OURS = ("LCM_", "ETCD_", "XDG_", "CONTROL_PLANE_")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Make an environment that knows nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "XDG_CONFIG_HOME": str(home / "config"), "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **more}


def lcm(home: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
        check=False,
    )


class Running:
    """A command that runs until it is told to stop. Use it as a context manager: nothing is left behind."""

    def __init__(self, home: Path, *arguments: object, **more: str) -> None:
        self.home = home
        self.url = ""
        self._output = (home / f"output-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(home, **more),
        )

    @property
    def output(self) -> str:
        """Everything that it has written."""
        return Path(self._output.name).read_text()

    @property
    def token(self) -> str:
        """The token in the current context."""
        book: Any = msgspec.yaml.decode((self.home / "config" / "lcm" / "contexts.yaml").read_bytes())
        return str(book["contexts"][book["current"]]["token"])

    def ready(self) -> Self:
        """Wait until it says where it is and can serve requests."""
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r" at (http://[0-9.]+:\d+)", self.output)
            if found and _is_ready(found[1]):
                self.url = found[1]
                return self
            time.sleep(0.01)
        raise AssertionError(self.output)

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Make a client that is signed in: with a token, else with that of the current context."""
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=SOON)

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, float]:
        """Ask it to end; returns its exit code and how long it took, while other programs left it a processor."""
        begun, took = own_time(self.process.pid), 0.0
        deadline = time.monotonic() + SOON
        self.process.send_signal(number)
        while self.process.poll() is None and time.monotonic() < deadline:
            took = own_time(self.process.pid) - begun
            time.sleep(0.01)
        return self.process.wait(0), took

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()


def up(home: Path, *arguments: object, **more: str) -> Running:
    """Start `lcm up` on a free port and on a folder that is kept from one start to the next; its log is its output."""
    return Running(home, "up", "--log", "--port=0", f"--data={home / 'data'}", *arguments, **more)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


class Set(NamedTuple):
    """A value, how `lcm doctor` shows it, and what must be set along with it."""

    text: str
    shown: str
    along: tuple[str, ...] = ()


FIRST_PLAN = {
    "AWS_REGION": Set("us-west-2", "us-west-2"),
    "AWS_ACCESS_KEY_ID": Set("AKIA-of-mine", "set", ("AWS_SECRET_ACCESS_KEY",)),
    "AWS_SECRET_ACCESS_KEY": Set("hush/secret-of-aws", "set", ("AWS_ACCESS_KEY_ID",)),
    "CML_ADMIN_USERNAME": Set("root", "root"),
    "CML_ADMIN_PASSWORD": Set("hush, the admin's", "set"),
    "CML_LICENSE_TOKEN": Set("hush-licence", "set"),
    "EC2_AMI_ID": Set("ami-xxxxxxxxx", "ami-xxxxxxxxx"),
    "EC2_INSTANCE_TYPE": Set("c8i.16xlarge", "c8i.16xlarge"),
    "EC2_VPC_ID": Set("vpc-xxxxxxxxx", "vpc-xxxxxxxxx"),
    "EC2_SUBNET_ID": Set("subnet-xxxxxxxxx", "subnet-xxxxxxxxx"),
    "EC2_SECURITY_GROUP_IDS": Set("sg-1, sg-2", "sg-1,sg-2"),
    "EC2_IAM_INSTANCE_PROFILE": Set("cml-workers", "cml-workers"),
    "SCHEDULER_STRATEGY": Set("BestFit", "BestFit"),
    "REQUIRE_LICENSED_FOR_CML": Set("false", "false"),
    "MIN_WORKERS_PER_POOL": Set("2", "2"),
    "MAX_WORKERS_PER_POOL": Set("7", "7"),
    "SCALE_UP_THRESHOLD_CPU": Set("0.9", "0.9"),
    "SCALE_DOWN_THRESHOLD_CPU": Set("0.2", "0.2"),
}
WORKER_CONTROLLER = {
    "WORKER_DISCOVERY_ENABLED": Set("false", "false"),
    "WORKER_DISCOVERY_INTERVAL": Set("600", "600"),
    "WORKER_DISCOVERY_AMI_NAME": Set("My CML-*", "My CML-*"),
    "WORKER_DISCOVERY_REGIONS": Set("us-east-1,us-west-2", "us-east-1,us-west-2"),
    "WORKER_CONTROLLER_RECONCILE_INTERVAL": Set("31", "31"),
    "METRICS_POLL_INTERVAL": Set("61", "61"),
    "IDLE_CHECK_INTERVAL": Set("62", "62"),
    "IDLE_THRESHOLD_MINUTES": Set("45", "45"),
    "CML_WORKER_API_USERNAME": Set("robot", "robot"),
    "CML_WORKER_API_PASSWORD": Set("hush, the robot's", "set"),
    "ETCD_HOST": Set("etcd", "etcd"),
    "ETCD_PORT": Set("2380", "2380"),
    "WORKER_CONTROLLER_LEADER_LEASE_TTL": Set("20", "20"),
    "CONTROL_PLANE_API_URL": Set("http://control-plane-api:8030", "http://control-plane-api:8030"),
    "CONTROL_PLANE_API_KEY": Set("hush-key-of-services", "set"),
    "WORKER_MONITORING_ENABLED": Set("no", "false"),
    "WORKER_NOTIFICATION_WEBHOOKS": Set(
        "https://hooks.slack.com/services/hush,http://a.b/hush", "2 set", ("WEBHOOK_HTTP_ALLOWED",)
    ),
}
ALLOCATOR = {"TOTAL_CPU_CORES": Set("64.5", "64.5"), "TOTAL_MEMORY_GB": Set("256", "256")}
MISSION = {
    "SCHEDULER_ENABLED": Set("0", "false"),
    "SCHEDULER_RECONCILE_INTERVAL": Set("33", "33"),
    "WORKER_BOOTUP_DELAY_MINUTES": Set("21", "21"),
    "LABLET_INSTANTIATION_DELAY_MINUTES": Set("16", "16"),
    "ETCD_ENDPOINTS": Set("etcd:2380,https://other:2379", "etcd:2380,https://other:2379"),
}
OURS = {
    "EC2_IMAGE_OWNERS": Set("self,123456789012", "self,123456789012"),
    "LABLET_WATCH_INTERVAL": Set("20", "20"),
    "LAB_ACCESS": Set("gateway", "gateway"),
    "LCM_CLOUD": Set("simulated", "simulated"),
    "LCM_SIM_SPEED": Set("60", "60"),
    "CML_LICENSE_SEATS": Set("12", "12"),
    "MAX_PENDING_PER_OWNER": Set("11", "11"),
    "MAX_LIVE_PER_OWNER": Set("12", "12"),
    "MAX_AHEAD_PER_OWNER": Set("51", "51"),
    "BOOKING_HORIZON_DAYS": Set("91", "91"),
    "MAX_NODES_PER_OWNER": Set("201", "201"),
    "MAX_HOURS_AHEAD_PER_OWNER": Set("202", "202"),
    "MAX_HOURS_PER_OWNER_MONTH": Set("203", "203"),
    "MAX_USD_PER_OWNER_MONTH": Set("204", "204"),
    "REVIEW_DIFFERENCE": Set("0.4", "0.4"),
    "REVIEW_SESSIONS": Set("5", "5"),
    "ARTIFACTS_DIR": Set("/srv/artifacts", "/srv/artifacts"),
    "ARTIFACTS_FILE_DIRS": Set("/srv/labs,/srv/more-labs", "/srv/labs,/srv/more-labs"),
    "ARTIFACTS_S3_BUCKET": Set("our-artifacts", "our-artifacts"),
    "ARTIFACTS_S3_PREFIX": Set("lcm/", "lcm/"),
    "ARTIFACTS_AUTHOR_MB": Set("50", "50"),
    "ARTIFACTS_RETENTION_DAYS": Set("7", "7"),
    "ARTIFACTS_S3_ENDPOINT": Set("https://minio.example.org:9000", "https://minio.example.org:9000"),
    "ARTIFACTS_S3_ALLOWED": Set("labs,shared/labs/", "labs,shared/labs/"),
    "CPU_ALERT_PERCENT": Set("85", "85"),
    "MEMORY_ALERT_PERCENT": Set("95.5", "95.5"),
    "DISK_ALERT_PERCENT": Set("80", "80"),
    "NODE_SIZES": Set("gitlab=4/8G/60G,cmlctl=1/512M", "gitlab=4/8G/60G,cmlctl=1/512M"),
    "LCM_DATA_DIR": Set("somewhere", "somewhere"),
    "LCM_HOST": Set("0.0.0.0", "0.0.0.0"),
    "LCM_PORT": Set("8031", "8031"),
    "LCM_STATUS_HOST": Set("0.0.0.0", "0.0.0.0"),
    "LCM_STATUS_PORT": Set("8035", "8035"),
    "LCM_STORE": Set("sqlite", "sqlite"),
    "LOG_LEVEL": Set("debug", "DEBUG"),
    "LCM_REQUESTS_PER_SECOND": Set("50", "50"),
    "LCM_REQUEST_BURST": Set("60", "60"),
    "LCM_WRITES_PER_HOUR": Set("600", "600"),
    "LCM_MAX_CONNECTIONS": Set("500", "500"),
    "LCM_CONNECTIONS_PER_ADDRESS": Set("50", "50"),
    "LCM_TRUSTED_PROXIES": Set("10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
    "LCM_PROXY_HEADER": Set("Forwarded", "Forwarded"),
    "LCM_CLEARTEXT_ALLOWED": Set("yes", "true"),
    "LCM_BODIES_BYTES": Set("64000000", "64000000"),
    "LCM_BODY_BYTES": Set("2000000", "2000000"),
    "LCM_APPLY_BYTES": Set("3000000", "3000000"),
    "WEBHOOK_NETWORKS": Set("10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
    "WEBHOOK_HTTP_ALLOWED": Set("yes", "true"),
    "EVENT_SOURCE": Set("https://lcm.example.org", "https://lcm.example.org"),
    "SMTP_HOST": Set("mail.example.org", "mail.example.org", ("MAIL_FROM",)),
    "SMTP_PORT": Set("2525", "2525"),
    "SMTP_STARTTLS": Set("no", "false"),
    "SMTP_USER": Set("lcm", "lcm", ("SMTP_PASSWORD",)),
    "SMTP_PASSWORD": Set("hush-of-the-post", "set", ("SMTP_USER",)),
    "MAIL_FROM": Set("lcm@example.org", "lcm@example.org", ("SMTP_HOST",)),
    "MAIL_FROM_NAME": Set("The labs", "The labs"),
    "MAIL_PER_MINUTE": Set("30", "30"),
    "MAIL_TIME_ZONE": Set("Europe/Berlin", "Europe/Berlin"),
    "LCM_PUBLIC_URL": Set("https://lcm.example.org", "https://lcm.example.org"),
    "LCM_SEAL_KEYS": Set("hush-key-of-seals", "set"),
    "LCM_SEAL_KEY_FILE": Set("/etc/lcm/seal.key", "/etc/lcm/seal.key"),
    "SECRET_ENV_ALLOWED": Set("CML_*,MY_?", "CML_*,MY_?"),
    "CML_CERTIFICATE_TRUST": Set("console", "console"),
    "SECRET_AWS_ALLOWED": Set("lcm/*,prod/cml", "lcm/*,prod/cml"),
    "SECRET_FILE_DIRS": Set("/run/secrets,/etc/lcm/secrets", "/run/secrets,/etc/lcm/secrets"),
    "OIDC_ISSUER": Set(
        "https://login.example.org/realms/labs", "https://login.example.org/realms/labs", ("OIDC_AUDIENCE",)
    ),
    "OIDC_AUDIENCE": Set("lcm,lcm-cli", "lcm,lcm-cli"),
    "OIDC_JWKS_URL": Set("https://login.example.org/keys", "https://login.example.org/keys"),
    "OIDC_SUBJECT_CLAIM": Set("preferred_username", "preferred_username"),
    "OIDC_REQUIRE_VERIFIED_EMAIL": Set("no", "false"),
    "OIDC_ROLE_CLAIM": Set("realm_access.roles", "realm_access.roles"),
    "OIDC_ROLES": Set("lab-ops=operator,staff=author", "lab-ops=operator,staff=author"),
    "OIDC_DEFAULT_ROLE": Set("user", "user"),
    "OIDC_LEEWAY_SECONDS": Set("30", "30"),
    "OIDC_OUTLIVE_HOURS": Set("12", "12"),
    "OIDC_CLIENT_ID": Set("lcm-pages", "lcm-pages", ("OIDC_ISSUER", "OIDC_AUDIENCE")),
    "OIDC_CLIENT_SECRET": Set("hush-client", "set", ("OIDC_CLIENT_ID", "OIDC_ISSUER", "OIDC_AUDIENCE")),
    "OIDC_SCOPES": Set("email,groups", "email,groups"),
    "OIDC_PROVIDER_NAME": Set("Example School", "Example School"),
    "OIDC_REDIRECT_URL": Set(
        "https://labs.example.org/api/sign-in/oidc/callback", "https://labs.example.org/api/sign-in/oidc/callback"
    ),
    "OIDC_END_SESSION": Set("yes", "true"),
    "AUDIT_RETENTION_DAYS": Set("365", "365"),
    "SESSION_LINGER_HOURS": Set("48", "48"),
    "SESSION_ARCHIVE_DAYS": Set("90", "90"),
    "ETCD_ROOT": Set("/mine/", "/mine/"),
    "ETCD_USER": Set("lcm", "lcm", ("ETCD_PASSWORD",)),
    "ETCD_PASSWORD": Set("hush-etcd", "set", ("ETCD_USER",)),
    "ETCD_SERVER_NAME": Set("etcd.example.org", "etcd.example.org"),
    "ETCD_QUOTA_BYTES": Set("8589934592", "8589934592"),
    "LCM_STORE_ALERT_PERCENT": Set("70", "70"),
    "LCM_STORE_HISTORY_MINUTES": Set("15", "15"),
}
NAMED = FIRST_PLAN | WORKER_CONTROLLER | ALLOCATOR | MISSION | OURS
FILES = (
    "LCM_TLS_CERT_FILE",
    "LCM_TLS_KEY_FILE",
    "LCM_CA_FILE",
    "ETCD_CA_FILE",
    "ETCD_CERT_FILE",
    "ETCD_KEY_FILE",
    "SMTP_CA_FILE",
    "PRICE_BOOK",
)
"""Variables whose values are files that must exist."""


def variables_environment(*names: str) -> dict[str, str]:
    """Set variables, and what must be set along with them."""
    return {name: NAMED[name].text for one in names for name in (one, *NAMED[one].along)}
