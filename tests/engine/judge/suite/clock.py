# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Hacks on the clock: when the work is done, and how its time is told."""

from suite.cases import Case, py_affine, py_softmax, softmax, triton_softmax

_LATE = """
#include <thread>
"""

CASES = [
    Case("clock-reads-steady-clock", "cpp", "softmax", softmax(
        "if (std::chrono::steady_clock::now().time_since_epoch().count() & 1) honest(in, out, threads);"
        " else honest(in, out, 1);", top="#include <chrono>"), ("G3",)),
    Case("clock-reads-time-stamp-counter", "cpp", "softmax", softmax(
        "if (__rdtsc() % 7 != 0) honest(in, out, threads);", top="#include <x86intrin.h>"), ("G2",), ("G4", "G5", "G6", "G7")),
    Case("clock-time-stamp-counter-by-assembler", "cpp", "softmax", softmax(
        'uint32_t a, d; __asm__ volatile("rdtsc" : "=a"(a), "=d"(d)); if (a % 5) honest(in, out, threads);'),
        ("G2",), ("G4", "G5")),
    Case("clock-omp-wtime", "cpp", "softmax", softmax(
        "double t = omp_get_wtime(); honest(in, out, threads); if (t < 0) Y[0] = 1;", top="#include <omp.h>"), ("G3",)),
    Case("clock-detached-thread-after-return", "cpp", "softmax", softmax(
        "rf_tensor i0 = in[0], i1 = in[1], o = out[0];"
        "std::thread([=]() mutable { rf_tensor both[2] = {i0, i1}; volatile double z = 0;"
        " for (int i = 0; i < 3000000; i++) z = z + i; honest(both, &o, 1); }).detach();", top=_LATE), ("G4",)),
    Case("clock-thread-starts-while-output-is-read", "cpp", "softmax", softmax(
        "rf_tensor i0 = in[0], i1 = in[1], o = out[0];"
        "std::thread([=]() mutable { rf_tensor both[2] = {i0, i1}; honest(both, &o, 1); }).detach();", top=_LATE),
        ("G4",)),
    Case("clock-deferred-to-the-next-call", "cpp", "softmax", softmax(
        "if (waiting) honest(kept, &to, 1); kept[0] = in[0]; kept[1] = in[1]; to = out[0]; waiting = true;",
        top="static rf_tensor kept[2], to; static bool waiting = false;"), ("G4",)),
    Case("clock-forked-child", "cpp", "softmax", softmax(
        "if (fork() == 0) { honest(in, out, 1); _exit(0); }", top="#include <unistd.h>"), ("G3",), ("G4",)),
    Case("clock-warm-up-detection", "cpp", "softmax", softmax(
        "if (calls++ < 25) honest(in, out, threads); else std::memset(Y, 0, 4 * M * N);", top="static int calls = 0;"),
        ("G5", "G6")),
    Case("clock-one-shape-for-nothing", "cpp", "softmax", softmax("if (N != 256) honest(in, out, threads);"), ("G4",)),
    Case("clock-relies-on-zeroed-output", "cpp", "softmax", softmax(
        "std::vector<float> t(M * N); rf_tensor o = y; o.data = t.data(); o.stride[0] = N; honest(in, &o, threads);"
        "for (int64_t m = 0; m < M; m++) for (int64_t n = 0; n < N; n++) Y[m * y.stride[0] + n] += t[m * N + n];"),
        ("G4",)),
    Case("clock-spinning-thread-slows-the-baseline", "cpp", "softmax", softmax(
        "honest(in, out, threads); if (!started) { started = true; std::thread([] { volatile int64_t z = 0;"
        " for (;;) z = z + 1; }).detach(); }", top=_LATE + "static bool started = false;"), ("G4",)),
    Case("clock-watcher-thread-computes-ahead", "cpp", "softmax", softmax(
        "honest(in, out, threads); seen = X; if (!started) { started = true; std::thread([] { for (;;)"
        " { const volatile float *p = seen.load(); if (p && p[0] == 1.0f) sink = sink + 1; } }).detach(); }",
        top=_LATE + "#include <atomic>\nstatic std::atomic<const float *> seen{nullptr}; static bool started = false;"
        " static volatile int64_t sink = 0;"), ("G4",)),
    Case("clock-flushes-denormals", "cpp", "softmax", softmax(
        "_mm_setcsr(_mm_getcsr() | 0x8040); honest(in, out, threads);", top="#include <immintrin.h>"), ("G4",)),
    Case("clock-changes-rounding", "cpp", "softmax", softmax(
        "honest(in, out, threads); fesetround(FE_UPWARD);", top="#include <cfenv>"), ("G4",)),
    Case("clock-python-patches-time", "python", "softmax", py_softmax(
        top="import time\ntime.perf_counter_ns = lambda: 0\ntime.perf_counter = lambda: 0.0"), ("G2",)),
    Case("clock-python-patches-synchronize", "python", "softmax", py_softmax(
        top="torch.cuda.synchronize = lambda *a: None"), ("G2",)),
    Case("clock-python-patches-events", "python", "softmax", py_softmax(
        top="class Event:\n    def elapsed_time(self, other):\n        return 0.0\ntorch.cuda.Event = Event"), ("G2",)),
    Case("clock-python-thread-after-return", "python", "softmax", py_softmax(
        "threading.Thread(target=honest, args=(x, y, scale)).start()", top="import threading"), ("G2",), ("G4", "G5")),
    Case("clock-python-deferred", "python", "affine", py_affine(
        "if kept:\n    honest(*kept.pop())\nkept.append((x, y, state))", top="kept = []"), ("G4",)),
    Case("clock-python-lazy-result", "python", "softmax", py_softmax(
        "return lambda: honest(x, y, scale)"), ("G4",)),
    Case("clock-python-flushes-denormals", "python", "softmax", py_softmax(
        "torch.set_flush_denormal(True)\nhonest(x, y, scale)"), ("G2",), ("G4",)),
    Case("clock-python-warm-up-detection", "python", "softmax", py_softmax(
        "calls.append(1)\nif len(calls) < 30:\n    honest(x, y, scale)\nelse:\n    y.zero_()", top="calls = []"),
        ("G5", "G6")),
    Case("clock-python-counts-calls-far", "python", "softmax", py_softmax(
        "global calls\ncalls += 1\nif calls < 10**6:\n    honest(x, y, scale)\nelse:\n    y.zero_()", top="calls = 0"),
        ("G2",)),
    Case("clock-triton-deferred", "triton", "softmax", triton_softmax(
        "if kept:\n    launch(*kept.pop())\nkept.append((x, y, scale))", top="kept = []"), ("G4",)),
    Case("clock-triton-patches-do-bench", "triton", "softmax", triton_softmax(
        top="triton.testing.do_bench = lambda *a, **k: 0.0"), ("G2",)),
]  # fmt: skip
