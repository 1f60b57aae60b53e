"""What every LabHost tells about its machine: version, health, figures, activity, and that it is not ready."""

from datetime import UTC, datetime, timedelta

import pytest

from harness.lab_hosts import ROUTER, World, client, everywhere, in_process, over_rest, started, state
from lcm.model.access.secret import Secret
from lcm.providers.protocols.labhost import CmlAuthenticationError, LabState, NotReady
from lcm.sim.cml.rest.documents import NoticeCreate
from lcm.sim.time.loop import START as MIDNIGHT


@everywhere
async def test_a_host_says_its_version_and_that_it_is_ready(world: World) -> None:
    system = await world.host.system()
    assert system.ready
    assert system.version.startswith("2.9")


@everywhere
async def test_good_credentials_sign_in(world: World) -> None:
    await world.host.sign_in()
    await world.host.sign_in()


@over_rest
async def test_a_wrong_password_is_refused(world: World) -> None:
    host = client(world.cml, Secret("wrong-password"))
    for verb in (host.sign_in, host.labs, host.stats):
        with pytest.raises(CmlAuthenticationError) as raised:
            await verb()
        assert "wrong-password" not in str(raised.value)
    await host.system()


@over_rest
async def test_an_expired_token_goes_unnoticed(world: World) -> None:
    await world.host.labs()
    world.cml.users.expire_tokens()
    assert await world.host.labs() == []
    await world.pass_time(2 * 86_400)
    assert await world.host.labs() == []


@in_process
async def test_telemetry_to_its_makers_is_switched_on_and_off(world: World) -> None:
    for enabled in (False, True, True):
        await world.host.set_telemetry(enabled=enabled)
        assert world.cml.telemetry.opt_in is enabled


@everywhere
async def test_stats_tell_what_the_machine_has_and_uses(world: World) -> None:
    before = await world.host.stats()
    assert (before.cpu_count, before.memory_total_mb, before.disk_total_mb) == (48, 196_608, 512_000)
    assert 0 < before.memory_used_mb < before.memory_total_mb
    assert 0 < before.disk_used_mb < before.disk_total_mb
    lab = await started(world, "stats")
    after = await world.host.stats()
    assert after.cpu_count == 48
    assert (after.running_nodes - before.running_nodes, after.total_nodes - before.total_nodes) == (3, 3)
    assert (after.allocated_cpus - before.allocated_cpus) == 3
    assert (after.allocated_memory_mb - before.allocated_memory_mb) == ROUTER.ram_mb + 1024
    await world.host.remove(lab.lab_id)


@everywhere
async def test_a_healthy_host_says_so(world: World) -> None:
    health = await world.host.health()
    assert health.healthy
    assert health.reasons == ()


@in_process
async def test_an_ailing_host_names_what_is_wrong(world: World) -> None:
    world.cml.ailments = ["libvirt"]
    health = await world.host.health()
    assert not health.healthy
    assert any("libvirt" in reason for reason in health.reasons)


@everywhere
async def test_a_host_is_open_unless_it_says_otherwise(world: World) -> None:
    assert not (await world.host.maintenance()).enabled


@in_process
async def test_maintenance_and_its_notices_are_told(world: World) -> None:
    notices = world.cml.notices
    shown = notices.add(NoticeCreate("WARNING", "Upgrade", "tonight", enabled=True))
    notices.add(NoticeCreate("INFO", "Draft", "not yet", enabled=False))
    notices.maintenance = True
    maintenance = await world.host.maintenance()
    assert maintenance.enabled
    assert [(one.notice_id, one.label, one.content, one.level) for one in maintenance.notices] == [
        (shown.id, "Upgrade", "tonight", "WARNING")
    ]


@everywhere
async def test_activity_is_told_in_order_and_only_what_is_newer(world: World) -> None:
    before = await world.host.activity(since=datetime(2020, 1, 1, tzinfo=UTC))
    last = before[-1].at if before else MIDNIGHT - timedelta(days=1)
    await world.pass_time(world.speed * 1.1)
    lab = await started(world, "active")
    news = await world.host.activity(since=last)
    assert {"import_lab", "start_lab", "boot_node"} <= {one.category for one in news}
    assert [one.at for one in news] == sorted(one.at for one in news)
    assert all(one.at > last for one in news)
    assert await world.host.activity(since=news[-1].at + timedelta(hours=1)) == []
    await world.host.remove(lab.lab_id)


@everywhere
async def test_node_definitions_tell_what_a_node_gets_by_default(world: World) -> None:
    known = {one.definition_id: one for one in await world.host.node_definitions()}
    router, way_out = known["iosv"], known["external_connector"]
    assert (router.cpus, router.ram_mb) == (ROUTER.cpus, ROUTER.ram_mb)
    assert (router.boot_disk_gb, router.data_volume_gb) == (ROUTER.boot_disk_gb, ROUTER.data_volume_gb)
    assert router.nature == "router"
    assert router.image_definitions
    assert (way_out.cpus, way_out.ram_mb, way_out.nature) == (0, 0, "external_connector")


@in_process
async def test_a_machine_that_boots_is_not_ready_and_keeps_its_labs(world: World) -> None:
    lab = await started(world, "survivor")
    world.cml.power_off()
    for verb in (world.host.system, world.host.labs, world.host.stats, world.host.licence):
        with pytest.raises(NotReady):
            await verb()
    with pytest.raises(NotReady):
        await world.host.look(lab.lab_id)
    with pytest.raises(NotReady):
        await world.host.remove(lab.lab_id)
    world.cml.power_on()
    await world.pass_time(100)
    with pytest.raises(NotReady):
        await world.host.system()
    await world.pass_time(200)
    assert (await world.host.system()).ready
    assert await state(world.host, lab.lab_id) is LabState.STOPPED
