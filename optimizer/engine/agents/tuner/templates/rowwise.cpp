// Row-wise bfloat16 operators in one pass over memory: rms_norm, fused_add_rms_norm, silu_and_mul.
// Written by the Rackforge tuner. fp32 inside, one rounding at the end.
//
// Plain loops over blocks of fixed length, which compilers turn into the vectors of whatever instruction set
// the object is built for.
#include "rackforge_kernel.h"

#include <cmath>
#include <cstddef>
#include <cstring>

namespace {

typedef uint16_t bf16;

//@VARIANTS@

constexpr int64_t kBlock = Variant::kBlock;

inline float from_bf16(bf16 v) {
  const uint32_t bits = static_cast<uint32_t>(v) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline bf16 to_bf16(float value) {  // round to nearest even; NaN stays NaN; no branch, so that it vectorises
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<bf16>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// ---- normalisation ----------------------------------------------------------------------------------------
template <bool Add>
inline float element(const bf16 *x, const bf16 *residual, int64_t i) {
  if constexpr (Add) return from_bf16(x[i]) + from_bf16(residual[i]);
  (void)residual;
  return from_bf16(x[i]);
}

// Outputs may be the inputs: every element is read before it is written, and the sum of squares is complete
// before the first is.
template <bool Add>
void norm_row(const bf16 *x, const bf16 *residual, const bf16 *weight, float epsilon, int64_t h, bf16 *y,
              bf16 *sum_out) {
  float held[Variant::kHold ? 8192 : 1];
  const bool hold = Variant::kHold && h <= 8192;
  float squares[Variant::kChains][kBlock] = {};
  const int64_t step = kBlock * Variant::kChains;
  int64_t i = 0;
  for (; i + step <= h; i += step)
    for (int c = 0; c < Variant::kChains; ++c)
      for (int64_t j = 0; j < kBlock; ++j) {
        const int64_t at = i + c * kBlock + j;
        const float v = element<Add>(x, residual, at);
        if (hold) held[at] = v;
        squares[c][j] += v * v;
      }
  float sum = 0;
  for (; i < h; ++i) {
    const float v = element<Add>(x, residual, i);
    if (hold) held[i] = v;
    sum += v * v;
  }
  for (int64_t j = 0; j < kBlock; ++j)
    for (int c = 0; c < Variant::kChains; ++c) sum += squares[c][j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(h) + epsilon);
  i = 0;
  for (; i + kBlock <= h; i += kBlock) {
    bf16 rounded[kBlock], added[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      const float v = hold ? held[i + j] : element<Add>(x, residual, i + j);
      rounded[j] = to_bf16(v * scale * from_bf16(weight[i + j]));
      if constexpr (Add) added[j] = to_bf16(v);
    }
    if constexpr (Add) std::memcpy(sum_out + i, added, sizeof added);
    std::memcpy(y + i, rounded, sizeof rounded);
  }
  for (; i < h; ++i) {
    const float v = hold ? held[i] : element<Add>(x, residual, i);
    if constexpr (Add) sum_out[i] = to_bf16(v);
    y[i] = to_bf16(v * scale * from_bf16(weight[i]));
  }
}

// ---- gated activation -------------------------------------------------------------------------------------
// exp(x) = 2^n * p(r) with |r| <= ln2/2; p is the Taylor polynomial of degree kDegree (error below
// (ln2/2)^(d+1)/(d+1)!, i.e. 2e-6 at 5, 1e-7 at 6; bfloat16 keeps 4e-3).
inline float exponential(float x) {
  if constexpr (Variant::kDegree == 0) return std::exp(x);
  const float bounded = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  // Adding and taking away 1.5 * 2^23 rounds to an integer without a library call.
  const float n = (bounded * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = Variant::kDegree >= 6 ? 1.0f / 720 : 0.0f;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

inline float silu(float x) {
  // The bounded exponential never overflows; past the bound the quotient is 0 or x to every digit of bfloat16,
  // and NaN goes through x itself.
  return x / (1.0f + exponential(-x));
}

inline void silu_row(const bf16 *x, int64_t d, bf16 *y) {
  int64_t i = 0;
  for (; i + kBlock <= d; i += kBlock) {
    bf16 rounded[kBlock];
    for (int64_t j = 0; j < kBlock; ++j)
      rounded[j] = to_bf16(silu(from_bf16(x[i + j])) * from_bf16(x[d + i + j]));
    std::memcpy(y + i, rounded, sizeof rounded);
  }
  for (; i < d; ++i) y[i] = to_bf16(silu(from_bf16(x[i])) * from_bf16(x[d + i]));
}

template <class F>
void rows(int64_t count, int32_t threads, F &&row) {
  const int64_t useful = count / Variant::kRowsPerThread;  // waking a thread costs more than a few rows
  const int64_t workers = threads < useful ? threads : useful;
  if (workers <= 1) {
    for (int64_t m = 0; m < count; ++m) row(m);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(workers))
  for (int64_t m = 0; m < count; ++m) row(m);
}

inline bool matrix(const rf_tensor &t) {
  return t.ndim == 2 && t.dtype == RF_BFLOAT16 && (t.stride[1] == 1 || t.shape[1] <= 1);
}
inline bool same(const rf_tensor &a, const rf_tensor &b) {
  return a.shape[0] == b.shape[0] && a.shape[1] == b.shape[1];
}
inline bf16 *at(const rf_tensor &t, int64_t m) { return static_cast<bf16 *>(t.data) + m * t.stride[0]; }

template <bool Add>
int32_t norm(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, int32_t threads) {
  constexpr int first = Add ? 2 : 1;  // x (, x_residual), weight, epsilon -> y (, residual)
  if (n_in != first + 2 || n_out != (Add ? 2 : 1)) return RF_UNSUPPORTED;
  const rf_tensor &x = in[0], &weight = in[first], &epsilon = in[first + 1];
  for (int i = 0; i < first; ++i)
    if (!matrix(in[i]) || !same(in[i], x)) return RF_UNSUPPORTED;
  for (int i = 0; i < n_out; ++i)
    if (!matrix(out[i]) || !same(out[i], x)) return RF_UNSUPPORTED;
  if (weight.ndim != 1 || weight.dtype != RF_BFLOAT16 || weight.shape[0] != x.shape[1] ||
      (weight.stride[0] != 1 && weight.shape[0] > 1) || epsilon.ndim != 0 || epsilon.dtype != RF_FLOAT64)
    return RF_UNSUPPORTED;
  double eps;
  std::memcpy(&eps, epsilon.data, sizeof eps);
  rows(x.shape[0], threads, [&](int64_t m) {
    norm_row<Add>(at(x, m), Add ? at(in[1], m) : nullptr, static_cast<const bf16 *>(weight.data),
                  static_cast<float>(eps), x.shape[1], at(out[0], m), Add ? at(out[n_out - 1], m) : nullptr);
  });
  return RF_OK;
}

int32_t gate(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, int32_t threads) {
  if (n_in != 1 || n_out != 1 || !matrix(in[0]) || !matrix(out[0])) return RF_UNSUPPORTED;
  const int64_t d = out[0].shape[1];
  if (in[0].shape[1] != 2 * d || in[0].shape[0] != out[0].shape[0]) return RF_UNSUPPORTED;
  rows(in[0].shape[0], threads, [&](int64_t m) { silu_row(at(in[0], m), d, at(out[0], m)); });
  return RF_OK;
}

bool inside(const rf_tensor &y) {
  for (const Range &r : kTable)
    if ((r.length == 0 || r.length == y.shape[1]) && y.shape[0] >= r.m_min && y.shape[0] <= r.m_max) return true;
  return y.shape[0] == 0;
}

}  // namespace

extern "C" {

int32_t rf_abi(void) { return RF_ABI_VERSION; }

int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *, int32_t threads) {
  if (n_out < 1 || threads < 1 || out[0].ndim != 2 || !inside(out[0])) return RF_UNSUPPORTED;
  if constexpr (Variant::kOperator == 0) return norm<false>(in, n_in, out, n_out, threads);
  if constexpr (Variant::kOperator == 1) return norm<true>(in, n_in, out, n_out, threads);
  return gate(in, n_in, out, n_out, threads);
}

}  // extern "C"
