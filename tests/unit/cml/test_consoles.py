"""Serial consoles of simulated nodes over real sockets: prompts, configuration that is kept, several at one line."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from harness.clouds import one
from harness.consoles import SOON, ConsoleLab, console_lab, telnet
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.rest.documents import ConfigurationFile
from lcm.sim.cml.topology import write_lab_file


@pytest.fixture
async def lab() -> AsyncIterator[ConsoleLab]:
    async with console_lab() as it:
        yield it


async def test_a_router_has_prompts_modes_and_answers(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        assert "R1 con0 is now available" in await line.until("R1>")
        assert "uptime is" in await line.say("show version", "R1>")
        assert "% Invalid input detected" in await line.say("show running-config", "R1>")
        await line.say("en", "R1#")
        brief = await line.say("sh ip int br", "R1#")
        assert "p0                     unassigned      YES unset  administratively down" in brief
        await line.say("disable", "R1>")


async def test_what_is_entered_is_collected_with_the_lab(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        await line.say("enable", "R1#")
        await line.say("configure terminal", "(config)#")
        await line.say("hostname core-1", "core-1(config)#")
        await line.say("interface p0", "(config-if)#")
        await line.say("ip address 10.0.0.1 255.255.255.0", "(config-if)#")
        await line.say("description to the lab", "(config-if)#")
        assert "changed state to up" in await line.say("no shutdown", "(config-if)#")
        await line.say("end", "core-1#")
        assert "[OK]" in await line.say("write memory", "core-1#")
        assert "10.0.0.1        YES manual up" in await line.say("show ip interface brief", "core-1#")
    saved = await DirectHost(lab.cml).topology(lab.lab.id)
    assert "hostname core-1" in saved
    assert "ip address 10.0.0.1 255.255.255.0" in saved
    assert "description to the lab" in saved


async def test_both_lines_of_a_node_show_one_configuration(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as first, telnet(lab.address, lab.ports["R1_1"]) as second:
        await first.until("R1>")
        await second.until("R1>")
        await first.say("enable", "R1#")
        await first.say("conf t", "(config)#")
        await first.say("hostname twin", "twin(config)#")
        await second.say("", "twin>")


async def test_who_shares_a_line_sees_what_is_typed_and_answered(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as typing, telnet(lab.address, lab.ports["R1"]) as looking:
        await typing.until("R1>")
        await looking.until("R1>")
        typing.press(b"sh")
        await typing.until("sh")
        async with telnet(lab.address, lab.ports["R1"]) as late:
            assert (await late.until("R1>sh")).endswith("R1>sh")
        await typing.say("ow version", "R1>")
        assert "uptime is" in await looking.until("register is 0x2102")


async def test_what_a_node_was_told_is_gone_when_it_is_wiped(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        await line.say("enable", "R1#")
        await line.say("conf t", "(config)#")
        await line.say("hostname gone", "gone(config)#")
    assert lab.node("R1").running is not None
    await _stop_and_wipe(lab)
    assert lab.node("R1").running is None
    assert "gone" not in write_lab_file(lab.lab)


@pytest.mark.parametrize(("before_it_stops", "name"), [("write memory", "new"), ("show version", "R1")])
async def test_a_router_starts_again_with_what_was_saved(lab: ConsoleLab, before_it_stops: str, name: str) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        await line.say("enable", "R1#")
        await line.say("conf t", "(config)#")
        await line.say("hostname new", "new(config)#")
        await line.say("end", "new#")
        await line.say(before_it_stops, "new#")
    assert "hostname new" in await DirectHost(lab.cml).topology(lab.lab.id)
    await _stop(lab)
    lab.cml.labs.start(lab.lab)
    await _open_again(lab)
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until(f"{name}>")


async def test_a_line_is_edited_within_bounds(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        line.press(b"shox\x7fw versio\x17ver\r")
        assert "uptime is" in await line.until("R1>")
        line.press(b"junk\x15en\x03")
        await line.until("^C\r\nR1>")
        line.press(b"\x1b[A")
        await line.until("show ver")
        line.press(b"\x15" + b"x" * 5000 + b"\r")
        assert "x" * 254 in await line.until("R1>")
        assert "x" * 255 not in await line.say("", "R1>")
        line.press(b"ena\t")
        await line.until("enable ")
        line.press(b"\x15show ?")
        shown = await line.until("R1>show ")
        assert "version" in shown
        assert "ip " in shown


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("bogus", "   ^\r\n% Invalid input detected at '^' marker."),
        ("show bogus", "        ^\r\n% Invalid input detected at '^' marker."),
        ("show", "% Incomplete command."),
        ("show ip interface brief more", "% Invalid input detected"),
        ("ping 10.9.9.9", "Success rate is 0 percent (0/5)"),
        ("ping 999.1.1.1", "% Invalid input detected"),
        ("e", '% Ambiguous command:  "e"'),
        ("?", "Exit from the"),
    ],
)
async def test_what_is_no_command_is_refused_where_it_stands(lab: ConsoleLab, typed: str, answer: str) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        assert answer in await line.say(typed, "R1>")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("ip address 10.0.0.1 255.0.255.0", "Bad mask 255.0.255.0"),
        ("hostname 9bad!", "illegal characters"),
        ("interface nowhere7", "% Invalid input detected"),
        ("do show version", "uptime is"),
        ("router ospf 1", "% Invalid input detected"),
    ],
)
async def test_what_cannot_be_configured_is_refused(lab: ConsoleLab, typed: str, answer: str) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        await line.say("enable", "R1#")
        await line.say("conf t", "(config)#")
        await line.say("interface p1", "(config-if)#")
        assert answer in await line.say(typed, "R1(config")
        line.press(b"\x1a")
        await line.until("R1#")


async def test_nodes_of_a_lab_ping_each_other_once_they_are_configured(lab: ConsoleLab) -> None:
    for name, address in (("R1", "10.0.0.1"), ("R2", "10.0.0.2")):
        async with telnet(lab.address, lab.ports[name]) as line:
            await line.until(f"{name}>")
            for typed in ("enable", "conf t", "interface p0", f"ip address {address} 255.255.255.0", "no shutdown"):
                await line.say(typed, "#" if typed == "enable" else ")#")
            await line.say("end", f"{name}#")
            await line.say("disable", f"{name}>")
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        assert "!!!!!" in await line.say("ping 10.0.0.2", "R1>")


async def test_many_commands_in_a_few_bytes_keep_nobody_waiting(lab: ConsoleLab) -> None:
    """A large configuration, and a ping that looks at all of them, from the history: two keys each time."""
    blocks = "".join(
        f"interface Loopback{number}\n description {'x' * 200}\n ip address 10.1.{number}.1 255.255.255.255\n!\n"
        for number in range(128)
    )
    for label in ("R1", "R2"):
        lab.node(label).running = [ConfigurationFile("ios_config.txt", f"hostname {label}\n{blocks}end\n")]
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        await line.say("ping 10.9.9.9", "R1>")
        line.press(b"\x10\r" * 250 + b"show version\r")
        reading, longest = asyncio.create_task(line.until("uptime")), 0.0
        while not reading.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
        await reading
        assert longest < 0.1


async def test_a_desktop_has_a_shell_whose_settings_are_kept(lab: ConsoleLab) -> None:
    async with telnet(lab.address, lab.ports["PC"]) as line:
        await line.until("PC:~$ ")
        assert "Linux PC" in await line.say("uname -a", "PC:~$ ")
        assert "not found" in await line.say("frobnicate", "PC:~$ ")
        await line.say("sudo hostname desk", "desk:~$ ")
        await line.say("ip addr add 10.0.0.9/24 dev p0", "desk:~$ ")
        assert "10.0.0.9/24" in await line.say("ip a", "desk:~$ ")
        assert "0% packet loss" in await line.say("ping 10.0.0.9", "desk:~$ ")
    assert "hostname desk" in await DirectHost(lab.cml).topology(lab.lab.id)


@pytest.mark.parametrize(
    "words",
    [
        [b"\xff\xfd\x01\xff\xfb\x1f"],
        [b"\xff", b"\xfd", b"\x03"],
        [b"\xff\xfa\x1f\x00P", b"\x00\x18\xff\xf0"],
        [b"\xff\xfa" + b"x" * 9000, b"\xff\xf0"],
    ],
)
async def test_telnets_own_words_are_not_typed(lab: ConsoleLab, words: list[bytes]) -> None:
    async with telnet(lab.address, lab.ports["R1"]) as line:
        await line.until("R1>")
        for word in words:
            line.press(word)
            await line.writer.drain()
            await asyncio.sleep(0)
        assert "uptime" in await line.say("\x15show version", "R1>")


async def test_a_node_that_boots_does_not_answer_yet(lab: ConsoleLab) -> None:
    lab.cml.labs.never_boot("R2")
    await _stop(lab)
    lab.cml.labs.start(lab.lab)
    await _open_again(lab)
    async with telnet(lab.address, lab.ports["R2"]) as line:
        await line.until("R2 is booting")
        await line.say("enable", "% The node is booting")
    assert one(lab.lab, "R2").running == one(lab.lab, "R2").files


async def _stop(lab: ConsoleLab) -> None:
    lab.cml.labs.stop(lab.lab)
    async with asyncio.timeout(SOON):
        while not lab.lab.is_converged(lab.cml.pace.age()):
            await asyncio.sleep(0.001)
    await lab.patty.sync()


async def _open_again(lab: ConsoleLab) -> None:
    async with asyncio.timeout(SOON):
        while lab.patty.count < len(lab.ports):
            await lab.patty.sync()
            await asyncio.sleep(0.001)


async def _stop_and_wipe(lab: ConsoleLab) -> None:
    await _stop(lab)
    lab.cml.labs.wipe(lab.lab)
