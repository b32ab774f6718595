"""The tables of a SQLite store and the statements on them. Knows SQL; not threads, files or failures.

A file has `queues`, `notes`, and for queue number N `jobs_N` (seq, head, body) and `bodies_N` (seq, body). A
body of at most INLINE_BODY_BYTES lies in `jobs_N`; of a longer one `jobs_N.body` is NULL and the body is in
`bodies_N`, so that rewriting a head never rewrites it.

All writes of a batch go through one statement: an INSERT where there are only new rows, else an INSERT into a view of
this connection whose triggers do what each line says. sqlite3 gives up the GIL at every step of a statement and must
wait to get it back: beside a busy event loop each of those waits costs up to a switch interval (5 ms). One
statement, one wait.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import lru_cache, partial

import orjson

from istos_worker.storage.protocol import WriteBatch

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6973_746F  # "isto"
INLINE_BODY_BYTES = 2048
LINES_PER_STATEMENT = 1024
LOG_PAGES = 1000
LOG_BYTES = 32 + LOG_PAGES * (24 + 4096)
"""Of the write-ahead log, before it is moved into the file (https://sqlite.org/fileformat.html#the_write_ahead_log)."""

_PUT, _HEAD, _FORGET, _PUT_LONG, _NOTE, _NO_NOTE, _NOTHING = range(7)

_CREATE = f"""
CREATE TABLE queues (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE notes (
    queue INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (queue, name)
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_CREATE_QUEUE = """
CREATE TABLE jobs_{n} (seq INTEGER PRIMARY KEY, head TEXT NOT NULL, body BLOB);
CREATE TABLE bodies_{n} (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TRIGGER forget_{n} AFTER DELETE ON jobs_{n} WHEN old.body IS NULL
    BEGIN DELETE FROM bodies_{n} WHERE seq = old.seq; END;
"""

_CREATE_VIEW = f"""
CREATE TEMP VIEW batch_{{n}} AS SELECT 0 AS op, 0 AS seq, '' AS head, x'' AS body;
CREATE TEMP TRIGGER line_put_{{n}} INSTEAD OF INSERT ON batch_{{n}} WHEN new.op = {_PUT}
    BEGIN INSERT OR REPLACE INTO jobs_{{n}} VALUES (new.seq, new.head, new.body); END;
CREATE TEMP TRIGGER line_head_{{n}} INSTEAD OF INSERT ON batch_{{n}} WHEN new.op = {_HEAD}
    BEGIN UPDATE jobs_{{n}} SET head = new.head WHERE seq = new.seq; END;
CREATE TEMP TRIGGER line_forget_{{n}} INSTEAD OF INSERT ON batch_{{n}} WHEN new.op = {_FORGET}
    BEGIN DELETE FROM jobs_{{n}} WHERE seq IN (SELECT value FROM json_each(new.head)); END;
CREATE TEMP TRIGGER line_rare_{{n}} INSTEAD OF INSERT ON batch_{{n}} WHEN new.op > {_FORGET}
    BEGIN
        INSERT OR REPLACE INTO jobs_{{n}} SELECT new.seq, new.head, NULL WHERE new.op = {_PUT_LONG};
        INSERT OR REPLACE INTO bodies_{{n}} SELECT new.seq, new.body WHERE new.op = {_PUT_LONG};
        INSERT OR REPLACE INTO notes SELECT {{n}}, new.head, new.body WHERE new.op = {_NOTE};
        DELETE FROM notes WHERE new.op = {_NO_NOTE} AND queue = {{n}} AND name = new.head;
    END;
"""


Statement = tuple[str, list[object]]


class WrongSchema(Exception):  # noqa: N818 - a finding about the file
    """The file is a SQLite database, but not one this version can use."""


def prepare_connection(db: sqlite3.Connection) -> None:
    """Settings, then the tables if the file is new. Raises WrongSchema, sqlite3.Error."""
    for setting in (
        "temp_store = MEMORY",
        "synchronous = FULL",
        "fullfsync = ON",  # macOS: fsync alone stops at the drive's cache
        "recursive_triggers = ON",  # so that REPLACE also drops a long body
        "secure_delete = OFF",
        "cache_size = -4000",
        # Every LOG_PAGES the writer moves its log into the file (some 8 ms when all of them differ, 1 ms when
        # it is few jobs' pages again and again) and begins the log anew, over the same blocks: a sync then has no
        # file size to write. A log grown beyond the limit, by a long reader or by long bodies, is cut.
        f"wal_autocheckpoint = {LOG_PAGES}",
        "journal_size_limit = 16777216",
    ):
        db.execute(f"PRAGMA {setting}")
    _check_schema(db)
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != b"wal":
        raise WrongSchema("its file system does not support SQLite's write-ahead log; use a local disk")
    db.execute("BEGIN IMMEDIATE")
    if _pragma(db, "user_version") == 0:
        _run_script(db, _CREATE)
    db.execute("COMMIT")


def _check_schema(db: sqlite3.Connection) -> None:
    version, application = _pragma(db, "user_version"), _pragma(db, "application_id")
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise WrongSchema("it is the database of another application")
    if version > SCHEMA_VERSION:
        raise WrongSchema(
            f"its schema version {version} is newer than this version's ({SCHEMA_VERSION}); upgrade istos-worker"
        )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _run_script(db: sqlite3.Connection, script: str) -> None:
    """As executescript, which would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""


def queue_number(db: sqlite3.Connection, name: str) -> int:
    """The queue's number; its tables and its view are made when they are not there."""
    number = _find_queue(db, name)
    if number is None:
        db.execute("BEGIN IMMEDIATE")
        number = db.execute("INSERT INTO queues (name) VALUES (?)", (name,)).lastrowid
        assert number is not None
        _run_script(db, _CREATE_QUEUE.format(n=number))
        db.execute("COMMIT")
    if db.execute("SELECT 1 FROM sqlite_temp_master WHERE name = ?", (f"batch_{number}",)).fetchone() is None:
        _run_script(db, _CREATE_VIEW.format(n=number))
    return number


def _find_queue(db: sqlite3.Connection, name: str) -> int | None:
    row = db.execute("SELECT number FROM queues WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def select_notes(db: sqlite3.Connection, number: int) -> dict[str, bytes]:
    found = db.execute("SELECT name, value FROM notes WHERE queue = ?", (number,)).fetchall()
    return {name.decode(): value for name, value in found}


def select_rows(db: sqlite3.Connection, number: int) -> sqlite3.Cursor:
    """(seq, head, body) in rising order; body None where a long body is missing from its table."""
    return db.execute(
        f"SELECT seq, head, coalesce(body, (SELECT b.body FROM bodies_{number} b WHERE b.seq = j.seq))"
        f" FROM jobs_{number} j ORDER BY seq"
    )


def batch_statements(number: int, batch: WriteBatch) -> list[Statement]:
    """The statements, mostly one, that write the batch in order."""
    values = _short_puts(batch)
    if values is None:
        return statements(number, batch_lines(batch))
    # New rows and nothing else cost half as much without the view.
    return _in_parts(values, partial(_insert, number), [None, None, None])


def _short_puts(batch: WriteBatch) -> list[object] | None:
    """The rows as (seq, head, body), flat; None when there is more to do than to put them."""
    if batch.forgotten or batch.notes:
        return None
    values: list[object] = []
    for row in batch.rows:
        body = row[2]
        if body is None or len(body) > INLINE_BODY_BYTES:
            return None
        values += row
    return values


def batch_lines(batch: WriteBatch) -> list[object]:
    """The batch as lines of (op, seq, head, body), flat."""
    lines: list[object] = []
    for seq, head, body in batch.rows:
        if body is None:
            lines += (_HEAD, seq, head, None)
        elif len(body) <= INLINE_BODY_BYTES:
            lines += (_PUT, seq, head, body)
        else:
            lines += (_PUT_LONG, seq, head, body)
    if batch.forgotten:  # one line for all: half the cost of a line each
        lines += (_FORGET, None, orjson.dumps(batch.forgotten), None)
    for name, value in batch.notes.items():
        lines += (_NO_NOTE if value is None else _NOTE, None, name, value)
    return lines


def statements(number: int, lines: list[object]) -> list[Statement]:
    """The statements, mostly one, that write the lines in order."""
    return _in_parts(lines, partial(_insert_lines, number), [_NOTHING, None, None, None])


def _in_parts(values: list[object], sql_of: Callable[[int], str], padding: list[object]) -> list[Statement]:
    """The values are flat, each row as wide as the padding."""
    width = len(padding)
    step = width * LINES_PER_STATEMENT
    parts: list[Statement] = []
    for start in range(0, len(values), step):
        part = values if len(values) <= step else values[start : start + step]
        count = len(part) // width
        size = _statement_size(count)
        parts.append((sql_of(size), part + padding * (size - count) if size > count else part))
    return parts


def _statement_size(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few statements to prepare, little padding."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@lru_cache(maxsize=256)
def _insert(number: int, size: int) -> str:
    rows = ",".join(["(?,?,?)"] * size)
    return (
        f"INSERT OR REPLACE INTO jobs_{number} SELECT column1, CAST(column2 AS TEXT), column3 FROM (VALUES {rows})"
        " WHERE column1 IS NOT NULL"
    )


@lru_cache(maxsize=256)
def _insert_lines(number: int, size: int) -> str:
    lines = ",".join(["(?,?,?,?)"] * size)
    return f"INSERT INTO batch_{number} SELECT column1, column2, CAST(column3 AS TEXT), column4 FROM (VALUES {lines})"
