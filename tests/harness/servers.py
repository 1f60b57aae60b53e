"""Real servers (etcd, moto), a certificate authority, and broken networks. Each server is a child process."""

import asyncio
import http
import ipaddress
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

READY_SECONDS = 60
LOOPBACK = "127.0.0.1"
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_chance = random.SystemRandom()  # the common generator is seeded alike in every test process


def free_port() -> int:
    """Find a port below those of outgoing connections, so that no client grabs it while its server is down."""
    for _ in range(200):
        port = _chance.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def etcd_version() -> tuple[int, ...]:
    """Return which etcd is on the PATH."""
    text = subprocess.run([_etcd(), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, text.split()[2].split("-")[0].split(".")))


def answers(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until a server answers; False when it has ended or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with _direct.open(url, timeout=5) as answer:
                return bool(answer.status == http.HTTPStatus.OK)
        except (urllib.error.URLError, OSError):
            time.sleep(0.01)
    return False


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server; whoever connected last is known to it afterwards: a connection is announced some turns later."""
    server.close()
    for _ in range(5):
        await asyncio.sleep(0)


class EtcdServer:
    """One etcd member that keeps its data directory and its client port over restarts."""

    def __init__(self, directory: Path, *flags: str, scheme: str = "http", name: str = "default") -> None:
        self._directory = directory
        self._flags = flags
        self._scheme = scheme
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._pick_ports()

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self._client}"

    @property
    def member(self) -> str:
        """Return what its cluster calls it, and where."""
        return f"{self._name}=http://{LOOPBACK}:{self._peer}"

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    def join(self, members: str) -> None:
        """Make it one of several; called before its first start."""
        self._flags += (f"--initial-cluster={members}",)

    def start(self, tries: int = 5) -> Self:
        """Start and wait until it answers; a port that somebody took first is exchanged on the first start."""
        fresh = not (self._directory / "data").exists()
        for _ in range(tries):
            self._spawn()
            if self._await_ready():
                return self
            if not fresh:
                break
            shutil.rmtree(self._directory / "data", ignore_errors=True)
            self._pick_ports()
        raise AssertionError(self.log[-4000:])

    def kill(self) -> None:
        """End it without warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def _pick_ports(self) -> None:
        self._client, self._peer, self._metrics = free_port(), free_port(), free_port()

    def _spawn(self) -> None:
        client, peer = f"{self._scheme}://{self.endpoint}", f"http://{LOOPBACK}:{self._peer}"
        command = (
            _etcd(),
            f"--name={self._name}",
            f"--data-dir={self._directory / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={self.member}",
            f"--listen-metrics-urls=http://{LOOPBACK}:{self._metrics}",
            "--heartbeat-interval=20",
            "--election-timeout=200",
            "--snapshot-count=5000",
            "--logger=zap",
            "--log-level=warn",
            *self._flags,
        )
        environment = {"PATH": os.environ["PATH"]}
        if platform.machine() == "aarch64":
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _await_ready(self) -> bool:
        assert self._process is not None
        if answers(self._process, f"http://{LOOPBACK}:{self._metrics}/health"):
            return True
        self.kill()
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(READY_SECONDS)
            self._process = None


class EtcdCluster:
    """Several members; a majority of them must run."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        self._folders = [directory / f"m{n}" for n in range(size)]
        self._make_members()

    def _make_members(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        flags = ("--heartbeat-interval=50", "--election-timeout=500")
        self.members = [EtcdServer(folder, *flags, name=folder.name) for folder in self._folders]
        together = ",".join(member.member for member in self.members)
        for member in self.members:
            member.join(together)

    def __enter__(self) -> Self:
        """Start all. All get other ports when somebody took one first: each knows those of the others."""
        for _ in range(4):
            try:
                return self._start()
            except AssertionError:
                self._kill()
                self._make_members()
        return self._start()

    def _start(self) -> Self:
        # None is ready before a majority runs.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda member: member.start(tries=1), self.members))
        return self

    def _kill(self) -> None:
        for member in self.members:
            member.kill()

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.__exit__()


class Proxy:
    """A TCP forwarder whose connections can be cut, refused, or fall silent."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._port = free_port()
        self.connections = 0
        self.silent = False
        """Swallow what the server answers, as a dead peer's network does; requests still reach it."""

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    async def open(self) -> None:
        """Accept connections (again)."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self._port)

    async def refuse(self) -> None:
        """Accept no more connections and cut those that exist."""
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def cut(self) -> int:
        """Break every connection that exists now; return how many there were."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        return len(links)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._link(reader, writer))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        # Not in the task: one that is cancelled before it ever runs has no end to clean up in.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            inner, outer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        await self._join((reader, outer), (inner, writer))

    async def _join(self, asking: Pipe, answering: Pipe) -> None:
        pipes = [
            asyncio.create_task(self._pipe(*asking, answers=False)),
            asyncio.create_task(self._pipe(*answering, answers=True)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            asking[1].transport.abort()
            await asyncio.wait(pipes)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if answers and self.silent:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            return


def _etcd() -> str:
    path = shutil.which("etcd")
    assert path, "no etcd on the PATH: install Debian's etcd-server"
    return path


ACCOUNT = "123456789012"
STRANGER = "999999999999"
ROOT_DEVICE = "/dev/xvda"


def image(image_id: str, name: str, created: str, *, owner: str = ACCOUNT) -> dict[str, object]:
    """Describe an image the way moto's files do."""
    return {
        "ami_id": image_id,
        "name": name,
        "creation_date": created,
        "owner_id": owner,
        "public": owner != ACCOUNT,
        "description": name,
        "architecture": "x86_64",
        "hypervisor": "xen",
        "image_location": f"{owner}/{name}",
        "image_type": "machine",
        "platform": None,
        "root_device_name": ROOT_DEVICE,
        "root_device_type": "ebs",
        "sriov": "simple",
        "state": "available",
        "virtualization_type": "hvm",
    }


IMAGES = [
    image("ami-00000000000000a1", "CML-2.8.1", "2025-03-01T12:00:00.000Z"),
    image("ami-00000000000000a3", "CML-2.9.1", "2026-02-01T12:00:00.000Z"),
    image("ami-00000000000000a2", "CML-2.9.0", "2025-09-01T12:00:00.000Z"),
    image("ami-00000000000000a4", "other", "2026-05-01T12:00:00.000Z"),
    image("ami-00000000000000a5", "CML-2.9.9", "2026-06-01T12:00:00.000Z", owner=STRANGER),
]
"""Every region has these; the newest is not the last, and a stranger has published a newer one under our name."""


class MotoServer:
    """One moto server with our images."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> Self:
        """Start and wait until it answers; a port that somebody took first is exchanged."""
        (self._directory / "images.json").write_text(json.dumps(IMAGES))
        for _ in range(5):
            self._spawn()
            if self._await_ready():
                return self
            self._port = free_port()
        raise AssertionError((self._directory / "log").read_text()[-4000:])

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_SECONDS)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self) -> None:
        command = (sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self._port))
        environment = {"PATH": os.environ["PATH"], "MOTO_AMIS_PATH": str(self._directory / "images.json")}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _await_ready(self) -> bool:
        assert self._process is not None
        if answers(self._process, f"{self.url}/moto-api/"):
            return True
        self.stop()
        return False


_DAY = timedelta(days=1)


class Authority:
    """Issues certificates that are good for a day, for this machine's loopback and NAME.test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        sign = _builder(self._name, self._name, self._key.public_key())
        sign = sign.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = sign.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Make a certificate and its key, as PEM texts."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([address, x509.DNSName(f"{name}.test")])
        certificate = (
            _builder(_name(name), self._name, key.public_key())
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def server_flags(self) -> list[str]:
        """Write a server's certificate and say how etcd is told to use it and to demand one of its clients."""
        certificate, key = self.issue("server")
        texts = {"trusted-ca-file": self.pem, "cert-file": certificate, "key-file": key}
        for flag, text in texts.items():
            (self._folder / flag).write_bytes(text)
        return [f"--{flag}={self._folder / flag}" for flag in texts] + ["--client-cert-auth"]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
