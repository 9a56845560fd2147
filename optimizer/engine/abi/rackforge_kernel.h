/* The C interface of a Rackforge CPU kernel, version 1.
 *
 * A candidate is one shared object with plain C symbols, so that it depends on neither a torch ABI nor a
 * C++ standard library. The same interface serves every task: the task says which tensors it passes.
 *
 *   rf_abi            returns RF_ABI_VERSION.
 *   rf_prepare_bytes  (optional) size in bytes of the prepared state, 0 for none.
 *   rf_prepare        (optional) turns the constant inputs (weights) into the caller's `state`, which is
 *                     64-byte aligned. Everything kept from the constants lives there and nowhere else:
 *                     the caller prepares again when a constant changes. The constants may be gone
 *                     afterwards (a server frees the original weight).
 *   rf_run            one call: the non-constant inputs in the task's order, then the outputs, which the
 *                     caller allocated. Must be safe to call with any `threads` >= 1.
 *
 * All three return RF_OK, RF_UNSUPPORTED (outside what this kernel does: the caller falls back to the
 * engine's own operator, nothing was written) or any other value, which is an error.
 * Strides count elements. Scalars arrive as 0-d float64 tensors.
 */
#ifndef RACKFORGE_KERNEL_H
#define RACKFORGE_KERNEL_H
#include <stdint.h>

#define RF_ABI_VERSION 1
#define RF_MAX_DIMS 8

enum rf_status { RF_OK = 0, RF_UNSUPPORTED = 1, RF_ERROR = 2 };

enum rf_dtype {
  RF_FLOAT64 = 1,
  RF_FLOAT32 = 2,
  RF_BFLOAT16 = 3,
  RF_FLOAT16 = 4,
  RF_INT64 = 5,
  RF_INT32 = 6,
  RF_INT8 = 7,
  RF_UINT8 = 8,
  RF_BOOL = 9
};

typedef struct rf_tensor {
  void *data;
  int64_t shape[RF_MAX_DIMS];
  int64_t stride[RF_MAX_DIMS];
  int32_t ndim;
  int32_t dtype;
} rf_tensor;

#ifdef __cplusplus
extern "C" {
#endif
int32_t rf_abi(void);
int32_t rf_prepare_bytes(const rf_tensor *consts, int32_t n_consts, int64_t *bytes);
int32_t rf_prepare(const rf_tensor *consts, int32_t n_consts, void *state);
int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *state,
               int32_t threads);
#ifdef __cplusplus
}
#endif
#endif
