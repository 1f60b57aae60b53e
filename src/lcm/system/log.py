"""The set-up of structlog: one line for each change, with keys; readable on a terminal, JSON elsewhere."""

import logging
import os
import sys
from pathlib import Path
from typing import Final, TextIO

import structlog

LOG_FILE: Final = "lcm.log"
_LEVELS: Final = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
_MOST_BYTES: Final = 10_000_000
"""A log file that has grown to this size is kept as `lcm.log.1`, in the place of the one before."""


def configure_logging(level: str = "INFO", file: Path | None = None) -> None:
    """Send logs to standard error, or to a file."""
    human = file is None and sys.stderr.isatty()
    target: TextIO | LogFile = sys.stderr if file is None else LogFile(file)
    if isinstance(target, LogFile):
        # What libraries and asyncio warn of would otherwise be printed between the lines of a command.
        logging.basicConfig(stream=target, level=logging.WARNING, force=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if human else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(target),  # type: ignore[arg-type]  # it only writes and flushes
    )


class LogFile:
    """A log that its owner alone can read, opened when the first line is written, and of limited size.

    Lines go to standard error while the file cannot be written: a full disk is no reason to stop.
    """

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._out: TextIO | None = None

    def write(self, text: str) -> int:
        """Append a text; a file that is full is put aside first."""
        try:
            if self._out is not None and self._out.tell() >= self._most_bytes:
                self.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            if self._out is None:
                self._out = self._open()
            self._out.write(text)
            self._out.flush()
        except OSError:
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is flushed."""

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._out is not None:
            self._out.close()
            self._out = None

    def __del__(self) -> None:
        """Close the file of a log that another one replaced."""
        self.close()

    def _open(self) -> TextIO:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        out = os.fdopen(number, "a", encoding="utf-8", errors="replace")
        out.seek(0, os.SEEK_END)
        return out
