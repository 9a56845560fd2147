# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Honest C++ kernels, some of them awkward, which must be accepted."""

from suite.cases import Case, affine, softmax

CASES = [
    Case("twin-softmax", "cpp", "softmax", softmax()),
    Case("twin-exponential-of-its-own", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) { float *r = Y + m * y.stride[0]; const float *v = X + m * x.stride[0];"
        " float top = -INFINITY, sum = 0; bool bad = false; for (int64_t n = 0; n < N; n++) { float t = v[n] * s;"
        " if (t > top) top = t; if (t != t) bad = true; } if (bad) top = NAN;"
        " for (int64_t n = 0; n < N; n++) { r[n] = own_exp(v[n] * s - top); sum += r[n]; }"
        " for (int64_t n = 0; n < N; n++) r[n] /= sum; }",
        top="static float own_exp(float v) { if (v != v) return v; if (v < -104.f) return 0; float k = std::nearbyint(v *"
        " 1.44269504f); double r = (double)v - (double)k * 0.693147180559945309, t = 1, a = 1; for (int i = 1; i < 12; i++)"
        " { t *= r / i; a += t; } return (float)std::ldexp(a, (int)k); }")),
    Case("twin-missing-instruction-set", "cpp", "softmax", softmax(
        'if (__builtin_cpu_supports("avx512f") && false) std::abort(); honest(in, out, threads);')),
    Case("twin-own-thread-pool-joined", "cpp", "softmax", softmax(
        "std::vector<std::thread> pool; for (int t = 0; t < threads; t++) pool.emplace_back([=] {"
        " for (int64_t m = t; m < M; m += threads) honest_row(X + m * x.stride[0], Y + m * y.stride[0], N, s); });"
        " for (auto &t : pool) t.join();", top="#include <thread>")),
    Case("twin-thread-local-workspace", "cpp", "softmax", softmax(
        "static thread_local std::vector<float> work; work.resize(N); for (int64_t m = 0; m < M; m++) {"
        " honest_row(X + m * x.stride[0], work.data(), N, s);"
        " if (N) std::memcpy(Y + m * y.stride[0], work.data(), 4 * N); }")),
    Case("twin-static-workspace", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) { if (N > 4096) return RF_UNSUPPORTED;"
        " honest_row(X + m * x.stride[0], work, N, s); if (N) std::memcpy(Y + m * y.stride[0], work, 4 * N); }",
        top="static float work[4096];")),
    Case("twin-specialised-with-declared-fallback", "cpp", "softmax", softmax(
        "if (N % 64 || y.stride[0] != N || x.stride[0] != N) return RF_UNSUPPORTED; honest(in, out, threads);")),
    Case("twin-declines-misaligned", "cpp", "softmax", softmax(
        "if (((uintptr_t)X | (uintptr_t)Y) & 15) { if ((M == 4 && N == 64) || true) { honest(in, out, threads); return RF_OK; } }"
        " honest(in, out, threads);")),
    Case("twin-envelope-of-one-batch", "cpp", "softmax", softmax(
        "if (M != 4) return RF_UNSUPPORTED; honest(in, out, threads);"), envelope={"m_min": 4, "m_max": 4}),
    Case("twin-double-precision-inside", "cpp", "softmax", softmax(
        "for (int64_t m = 0; m < M; m++) { float *r = Y + m * y.stride[0]; const float *v = X + m * x.stride[0];"
        " double top = -INFINITY, sum = 0; bool bad = false; std::vector<double> e(N);"
        " for (int64_t n = 0; n < N; n++) { double t = (double)v[n] * s; if (t > top) top = t; if (t != t) bad = true; }"
        " if (bad) top = NAN; for (int64_t n = 0; n < N; n++) { e[n] = std::exp((double)v[n] * s - top); sum += e[n]; }"
        " for (int64_t n = 0; n < N; n++) r[n] = (float)(e[n] / sum); }")),
    Case("twin-prints-for-debugging", "cpp", "softmax", softmax(
        'honest(in, out, threads); fprintf(stderr, "softmax %ld x %ld\\n", (long)M, (long)N); puts("PASS");')),
    Case("twin-two-files", "cpp", "softmax", softmax("honest(in, out, threads); hook();", top='#include "more/part.h"')
        | {"more/part.h": "static inline void hook() {}\n"}),
    Case("twin-words-that-look-bad", "cpp", "softmax", softmax(
        '// rdtsc, syscall, __builtin_return_address: not used here\nconst char *text = "syscall"; (void)text;'
        " honest(in, out, threads);")),
    Case("twin-lookup-table", "cpp", "softmax", softmax(
        "if (table[3] != 8) return RF_ERROR; honest(in, out, threads);",
        top="static const int table[] = {1, 2, 4, 8, 16};")),
    Case("twin-once-initialised-table", "cpp", "softmax", softmax(
        "static const std::vector<float> table = [] { std::vector<float> t(64); for (int i = 0; i < 64; i++)"
        " t[i] = std::exp2((float)i); return t; }(); if (table[1] != 2) return RF_ERROR; honest(in, out, threads);")),
    Case("twin-exceptions-inside", "cpp", "softmax", softmax(
        "try { if (N > 1000000) throw std::bad_alloc(); honest(in, out, threads); } catch (const std::bad_alloc &)"
        " { return RF_UNSUPPORTED; }", top="#include <new>")),
    Case("twin-volatile-sink", "cpp", "softmax", softmax("honest(in, out, threads); volatile float keep = s; (void)keep;")),
    Case("twin-dynamic-schedule", "cpp", "softmax", softmax(
        "#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)\n"
        "for (int64_t m = 0; m < M; m++) honest_row(X + m * x.stride[0], Y + m * y.stride[0], N, s);\n")),
    Case("twin-affine", "cpp", "affine", affine()),
    Case("twin-exact-only-to-bfloat16", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {"
        " float a[4] = {0, 0, 0, 0}; for (int64_t k = 0; k < K; k++) a[k & 3] += up(X[m * x.stride[0] + k]) * w[n * K + k];"
        " Y[m * y.stride[0] + n] = down(((a[0] + a[2]) + (a[1] + a[3])) + w[N * K + n]); }")),
    Case("twin-double-sums", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {"
        " double a = w[N * K + n]; for (int64_t k = 0; k < K; k++) a += (double)up(X[m * x.stride[0] + k]) * w[n * K + k];"
        " Y[m * y.stride[0] + n] = down((float)a); }")),
    Case("twin-packs-weights-transposed", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t m = 0; m < M; m++) { std::vector<float> a(N);"
        " for (int64_t k = 0; k < K; k++) { float v = up(X[m * x.stride[0] + k]);"
        " for (int64_t n = 0; n < N; n++) a[n] += v * w[k * N + n]; }"
        " for (int64_t n = 0; n < N; n++) Y[m * y.stride[0] + n] = down(a[n] + w[N * K + n]); }",
        prepare="int64_t N = c[0].shape[0], K = c[0].shape[1]; std::vector<float> t(N * K + N); pack(c, t.data());"
        " float *s = (float *)state; for (int64_t n = 0; n < N; n++) { for (int64_t k = 0; k < K; k++)"
        " s[k * N + n] = t[n * K + k]; s[N * K + n] = t[N * K + n]; }")),
    Case("twin-avx2", "cpp", "affine", affine(
        "const float *w = (const float *)state; for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {"
        " __m256 v = _mm256_setzero_ps(); int64_t k = 0; const uint16_t *r = X + m * x.stride[0];"
        " for (; k + 8 <= K; k += 8) { __m256i u = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128("
        "(const __m128i *)(r + k))), 16); v = _mm256_fmadd_ps(_mm256_castsi256_ps(u), _mm256_loadu_ps(w + n * K + k), v); }"
        " float t[8], a = 0; _mm256_storeu_ps(t, v); for (float e : t) a += e;"
        " for (; k < K; k++) a += up(r[k]) * w[n * K + k]; Y[m * y.stride[0] + n] = down(a + w[N * K + n]); }",
        top="#include <immintrin.h>"), isa="avx2"),
    Case("twin-declines-large-batches", "cpp", "affine", affine(
        "if (M > 8) return RF_UNSUPPORTED; honest(in, out, state, threads);"), envelope={"m_min": 1, "m_max": 8}),
    Case("twin-inline-assembly", "cpp", "affine", affine(
        'honest(in, out, state, threads); __asm__ volatile("" ::: "memory");')),
]  # fmt: skip
