"""`lcm cml-sim` as a person runs it: addresses, certificates, errors, and many machines behind one port."""

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from cryptography import x509

from lcm.model.base.errors import Refused
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlFleet, make_certificate
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock
from lcm.system.serving import listen, serve
from lcm.system.tls import make_tls

LOOPBACK = "127.0.0.1"


@contextmanager
def running(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "lcm.cli.main", "cml-sim", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline(), process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_stops_cleanly(number: signal.Signals) -> None:
    with running("--port=0", "--http", "--username=boss", "--password=word", "--seed=7") as (told, process):
        found = re.search(r"http://127\.0\.0\.1:\d+", told)
        assert found
        with httpx.Client(base_url=found[0], trust_env=False) as client:
            body = {"username": "boss", "password": "word"}
            assert client.post("/api/v0/authenticate", json=body).status_code == 200
            assert client.get("/api/v0/labs").status_code == 401
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "user boss" in told


def test_any_name_and_address_is_shown_as_it_is() -> None:
    with running("--port=0", "--http", "--host=::1", "--username=[/x]") as (told, _):
        assert re.search(r"http://\[::1\]:\d+ user \[/x\]", told)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        with running(f"--port={port}") as (_, process):
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert "Traceback" not in errors


def test_a_senseless_speed_is_refused() -> None:
    with running("--port=0", "--speed=0") as (_, process):
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "speed" in errors


@pytest.mark.parametrize("host", ["127.0.0.1", "cml.example.org"])
def test_a_certificate_names_its_host(host: str) -> None:
    made = make_certificate(host, SystemClock().now())
    certificate = x509.load_pem_x509_certificate(made.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in [str(name.value) for name in names]
    assert certificate.subject == certificate.issuer


def test_no_port_is_left_behind_when_an_address_is_not_ours() -> None:
    for host in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(Refused, match=re.escape(f"{host} is no address of this machine")):
            listen(host, 0)


async def test_many_machines_are_served_behind_one_port_with_one_certificate() -> None:
    fleet = CmlFleet()
    for name in ("w1", "w2"):
        fleet.add(name, Cml(SystemClock(), Chance(name), username=name))
    certificate = make_certificate(LOOPBACK, SystemClock().now())
    listening = listen(LOOPBACK, 0)
    url = f"https://{LOOPBACK}:{listening.getsockname()[1]}"
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(fleet, listening, make_tls(certificate), stop))
    trusted = ssl.create_default_context(cadata=certificate.certificate.decode())
    try:
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            for name in ("w1", "w2"):
                body = {"username": name, "password": "admin"}
                answer = await client.post(f"{url}/w/{name}/api/v0/authenticate", json=body)
                assert answer.status_code == 200
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)
