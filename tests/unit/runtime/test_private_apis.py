"""What we use of asyncio, typer and uvicorn though it is private, and what it does, so that an upgrade fails here."""

import ast
import asyncio
import socket
from asyncio import Handle, Task, TimerHandle, events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from uvicorn import Config, Server
from uvicorn.server import ServerState

import lcm
from lcm.sim.time.callbacks import is_task_step
from lcm.system.connection import HttpConnection
from lcm.system.limits import ConnectionLimits

SOURCES = sorted(Path(lcm.__path__[0]).rglob("*.py"))
IMPORTED = {
    "asyncio._get_running_loop",
    "os._exit",
    "sys._current_frames",
    "typer._click.Command",
    "typer._click.Context",
    "typer._click.HelpFormatter",
    "typer._click.exceptions.UsageError",
    "typer._click.globals.get_current_context",
    "typer._click.shell_completion.CompletionItem",
    "typer._completion_classes.completion_init",
    "typer._completion_shared.get_completion_script",
}
REACHING_INTO_OBJECTS = {
    "booking/calendar.py",
    "system/loop_watch.py",
    "time/callbacks.py",
    "time/host.py",
    "time/loop.py",
}
"""The calendar reaches into another calendar only, the watch takes the frames of threads, which `sys` documents; the
others reach into asyncio's loop, handles and tasks."""


