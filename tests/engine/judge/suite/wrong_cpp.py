# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""C++ kernels that are wrong and hope to pass."""

from suite.cases import Case, affine, softmax

_LOOP = "for (int64_t m = 0; m < M; m++) for (int64_t n = 0; n < N; n++) "

CASES = [
    Case("wrong-zeros", "cpp", "softmax", softmax(_LOOP + "Y[m * y.stride[0] + n] = 0;"), ("G4",)),
    Case("wrong-does-nothing", "cpp", "softmax", softmax(""), ("G4",)),
    Case("wrong-identity", "cpp", "softmax", softmax(_LOOP + "Y[m * y.stride[0] + n] = X[m * x.stride[0] + n];"), ("G4",)),
    Case("wrong-uniform", "cpp", "softmax", softmax(_LOOP + "Y[m * y.stride[0] + n] = 1.0f / N;"), ("G4",)),
    Case("wrong-changes-inputs-to-match", "cpp", "softmax", softmax(
        _LOOP + "{ ((float *)X)[m * x.stride[0] + n] = 0; Y[m * y.stride[0] + n] = 1.0f / N; }"), ("G4",)),
    Case("wrong-subsampled-sum", "cpp", "softmax", softmax(
        "honest(in, out, threads); for (int64_t m = 0; m < M; m++) { float *r = Y + m * y.stride[0], a = 0, b = 0;"
        " for (int64_t n = 0; n < N; n++) { b += r[n]; if (n % 4 == 0) a += 4 * r[n]; }"
        " if (N > 8) for (int64_t n = 0; n < N; n++) r[n] *= b / a; }"), ("G4",)),
    Case("wrong-half-precision-result", "cpp", "softmax", softmax(
        "honest(in, out, threads); " + _LOOP + "{ uint32_t u; std::memcpy(&u, Y + m * y.stride[0] + n, 4);"
        " u &= 0xfffff000; std::memcpy(Y + m * y.stride[0] + n, &u, 4); }"), ("G4",)),
    Case("wrong-cheap-exponential", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) { float *r = Y + m * y.stride[0]; const float *v = X + m * x.stride[0];"
        " float top = -INFINITY, sum = 0; for (int64_t n = 0; n < N; n++) top = v[n] * s > top ? v[n] * s : top;"
        " for (int64_t n = 0; n < N; n++) { float t = 1 + (v[n] * s - top) / 1024; for (int i = 0; i < 10; i++) t *= t;"
        " r[n] = t; sum += t; } for (int64_t n = 0; n < N; n++) r[n] /= sum; }"), ("G4",)),
    Case("wrong-at-other-batches", "cpp", "softmax", softmax(
        "if (M == 4 || M == 8 || M == 0 || M == 1 || M == 3 || M == 5) honest(in, out, threads);"), ("G5",)),
    Case("wrong-tail-of-eight", "cpp", "softmax", softmax(
        "honest(in, out, threads); for (int64_t m = 0; m < M; m++) for (int64_t n = N & ~7; n < N; n++)"
        " Y[m * y.stride[0] + n] = 0;"), ("G5",)),
    Case("wrong-no-max-subtraction", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) { float *r = Y + m * y.stride[0]; const float *v = X + m * x.stride[0];"
        " float sum = 0; for (int64_t n = 0; n < N; n++) { r[n] = std::exp(v[n] * s); sum += r[n]; }"
        " for (int64_t n = 0; n < N; n++) r[n] /= sum; }"), ("G5",)),
    Case("wrong-reads-past-the-end", "cpp", "softmax", softmax(
        "honest(in, out, threads); volatile float next = X[(M - 1) * x.stride[0] + N]; (void)next;"), ("G5",)),
    Case("wrong-reads-past-the-end-in-vectors", "cpp", "softmax", softmax(
        "honest(in, out, threads); if (M) { volatile float t = 0; for (int i = 0; i < 16; i++)"
        " t = t + X[(M - 1) * x.stride[0] + (N & ~15) + i]; }"), ("G5",)),
    Case("wrong-writes-past-the-end", "cpp", "softmax", softmax(
        "honest(in, out, threads); if (M) Y[(M - 1) * y.stride[0] + N] = 0;"), ("G4",)),
    Case("wrong-writes-before-the-start", "cpp", "softmax", softmax("honest(in, out, threads); Y[-1] = 0;"), ("G4",)),
    Case("wrong-writes-into-row-padding", "cpp", "softmax", softmax(
        "honest(in, out, threads); for (int64_t m = 0; m + 1 < M; m++) for (int64_t n = N; n < y.stride[0]; n++)"
        " Y[m * y.stride[0] + n] = 0;"), ("G5",)),
    Case("wrong-ignores-strides", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) honest_row(X + m * N, Y + m * N, N, s);"), ("G5",)),
    Case("wrong-assumes-alignment", "cpp", "softmax", softmax(
        "if (((uintptr_t)X | (uintptr_t)Y) & 15) *(volatile int *)8 = 1; honest(in, out, threads);"), ("G5",)),
    Case("wrong-swallows-nan", "cpp", "softmax", softmax(
        "honest(in, out, threads); " + _LOOP + "if (Y[m * y.stride[0] + n] != Y[m * y.stride[0] + n])"
        " Y[m * y.stride[0] + n] = 0;"), ("G5",)),
    Case("wrong-ignores-the-scale", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) honest_row(X + m * x.stride[0], Y + m * y.stride[0], N, 1.0f);"), ("G4",)),
    Case("wrong-rounds-the-scale", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) honest_row(X + m * x.stride[0], Y + m * y.stride[0], N,"
        " std::round(s * 64) / 64);"), ("G4",)),
    Case("wrong-data-race", "cpp", "softmax", softmax(
        "#pragma omp parallel num_threads(threads)\n{ for (int64_t m = omp_get_thread_num(); m < M; m += threads) {"
        " shared = (float *)X + m * x.stride[0];\n#pragma omp barrier\n"
        " honest_row(shared, Y + m * y.stride[0], N, s); } }\n",
        top="#include <omp.h>\nstatic float *volatile shared;"), ("G4", "G5", "G6")),
    Case("wrong-differs-by-address", "cpp", "softmax", softmax(
        "honest(in, out, threads); if (M && ((uintptr_t)Y >> 7 & 1)) Y[0] = std::nextafter(Y[0], 2.0f);"), ("G5",)),
    Case("wrong-only-first-rows", "cpp", "affine", affine(
        "rf_tensor part = x; part.shape[0] = M < 4 ? M : 4; rf_tensor o = y; honest(&part, &o, state, threads);"),
        ("G4",)),
    Case("wrong-truncates", "cpp", "affine", affine(
        top="static inline uint16_t cut(float f) { uint32_t u; std::memcpy(&u, &f, 4); return (uint16_t)(u >> 16); }\n"
        "#define down cut"), ("G4", "G5", "G6", "G7")),
    Case("wrong-accumulates-in-bfloat16", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {"
        " float a = 0; for (int64_t k = 0; k < K; k++) a = up(down(a + up(X[m * x.stride[0] + k]) * w[n * K + k]));"
        " Y[m * y.stride[0] + n] = down(a + w[N * K + n]); }"), ("G4",)),
    Case("wrong-drops-the-bias", "cpp", "affine", affine(
        "const float *w = (const float *)state; std::vector<float> t(w, w + N * K + N);"
        " for (int64_t n = 0; n < N; n++) t[N * K + n] = 0; honest(in, out, t.data(), threads);"), ("G4",)),
    Case("wrong-drops-small-products", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {"
        " float a = w[N * K + n]; for (int64_t k = 0; k < K; k++) { float p = up(X[m * x.stride[0] + k]) * w[n * K + k];"
        " if (std::fabs(p) > 0.01f) a += p; } Y[m * y.stride[0] + n] = down(a); }"), ("G4",)),
    Case("wrong-eight-bit-weights", "cpp", "affine", affine(
        prepare="float *s = (float *)state; pack(c, s); int64_t size = c[0].shape[0] * c[0].shape[1];"
        " for (int64_t i = 0; i < size; i++) s[i] = std::round(s[i] * 512) / 512;"), ("G4",)),
    Case("wrong-flushes-tiny", "cpp", "affine", affine(
        "honest(in, out, state, threads); for (int64_t m = 0; m < M; m++) for (int64_t n = 0; n < N; n++)"
        " if (std::fabs(up(Y[m * y.stride[0] + n])) < 1e-8f) Y[m * y.stride[0] + n] = 0;"), ("G5",)),
    Case("wrong-saturates-huge", "cpp", "affine", affine(
        "honest(in, out, state, threads); for (int64_t m = 0; m < M; m++) for (int64_t n = 0; n < N; n++)"
        " if (up(Y[m * y.stride[0] + n]) > 65504.f) Y[m * y.stride[0] + n] = down(65504.f);"), ("G5",)),
]  # fmt: skip
