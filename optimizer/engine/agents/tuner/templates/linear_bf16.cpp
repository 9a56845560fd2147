// y[M,N] = x[M,K] @ w[N,K]^T, bfloat16 in and out, fp32 accumulation. Written by the Rackforge tuner.
//
// Weights are packed into panels of kLanes columns; within a panel, each row of kLanes 32-bit lanes holds two
// consecutive k of every column, which is what bf16 dot-product instructions (and AMX tiles) read, and what
// shift-and-mask turns into two fp32 vectors on older instruction sets. A thread owns a range of panel groups;
// a group's panels are cut along K into `streams` that are read side by side, because one core gets more out
// of memory from several open pages than from one.
#include "rackforge_kernel.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

typedef uint16_t bf16;

inline bf16 to_bf16(float value) {  // round to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline uint32_t load_pair(const bf16 *x) {
  uint32_t pair;
  std::memcpy(&pair, x, 4);
  return pair;
}

// ---- one vector of kLanes fp32 accumulators, per instruction set ---------------------------------------
#if defined(__AVX512F__)
constexpr int kLanes = 16;
typedef __m512 Acc;
typedef __m512i Weights;
inline Acc zero() { return _mm512_setzero_ps(); }
inline Acc add(Acc a, Acc b) { return _mm512_add_ps(a, b); }
inline Weights load(const char *p) { return _mm512_load_si512(p); }
#if defined(__AVX512BF16__)
typedef __m512i Pair;
inline Pair broadcast(const bf16 *x) { return _mm512_set1_epi32(static_cast<int>(load_pair(x))); }
inline Acc dot(Acc a, Weights w, Pair x) {
  return _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
inline void store(bf16 *y, Acc a) {
  const __m256bh rounded = _mm512_cvtneps_pbh(a);
  std::memcpy(y, &rounded, 32);
}
#else
struct Pair { __m512 even, odd; };
inline __m512 low(__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
inline __m512 high(__m512i v) {
  return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline Pair broadcast(const bf16 *x) {
  const __m512i v = _mm512_set1_epi32(static_cast<int>(load_pair(x)));
  return {low(v), high(v)};
}
inline Acc dot(Acc a, Weights w, Pair x) {
  return _mm512_fmadd_ps(high(w), x.odd, _mm512_fmadd_ps(low(w), x.even, a));
}
inline void store(bf16 *y, Acc a) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, a);
  for (int i = 0; i < 16; ++i) y[i] = to_bf16(lanes[i]);
}
#endif
#elif defined(__AVX2__)
constexpr int kLanes = 8;
typedef __m256 Acc;
typedef __m256i Weights;
struct Pair { __m256 even, odd; };
inline Acc zero() { return _mm256_setzero_ps(); }
inline Acc add(Acc a, Acc b) { return _mm256_add_ps(a, b); }
inline Weights load(const char *p) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(p)); }
inline __m256 low(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
inline __m256 high(__m256i v) {
  return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline Pair broadcast(const bf16 *x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(load_pair(x)));
  return {low(v), high(v)};
}
inline Acc dot(Acc a, Weights w, Pair x) {
  return _mm256_fmadd_ps(high(w), x.odd, _mm256_fmadd_ps(low(w), x.even, a));
}
inline void store(bf16 *y, Acc a) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, a);
  for (int i = 0; i < 8; ++i) y[i] = to_bf16(lanes[i]);
}
#elif defined(__ARM_NEON)
constexpr int kLanes = 4;
typedef float32x4_t Acc;
typedef uint32x4_t Weights;
inline Acc zero() { return vdupq_n_f32(0.0f); }
inline Acc add(Acc a, Acc b) { return vaddq_f32(a, b); }
inline Weights load(const char *p) { return vld1q_u32(reinterpret_cast<const uint32_t *>(p)); }
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
typedef bfloat16x8_t Pair;
inline Pair broadcast(const bf16 *x) { return vreinterpretq_bf16_u32(vdupq_n_u32(load_pair(x))); }
inline Acc dot(Acc a, Weights w, Pair x) { return vbfdotq_f32(a, vreinterpretq_bf16_u32(w), x); }
#else
struct Pair { float32x4_t even, odd; };
inline float32x4_t low(uint32x4_t v) { return vreinterpretq_f32_u32(vshlq_n_u32(v, 16)); }
inline float32x4_t high(uint32x4_t v) {
  return vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u)));
}
inline Pair broadcast(const bf16 *x) {
  const uint32x4_t v = vdupq_n_u32(load_pair(x));
  return {low(v), high(v)};
}
inline Acc dot(Acc a, Weights w, Pair x) {
  return vfmaq_f32(vfmaq_f32(a, low(w), x.even), high(w), x.odd);
}
#endif
inline void store(bf16 *y, Acc a) {
  float lanes[4];
  vst1q_f32(lanes, a);
  for (int i = 0; i < 4; ++i) y[i] = to_bf16(lanes[i]);
}
#else
constexpr int kLanes = 8;
struct Acc { float v[8]; };
struct Weights { uint32_t v[8]; };
struct Pair { float even, odd; };
inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline Acc zero() { return Acc{{0, 0, 0, 0, 0, 0, 0, 0}}; }
inline Acc add(Acc a, Acc b) {
  for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
  return a;
}
inline Weights load(const char *p) {
  Weights w;
  std::memcpy(&w, p, sizeof w);
  return w;
}
inline Pair broadcast(const bf16 *x) {
  return {as_float(static_cast<uint32_t>(x[0]) << 16), as_float(static_cast<uint32_t>(x[1]) << 16)};
}
inline Acc dot(Acc a, Weights w, Pair x) {
  // lanes were stored as (even k) | (odd k) << 16 in native order by pack()
  for (int i = 0; i < 8; ++i)
    a.v[i] += as_float(w.v[i] << 16) * x.even + as_float(w.v[i] & 0xffff0000u) * x.odd;
  return a;
}
inline void store(bf16 *y, Acc a) {
  for (int i = 0; i < 8; ++i) y[i] = to_bf16(a.v[i]);
}
#endif

