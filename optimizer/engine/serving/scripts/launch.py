"""Writes down who it is, then becomes the server: no server runs that no file knows of.

Usage: launch.py STATE_FILE JSON, run with -I -S. The JSON holds `record` (what the state file says besides
the process), `argv`, the command to become, and `cwd`. The process id and start time stay the same across exec,
and so does the environment, which the caller has set. A caller killed at any moment leaves either nothing
running or a process with its state file.
"""

import json
import os
import sys


def main() -> None:
    state, text = sys.argv[1:]
    request = json.loads(text)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as f:  # noqa: PTH123 - start quickly
        # The command name is in parentheses and may hold anything; field 22 is the start time in ticks.
        start_ticks = int(f.read().rpartition(")")[2].split()[19])
    record = {**request["record"], "pid": os.getpid(), "start_ticks": start_ticks}
    scratch = f"{state}.{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as f:  # noqa: PTH123
        json.dump(record, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(scratch, state)  # noqa: PTH105
    argv = request["argv"]
    try:
        os.chdir(request["cwd"])
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot execute {argv[0]}: {error.strerror}")


main()
