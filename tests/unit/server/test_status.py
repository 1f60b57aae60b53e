"""The port on which a process without the API tells whether it lives and is ready, and its metrics."""

import asyncio
import re
import socket
from pathlib import Path

import httpx
import pytest

from harness import suite
from harness.servers import LOOPBACK, free_port
from lcm.api.http.metrics import ApiMetrics
from lcm.compose import process
from lcm.compose.process import ProcessPart
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Refused
from lcm.settings.load import Settings
from lcm.system.loop_watch import LoopWatch

KEY = "a-key-that-nobody-guesses"
PATIENCE = 60.0


def settings(folder: Path, **more: object) -> Settings:
    return Settings(data_dir=folder, control_plane_api_key=Secret(KEY), cloud="simulated", **more)  # type: ignore[arg-type]


async def ask(url: str, path: str, *, method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        return await client.request(method, url + path, headers=headers)


async def wait_for(url: str, status: int) -> httpx.Response:
    """Wait until /readyz answers so, and return its answer."""
    async with asyncio.timeout(PATIENCE):
        while (answer := await ask(url, "/readyz")).status_code != status:
            await asyncio.sleep(0.02)
    return answer


async def metric(url: str, name: str) -> float:
    """Return the present value of a metric; nan if there is none of that name and labels."""
    told = (await ask(url, "/metrics", authorization=f"Bearer {KEY}")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", told, re.MULTILINE)
    return float(found[1]) if found else float("nan")


async def test_a_process_of_controllers_tells_its_state_and_what_it_does(tmp_path: Path) -> None:
    port = free_port()
    away, there = (f"http://{LOOPBACK}:{one}" for one in (free_port(), port))
    here = settings(tmp_path / "here", control_plane_api_url=f"{away},{there}", status_port=0)
    async with process.run_controllers(here, [ProcessPart.SCHEDULER, ProcessPart.POOL_CONTROLLER]) as running:
        url = running.status_url
        assert (await ask(url, "/healthz")).json() == {"status": "ok"}
        assert (await wait_for(url, 503)).json()["checks"] == [
            {"name": "api", "ok": False},
            {"name": "cache", "ok": False},
        ]
        async with process.serve(settings(tmp_path / "api", port=port), [ProcessPart.API]):
            assert (await wait_for(url, 200)).json()["ready"] is True
            async with asyncio.timeout(PATIENCE):
                while await metric(url, 'lcm_leader{lease="scheduler"}') != 1:
                    await asyncio.sleep(0.02)
            assert 0 < await metric(url, 'lcm_lease_left_seconds{lease="scheduler"}') <= 15
            assert await metric(url, 'lcm_elections_total{lease="scheduler"}') == 1
            assert await metric(url, 'lcm_queue_depth{controller="scheduler of sessions"}') == 0
            assert await metric(url, 'lcm_ready{check="api"}') == 1
        await wait_for(url, 503)


async def test_every_metric_is_documented() -> None:
    metrics = ApiMetrics(LoopWatch(), ControllerCounts())
    told = {one.name for one in metrics.registry.collect()} - {"python_info"}
    page = (suite.ROOT / "docs" / "operate.md").read_text()
    documented = {name.removesuffix("_total") for name in re.findall(r"`(lcm_\w+)`", page)}
    assert {name for name in told if name.startswith("lcm_")} - {"lcm_build_info"} <= documented
    assert all(name.startswith(("lcm_", "process_")) for name in told)


async def test_metrics_are_read_with_the_key_of_services_only(tmp_path: Path) -> None:
    here = settings(tmp_path, control_plane_api_url=f"http://{LOOPBACK}:{free_port()}", status_port=0)
    async with process.run_controllers(here, [ProcessPart.SCHEDULER]) as running:
        url = running.status_url
        for given in ({}, {"authorization": "Bearer"}, {"authorization": f"Basic {KEY}"}, {"authorization": KEY}):
            refused = await ask(url, "/metrics", **given)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), given
            assert KEY not in refused.text
        allowed = await ask(url, "/metrics", authorization=f"bearer {KEY}")
        assert allowed.status_code == 200
        assert "lcm_build_info" in allowed.text
        assert (await ask(url, "/metrics", method="HEAD", authorization=f"Bearer {KEY}")).content == b""
        assert (await ask(url, "/healthz", method="POST")).status_code == 405
        assert (await ask(url, "/api/workers")).status_code == 404


async def test_the_usual_port_gives_way_and_a_chosen_one_is_refused_where_it_is_taken(tmp_path: Path) -> None:
    api = f"http://{LOOPBACK}:{free_port()}"
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        chosen = settings(tmp_path, control_plane_api_url=api, status_port=port)
        with pytest.raises(Refused, match=f"LCM_STATUS_PORT: .*:{port}.* choose another port"):
            await process.run_controllers(chosen, [ProcessPart.SCHEDULER]).__aenter__()
        usual = process.STATUS_PORTS
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(usual, ProcessPart.SCHEDULER, port)
            async with process.run_controllers(
                settings(tmp_path, control_plane_api_url=api), [ProcessPart.SCHEDULER]
            ) as running:
                assert not running.status_url.endswith(f":{port}")
                assert (await ask(running.status_url, "/healthz")).status_code == 200


async def test_the_key_does_not_cross_a_network_unencrypted(tmp_path: Path) -> None:
    api = f"http://{LOOPBACK}:{free_port()}"
    open_to_all = settings(tmp_path, control_plane_api_url=api, status_host="0.0.0.0", status_port=0)
    with pytest.raises(Invalid, match=r"LCM_STATUS_HOST.*LCM_CLEARTEXT_ALLOWED"):
        await process.run_controllers(open_to_all, [ProcessPart.SCHEDULER]).__aenter__()
