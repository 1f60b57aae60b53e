"""One CmlHost per worker: kept while what leads to it is the same, replaced when that changes, closed in the end."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness import given
from harness.servers import LOOPBACK
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Stuck
from lcm.model.kinds.worker import LabWorker
from lcm.providers.cml import host as cml_hosts
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.labhost import CmlCertificateError, NotReady
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlApp, make_certificate
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import run
from lcm.system.clock import SystemClock, raise_file_limit
from lcm.system.serving import listen, serve
from lcm.system.tls import make_tls


class Passwords:
    """Gives the password of the day, and counts how often it was asked."""

    def __init__(self, password: str = "admin") -> None:
        self.password = password
        self.asked = 0

    async def reveal(self, ref: str) -> Secret:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.password:
            raise Stuck("SecretMissing", f"{ref} is not set")
        return Secret(self.password)


def worker(url: str = "https://10.0.0.1", certificate: str = "", name: str = "w1") -> LabWorker:
    made = given.changed(given.worker(), {"metadata": {"name": name, "uid": f"uid-{name}"}})
    return given.changed(made, {"status": {"cml": {"api_url": url, "certificate": certificate}}})


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    raise_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


def test_a_worker_keeps_its_host_while_nothing_changes() -> None:
    async def main() -> None:
        passwords = Passwords()
        hosts = CmlHosts(passwords)
        first = await hosts.of(worker())
        assert await hosts.of(worker()) is first
        assert passwords.asked == 1
        assert await hosts.of(worker(name="w2")) is not first
        assert await hosts.of(worker("https://10.0.0.2")) is not first
        await hosts.close()
        await hosts.close()

    run(main)


def test_another_password_behind_the_same_reference_is_noticed_after_a_while() -> None:
    async def main() -> None:
        passwords = Passwords()
        hosts = CmlHosts(passwords)
        first = await hosts.of(worker())
        await asyncio.sleep(cml_hosts.PASSWORD_CACHED_SECONDS)
        assert await hosts.of(worker()) is first
        passwords.password = "changed"
        await asyncio.sleep(cml_hosts.PASSWORD_CACHED_SECONDS)
        assert await hosts.of(worker()) is not first
        await hosts.close()

    run(main)


def test_of_two_who_ask_at_once_both_get_the_same_host() -> None:
    async def main() -> None:
        hosts = CmlHosts(Passwords())
        one, other = await asyncio.gather(hosts.of(worker()), hosts.of(worker()))
        assert one is other
        await hosts.close()

    run(main)


def test_without_an_address_or_a_password_there_is_no_host() -> None:
    async def main() -> None:
        hosts = CmlHosts(Passwords(""))
        with pytest.raises(NotReady):
            await hosts.of(worker(""))
        with pytest.raises(Stuck, match="not set"):
            await hosts.of(worker())
        await hosts.forget(worker())

    run(main)


@asynccontextmanager
async def _served() -> AsyncIterator[str]:
    clock, stop = SystemClock(), asyncio.Event()
    listening = listen(LOOPBACK, 0)
    app = CmlApp(Cml(clock, Chance(7)))
    serving = asyncio.create_task(serve(app, listening, make_tls(make_certificate(LOOPBACK, clock.now())), stop))
    try:
        yield f"https://{LOOPBACK}:{listening.getsockname()[1]}"
    finally:
        stop.set()
        await serving


async def test_a_machine_is_believed_by_the_certificate_it_showed_first() -> None:
    async with _served() as url, _served() as other:
        hosts = CmlHosts(Passwords())
        shown = await hosts.certificate(worker(url))
        host = await hosts.of(worker(url, shown))
        assert (await host.stats()).cpu_count > 0
        impostor = await hosts.of(worker(other, shown))
        with pytest.raises(CmlCertificateError):
            await impostor.stats()
        assert await hosts.certificate(worker("http://127.0.0.1")) == ""
        await hosts.close()


async def test_a_host_that_was_replaced_still_serves_whoever_has_it_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _served() as url:
        hosts = CmlHosts(Passwords())
        shown = await hosts.certificate(worker(url))
        old = await hosts.of(worker(url, shown))
        await hosts.of(worker(f"{url}/", shown))
        assert (await old.system()).ready
        monkeypatch.setattr(cml_hosts, "RETIRED_SECONDS", 0.0)
        await hosts.forget(worker(url, shown))
        await hosts.close()
