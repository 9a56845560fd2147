"""Stands in for the serving environment's Python where a fault must be injected.

Called as `python -m vllm.entrypoints... --port N` it is a small server; called with bench_child.py it is the
benchmark client. What it does wrong is said by FAKE (a server's environment) or the file `mode` beside it
(the client's).
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def serve() -> None:
    mode = os.environ.get("FAKE", "ok")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    if mode == "memory":
        print(
            "(Worker pid=7) ERROR 12-01 06:35:41 [multiproc_executor.py:1063] torch.OutOfMemoryError: out of memory"
        )
        print("RuntimeError: Engine core initialization failed. See root cause above.")
        sys.exit(1)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "silent":  # never listens
        time.sleep(600)
    if mode == "stubborn":
        # A grandchild in a session of its own that ignores SIGTERM, as a broken worker might.
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if mode == "sick" and self.path != "/health":
                self.send_response(500)
                body = b"the engine is on fire"
            else:
                self.send_response(200)
                body = json.dumps({"data": [{"id": "model", "max_model_len": 512}]}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        print(f"OSError: {error}")
        sys.exit(1)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


def bench() -> None:
    folder = Path(__file__).parent
    starts = folder / "starts"
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    jobs, answers = os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in jobs:
        job = json.loads(line)
        mode = (folder / "mode").read_text()
        if mode == "hang":
            time.sleep(600)
        if mode == "crash" or (mode == "crash once" and starts.read_text() == "x"):
            print("Segmentation fault", flush=True)
            os._exit(139)
        if mode == "error":
            print(json.dumps({"id": job["id"], "error": "ValueError: no such server"}), file=answers, flush=True)
            continue
        report = json.loads((folder / "report.json").read_text())
        report["argv"] = job["argv"]
        print(json.dumps({"id": job["id"], "result": json.dumps(report)}), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1].endswith("bench_child.py"):
        bench()
    else:
        serve()
