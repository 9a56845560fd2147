"""Arrays of objects out of a JSON text too large to hold, decoded in batches straight into typed records.

A batch that is valid JSON costs one call of the decoder. Where it is not (NaN, invalid UTF-8, a cut or damaged
object), the batch is read again with care: what can be read is, the rest is counted in the notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from optimizer.engine.profiling.reading.notes import Notes

T = TypeVar("T", bound=msgspec.Struct)

BATCH = 4 << 20  # bytes of text decoded at once: records in memory stay few, calls too
LONGEST_OBJECT = 64 << 20
_TRIES = 4

_GAP = re.compile(rb"\}\s*,\s*\{")
_CLOSE = re.compile(rb"\}\s*\]")
_SKIP = re.compile(rb"[\s,]*")
# A raw newline is not allowed inside of a JSON string: ending the string there heals a lost quote.
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|[{}\[\]]', re.DOTALL)
_NOT_FINITE = re.compile(rb"(?<=[:,\[\s])[-+]?(?:nan|inf(?:inity)?)(?:\((?:ind|snan)\))?(?=\s*[,}\]])", re.IGNORECASE)
# How profilers begin an event; seen inside of another one, that one has lost its end.
_EVENT_START = re.compile(rb'\{\s*"ph"\s*:')


class JsonStream:
    """A forward-only reader over chunks of a JSON text."""

    def __init__(self, chunks: Iterator[bytes], notes: Notes) -> None:
        self._chunks = chunks
        self._notes = notes
        self._buffer = b""
        self._ended = False
        self.read_bytes = 0

    def _fill(self, size: int) -> None:
        """Have at least `size` bytes in the buffer, or the text's end."""
        if self._ended or len(self._buffer) >= size:
            return
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._ended = True
                break
            parts.append(chunk)
            have += len(chunk)
            self.read_bytes += len(chunk)
        self._buffer = b"".join(parts)

    def peek(self, size: int) -> bytes:
        """The next bytes, without taking them."""
        self._fill(size)
        return self._buffer[:size]

    def seek(
        self, pattern: re.Pattern[bytes], *, keep: int = 0, overlap: int = 256
    ) -> tuple[bytes, re.Match[bytes]] | None:
        """Move behind the next match: the text before it (its last `keep` bytes) and the match, or None.

        A match may be up to `overlap` bytes long.
        """
        before = b""
        while True:
            self._fill(max(BATCH, 2 * overlap))
            found = pattern.search(self._buffer)
            if found is not None:
                before += self._buffer[: found.start()]
                self._buffer = self._buffer[found.end() :]
                return before[-keep:] if keep else b"", found
            if self._ended:
                return None
            cut = len(self._buffer) - overlap
            before = (before + self._buffer[:cut])[-keep:] if keep else b""
            self._buffer = self._buffer[cut:]

    def rest(self, limit: int) -> bytes:
        """What follows, at most `limit` bytes; the remainder is read and dropped."""
        self._fill(limit)
        text, self._buffer = self._buffer[:limit], b""
        while not self._ended:
            self._fill(BATCH)
            self._buffer = b""
        return text

    def objects(self, decoder: msgspec.json.Decoder[list[T]], kind: type[T]) -> Iterator[list[T]]:
        """The objects of the array the reader stands in, in batches; afterwards it stands behind the array.

        `decoder` is for `list[kind]`.
        """
        clean = False  # this buffer has been through `_clean`
        want = BATCH
        while True:
            self._fill(want)
            start = _SKIP.match(self._buffer)
            if start is not None and start.end():
                self._buffer = self._buffer[start.end() :]
            if not self._buffer:
                if self._ended:
                    self._notes.add("truncated", "the file ends inside of its list of events")
                    return
                continue
            if self._buffer[:1] == b"]":
                self._buffer = self._buffer[1:]
                return
            batch, done = self._quick(decoder)
            if batch is not None:
                yield batch
                clean, want = False, BATCH
                if done:
                    return
                continue
            if not clean:
                clean = True
                cleaned = self._clean(self._buffer)
                if cleaned is not None:
                    self._buffer = cleaned
                    continue
            batch, done = self._careful(decoder, kind)
            if batch:
                yield batch
            if done:
                return
            clean = False
            # An object larger than the buffer: read on.
            want = BATCH if batch else len(self._buffer) + BATCH

    def _quick(self, decoder: msgspec.json.Decoder[list[T]]) -> tuple[list[T] | None, bool]:
        """Decode up to the last gap between two objects, or up to the array's end. (None, _) where neither parses.

        A cut inside of an object leaves braces open and a cut inside of a string leaves that open, so a text
        that parses was cut between two objects of this array.
        """
        buffer = self._buffer
        if not self._ended:
            high = len(buffer)
            for _ in range(_TRIES):
                brace = buffer.rfind(b"{", 0, high)
                if brace < 0:
                    break
                high = brace
                gap = _GAP.match(buffer, buffer.rfind(b"}", 0, brace)) if brace else None
                if gap is None or gap.end() != brace + 1:
                    continue
                try:
                    batch = decoder.decode(b"[" + buffer[: gap.start() + 1] + b"]")
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                self._buffer = buffer[brace:]
                return batch, False
        ends = []
        for match in _CLOSE.finditer(buffer):
            ends.append(match)
            if len(ends) > _TRIES:
                break
        for match in ends:
            try:
                batch = decoder.decode(b"[" + buffer[: match.start() + 1] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            self._buffer = buffer[match.end() :]
            return batch, True
        return None, False

    def _clean(self, buffer: bytes) -> bytes | None:
        """The buffer with what JSON does not allow replaced; None where there is nothing of it."""
        text, count = _NOT_FINITE.subn(b"null", buffer)
        self._notes.add("not-finite", "numbers that are not finite (NaN, Infinity) were read as missing", count)
        # A character may be cut at the buffer's end: look at what comes up to the last brace only.
        cut = text.rfind(b"}") + 1
        head, tail = (text, b"") if self._ended else (text[:cut], text[cut:])
        try:
            head.decode()
        except UnicodeDecodeError:
            repaired = head.decode("utf-8", "replace")
            self._notes.add("invalid-utf8", "bytes that are not UTF-8 were replaced", max(1, repaired.count("�")))
            return repaired.encode() + tail
        return text if count else None

    def _careful(self, decoder: msgspec.json.Decoder[list[T]], kind: type[T]) -> tuple[list[T], bool]:
        """Every whole object of the buffer, one by one where they do not decode together."""
        buffer = self._buffer
        spans, consumed, closed = self._spans(buffer)
        out: list[T] = []
        # In small groups, so that one bad object costs the quick path for its neighbours only.
        for at in range(0, len(spans), 64):
            group = spans[at : at + 64]
            try:
                out += decoder.decode(b"[" + b",".join(buffer[a:b] for a, b in group) + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError):
                for a, b in group:
                    record = _lenient(buffer[a:b], kind)
                    if record is None:
                        self._notes.add("damaged", "events that are not valid JSON were left out")
                    else:
                        out.append(record)
        self._buffer = buffer[consumed:]
        if closed:
            return out, True
        if self._ended:
            if self._buffer.strip():
                self._notes.add("truncated", "the file ends inside of an event; that one is left out")
            else:
                self._notes.add("truncated", "the file ends inside of its list of events")
            self._buffer = b""
            return out, True
        if len(self._buffer) > LONGEST_OBJECT:
            self._notes.add("damaged", "events that are not valid JSON were left out")
            self._buffer = self._buffer[-BATCH:]
        return out, False

    def _spans(self, buffer: bytes) -> tuple[list[tuple[int, int]], int, bool]:
        """(start, end) of the whole objects at depth 0, how far the buffer is used up, whether the array ended."""
        spans: list[tuple[int, int]] = []
        depth = 0
        start = consumed = 0
        for token in _TOKEN.finditer(buffer):
            first = buffer[token.start()]
            if first == 0x22:  # a string
                if not self._ended and token.end() == len(buffer):
                    break
                continue
            if first == 0x7B:  # {
                if depth and _EVENT_START.match(buffer, token.start()):
                    self._notes.add("damaged", "events that are not valid JSON were left out")
                    depth = 0
                if depth == 0:
                    start = token.start()
                depth += 1
            elif first == 0x5B:  # [
                if depth:
                    depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    spans.append((start, token.end()))
                    consumed = token.end()
            elif first == 0x5D:  # ] at depth 0
                return spans, token.end(), True
        return spans, start if depth else consumed, False


def _lenient(text: bytes, kind: type[T]) -> T | None:
    """One object by the standard library's forgiving reader: control characters, NaN, numbers as text."""
    try:
        value: Any = json.loads(text.decode("utf-8", "replace"), strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    for attempt in (value, {**value, "args": None}):
        try:
            return msgspec.json.decode(msgspec.json.encode(_finite(attempt)), type=kind, strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            continue
    return None


def _finite(value: Any) -> Any:
    """Numbers too large for a float, and lone surrogates, made harmless."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {_finite(k): _finite(v) for k, v in value.items()}
    return value
