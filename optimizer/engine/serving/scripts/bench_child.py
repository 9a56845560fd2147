"""Runs in the serving environment: vLLM's own benchmark client, imported once, fed with jobs.

Usage: bench_child.py READ_FD WRITE_FD. A job is a line of JSON, {"id": 1, "argv": [...]}, where argv are the
arguments of `vllm bench serve`; the answer is a line {"id": 1, "result": {...}} or {"id": 1, "error": "..."}.
Our own pipes, since the client prints to stdout. Ends when the caller does, even in the middle of a job.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import sys
import threading
import traceback
from typing import Any


def read_jobs(source: int, jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on jobs until the caller closes its end, then leave at once."""
    with os.fdopen(source, encoding="utf-8") as lines:
        for line in lines:
            jobs.put(json.loads(line))
    os._exit(0)


def main() -> None:
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    source, target = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=read_jobs, args=(source, jobs), daemon=True).start()
    with os.fdopen(target, "w", encoding="utf-8") as out:

        def answer(value: dict[str, Any]) -> None:
            out.write(json.dumps(value) + "\n")
            out.flush()

        from vllm.benchmarks.serve import add_cli_args, main_async
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        answer({"ready": True})
        while True:
            job = jobs.get()
            try:
                result = asyncio.run(main_async(parser.parse_args(job["argv"])))
                # The report as text: the caller keeps these very bytes as evidence.
                answer({"id": job["id"], "result": json.dumps(result)})
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever went wrong is the answer
                traceback.print_exc()
                answer({"id": job["id"], "error": f"{type(error).__name__}: {error}"})
            gc.unfreeze()  # the client freezes the heap for each run; unfrozen it stays the same size


if __name__ == "__main__":
    main()
