"""A child that stays: one line in, one line of JSON out, a deadline for each answer, killed with its group."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from optimizer.engine.children import kill_group


class ChildFailed(RuntimeError):
    """The child answered wrongly or not at all. `kind` says how."""

    def __init__(self, kind: Literal["crashed", "timeout", "refused"], reason: str) -> None:
        super().__init__(reason)
        self.kind: Literal["crashed", "timeout", "refused"] = kind


class Resident:
    """Start `argv` and talk to it. A context manager: whatever happens, the process group is gone at the end."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> None:
        # stderr goes to a file: a pipe nobody reads would block a talkative child.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._child = subprocess.Popen(
            list(argv), cwd=cwd, env=dict(env), start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._buffer = b""

    def tell(self, lines: str) -> None:
        """Send commands that have no answer."""
        assert self._child.stdin is not None  # noqa: S101
        try:
            self._child.stdin.write(lines.encode())
            self._child.stdin.flush()
        except BrokenPipeError:
            return  # the next answer() tells what happened

    def ask(self, line: str, *, deadline_s: float, cancelled: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Send one command and read its answer. ChildFailed when it crashed, refused, or ran late."""
        self.tell(line + "\n")
        end = time.monotonic() + deadline_s
        assert self._child.stdout is not None  # noqa: S101
        fd = self._child.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0:
                    asked = line.partition(" ")[0]
                    raise ChildFailed("timeout", f"no answer to {asked[:40]!r} in {deadline_s:.0f} s")
                if cancelled is not None and cancelled():
                    raise ChildFailed("timeout", "cancelled")
                if not selector.select(min(left, 0.2)):
                    continue
                data = os.read(fd, 1 << 16)
                if not data:
                    raise ChildFailed("crashed", self._death())
                self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ChildFailed("crashed", f"not an answer: {text[:200]!r}") from error
        if not isinstance(answer, dict):
            raise ChildFailed("crashed", f"not an answer: {text[:200]!r}")
        if "error" in answer:
            raise ChildFailed("refused", str(answer["error"]))
        return answer

    def _death(self) -> str:
        try:
            code = self._child.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its output and hangs"
        self._errors.seek(0)
        tail = self._errors.read()[-2000:].decode(errors="replace").strip()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"{how}: {tail}" if tail else how

    def close(self) -> None:
        kill_group(self._child.pid)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self._errors.close()

    def __enter__(self) -> Resident:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