constexpr int64_t kRow = 4 * kLanes;   // bytes of one row of a panel: two k of kLanes columns
constexpr int64_t kPage = 4096;

template <int Hint>
inline void prefetch(const char *p) {
  if constexpr (Hint == 1) __builtin_prefetch(p, 0, 3);  // into L1
  if constexpr (Hint == 2) __builtin_prefetch(p, 0, 2);  // into L2
  if constexpr (Hint == 3) __builtin_prefetch(p, 0, 0);  // non-temporal
}

// ---- packing ------------------------------------------------------------------------------------------
struct Header {      // at the start of the state, 64 bytes
  int64_t n, k;
  int64_t offset;    // bytes from the state to the first panel
  int64_t entry;     // index into the table of shapes
  int64_t pad[4];
};

// Group: panels that are worked on together. Interleaved: their rows alternate, one stream for all of them;
// else each panel is contiguous. Skew: extra bytes after each panel, so that equal positions of neighbouring
// panels do not fall into the same cache sets.
inline int64_t panel_stride(int64_t k, int64_t skew) { return k / 2 * kRow + skew; }

inline void pack(const bf16 *w, int64_t ldw, int64_t n, int64_t k, int group, bool interleaved, int64_t skew,
                 char *to) {
  const int64_t stride = panel_stride(k, skew);
  for (int64_t panel = 0; panel < n / kLanes; ++panel) {
    const int64_t lead = panel / group * group;
    for (int64_t kk = 0; kk < k / 2; ++kk) {
      char *row = interleaved ? to + lead * stride + (kk * group + (panel - lead)) * kRow
                              : to + panel * stride + kk * kRow;
      for (int lane = 0; lane < kLanes; ++lane) {
        const bf16 *from = w + (panel * kLanes + lane) * ldw + 2 * kk;
        const uint32_t pair = static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[1]) << 16;
        std::memcpy(row + 4 * lane, &pair, 4);
      }
    }
  }
}

