// A plain linear layer: float32 sums, one rounding. Keeps its weight as it is.
#include "rackforge_kernel.h"
#include <string.h>

static float widen(uint16_t v) {
  uint32_t b = (uint32_t)v << 16;
  float f;
  memcpy(&f, &b, 4);
  return f;
}

static uint16_t narrow(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  return (uint16_t)((b + 0x7FFF + ((b >> 16) & 1)) >> 16);
}

extern "C" int32_t rf_abi(void) { return RF_ABI_VERSION; }

extern "C" int32_t rf_prepare_bytes(const rf_tensor *c, int32_t n, int64_t *bytes) {
  if (n != 1 || c[0].ndim != 2 || c[0].dtype != RF_BFLOAT16) return RF_UNSUPPORTED;
  *bytes = c[0].shape[0] * c[0].shape[1] * 2;
  return RF_OK;
}

extern "C" int32_t rf_prepare(const rf_tensor *c, int32_t, void *state) {
  memcpy(state, c[0].data, c[0].shape[0] * c[0].shape[1] * 2);
  return RF_OK;
}

extern "C" int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *state,
                          int32_t threads) {
  if (n_in != 1 || n_out != 1 || threads < 1) return RF_ERROR;
  const int64_t m = in[0].shape[0], k = in[0].shape[1], n = out[0].shape[1];
  const uint16_t *x = (const uint16_t *)in[0].data, *w = (const uint16_t *)state;
  uint16_t *y = (uint16_t *)out[0].data;
#pragma omp parallel for num_threads(threads)
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t p = 0; p < k; ++p) sum += widen(x[i * k + p]) * widen(w[j * k + p]);
      y[i * n + j] = narrow(sum);
    }
  return RF_OK;
}
