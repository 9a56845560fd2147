"""Element types as profilers name them, and their size."""

from __future__ import annotations

_NAMES = {
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "c10::half": "float16",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::float8_e5m2": "float8_e5m2",
    "c10::float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::float8_e8m0fnu": "float8_e8m0fnu",
    "c10::float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::qint8": "int8",
    "c10::quint8": "uint8",
}
_BYTES = {
    "float64": 8.0, "int64": 8.0, "complex64": 8.0, "complex128": 16.0,
    "float32": 4.0, "int32": 4.0, "uint32": 4.0,
    "bfloat16": 2.0, "float16": 2.0, "int16": 2.0, "uint16": 2.0,
    "int8": 1.0, "uint8": 1.0, "bool": 1.0,
    "float8_e4m3fn": 1.0, "float8_e4m3fnuz": 1.0, "float8_e5m2": 1.0, "float8_e5m2fnuz": 1.0,
    "float8_e8m0fnu": 1.0, "float4_e2m1fn_x2": 1.0,
    "mxfp8": 1.0 + 1 / 32, "mxfp6": 0.75 + 1 / 32, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "int4": 0.5,
}  # fmt: skip  # block formats: one 8-bit scale for 32 elements (OCP MX v1.0), for 16 in NVFP4


def dtype_name(text: str) -> str:
    """`c10::BFloat16` -> `bfloat16`; what is not known stays as it is, lower case."""
    low = text.strip().lower()
    return _NAMES.get(low, low)


def dtype_bytes(name: str) -> float | None:
    """Bytes of one element, scales of block formats included; None for scalars and unknown names."""
    return _BYTES.get(dtype_name(name))


def dtype_family(name: str) -> str:
    """The kind of arithmetic peak that applies: float64, float32, bfloat16, float16, fp8, fp6, fp4, int8, int4."""
    name = dtype_name(name)
    if name.startswith("float8") or name == "mxfp8":
        return "fp8"
    if name == "mxfp6":
        return "fp6"
    if name.startswith("float4") or name in ("mxfp4", "nvfp4"):
        return "fp4"
    return {"uint8": "int8"}.get(name, name)