struct Call {
  const bf16 *x;
  bf16 *y;
  int64_t ldx, ldy;
  int64_t k;
  const char *weights;
};

// ---- vector engine --------------------------------------------------------------------------------------
// One group of panels (P::kGroup) times Rows rows of x.
template <class P, int Rows>
__attribute__((always_inline)) inline void vector_block(const Call &c, const char *base, int64_t next, bf16 *y,
                                                        const bf16 *x) {
  constexpr int G = P::kGroup, S = P::kStreams, U = P::kUnroll, A = P::kChains;
  constexpr int64_t step = P::kInterleaved ? G * kRow : kRow;  // bytes from one k pair to the next
  const int64_t stride = P::kInterleaved ? kRow : panel_stride(c.k, P::kSkew);  // bytes from panel to panel
  const int64_t pairs = c.k / 2;
  const int64_t seg = pairs / (S * U) * U;  // k pairs of one stream
  Acc acc[A][Rows][G];
  for (int a = 0; a < A; ++a)
    for (int m = 0; m < Rows; ++m)
      for (int g = 0; g < G; ++g) acc[a][m][g] = zero();
  for (int64_t i = 0; i < seg; i += U) {
    // What is fetched ahead lies in this stream, or, past its end, in the same stream of the next group.
    const int64_t ahead = i + P::kAhead / step;
    const char *fetch = base + (ahead < seg ? ahead * step : next + (ahead - seg) * step);
#pragma GCC unroll 32
    for (int s = 0; s < S; ++s) {
      const char *from = base + (s * seg + i) * step;
      const bf16 *xs = x + 2 * (s * seg + i);
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u) {
        if constexpr (P::kHint != 0 && P::kAhead != 0) {
#pragma GCC unroll 8
          for (int g = 0; g < G; ++g)
            if ((u * G + g) % P::kEvery == 0)
              prefetch<P::kHint>(fetch + (s * seg + u) * step + g * stride);
        }
        Weights w[G];
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) w[g] = load(from + u * step + g * stride);
#pragma GCC unroll 16
        for (int m = 0; m < Rows; ++m) {
          const Pair p = broadcast(xs + m * c.ldx + 2 * u);
#pragma GCC unroll 8
          for (int g = 0; g < G; ++g)
            acc[(s * U + u) % A][m][g] = dot(acc[(s * U + u) % A][m][g], w[g], p);
        }
      }
    }
  }
  for (int64_t i = seg * S; i < pairs; ++i)
    for (int m = 0; m < Rows; ++m) {
      const Pair p = broadcast(x + m * c.ldx + 2 * i);
      for (int g = 0; g < G; ++g) acc[0][m][g] = dot(acc[0][m][g], load(base + i * step + g * stride), p);
    }
#pragma GCC unroll 16
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      Acc sum = acc[0][m][g];
      for (int a = 1; a < A; ++a) sum = add(sum, acc[a][m][g]);
      store(y + m * c.ldy + g * kLanes, sum);
    }
}

// The panel groups of one thread: `count` of them from `first`, `jump` apart.
struct Part {
  int64_t first, count, jump;
};

template <class P, int Rows>
inline void vector_group(const Call &c, int64_t rows, int64_t at, int64_t next) {
  // Row blocks are innermost: a group is read from memory once and from the cache after that.
  const char *base = c.weights + at * P::kGroup * panel_stride(c.k, P::kSkew);
  bf16 *y = c.y + at * P::kGroup * kLanes;
  int64_t m = 0;
  for (; m + Rows <= rows; m += Rows)
    vector_block<P, Rows>(c, base, next, y + m * c.ldy, c.x + m * c.ldx);
  if constexpr (Rows > 1 && P::kTails) {
    if (m < rows) {
      Call rest = c;
      rest.x += m * c.ldx;
      rest.y += m * c.ldy;
      vector_group<P, Rows - 1>(rest, rows - m, at, next);
    }
  }
}

template <class P, int Rows>
void vector_part(const Call &c, int64_t rows, Part part) {
  const int64_t next = part.jump * P::kGroup * panel_stride(c.k, P::kSkew);
  for (int64_t i = 0; i < part.count; ++i)
    vector_group<P, Rows>(c, rows, part.first + i * part.jump, next);
}

