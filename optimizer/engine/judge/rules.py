"""The static rules for C++: what a kernel's source and object must not ask for.

Only what no honest kernel needs fails; everything else a reader may want to know is evidence. The wall and the
gates that run the candidate do not rely on any of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Imported names, by reason. Patterns are matched whole.
_SYMBOLS: Mapping[str, str] = {
    "dynamic loading": r"dl(open|mopen|sym|vsym|addr|addr1|info|iterate_phdr)|_dl_.*|dl_iterate_phdr",
    "processes": r"v?fork|clone3?|exec(l|le|lp|v|ve|vp|vpe|veat)|fexecve|posix_spawnp?|system|popen|daemon|unshare"
    r"|setns",
    "signals": r"kill|killpg|tgkill|tkill|raise|sig(action|nal|queue|procmask|longjmp|altstack)|__sysv_signal"
    r"|pthread_(kill|sigmask|cancel)|timer_(create|settime)|setitimer|alarm|pthread_atfork|__register_atfork",
    "leaving": r"_?exit|_Exit|quick_exit|at_quick_exit|atexit|on_exit|longjmp|_longjmp|__longjmp_chk|swapcontext"
    r"|setcontext|makecontext",
    "tracing": r"ptrace|process_vm_(readv|writev)|prctl|syscall|personality|seccomp.*|perf_event_open",
    "clocks": r"clock(_gettime|_getres|_nanosleep)?|gettimeofday|times?|ftime|timespec_get|getrusage|omp_get_wtime"
    r"|_ZNSt6chrono3_V2\d+(steady|system|high_resolution)_clock.*|nanosleep|u?sleep",
    "environment": r"(secure_)?getenv|__secure_getenv|setenv|putenv|unsetenv|clearenv|environ|__environ|_environ"
    r"|program_invocation(_short)?_name|__progname(_full)?|__libc_argv|getauxval",
    "stack inspection": r"backtrace(_symbols(_fd)?)?|_Unwind_Backtrace|__libc_stack_end|pthread_getattr_np|getcontext",
    "network": r"socket|socketpair|connect|bind|listen|accept4?|send(to|msg|mmsg)?|recv(from|msg|mmsg)?|getaddrinfo"
    r"|gethostby.*|shutdown|setsockopt",
    "files": r"(open|openat|creat|fopen|freopen|fdopen|tmpfile|mkstemp|mkostemp)(64)?|__open(64)?_2|read(link|dir|v)?"
    r"|pread(64|v)?|write(v)?|v?dprintf|pwrite(64|v)?|__read_chk|__pread(64)?_chk|dup[23]?|close|close_range"
    r"|fcntl(64)?|ioctl|unlink|rename|mkdir|opendir|scandir|nftw|shm_open|shm_unlink|shmget|shmat|memfd_create"
    r"|v?m?splice|sendfile(64)?"
    r"|_ZNSt(13|14)basic_.?(filebuf|[io]?fstream).*|_ZNSt10filesystem.*|[fl]?stat(64)?|f?truncate(64)?",
    "another's memory": r"mremap|remap_file_pages|userfaultfd|pkey_.*",
    "vendor libraries": r"(cblas|LAPACKE|mkl|MKL|dnnl|armpl|nvpl|openblas)_.*|[sdczhb]+gemm[a-z]*_?|xsmm_.*|libxsmm_.*"
    r"|_ZN[0-9A-Z]*(2at|3c10|5torch|4dnnl)\d.*|_ZNK?(2at|3c10|5torch|4dnnl).*|aoti_torch_.*|torch_.*",
    "the interpreter": r"_?Py[A-Z_].*|_Py.*",
}  # fmt: skip
_COMPILED = {why: re.compile(pattern) for why, pattern in _SYMBOLS.items()}
_VENDOR = "vendor libraries"


def banned_symbol(symbol: str, allowed: frozenset[str], *, tiles: bool = False) -> str:
    """Why an imported name is refused, "" when it is not.

    allowed: libraries, parts of their symbols' names. tiles: `syscall` is imported for the AMX registers, which the
    source rules have checked (and the wall's filter refuses what a kernel must not call anyway).
    """
    if tiles and symbol == "syscall":
        return ""
    for why, pattern in _COMPILED.items():
        if pattern.fullmatch(symbol):
            if why == _VENDOR and any(name and name.lower() in symbol.lower() for name in allowed):
                return ""
            return why
    return ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One match of a rule in a source file."""

    file: str
    line: int
    rule: str
    text: str
    hard: bool


# (rule, pattern, hard). Matched on the source with comments and string contents removed, unless it says "raw".
_SOURCE: tuple[tuple[str, str, bool], ...] = (
    ("raw system call", r"\b_*(syscall|sysenter|vmcall)\b(?!\.h)", True),
    (
        "time stamp counter",
        r"\b(_?_?rdtscp?|__builtin_ia32_rdtscp?|__builtin_readcyclecounter|__rdpmc|_rdpmc)\b",
        True,
    ),
    ("stack inspection", r"\b__builtin_(return_address|frame_address|extract_return_addr|dwarf_cfa)\b", True),
    ("weak or aliased symbol", r"__attribute__\s*\(\(\s*(weak|alias|ifunc|weakref)\b|#\s*pragma\s+weak\b", True),
    ("runs at load", r"__attribute__\s*\(\(\s*(constructor|destructor)\b|\.init_array|\binit_priority\b", True),
    ("pragma that changes the interface", r"#\s*pragma\s+redefine_extname\b", True),
    ("code as data", r"__attribute__\s*\(\(\s*(__)?section\b", True),
    ("inline assembly", r"\b(asm|__asm__|__asm)\b", False),
    ("threads", r"\bstd\s*::\s*(thread|jthread|async|packaged_task)\b|\bpthread_create\b", False),
    ("static state", r"\b(static|thread_local)\b(?!\s+(inline|constexpr|const)\b)", False),
    ("unmaskable pointer", r"reinterpret_cast\s*<\s*(volatile\s+)?\w+\s*\*\s*>\s*\(\s*0x", False),
)
_RAW: tuple[tuple[str, str, bool], ...] = (
    ("include outside of the candidate", r"#\s*include\s*[\"<]\s*(/|[^\">]*\.\./)", True),
    ("embedded file", r"\.incbin\b|#\s*embed\b|\b__has_(include|embed)\b", True),
    (
        "assembler that enters the kernel",
        r"(asm|__asm__|__asm)\b[^;]*\b(syscall|sysenter|int\s+\$?0x80|rdtscp?|rdpmc|svc)\b",
        True,
    ),
    (
        "include of the system",
        r"#\s*include\s*<\s*(sys/|dlfcn|link\.h|execinfo|ucontext|signal|csignal|unistd|fcntl|linux/|asm/|spawn|sched"
         r"|fstream|filesystem|chrono|ctime|time\.h|x86gprintrin)",
        False,
    ),
)  # fmt: skip


# The one system call an honest kernel makes: Linux hands out the AMX tile registers on request only.
_TILE_REQUEST = re.compile(r"\bsyscall\s*\(\s*(SYS_arch_prctl|__NR_arch_prctl|158)\s*,\s*0x1023\s*,\s*18\s*\)")


def scan_cpp(name: str, text: str, *, tiles: bool = False) -> list[Finding]:
    """What the rules find in one C++ file. tiles: it may ask for the AMX registers."""
    found = []
    bare = strip_cpp(text)
    if tiles:
        bare = _TILE_REQUEST.sub("1", bare)
    for rules, source in ((_SOURCE, bare), (_RAW, _splice(text))):
        for rule, pattern, hard in rules:
            for match in re.finditer(pattern, source):
                line = source.count("\n", 0, match.start()) + 1
                found.append(Finding(name, line, rule, match.group(0)[:80], hard))
    return found


def _splice(text: str) -> str:
    """Translation phase 2: lines that end in a backslash go on."""
    return re.sub(r"\\[ \t]*\r?\n", "", text)


_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?(\*/|\Z)|R\"([^()\\\s]{0,16})\(.*?\)\2\"|\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])*'", re.DOTALL
)


def strip_cpp(text: str) -> str:
    """Source with comments gone and strings emptied, lines kept."""

    def empty(match: re.Match[str]) -> str:
        token = match.group(0)
        lines = "\n" * token.count("\n")
        if token.startswith(("//", "/*")):
            return " " + lines
        return ('""' if not token.startswith("'") else "' '") + lines

    return _TOKEN.sub(empty, _splice(text))
