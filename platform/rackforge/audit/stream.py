"""The live stream of events: one LISTEN connection per web process, fanned out to its readers.

A reader's position is `<xid>-<id>` of the last event it got. Events are given out in that order and only when
every older transaction has ended, so that no event can appear behind a reader: a reader that reconnects with its
last position misses nothing and gets nothing twice. Hints (see `audit.services.hint`) carry no position.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog
from django.db import connections
from psycopg.rows import dict_row

from rackforge.audit.services import CHANNEL, HINTS

log = structlog.get_logger(__name__)
Position = tuple[int, int]
Row = dict[str, Any]

BATCH = 500
QUEUE = 1000  # a reader that is further behind is dropped; it comes back with its position
MAX_REPLAY = 5000  # events; a reader that missed more should read the page or the list anew
HELD_S = 0.1  # how soon to look again for events that wait for an older transaction
IDLE_S = 30.0  # look without being told, in case a notification was lost with a connection
_POSITION = re.compile(r"^(\d{1,19})-(\d{1,19})$")


class Overrun(Exception):
    """The reader was too slow, or asks for more than is replayed."""


def parse_position(text: str) -> Position | None:
    """A position from a Last-Event-ID; None when it is none of ours."""
    match = _POSITION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def format_position(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


def position_of(row: Row) -> Position:
    return row["xid"], row["id"]


@dataclass(frozen=True, slots=True)
class Hint:
    """Something about this object moved."""

    object_type: str
    object_id: str


def _parameters() -> dict[str, Any]:
    """How the default database is reached, for a connection of psycopg's own."""
    parameters = connections["default"].get_connection_params()
    kept = ("dbname", "host", "port", "user", "password", "options", "sslmode", "sslrootcert", "sslcert", "sslkey")
    return {key: parameters[key] for key in kept if parameters.get(key) not in (None, "")}


async def connect() -> psycopg.AsyncConnection[Row]:
    """A connection outside of Django's, for asynchronous code."""
    return await psycopg.AsyncConnection.connect(**_parameters(), autocommit=True, row_factory=dict_row)


async def now(connection: psycopg.AsyncConnection[Row]) -> Position:
    """The present end of the stream: whatever was committed before is at or before it."""
    cursor = await connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin")
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101 - a SELECT of one value has a row
    return row["xmin"], 0


async def read(connection: psycopg.AsyncConnection[Row], after: Position, limit: int = BATCH) -> list[Row]:
    """Events after a position that can be given out, in order."""
    cursor = await connection.execute(
        """
        SELECT id, xid, at, actor, action, object_type, object_id, before, after, request_id FROM audit_event
        WHERE (xid, id) > (%s, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        ORDER BY xid, id LIMIT %s
        """,
        [*after, limit],
    )
    return await cursor.fetchall()


async def _held(connection: psycopg.AsyncConnection[Row], after: Position) -> bool:
    """Whether there are events that cannot be given out yet."""
    cursor = await connection.execute(
        "SELECT EXISTS (SELECT FROM audit_event WHERE (xid, id) > (%s, %s)) AS held", [*after]
    )
    row = await cursor.fetchone()
    return bool(row and row["held"])


@dataclass(eq=False)
class Reader:
    """One stream to one client."""

    queue: asyncio.Queue[Row | Hint | None] = field(default_factory=lambda: asyncio.Queue(QUEUE))

    def put(self, item: Row | Hint) -> bool:
        try:
            self.queue.put_nowait(item)
        except asyncio.QueueFull:
            return isinstance(item, Hint)  # a lost hint does no harm
        return True

    def end(self) -> None:
        while True:
            try:
                self.queue.put_nowait(None)
            except asyncio.QueueFull:
                self.queue.get_nowait()
            else:
                return


class Hub:
    """Listens while it has readers."""

    def __init__(self) -> None:
        self._readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def read(self, after: Position | None) -> AsyncIterator[Row | Hint]:
        """Events after a position (from now on if None) and hints, for ever.

        Raises Overrun when the reader has to start anew, ConnectionError when the database went away.
        """
        reader = Reader()
        self._readers.add(reader)
        try:
            if self._task is None or self._task.done():
                self._listening.clear()
                self._task = asyncio.create_task(self._listen(), name="event-hub")
            # Listening first, replaying then: what comes in between is in the queue, and skipped if it was read.
            await self._heard()
            async with await connect() as connection:
                position = after if after is not None else await now(connection)
                replayed = 0
                while rows := await read(connection, position):
                    replayed += len(rows)
                    if replayed > MAX_REPLAY:
                        raise Overrun(f"more than {MAX_REPLAY} events were missed")
                    for row in rows:
                        position = position_of(row)
                        yield row
            while True:
                item = await reader.queue.get()
                if item is None:
                    raise ConnectionError("the stream was cut off")
                if isinstance(item, Hint):
                    yield item
                elif position_of(item) > position:
                    position = position_of(item)
                    yield item
        finally:
            self._readers.discard(reader)
            if not self._readers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _heard(self) -> None:
        """Wait until the hub listens, or pass on why it cannot."""
        task = self._task
        assert task is not None  # noqa: S101 - made just before
        waiting = asyncio.create_task(self._listening.wait())
        try:
            await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if task.done() and not self._listening.is_set():
            raise ConnectionError("the database cannot be reached")

    async def _listen(self) -> None:
        try:
            async with await connect() as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                await connection.execute(f"LISTEN {HINTS}")
                position = await now(connection)
                self._listening.set()
                wait = HELD_S
                while True:
                    hints: set[str] = set()
                    async for note in connection.notifies(timeout=wait, stop_after=1):
                        if note.channel == HINTS:
                            hints.add(note.payload)
                    for payload in hints:
                        object_type, _, object_id = payload.partition("/")
                        self._give(Hint(object_type, object_id))
                    while rows := await read(connection, position):
                        for row in rows:
                            self._give(row)
                        position = position_of(rows[-1])
                    wait = HELD_S if await _held(connection, position) else IDLE_S
        except (psycopg.Error, OSError) as error:
            log.warning("event stream lost its database", error=str(error))
        finally:
            self._listening.clear()
            for reader in list(self._readers):
                reader.end()

    def _give(self, item: Row | Hint) -> None:
        for reader in list(self._readers):
            if not reader.put(item):
                reader.end()


_hubs: dict[int, Hub] = {}


def hub() -> Hub:
    """The hub of this process's event loop."""
    loop = id(asyncio.get_running_loop())
    if loop not in _hubs:
        _hubs.clear()  # a loop that is gone left its hub behind (tests)
        _hubs[loop] = Hub()
    return _hubs[loop]


async def with_heartbeat(source: AsyncIterator[Any], seconds: float) -> AsyncIterator[Any]:
    """The items of a source, and None whenever nothing came for so long."""
    pending: asyncio.Task[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait({pending}, timeout=seconds)
            if not done:
                yield None
                continue
            finished, pending = pending, None
            try:
                yield finished.result()
            except StopAsyncIteration:
                return
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await pending
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
