"""Which certificate of a new worker is pinned: the first one that it shows, or only one that its console confirms."""

import hashlib
import ssl
from datetime import timedelta
from typing import Any

import pytest

from harness.fleet_world import Fleet
from lcm.controllers.worker.look import has_fingerprint
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.settings.load import Settings
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.rest.app import make_certificate
from lcm.sim.time.loop import START, run

PEM = make_certificate("cml", START).certificate.decode()
OTHER = make_certificate("cml", START).certificate.decode()


def fingerprint(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def as_openssl(pem: str) -> str:
    text = fingerprint(pem).upper()
    return "sha256 Fingerprint=" + ":".join(text[place : place + 2] for place in range(0, 64, 2))


class ShowingHosts(SimHosts):
    """Hypervisors that show a certificate; notes whether anybody signed in to one before it was pinned."""

    signed_in_early = False

    async def of(self, worker: LabWorker) -> DirectHost:
        self.signed_in_early |= not worker.status.cml.certificate
        return await super().of(worker)

    async def certificate(self, worker: LabWorker) -> str:
        await super().of(worker)
        return PEM


class PrintingCloud(SimCloud):
    """A cloud whose machines print something on their consoles."""

    printed = ""

    async def console(self, region: str, instance_id: str) -> str:
        return f"{await super().console(region, instance_id)}{self.printed}\nlogin: "


@pytest.mark.parametrize(
    ("trust", "printed", "phase"),
    [
        ("first-use", "", WorkerPhase.READY),
        ("console", "", WorkerPhase.FAILED),
        ("console", as_openssl(OTHER), WorkerPhase.FAILED),
        ("console", as_openssl(PEM), WorkerPhase.READY),
    ],
)
def test_a_certificate_is_pinned_if_it_is_trusted(trust: Any, printed: str, phase: WorkerPhase) -> None:
    async def main() -> None:
        fleet = Fleet(quick=True, settings=Settings(cml_certificate_trust=trust))
        fleet.cloud.__class__ = PrintingCloud
        fleet.cloud.printed = printed  # type: ignore[attr-defined]
        fleet.hosts = hosts = ShowingHosts(fleet.cloud)
        await fleet.create("w1")
        async with fleet.controlled():
            worker = await fleet.reaches(phase, within=timedelta(hours=1))
        assert not hosts.signed_in_early
        if phase is WorkerPhase.READY:
            assert worker.status.cml.certificate == PEM
        else:
            assert worker.status.cml.certificate == ""
            assert "fingerprint of its certificate" in worker.status.last_error

    run(main, horizon=timedelta(days=1))


@pytest.mark.parametrize(
    "console",
    [fingerprint(PEM), as_openssl(PEM), f"x\n{as_openssl(PEM).lower()}\ny"],
    ids=["plain", "openssl", "among others"],
)
def test_a_fingerprint_is_found_as_people_print_it(console: str) -> None:
    assert has_fingerprint(console, PEM)
    assert not has_fingerprint(console, OTHER)
