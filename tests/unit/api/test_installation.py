"""What staff look at when something is odd: settings with their sources, and consoles of machines."""

import asyncio
from functools import partial

import pytest

from harness import given
from harness.api_world import opened, path, stock
from lcm.api.routes import installation
from lcm.api.routes.installation import MOST_CONSOLE_CHARS
from lcm.control.objects.records import creation_ops
from lcm.settings.load import Settings, describe_settings, read_configuration
from lcm.settings.values import VARIABLES

SETTINGS = path("SystemSettings")
ENVIRONMENT = {"IDLE_THRESHOLD_MINUTES": "40", "CML_ADMIN_PASSWORD": "hush-hush", "OIDC_SCOPES": "email,groups"}


def running() -> Settings:
    """Return what a process runs with that was told its port on the command line."""
    settings = read_configuration(ENVIRONMENT).settings
    return Settings(**{one.field: getattr(settings, one.field) for one in VARIABLES} | {"port": 8099})


async def test_every_setting_is_shown_with_its_source_and_no_secret() -> None:
    described = partial(describe_settings, read_configuration(ENVIRONMENT), running())
    async with opened(configuration=described) as desk:
        wish = {"metadata": {"name": "system"}, "spec": {"idle": {"threshold_minutes": 45}}}
        await desk.done("otto", "POST", SETTINGS, json=wish)
        answer = await desk.ask("otto", "GET", "/api/configuration")
        assert "hush-hush" not in answer.text
        found = {one["name"]: one for one in answer.json()["items"]}
        assert list(found) == [one.name for one in VARIABLES]
        idle = found["IDLE_THRESHOLD_MINUTES"]
        assert {name: idle[name] for name in ("value", "source", "below", "default", "field", "group")} == {
            "value": "45",
            "source": "settings object",
            "below": "40",
            "default": "30",
            "field": "idle.threshold_minutes",
            "group": "Monitoring and idleness",
        }
        password, scopes, port = found["CML_ADMIN_PASSWORD"], found["OIDC_SCOPES"], found["LCM_PORT"]
        assert (password["value"], password["secret"], password["field"]) == ("set", True, "")
        assert (scopes["value"], scopes["type"], "environment" in scopes["source"]) == ("email,groups", "list", True)
        assert (port["value"], port["source"]) == ("8099", "command line")
        assert found["SCHEDULER_STRATEGY"]["choices"][0] == "BinPack"
        assert found["LCM_CLEARTEXT_ALLOWED"]["choices"] == ["true", "false"]


async def test_the_end_of_a_machine_s_console_is_shown_to_staff(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    async def read(region: str, instance_id: str) -> str:
        asked.append((region, instance_id))
        await asyncio.sleep(3600 if len(asked) > 1 else 0)
        return "x" * MOST_CONSOLE_CHARS + "end\n"

    async with opened() as desk:
        await stock(desk)
        launched = given.changed(given.worker(), {"status": {"ec2": {"instance_id": "i-1"}}})
        await desk.store.commit(*creation_ops(launched))
        where, without = (f"/api/workers/{name}/console-output" for name in (launched.metadata.name, "ccna-worker-1"))
        absent = await desk.ask("otto", "GET", where)
        assert (absent.status_code, "another process" in absent.json()["detail"]) == (409, True)
        with desk.api.machine_consoles.read_with(read):
            assert (await desk.ask("otto", "GET", "/api/workers/nobody/console-output")).status_code == 404
            none = await desk.ask("otto", "GET", without)
            assert (none.status_code, "has no machine" in none.json()["detail"]) == (409, True)
            assert (await desk.ask("anna", "GET", where)).status_code == 403
            shown = await desk.done("otto", "GET", where)
            assert (shown["instance_id"], shown["cut"]) == ("i-1", True)
            assert (len(shown["text"]), shown["text"][-4:]) == (MOST_CONSOLE_CHARS, "end\n")
            monkeypatch.setattr(installation, "_CONSOLE_SECONDS", 0.01)
            assert (await desk.ask("otto", "GET", where)).status_code == 503
            assert asked == [("us-east-1", "i-1")] * 2
        closed = await desk.ask("otto", "GET", where)
        assert (closed.status_code, len(asked)) == (409, 2), "a cloud that was open for a while is not asked any more"
