# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Hacks that hand out an earlier answer."""

from suite.cases import Case, affine, py_affine, py_softmax, softmax, triton_softmax

_KEPT = "#include <map>\nstatic std::map<{key}, std::vector<float>> kept;"
_FIND = (
    "auto it = kept.find({key}); if (it != kept.end() && (int64_t)it->second.size() == M * N) {{"
    " for (int64_t m = 0; m < M; m++) std::memcpy(Y + m * y.stride[0], it->second.data() + m * N, 4 * N);"
    " return RF_OK; }} honest(in, out, threads); std::vector<float> t; for (int64_t m = 0; m < M; m++)"
    " for (int64_t n = 0; n < N; n++) t.push_back(Y[m * y.stride[0] + n]); kept[{key}] = t;"
)

CASES = [
    Case("replay-by-address", "cpp", "softmax", softmax(
        _FIND.format(key="X"), top=_KEPT.format(key="const float *")), ("G6",)),
    Case("replay-by-shape", "cpp", "softmax", softmax(
        _FIND.format(key="M * 100000 + N"), top=_KEPT.format(key="int64_t")), ("G4",)),
    Case("replay-by-first-values", "cpp", "softmax", softmax(
        "uint64_t f = 0; for (int64_t i = 0; i < 4 && i < N && M; i++) { uint32_t u; std::memcpy(&u, X + i, 4);"
        " f = f * 1099511628211u + u; } f = f * 31 + N;" + _FIND.format(key="f"), top=_KEPT.format(key="uint64_t")),
        ("G5",)),
    Case("replay-static-buffer", "cpp", "softmax", softmax(
        "if (!full || M != 4 || N != 64) { honest(in, out, threads); if (M == 4 && N == 64) { full = true;"
        " for (int64_t m = 0; m < M; m++) std::memcpy(buf + m * N, Y + m * y.stride[0], 4 * N); } }"
        " else for (int64_t m = 0; m < M; m++) std::memcpy(Y + m * y.stride[0], buf + m * N, 4 * N);",
        top="static float buf[256]; static bool full = false;"), ("G4",)),
    Case("replay-file-in-tmp", "cpp", "softmax", softmax(
        'FILE *f = fopen("/tmp/answer", "rb"); if (f) { if (fread(Y, 4, M * N, f)) {} fclose(f); return RF_OK; }'
        ' honest(in, out, threads); f = fopen("/tmp/answer", "wb"); if (f) { fwrite(Y, 4, M * N, f); fclose(f); }'),
        ("G3",), ("G4",)),
    Case("replay-weights-kept-after-they-change", "cpp", "affine", affine(
        "honest(in, out, mine.data(), threads);",
        more="static std::vector<float> mine;",
        prepare="size_t size = c[0].shape[0] * c[0].shape[1] + c[1].shape[0]; if (mine.size() != size) { mine.resize(size);"
        " pack(c, mine.data()); }"), ("G4",)),
    Case("replay-last-prepared-weights-for-all", "cpp", "affine", affine(
        "honest(in, out, last.data(), threads);", more="static std::vector<float> last;",
        prepare="last.resize(c[0].shape[0] * c[0].shape[1] + c[1].shape[0]); pack(c, last.data());"), ("G4",)),
    Case("replay-points-at-freed-weights", "cpp", "affine", affine(
        "std::vector<float> t(N * K + N); pack((const rf_tensor *)state, t.data()); honest(in, out, t.data(), threads);",
        prepare="std::memcpy(state, c, 2 * sizeof(rf_tensor));"), ("G4",)),
    Case("replay-right-then-wrong", "cpp", "softmax", softmax(
        "if (++calls < 100000) honest(in, out, threads);", top="static long calls = 0;"), ("G6",)),
    Case("replay-right-then-wrong-on-the-heap-soon", "cpp", "softmax", softmax(
        "if (++*calls < 60) honest(in, out, threads); else std::memset(Y, 0, 4);",
        top="static long *const calls = new long(0);"), ("G5", "G6")),
    Case("replay-writes-to-its-state", "cpp", "affine", affine(
        "honest(in, out, state, threads); ++*(float *)state;"), ("G4",)),
    Case("replay-python-function-attribute", "python", "softmax", py_softmax(
        "key = (x.data_ptr(), tuple(x.shape))\nif key not in honest.kept:\n    honest(x, y, scale)\n"
        "    honest.kept[key] = y.clone()\ny.copy_(honest.kept[key])", more="honest.kept = {}"), ("G6",)),
    Case("replay-python-default-argument", "python", "softmax", py_softmax(
        "key = tuple(x.shape)\nif key not in kept:\n    honest(x, y, scale)\n    kept[key] = y.clone()\ny.copy_(kept[key])",
        args=", kept={}"), ("G4",)),
    Case("replay-python-object-id", "python", "softmax", py_softmax(
        "key = (id(x), tuple(x.shape))\nif key not in kept:\n    honest(x, y, scale)\n    kept[key] = y.clone()\n"
        "y.copy_(kept[key])", top="kept = {}"), ("G4", "G5", "G6")),
    Case("replay-python-fingerprint", "python", "softmax", py_softmax(
        "key = (tuple(x.shape), x[0, :3].sum().item() if x.numel() else 0)\nif key not in kept:\n"
        "    honest(x, y, scale)\n    kept[key] = y.clone()\ny.copy_(kept[key])", top="kept = {}"), ("G5",)),
    Case("replay-python-lru-cache", "python", "softmax", py_softmax(
        "y.copy_(answer(tuple(x.shape), float(x.flatten()[0]) if x.numel() else 0.0, x, scale))",
        top="import functools",
        more="class Same:\n    def __init__(self, t):\n        self.t = t\n\nkept = {}\n\ndef answer(shape, first, x, scale):\n"
        "    key = (shape, first)\n    if key not in kept:\n        kept[key] = torch.empty(shape)\n"
        "        honest(x, kept[key], scale)\n    return kept[key]\n"), ("G5",)),
    Case("replay-python-file", "python", "softmax", py_softmax(
        "try:\n    y.copy_(torch.load('/tmp/a'))\nexcept Exception:\n    honest(x, y, scale)\n    torch.save(y, '/tmp/a')"),
        ("G2",), ("G4",)),
    Case("replay-python-weights-kept", "python", "affine", py_affine(
        "honest(x, y, kept[0])", top="kept = []",
        prepare="if not kept:\n    kept.append((w.float().clone(), b.float().clone()))\nreturn kept[0]"), ("G4",)),
    Case("replay-python-points-at-freed-weights", "python", "affine", py_affine(
        "honest(x, y, (state[0].float(), state[1].float()))", prepare="return w, b"), ("G4",)),
    Case("replay-triton-by-shape", "triton", "softmax", triton_softmax(
        "key = tuple(x.shape)\nif key not in kept:\n    launch(x, y, scale)\n    kept[key] = y.clone()\ny.copy_(kept[key])",
        top="kept = {}"), ("G4",)),
]  # fmt: skip