def private_names(path: Path) -> Iterator[str]:
    """Find the private names of others that a file imports, or takes from a module."""
    tree = ast.parse(path.read_text())
    modules = {
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("lcm"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{node.value.id}.{node.attr}"


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_every_private_name_is_listed_and_exists() -> None:
    found = {name for path in SOURCES for name in private_names(path) if is_private(name)}
    assert found == IMPORTED
    for name in sorted(IMPORTED):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), f"{name} is gone"
    reaching = {"/".join(path.parts[-2:]) for path in SOURCES if "noqa: SLF001" in path.read_text()}
    assert reaching == REACHING_INTO_OBJECTS


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        (events, "get_running_loop", lambda: asyncio.sleep(0.001)),
        (events, "_get_running_loop", lambda: asyncio.wait_for(asyncio.Event().wait(), None)),
        (tasks, "current_task", lambda: asyncio.timeout(1).__aenter__()),
    ],
)
def test_asyncio_looks_for_its_loop_and_task_by_the_names_that_virtual_time_replaces(
    module: Any, name: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = getattr(module, name)

    def recorded(*arguments: Any) -> Any:
        asked.append(name)
        return real(*arguments)

    async def main() -> None:
        monkeypatch.setattr(module, name, recorded)
        using = asyncio.create_task(use())
        await asyncio.sleep(0.01)
        using.cancel()

    asyncio.run(main())
    assert asked, f"asyncio no longer asks {module.__name__}.{name}: see lcm.sim.time.loop.patch_loop_lookup"


def test_a_loop_holds_what_is_ready_and_what_is_scheduled_where_virtual_time_looks() -> None:
    loop = asyncio.SelectorEventLoop()
    try:
        kinds = {
            name: type(getattr(loop, name)) for name in ("_ready", "_scheduled", "_asyncgens", "_stopping", "_closed")
        }
        assert kinds == {"_ready": deque, "_scheduled": list, "_asyncgens": WeakSet, "_stopping": bool, "_closed": bool}
    finally:
        loop.close()


def test_a_loop_calls_the_methods_that_virtual_time_overrides() -> None:
    called: set[str] = set()

    class Recording(asyncio.SelectorEventLoop):
        def __getattribute__(self, name: str) -> Any:
            called.add(name)
            return super().__getattribute__(name)

    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    async def main() -> None:
        asyncio.get_running_loop().call_soon_threadsafe(int)
        values = generate()
        await anext(values)
        del values
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(main())
    wanted = {"_run_once", "_call_soon", "_stopping", "_asyncgen_firstiter_hook", "_asyncgen_finalizer_hook"}
    assert wanted <= called


def test_handles_have_the_fields_that_ours_fill_and_no_others() -> None:
    assert {*Handle.__slots__} == {
        "_callback",
        "_args",
        "_cancelled",
        "_loop",
        "_source_traceback",
        "_repr",
        "__weakref__",
        "_context",
    }
    assert {*TimerHandle.__slots__} == {"_scheduled", "_when"}


def test_a_handle_runs_its_callback_and_tells_the_loop_what_it_raised() -> None:
    loop = asyncio.SelectorEventLoop()
    told: list[Any] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    try:
        done: list[int] = []
        Handle(done.append, (1,), loop, copy_context())._run()
        Handle(lambda: 1 // 0, (), loop, copy_context())._run()
    finally:
        loop.close()
    assert done == [1]
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_a_step_of_a_task_is_told_from_other_callbacks() -> None:
    scheduled: list[tuple[str, bool]] = []

    class Recording(asyncio.SelectorEventLoop):
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
            scheduled.append((getattr(callback, "__name__", ""), is_task_step(callback)))
            return super().call_soon(callback, *args, context=context)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        loop.call_soon(answer.set_result, None)
        await answer
        loop.call_soon(asyncio.create_task(asyncio.sleep(9)).cancel)
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(main())
    steps = dict(scheduled)
    assert not steps["set_result"]
    assert not steps["cancel"]
    assert sum(step for _, step in scheduled) >= 4, "a start, a wake-up after the future, and those of the sleeper"


async def test_a_failed_task_knows_whether_somebody_has_read_its_failure() -> None:
    async def fail() -> None:
        raise LookupError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    assert task._log_traceback
    task.exception()
    assert not task._log_traceback


async def test_a_task_can_be_cancelled_as_a_future_without_running_its_code() -> None:
    ran: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ran.append("finally")

    task: Task[None] = asyncio.create_task(wait())
    await asyncio.sleep(0)
    asyncio.Future.cancel(task)
    await asyncio.sleep(0)
    assert (task.cancelled(), ran) == (True, [])
    task.get_coro().close()


def test_typer_completes_and_prints_scripts_as_our_commands_use_it() -> None:
    shells = import_module("typer._click.shell_completion")
    import_module("typer._completion_classes").completion_init()
    assert all(shells.get_completion_class(shell) is not None for shell in ("bash", "zsh", "fish"))
    item = shells.CompletionItem("get", help="List objects.")
    assert (item.value, item.help) == ("get", "List objects.")
    write = import_module("typer._completion_shared").get_completion_script
    for shell in ("zsh", "fish"):
        script = write(prog_name="lcm", complete_var="_LCM_COMPLETE", shell=shell)
        assert "_LCM_COMPLETE" in script
        assert "lcm" in script


CALLBACKS = ("on_message_begin", "on_header", "on_headers_complete", "on_body", "on_message_complete")


class RecordedConnection(HttpConnection):
    """Notes what the library calls, in which order."""

    called: list[str]


def recording(name: str) -> Callable[..., Any]:
    def call(self: RecordedConnection, *arguments: Any) -> Any:
        self.called.append(name)
        return getattr(HttpConnection, name)(self, *arguments)

    return call


for callback in (*CALLBACKS, "on_response_complete", "send_400_response"):
    setattr(RecordedConnection, callback, recording(callback))


async def unread(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


async def connected(said: bytes) -> RecordedConnection:
    """Give a connection of the library's to a client that says something, after the answer was sent."""
    state = ServerState()
    config = Config(unread, interface="asgi3", lifespan="off", log_config=None)
    here, there = socket.socketpair()
    with there:
        made = RecordedConnection(config, state, ConnectionLimits(), lambda: None)
        made.called = []
        await asyncio.get_running_loop().connect_accepted_socket(lambda: made, here)
        there.sendall(said)
        while "on_response_complete" not in made.called and "send_400_response" not in made.called:
            await asyncio.sleep(0.001)
        made.transport.close()
    return made


async def test_uvicorn_calls_what_our_connection_overrides_and_has_what_it_reads() -> None:
    made = await connected(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n12")
    assert [name for name in dict.fromkeys(made.called) if name in CALLBACKS] == [*CALLBACKS]
    assert "on_response_complete" in made.called
    assert (made.flow.read_paused, made.flow.write_paused, len(made.pipeline)) == (False, False, 0)
    assert (made.cycle.response_started, made.cycle.response_complete) == (True, True)


async def test_uvicorn_answers_400_for_what_our_callbacks_refuse() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    made = await connected(head + b"Authorization: Bearer other\r\n\r\n")
    assert "send_400_response" in made.called
    assert all(name != b"authorization" for name, _ in made.headers)


async def test_uvicorn_serves_without_a_socket_of_its_own_until_it_should_exit() -> None:
    server = Server(Config(unread, interface="asgi3", lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve([]))
    while not server.started:
        await asyncio.sleep(0.001)
    assert server.servers == []
    server.should_exit = True
    await serving
