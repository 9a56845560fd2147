"""Inside the wall: own namespaces for each candidate, Landlock, seccomp and resource limits, by bare system calls.

The outer wall (bubblewrap) keeps the candidate from the host. This one keeps it from the warm process that it
was forked from, and takes away the system calls that no kernel needs. Every step reports whether it held.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from enum import IntFlag

_libc = ctypes.CDLL(None, use_errno=True)


class Held(IntFlag):
    """Which protections are in force; sent as the code of the first reply."""

    NAMESPACES = 1
    PRIVATE_TMP = 2
    LANDLOCK = 4
    SECCOMP = 8
    NON_ROOT = 16
    NO_NEW_PRIVS = 32


CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22


def drop_root(uid: int = 65534) -> None:
    """Become an ordinary user for good, when we are root (bubblewrap left exactly the right to do so)."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # A change of user makes a process undumpable, and its /proc entries (uid_map) root's.
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def no_new_privs() -> bool:
    return bool(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)


def request_tiles() -> None:
    """Ask for the AMX tile registers, which Linux hands out on request only (arch_prctl ARCH_REQ_XCOMP_PERM)."""
    if platform.machine() == "x86_64":
        _libc.syscall(158, 0x1023, 18)


def enter_namespaces() -> bool:
    """New user, mount, IPC, UTS and network namespaces; the next fork gives the first process of a new PID one.

    False when the kernel does not let us (nested user namespaces are off): the caller's process must then serve
    one candidate only.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    if _libc.unshare(flags) != 0:
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as f:  # noqa: PTH123 - no pathlib where start-up counts
                f.write(text)
    except OSError:
        return False
    return True


def private_tmp(size: int) -> bool:
    """Fresh, size-limited /tmp and /dev/shm, and an empty /proc, seen by this mount namespace only."""
    held = _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
    for place, options in ((b"/tmp", f"size={size},mode=0700"), (b"/proc", "size=0,nr_inodes=1")):
        held &= _libc.mount(b"tmpfs", place, b"tmpfs", MS_NOSUID | MS_NODEV, options.encode()) == 0
    if os.path.isdir("/dev/shm"):  # noqa: S108, PTH112
        held &= _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64k") == 0
    return bool(held)


def limit_resources(*, cpu_s: int, memory: int, file_size: int, processes: int, open_files: int = 64) -> None:
    """Resource limits of the candidate process. `memory` is what it may map beyond what it has mapped now."""
    pages = 0
    try:
        with open("/proc/self/statm") as f:  # noqa: PTH123
            pages = int(f.read().split()[0])
    except OSError:
        pages = 1 << 20
    space = pages * os.sysconf("SC_PAGE_SIZE") + memory
    for what, value in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


# Landlock: Documentation/userspace-api/landlock.rst of the kernel.
_LL_CREATE, _LL_ADD, _LL_RESTRICT = 444, 445, 446
_LL_EXECUTE, _LL_WRITE, _LL_READ_FILE, _LL_READ_DIR = 1, 2, 4, 8
_LL_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def landlock_abi() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    return max(int(_libc.syscall(_LL_CREATE, None, 0, 1)), 0)


def landlock(writable: tuple[str, ...] = ("/tmp",)) -> bool:  # noqa: S108
    """Read and execute anywhere (the wall left little to see), write under `writable` only, no TCP, no abstract
    sockets or signals that leave the domain, as far as the kernel's version goes."""
    abi = landlock_abi()
    if abi < 1:
        return False
    fs = (1 << _LL_FS_BITS.get(abi, 16)) - 1
    attr = struct.pack("<QQQ", fs, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _libc.syscall(_LL_CREATE, ctypes.c_char_p(attr), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        read = _LL_EXECUTE | _LL_READ_FILE | _LL_READ_DIR
        for path, rights in (("/", read), *((w, fs) for w in writable), ("/dev/null", _LL_WRITE | _LL_READ_FILE)):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("<Qi", rights, fd)
            failed = _libc.syscall(_LL_ADD, ruleset, 1, ctypes.c_char_p(rule), 0)
            os.close(fd)
            if failed:
                return False
        return bool(_libc.syscall(_LL_RESTRICT, ruleset, 0) == 0)
    except OSError:
        return False
    finally:
        os.close(ruleset)


# System calls refused to a candidate: (x86_64, aarch64) numbers; None where an architecture has none.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "setpriority": (141, 140), "seccomp": (317, 277),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "vmsplice": (278, 75),
}  # fmt: skip
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def _bpf(code: int, jt: int, jf: int, k: int) -> bytes:
    return struct.pack("<HBBI", code, jt, jf, k)


def seccomp_program(machine: str) -> bytes | None:
    """Classic BPF that refuses the calls above with EPERM, new processes included (threads may be made), and
    kills a call of a foreign architecture. None for a machine that has no table here.

    struct seccomp_data: int nr at 0, u32 arch at 4, u64 args[] from 16.
    """
    if machine not in _AUDIT_ARCH:
        return None
    column = list(_AUDIT_ARCH).index(machine)
    load, jeq, jge, jset, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    eperm, enosys = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    out = [
        _bpf(load, 0, 0, 4),
        _bpf(jeq, 1, 0, _AUDIT_ARCH[machine]),
        _bpf(ret, 0, 0, kill),
        _bpf(load, 0, 0, 0),
    ]
    if machine == "x86_64":  # the x32 numbers reach the same calls under other names
        out += [_bpf(jge, 0, 1, 0x40000000), _bpf(ret, 0, 0, kill)]
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            out += [_bpf(jeq, 0, 1, number), _bpf(ret, 0, 0, eperm)]
    # glibc tries clone3 first and falls back on ENOSYS; clone's flags can be read, clone3's cannot.
    out += [_bpf(jeq, 0, 1, _CLONE3[column]), _bpf(ret, 0, 0, enosys)]
    out += [
        _bpf(jeq, 0, 3, _CLONE[column]),
        _bpf(load, 0, 0, 16),
        _bpf(jset, 1, 0, 0x10000),  # CLONE_THREAD
        _bpf(ret, 0, 0, eperm),
        _bpf(ret, 0, 0, allow),
    ]
    return b"".join(out)


def seccomp() -> bool:
    """Install the filter on the calling thread and all it starts; needs no_new_privs."""
    program = seccomp_program(platform.machine())
    if program is None:
        return False
    code = ctypes.create_string_buffer(program, len(program))

    class Fprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    fprog = Fprog(len(program) // 8, ctypes.cast(code, ctypes.c_void_p).value)
    return bool(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(fprog), 0, 0) == 0)
