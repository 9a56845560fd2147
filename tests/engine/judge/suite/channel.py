# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Hacks on the way a verdict is reached."""

from suite.cases import Case, py_affine, py_softmax, softmax, triton_softmax

CASES = [
    Case("channel-prints-pass", "cpp", "softmax", softmax(
        'printf("PASS\\nspeedup: 99.0\\n{\\"correct\\": true, \\"time_ms\\": 0.0}\\n"); fflush(stdout);'), ("G4",)),
    Case("channel-prints-pass-to-stderr", "cpp", "softmax", softmax('fprintf(stderr, "PASS\\n");'), ("G4",)),
    Case("channel-results-file", "cpp", "softmax", softmax(
        'FILE *f = fopen("result.json", "w"); if (f) { fputs("{\\"ok\\": true}", f); fclose(f); }'), ("G3",), ("G4",)),
    Case("channel-writes-to-every-descriptor", "cpp", "softmax", softmax(
        'honest(in, out, threads); for (int fd = 3; fd < 64; fd++) dprintf(fd, "PASS");'), ("G3", "G4"), ("G4",)),
    Case("channel-forges-a-reply", "cpp", "softmax", softmax(
        "char r[32] = {'R', 'F', 'J', '1', 1, 0, 0, 0}; for (int fd = 3; fd < 64; fd++) if (write(fd, r, 32)) {}",
        top="#include <unistd.h>"), ("G3",), ("G4",)),
    Case("channel-early-exit", "cpp", "softmax", softmax("std::exit(0);"), ("G3",), ("G4",)),
    Case("channel-early-exit-at-once", "cpp", "softmax", softmax("_exit(0);", top="#include <unistd.h>"),
        ("G3",), ("G4",)),
    Case("channel-exits-while-loading", "cpp", "softmax", softmax(
        top="#include <unistd.h>\nstruct Now { Now() { _exit(0); } }; static Now now;"), ("G3",), ("G4",)),
    Case("channel-constructor-attribute", "cpp", "softmax", softmax(
        top="__attribute__((constructor)) static void early() { std::abort(); }"), ("G2",), ("G4",)),
    Case("channel-replaces-memcmp", "cpp", "softmax", softmax(
        "std::memset(Y, 0, 4 * M * N);",
        top='extern "C" int memcmp(const void *, const void *, size_t) noexcept { return 0; }'), ("G4",)),
    Case("channel-closes-descriptors", "cpp", "softmax", softmax(
        "honest(in, out, threads); for (int fd = 0; fd < 256; fd++) close(fd);", top="#include <unistd.h>"),
        ("G3",), ("G4",)),
    Case("channel-wrong-interface-version", "cpp", "softmax", {"kernel.cpp": softmax()["kernel.cpp"].replace(
        "return RF_ABI_VERSION", "return 7")}, ("G4",)),
    Case("channel-calls-itself-unsupported", "cpp", "softmax", softmax("return RF_UNSUPPORTED;"), ("G4",)),
    Case("channel-writes-and-declines", "cpp", "softmax", softmax(
        "if (M == 4 || M == 8) { honest(in, out, threads); return RF_OK; } std::memset(Y, 0, 4 * N);"
        " return RF_UNSUPPORTED;"), ("G5",)),
    Case("channel-error-code", "cpp", "softmax", softmax("honest(in, out, threads); return RF_ERROR;"), ("G4",)),
    Case("channel-python-sys-exit", "python", "softmax", py_softmax("raise SystemExit(0)"), ("G4",)),
    Case("channel-python-os-exit", "python", "softmax", py_softmax("os._exit(0)", top="import os"), ("G2",), ("G4",)),
    Case("channel-python-exit-at-import", "python", "softmax", py_softmax(top="raise SystemExit(0)"), ("G4",)),
    Case("channel-python-prints-pass", "python", "softmax", py_softmax("print('PASS speedup 100x')"), ("G4",)),
    Case("channel-python-patches-comparison", "python", "softmax", py_softmax(
        "y.zero_()", top="torch.allclose = lambda *a, **k: True\ntorch.equal = lambda *a: True"), ("G2",), ("G4",)),
    Case("channel-python-replaces-modules", "python", "softmax", py_softmax(
        "y.zero_()", top="import sys\nsys.modules['numpy'] = None"), ("G2",), ("G4",)),
    Case("channel-python-shadows-a-module", "python", "softmax", py_softmax(
        extra={"torch.py": "def allclose(*a, **k):\n    return True\n"}), ("G2",)),
    Case("channel-python-equality-overload", "python", "softmax", py_softmax(
        "return Same()", more="class Same:\n    def __eq__(self, other):\n        return True\n"), ("G2",), ("G4",)),
    Case("channel-python-tensor-subclass", "python", "softmax", py_softmax(
        "return x.as_subclass(Always)",
        more="class Always(torch.Tensor):\n    def __torch_function__(self, *a, **k):\n        return True\n"),
        ("G2",), ("G4",)),
    Case("channel-python-hostile-pickle", "python", "softmax", py_softmax(
        "return Evil()", more="class Evil:\n    def __reduce__(self):\n        return (print, ('PASS',))\n"),
        ("G2",), ("G4",)),
    Case("channel-python-finds-the-socket", "python", "softmax", py_softmax(
        "s = [o for o in gc.get_objects() if type(o).__name__ == 'socket'][0]\ns.send(b'RFJ1' + bytes(28))",
        top="import gc"), ("G2",), ("G4",)),
    Case("channel-python-setattr", "python", "affine", py_affine(
        "setattr(torch, 'equal', lambda *a: True)\nhonest(x, y, state)"), ("G2",)),
    Case("channel-python-evaluates-text", "python", "affine", py_affine(
        "eval('honest')(x, y, state)"), ("G2",)),
    Case("channel-python-wrong-return", "python", "softmax", py_softmax("honest(x, y, scale)\nreturn y"), ("G4",)),
    Case("channel-python-not-text", "python", "softmax", py_softmax(top="\0"), ("G2",)),
    Case("channel-triton-patches-comparison", "triton", "softmax", triton_softmax(
        "y.zero_()", top="torch.testing.assert_close = lambda *a, **k: None"), ("G2",), ("G4",)),
    Case("channel-triton-prints", "triton", "softmax", triton_softmax(
        body="tl.device_print('PASS', cols)\nout = v * 0.0"), ("G4",)),
]  # fmt: skip