template <class P, int Rows = P::kRows>
void vector_run(const Call &c, int64_t rows, Part part) {
  if constexpr (Rows > 1 && P::kTails) {
    if (rows < Rows) return vector_run<P, Rows - 1>(c, rows, part);
  }
  vector_part<P, Rows>(c, rows, part);
}

// ---- matrix engine (AMX): 16 rows of x at most ----------------------------------------------------------
#if defined(__AMX_BF16__)
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

// Tile numbers are part of the instruction, hence the ladders.
template <int T> inline void tile_zero() {
  if constexpr (T == 0) _tile_zero(0);
  if constexpr (T == 1) _tile_zero(1);
  if constexpr (T == 2) _tile_zero(2);
  if constexpr (T == 3) _tile_zero(3);
}
template <int T> inline void tile_load_x(const void *p, int64_t stride) {
  if constexpr (T == 0) _tile_loadd(4, p, stride);
  if constexpr (T == 1) _tile_loadd(5, p, stride);
}
template <int T, bool Stream> inline void tile_load_w(const void *p, int64_t stride) {
  if constexpr (T == 0 && !Stream) _tile_loadd(6, p, stride);
  if constexpr (T == 1 && !Stream) _tile_loadd(7, p, stride);
  if constexpr (T == 0 && Stream) _tile_stream_loadd(6, p, stride);
  if constexpr (T == 1 && Stream) _tile_stream_loadd(7, p, stride);
}
template <int C, int X, int W> inline void tile_dot() {
  if constexpr (C == 0 && X == 0 && W == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (C == 0 && X == 0 && W == 1) _tile_dpbf16ps(0, 4, 7);
  if constexpr (C == 0 && X == 1 && W == 0) _tile_dpbf16ps(0, 5, 6);
  if constexpr (C == 0 && X == 1 && W == 1) _tile_dpbf16ps(0, 5, 7);
  if constexpr (C == 1 && X == 0 && W == 0) _tile_dpbf16ps(1, 4, 6);
  if constexpr (C == 1 && X == 0 && W == 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (C == 1 && X == 1 && W == 0) _tile_dpbf16ps(1, 5, 6);
  if constexpr (C == 1 && X == 1 && W == 1) _tile_dpbf16ps(1, 5, 7);
  if constexpr (C == 2 && X == 0 && W == 0) _tile_dpbf16ps(2, 4, 6);
  if constexpr (C == 2 && X == 0 && W == 1) _tile_dpbf16ps(2, 4, 7);
  if constexpr (C == 2 && X == 1 && W == 0) _tile_dpbf16ps(2, 5, 6);
  if constexpr (C == 2 && X == 1 && W == 1) _tile_dpbf16ps(2, 5, 7);
  if constexpr (C == 3 && X == 0 && W == 0) _tile_dpbf16ps(3, 4, 6);
  if constexpr (C == 3 && X == 0 && W == 1) _tile_dpbf16ps(3, 4, 7);
  if constexpr (C == 3 && X == 1 && W == 0) _tile_dpbf16ps(3, 5, 6);
  if constexpr (C == 3 && X == 1 && W == 1) _tile_dpbf16ps(3, 5, 7);
}
template <int T> inline void tile_store(float *p) {
  if constexpr (T == 0) _tile_stored(0, p, 64);
  if constexpr (T == 1) _tile_stored(1, p, 64);
  if constexpr (T == 2) _tile_stored(2, p, 64);
  if constexpr (T == 3) _tile_stored(3, p, 64);
}

template <int I, int End, class F> inline void each(F &&f) {
  if constexpr (I < End) {
    f(std::integral_constant<int, I>());
    each<I + 1, End>(f);
  }
}

template <class P>
void matrix_run(const Call &c, int64_t rows, Part part) {
  constexpr int G = P::kGroup, S = P::kStreams;
  constexpr int A = P::kChains;                 // independent sums of one panel, G * A <= 4
  constexpr int64_t kBlock = 16;                // k pairs of one tile
  constexpr int64_t step = P::kInterleaved ? G * kRow : kRow;
  const int64_t stride = P::kInterleaved ? kRow : panel_stride(c.k, P::kSkew);
  const int64_t group_bytes = G * panel_stride(c.k, P::kSkew);
  const int64_t blocks = c.k / 2 / kBlock;
  const int64_t seg = blocks / S;
  TileConfig config;
  std::memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.bytes[t] = 64;
    config.rows[t] = t < 6 ? static_cast<uint8_t>(rows) : 16;
  }
  _tile_loadconfig(&config);
  alignas(64) float sums[A * G][16 * 16];
  const int64_t ldx = c.ldx * 2;
  for (int64_t i = 0; i < part.count; ++i) {
    const int64_t at = part.first + i * part.jump;
    const char *base = c.weights + at * group_bytes;
    const int64_t next = part.jump * group_bytes;
    each<0, A * G>([](auto t) { tile_zero<t>(); });
    for (int64_t b = 0; b < seg; ++b) {
      const int64_t ahead = b * kBlock + P::kAhead / step;
      const int64_t length = seg * kBlock;
      const char *fetch = base + (ahead < length ? ahead * step : next + (ahead - length) * step);
      each<0, S>([&](auto s) {
        const int64_t block = s * seg + b;
        const char *from = base + block * kBlock * step;
        tile_load_x<s % 2>(c.x + block * 2 * kBlock, ldx);
        each<0, G>([&](auto g) {
          if constexpr (P::kHint != 0 && P::kAhead != 0) {
#pragma GCC unroll 16
            for (int u = 0; u < kBlock; ++u)
              if ((u * G + g) % P::kEvery == 0)
                prefetch<P::kHint>(fetch + (s * length + u) * step + g * stride);
          }
          tile_load_w<(s * G + g) % 2, P::kStreamLoad>(from + g * stride, step);
          tile_dot<(s % A) * G + g, s % 2, (s * G + g) % 2>();
        });
      });
    }
    for (int64_t b = seg * S; b < blocks; ++b) {
      tile_load_x<0>(c.x + b * 2 * kBlock, ldx);
      each<0, G>([&](auto g) {
        tile_load_w<g % 2, P::kStreamLoad>(base + b * kBlock * step + g * stride, step);
        tile_dot<g, 0, g % 2>();
      });
    }
    each<0, A * G>([&](auto t) { tile_store<t>(sums[t]); });
    bf16 *y = c.y + at * G * kLanes;
    for (int64_t m = 0; m < rows; ++m)
      for (int g = 0; g < G; ++g) {
        Acc sum = _mm512_load_ps(sums[g] + 16 * m);
        for (int a = 1; a < A; ++a) sum = add(sum, _mm512_load_ps(sums[a * G + g] + 16 * m));
        store(y + m * c.ldy + g * kLanes, sum);
      }
  }
  _tile_release();
}

// Linux hands out the tile registers on request only (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
inline bool tiles_allowed() {
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

template <class P>
void run_part(const Call &c, int64_t rows, Part part) {
#if defined(__AMX_BF16__)
  if constexpr (P::kMatrix) return matrix_run<P>(c, rows, part);
#endif
  if constexpr (!P::kMatrix) vector_run<P>(c, rows, part);
}

template <class P>
int32_t run(const Call &c, int64_t rows, int64_t n, int32_t threads) {
  const int64_t groups = n / (kLanes * P::kGroup);
  const int64_t workers = threads < groups ? threads : groups;
  auto part = [&](int64_t i) {
    if (P::kCyclic) return Part{i, (groups - i + workers - 1) / workers, workers};
    const int64_t from = groups * i / workers;
    return Part{from, groups * (i + 1) / workers - from, 1};
  };
  if (workers <= 1) {
    run_part<P>(c, rows, Part{0, groups, 1});
    return RF_OK;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(workers))
  for (int64_t i = 0; i < workers; ++i) run_part<P>(c, rows, part(i));
  return RF_OK;
}

// ---- what the search found ------------------------------------------------------------------------------
typedef int32_t (*Run)(const Call &, int64_t rows, int64_t n, int32_t threads);
struct Range {
  int64_t m_min, m_max;
  Run run;
};
struct Entry {
  int64_t n, k;  // 0: any that the blocking divides
  int group;
  bool interleaved;
  int64_t skew;
  int ranges;
  Range range[8];
};

//@VARIANTS@

constexpr int kEntries = sizeof kTable / sizeof kTable[0];

inline bool plain_matrix(const rf_tensor &t) {
  return t.ndim == 2 && t.dtype == RF_BFLOAT16 && (t.stride[1] == 1 || t.shape[1] == 1);
}

inline int find(int64_t n, int64_t k) {
  for (int i = 0; i < kEntries; ++i) {
    const Entry &e = kTable[i];
    if (e.n == 0 ? n % (kLanes * e.group) == 0 && k % 32 == 0 && n > 0 && k > 0 : e.n == n && e.k == k) return i;
  }
  return -1;
}

inline int64_t state_bytes(int64_t n, int64_t k, const Entry &e) {
  return static_cast<int64_t>(sizeof(Header)) + kPage + n / kLanes * panel_stride(k, e.skew);
}

}  // namespace

extern "C" {

int32_t rf_abi(void) { return RF_ABI_VERSION; }

int32_t rf_prepare_bytes(const rf_tensor *consts, int32_t n_consts, int64_t *bytes) {
  if (n_consts != 1 || !plain_matrix(consts[0])) return RF_UNSUPPORTED;
  const int entry = find(consts[0].shape[0], consts[0].shape[1]);
  if (entry < 0) return RF_UNSUPPORTED;
#if defined(__AMX_BF16__)
  if (!tiles_allowed()) return RF_UNSUPPORTED;
#endif
  *bytes = state_bytes(consts[0].shape[0], consts[0].shape[1], kTable[entry]);
  return RF_OK;
}

int32_t rf_prepare(const rf_tensor *consts, int32_t n_consts, void *state) {
  if (n_consts != 1 || !plain_matrix(consts[0])) return RF_UNSUPPORTED;
  const int64_t n = consts[0].shape[0], k = consts[0].shape[1];
  const int entry = find(n, k);
  if (entry < 0) return RF_UNSUPPORTED;
  char *bytes = static_cast<char *>(state);
  const uintptr_t address = reinterpret_cast<uintptr_t>(state) + sizeof(Header);
  Header header = {};
  header.n = n;
  header.k = k;
  header.entry = entry;
  header.offset = static_cast<int64_t>(sizeof(Header) + (kPage - address % kPage) % kPage);
  std::memcpy(bytes, &header, sizeof header);
  const Entry &e = kTable[entry];
  pack(static_cast<const bf16 *>(consts[0].data), consts[0].stride[0], n, k, e.group, e.interleaved, e.skew,
       bytes + header.offset);
  return RF_OK;
}

int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *state,
               int32_t threads) {
  if (n_in != 1 || n_out != 1 || state == nullptr || threads < 1) return RF_UNSUPPORTED;
  const rf_tensor &x = in[0];
  rf_tensor &y = out[0];
  if (!plain_matrix(x) || !plain_matrix(y)) return RF_UNSUPPORTED;
  Header header;
  std::memcpy(&header, state, sizeof header);
  const int64_t rows = x.shape[0];
  if (x.shape[1] != header.k || y.shape[1] != header.n || y.shape[0] != rows) return RF_UNSUPPORTED;
  if (rows == 0) return RF_OK;
  const Entry &e = kTable[header.entry];
  const Call call = {static_cast<const bf16 *>(x.data), static_cast<bf16 *>(y.data), x.stride[0], y.stride[0],
                     header.k, static_cast<const char *>(state) + header.offset};
  for (int i = 0; i < e.ranges; ++i)
    if (rows >= e.range[i].m_min && rows <= e.range[i].m_max)
      return e.range[i].run(call, rows, header.n, threads);
  return RF_UNSUPPORTED;
}

}  // extern "C"
