"""Compile the lock files of both environments: `make lock`. Needs the platform's environment (uv) and an index.

Versions that are locked stay unless a requirement forbids them; `--upgrade` takes the newest. No address of
an index gets into the files.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make lock`; do not edit.\n"
_FLAGS = (
    "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links",
    "--python-version", "3.11",
)  # fmt: skip
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def compile_lock(output: str, sources: list[str], *flags: str) -> None:
    """Resolve `sources` (relative to the root) for every platform into requirements/`output`."""
    path = ROOT / "requirements" / output
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", *sources, *_FLAGS, *flags, "--output-file", str(path.relative_to(ROOT))]
    subprocess.run(command, cwd=ROOT, check=True)
    text = path.read_text()
    forbidden = re.search(r"(\w+://|file:|--index|--find-links|^-e )\S*", text, re.MULTILINE)
    if forbidden:
        raise SystemExit(f"{path} would name an address of this machine: {forbidden.group(0)}")
    path.write_text(HEADER + text.removeprefix(HEADER))
    print(f"{output}: {len(re.findall(r'^[a-zA-Z0-9]', text, re.MULTILINE))} packages")


def lock_torch() -> None:
    """Every build of the pinned torch may be used: the index's, and the one this machine's pip finds.

    Hashes of the same version that are locked already are kept: another machine may see other builds.
    """
    path = ROOT / "requirements" / "torch.lock"
    before = path.read_text() if path.exists() else ""
    compile_lock("torch.lock", ["requirements/torch.in"], "--no-deps")
    text = path.read_text()
    pin = re.search(r"^torch==[^\s\\]+", text, re.MULTILINE)
    if pin is None:
        raise SystemExit("requirements/torch.in does not pin torch")
    hashes = set(_HASH.findall(text)) | {f"sha256:{wheel_digest(pin.group(0))}"}
    if pin.group(0) in before:
        hashes |= set(_HASH.findall(before))
    path.write_text(HEADER + " \\\n".join([pin.group(0), *(f"    --hash={h}" for h in sorted(hashes))]) + "\n")


def wheel_digest(pin: str) -> str:
    """SHA-256 of the wheel that this machine's own pip would take for a pin."""
    flags = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, pin], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return str(json.loads(done.stdout)["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    flags = ["--upgrade"] if parser.parse_args().upgrade else []
    ours = ["--no-emit-package", "rackforge-runtime"]
    compile_lock(
        "platform.lock",
        ["pyproject.toml", "requirements/platform.in"],
        "--group",
        "dev",
        "--universal",
        *ours,
        *flags,
    )
    excludes = ["--excludes", "requirements/serving-excludes.txt"]
    compile_lock(
        "serving.lock", ["requirements/serving.in", "runtime/pyproject.toml"], "--universal", *excludes, *flags
    )
    lock_torch()


if __name__ == "__main__":
    main()
