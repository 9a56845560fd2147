"""What kind of work an operator or a device kernel is, from its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache


def _names(text: str) -> str:
    """Operator names without their namespace, exactly; a trailing underscore (in place) is allowed."""
    return "::(" + "|".join(text.split()) + ")_?$"


# In order: the first category with a match decides.
_OPERATORS: Mapping[str, Sequence[str]] = {
    "host": (
        "^TorchDynamo",
        "^Pregraph bytecode",
        "^AOTDispatcher",
        "^profiler::",
        "^PyTorch Profiler",
        "^ProfilerStep",
        r"^\(host\)$",
        _names("item _local_scalar_dense is_nonzero equal"),
    ),
    "compiled": ("^## Call CompiledFxGraph", "^Torch-Compiled Region", "^triton_", "^cpp_fused", "^CompiledFunction"),
    "collective": (
        "^c10d::",
        "^nccl:",
        "^gloo:",
        "record_param_comms",
        "all_?reduce",
        "all_?gather",
        "reduce_?scatter",
        "all_?to_?all",
        "_C_custom_ar",
        "quick_?reduce",
    ),
    "grouped GEMM": (
        "moe_forward",
        "fused_moe",
        "moe_gemm",
        "grouped_(mm|gemm)",
        "fused_experts",
        "_moe_C",
        "matmul_ogs",
        r"\bMoE",
    ),
    "KV cache": (
        "reshape_and_cache",
        "kv_cache_update",
        "concat_and_cache",
        "swap_blocks",
        "copy_blocks",
        "slot_mapping",
        "set_kv_buffer",
    ),
    "attention": (
        "attention",
        "attn",
        "flash_fwd",
        "mha_",
        "fmha",
        "paged",
        "sdpa",
        "mla_decode",
        "scheduler_metadata",
    ),
    "normalization": ("rms_?norm", "layer_?norm", "group_?norm", "batch_?norm", "instance_norm"),
    "rotary": ("rotary", "rope"),
    "quantization": ("quant(?!ile)", "scaled_fp8", "_to_fp8", "cast_to_fp8"),
    "GEMM": (
        _names("mm addmm bmm baddbmm matmul linear addmv mv addbmm dot _int_mm onednn_mm weight_packed_linear"),
        "gemm",
        "_mm$",
        "scaled_mm",
        "cutlass_.*mm",
        "marlin",
        "machete",
        "wvSplitK",
        "LLMM1",
        "mkldnn_linear",
        "int4_linear",
        "dequantize_.*linear",
    ),
    "convolution": (r"conv(olution|\d?d\b|_transpose|_depthwise)", "causal_conv", "miopen_conv", "cudnn_conv"),
    "activation": (r"(silu|gelu|relu|swiglu|sigmoid|softplus|tanh|mish|hardswish)(_and_mul\w*|_)?(\b|_)",),
    "sampling": (
        "argmax",
        "argsort",
        "topk",
        "TopK",
        "sort",
        "multinomial",
        "greedy",
        "softmax",
        "cumsum",
        "random_sample",
        "exponential_",
        "penalt",
    ),
    "embedding": ("embedding",),
    "reduction": (
        _names("sum mean max min amax amin prod norm linalg_vector_norm var std var_mean all any logsumexp nansum"),
    ),
    "view": (
        _names(
            "view reshape as_strided slice select narrow split split_with_sizes chunk unbind expand "
            "permute transpose t squeeze unsqueeze detach alias flatten unflatten _unsafe_view "
            "_reshape_alias lift_fresh resolve_conj resolve_neg result_type empty empty_strided "
            "empty_like new_empty numpy_T view_as movedim set unfold diagonal _conj view_as_real "
            "view_as_complex"
        ),
    ),
    "memory": (
        _names(
            "copy _to_copy to clone contiguous cat stack _copy_from fill zero zeros ones full zeros_like "
            "ones_like full_like new_zeros new_ones new_full index_select index index_put _index_put_impl "
            "gather scatter index_copy index_add index_fill masked_fill masked_select pin_memory repeat "
            "repeat_interleave roll flip pad constant_pad_nd arange take nonzero where tril triu one_hot"
        ),
    ),
    "elementwise": (
        _names(
            r"add sub mul div pow rsub neg abs exp log sqrt rsqrt reciprocal cos sin erf floor ceil round "
            r"clamp clamp_min clamp_max minimum maximum eq ne lt le gt ge logical_\w+ bitwise_\w+ isnan "
            r"isinf isfinite remainder fmod floor_divide true_divide addcmul addcdiv lerp sign square "
            r"threshold __\w+_ dropout native_dropout bernoulli uniform normal cast"
        ),
    ),
}

_KERNELS: Mapping[str, Sequence[str]] = {
    "collective": (
        "nccl",
        "rccl",
        "msccl",
        "all_?reduce",
        "all_?gather",
        "reduce_?scatter",
        "all_?to_?all",
        "cross_device_reduce",
        "oneshot",
        "twoshot",
        "multimem",
        "deep_?ep",
        "quickreduce",
    ),
    "grouped GEMM": (
        "moe_gemm",
        "fused_moe",
        "group(ed)?_?gemm",
        "matmul_ogs",
        "moe_mxgemm",
        "_moe_",
        "fmoe",
        "topkGating",
        "moe::",
    ),
    "KV cache": ("reshape_and_cache", "concat_and_cache", "set_kv_buffer", "copy_blocks", "slot_mapping"),
    "memory": (
        "^Memcpy",
        "^Memset",
        "copyBuffer",
        "fillBuffer",
        "CatArray",
        "copy_kernel",
        "direct_copy",
        "indexSelect",
        "index_elementwise",
        "gather",
        "scatter(?!_gemm)",
        "FillFunctor",
        "memcpy",
        "memset",
    ),
    "attention": (
        "attn",
        "attention",
        "flash",
        "fmha",
        "mha_",
        "paged",
        "mla_",
        "splitkv",
        "sdpa",
        "fwd_kernel_stage",
        "aiter::.*pa_",
        "^_fwd_kernel",
        "_fwd_grouped_kernel",
        "^bwd_kernel_(fuse|dq|dk)",
    ),
    "normalization": ("norm(?!al)", "cuCompute(Part)?GradGammaBeta", "cuWelford"),
    "rotary": ("rotary", "rope"),
    "quantization": ("quant(?!ile)", "scaled_fp8", "fp8_cast", "per_token_group", "mxfp"),
    "convolution": ("conv(?!ert)", "winograd", "implicit_gemm", "Im2[Cc]ol", "igemm"),
    "GEMM": (
        "Cijk_",
        "gemm",
        "cutlass",
        "nvjet",
        "xmma",
        "cublas",
        "hipblas",
        "wmma",
        "mfma",
        "matmul",
        "gemv",
        "wvSplitK",
        "LLGemm",
        "splitKreduce",
        "SplitK",
        "tensile",
        "_mm_",
        "scaled_mm",
        "marlin",
        "machete",
        "dot_kernel",
        "ampere_",
        r"^sm\d\d_",
    ),
    "activation": ("silu", "gelu", "relu", "swiglu", "act_and_mul", "sigmoid", "tanh"),
    "sampling": (
        "[aA]rg_?[mM]ax",
        "[tT]op_?[kK]",
        "sort",
        "radix",
        "sample",
        "[sS]oft_?[mM]ax",
        "cumsum",
        "lookback_scan",
        "multinomial",
        "penalt",
    ),
    "embedding": ("embedding", "vocab"),
    "reduction": ("reduce", "Reduce", "triton_red", "MeanOps", "sum_functor", "sum_and_scatter", "segment_offset"),
    "elementwise": (
        "elementwise",
        "triton_poi",
        "BinaryFunctor",
        "UnaryFunctor",
        "pointwise",
        "vectorized",
        "multi_tensor_apply",
        "dropout",
        "foreach",
    ),
    "compiled": ("^triton_",),
}

CATEGORIES = tuple(dict.fromkeys((*_OPERATORS, *_KERNELS, "other")))


def _compiled(rules: Mapping[str, Sequence[str]]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((category, re.compile("|".join(parts))) for category, parts in rules.items())


@lru_cache(maxsize=65536)
def operator_category(name: str) -> str:
    """Category of an operator (`aten::mm`, `_C::onednn_mm`, ...)."""
    return next((c for c, rule in _compiled_operators() if rule.search(name)), "other")


@lru_cache(maxsize=65536)
def kernel_category(name: str) -> str:
    """Category of a device kernel by its own name, for traces and kernels without an operator."""
    return next((c for c, rule in _compiled_kernels() if rule.search(name)), "other")


@lru_cache(maxsize=1)
def _compiled_operators() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return _compiled(_OPERATORS)


@lru_cache(maxsize=1)
def _compiled_kernels() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return _compiled(_KERNELS)
