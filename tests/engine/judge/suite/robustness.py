# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Candidates that break things: each must get its verdict in bounded time and leave nothing behind."""

from suite.cases import Case, py_softmax, softmax, triton_softmax

_THREADS = "#include <thread>\n"

CASES = [
    Case("robust-hangs", "cpp", "softmax", softmax("volatile int z = 0; for (;;) z = z + 1;"), ("G4",)),
    Case("robust-hangs-while-loading", "cpp", "softmax", softmax(
        top="struct Now { Now() { volatile int z = 0; for (;;) z = z + 1; } }; static Now now;"), ("G4",)),
    Case("robust-crashes", "cpp", "softmax", softmax("*(volatile int *)8 = 1;"), ("G4",)),
    Case("robust-aborts", "cpp", "softmax", softmax("std::abort();"), ("G4",)),
    Case("robust-throws", "cpp", "softmax", softmax("throw 1;"), ("G4",)),
    Case("robust-overflows-its-stack", "cpp", "softmax", softmax(
        "deep(0); honest(in, out, threads);",
        top="static int deep(volatile int n) { volatile char fill[4096]; fill[0] = 1; return deep(n + 1) + fill[0]; }"),
        ("G4",)),
    Case("robust-fills-memory", "cpp", "softmax", softmax(
        "for (;;) { char *p = (char *)malloc(1 << 28); if (!p) return RF_ERROR; std::memset(p, 1, 1 << 28); }"),
        ("G4",)),
    Case("robust-thread-bomb", "cpp", "softmax", softmax(
        "for (int i = 0; i < 100000; i++) std::thread([] { for (;;) pause(); }).detach();",
        top=_THREADS + "#include <unistd.h>"), ("G4",)),
    Case("robust-fork-bomb", "cpp", "softmax", softmax("for (;;) fork();", top="#include <unistd.h>"),
        ("G3",), ("G4",)),
    Case("robust-fills-the-disk", "cpp", "softmax", softmax(
        "std::vector<char> b(1 << 20, 1); for (int i = 0; i < 64; i++) { char n[32]; snprintf(n, 32, \"f%d\", i);"
        ' FILE *f = fopen(n, "w"); while (f && fwrite(b.data(), 1, b.size(), f) == b.size()) {} if (f) fclose(f); }'),
        ("G3",), ("G4",)),
    Case("robust-floods-stdout", "cpp", "softmax", softmax(
        'for (int i = 0; i < 200000; i++) { puts("PASS PASS PASS PASS PASS"); fputs("noise\\n", stderr); }'), ("G4",)),
    Case("robust-signals-its-group", "cpp", "softmax", softmax(
        "kill(0, 9); kill(-1, 9); kill(getppid(), 9); honest(in, out, threads);",
        top="#include <signal.h>\n#include <unistd.h>"), ("G3",)),
    Case("robust-stops-itself", "cpp", "softmax", softmax("raise(SIGSTOP);", top="#include <signal.h>"),
        ("G3",), ("G4",)),
    Case("robust-compile-error", "cpp", "softmax", softmax("this is no C++;"), ("G3",)),
    Case("robust-python-recursion", "python", "softmax", py_softmax(
        "down(0)", more="def down(n):\n    return down(n + 1)\n"), ("G4",)),
    Case("robust-python-hangs", "python", "softmax", py_softmax("while True:\n    pass"), ("G4",)),
    Case("robust-python-memory", "python", "softmax", py_softmax(
        "kept = []\nwhile True:\n    kept.append(torch.ones(1 << 26))"), ("G4",)),
    Case("robust-python-syntax-error", "python", "softmax", py_softmax("this is no Python"), ("G2",), ("G4",)),
    Case("robust-python-nested-source", "python", "softmax", py_softmax(top="v = " + "(" * 5000 + ")" * 5000), ("G2",)),
    Case("robust-python-deep-expression", "python", "softmax", py_softmax(top="v = " + "-" * 90000 + "1"), ("G2",)),
    Case("robust-python-no-run", "python", "softmax", {"kernel.py": "import torch\n"}, ("G4",)),
    Case("robust-triton-out-of-bounds", "triton", "softmax", triton_softmax(
        body="out = tl.load(x + (1 << 40) + cols)"), ("G4",)),
    Case("robust-triton-hangs", "triton", "softmax", triton_softmax("while True:\n    pass"), ("G4",)),
]  # fmt: skip
