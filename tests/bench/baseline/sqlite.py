"""Bare sqlite3 with the same statements, bytes, groups and waits for the disk as our commits."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE entries (id INTEGER PRIMARY KEY, key TEXT NOT NULL, created INTEGER NOT NULL, labels TEXT, value BLOB);
CREATE INDEX entries_key ON entries (key);
"""
_STATE = "SELECT id, created FROM entries WHERE key = ? ORDER BY id DESC LIMIT 1"
_APPEND = "INSERT INTO entries (id, key, created, labels, value) VALUES (?, ?, ?, ?, ?)"


def commits_per_second(path: Path, keys: Sequence[str], value: bytes, rounds: int) -> float:
    """Write every key once per round, each round one transaction, each write on the revision it wrote before."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SCHEMA)
    revision = 1
    wrote = dict.fromkeys(keys, 0)
    started = time.perf_counter()
    for _ in range(rounds):
        connection.execute("BEGIN IMMEDIATE")
        for key in keys:
            row = connection.execute(_STATE, (key,)).fetchone()
            found, created = (row[0] >> 8, row[1]) if row else (0, 0)
            assert found == wrote[key]
            revision += 1
            connection.execute(_APPEND, (revision << 8, key, created or revision, None, value))
            wrote[key] = revision
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return rounds * len(keys) / seconds
