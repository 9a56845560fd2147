"""The static rules for Python and Triton candidates. Standard library only and run as a script in a killable child:
a parser is no place to be brave with a stranger's text.

    python -I -S rules_python.py NAME triton|python ALLOWED,... OWN,... < source  ->  JSON list of findings
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from typing import Any

MODULES = frozenset(("__future__", "collections", "dataclasses", "enum", "functools", "math", "torch", "typing"))
TRITON_MODULES = frozenset(("triton",))
# Parts of allowed packages that are no place for a kernel.
BANNED_PARTS = frozenset((
    "_C", "_dynamo", "_inductor", "_prims", "_subclasses", "autograd", "backends", "classes", "compile", "compiler",
    "cpp_extension", "cuda", "distributed", "fx", "hub", "jit", "library", "load", "multiprocessing", "ops",
    "overrides", "package", "profiler", "runtime", "save", "testing", "torch_version", "utils", "_utils", "_tensor",
    "from_file", "UntypedStorage", "TypedStorage", "set_num_threads", "set_default_dtype", "set_flush_denormal",
))  # fmt: skip
TRITON_BANNED = frozenset(("_C", "backends", "compile", "compiler", "knobs", "runtime", "testing", "tools"))
# Products, norms and activations of the framework: not a rewrite of them.
VENDOR = frozenset((
    "mm", "addmm", "addmm_", "matmul", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "inner", "einsum",
    "tensordot", "chain_matmul", "multi_dot", "linear", "bilinear", "softmax", "log_softmax", "softmin", "layer_norm",
    "rms_norm", "RMSNorm", "group_norm", "LayerNorm", "Linear", "Softmax", "SiLU", "silu", "gelu", "glu", "mish",
    "scaled_dot_product_attention", "conv1d", "conv2d", "conv3d", "cdist", "logsumexp", "__matmul__", "__rmatmul__",
    "_addmm_activation", "_int_mm", "_scaled_mm", "mkldnn", "native_layer_norm", "to_mkldnn",
))  # fmt: skip
BANNED_NAMES = frozenset((
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
    "exit", "globals", "help", "input", "locals", "memoryview", "open", "quit", "setattr", "vars",
))  # fmt: skip
BANNED_ATTRIBUTES = frozenset((
    "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_frame", "tb_frame", "tb_next",
    "ag_frame", "from_blob", "from_dlpack", "from_numpy", "numpy", "share_memory_", "tofile", "untyped_storage",
    "storage", "set_", "resize_", "as_subclass", "_make_subclass", "register_hook", "load_library",
))  # fmt: skip
DUNDERS = frozenset(
    ("__init__", "__name__", "__doc__", "__post_init__", "__call__", "__all__", "__slots__", "__len__")
)
CACHES = frozenset(("data_ptr", "lru_cache", "cache", "cached_property", "id", "hash", "_version"))
MAX_LITERALS = 2048


def scan(
    name: str, source: str, *, triton: bool, allowed: frozenset[str], own: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """Findings in one file. A file that does not parse is one. own: the candidate's other modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [_finding(name, getattr(error, "lineno", 0) or 0, "does not parse", str(error), hard=True)]
    imported = _imports(tree)
    language = {a for a, path in imported.items() if path.startswith("triton")} if triton else set()
    found = [
        _finding(name, 0, "shadows a module", module, hard=True)
        for module in own
        if module in sys.stdlib_module_names or module in ("torch", "triton", "numpy", "runner")
    ]
    shared = _module_names(tree)
    for node in ast.walk(tree):
        for rule, text, hard in _look(node, triton, allowed, imported, language, own, shared):
            found.append(_finding(name, getattr(node, "lineno", 0), rule, text, hard=hard))
    return sorted(found, key=lambda f: (not f["hard"], f["line"]))


def _finding(name: str, line: int, rule: str, text: str, *, hard: bool) -> dict[str, Any]:
    return {"file": name, "line": line, "rule": rule, "text": text[:80], "hard": hard}


def _imports(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it stands for, of every import in the file."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                found[a.asname or a.name.partition(".")[0]] = a.name if a.asname else a.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for a in node.names:
                found[a.asname or a.name] = f"{node.module}.{a.name}"
    return found


def _module_names(tree: ast.Module) -> set[str]:
    """Names that live from call to call: assigned at module level, or declared global or nonlocal; functions too."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    for inner in ast.walk(tree):
        if isinstance(inner, (ast.Global, ast.Nonlocal)):
            found |= set(inner.names)
    local = {
        n.id
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef) and not any(isinstance(g, ast.Global) for g in ast.walk(f))
        for n in ast.walk(f)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return found - local


Look = Iterator[tuple[str, str, bool]]


def _look(
    node: ast.AST, triton: bool, allowed: frozenset[str], imported: dict[str, str], language: set[str],
    own: frozenset[str], shared: set[str],
) -> Look:  # fmt: skip
    vendor_ok = "torch" in allowed
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _look_import(node, triton, vendor_ok, own)
    elif isinstance(node, ast.Name):
        if node.id in BANNED_NAMES:
            yield "builtin that no kernel needs", node.id, True
        elif node.id in CACHES:
            yield "may cache", node.id, False
    elif isinstance(node, ast.Attribute):
        yield from _look_attribute(node, vendor_ok, language)
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            root = _root(node)
            if root in imported:
                yield "rebinds a module's attribute", f"{root}.{node.attr}", True
            elif root != "self":
                yield "state on an object", f"{root}.{node.attr}", False
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult) and not vendor_ok:
        yield "vendor call", "the @ operator", True
    elif isinstance(node, ast.AugAssign) and _root(node.target) in shared:
        yield "counts its calls", ast.unparse(node), True
    elif isinstance(node, ast.Call):
        yield from _look_call(node)
    elif isinstance(node, ast.ClassDef):
        for base in node.bases:
            if "Tensor" in ast.unparse(base) or "Function" in ast.unparse(base):
                yield "tensor subclass", node.name, True
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name.startswith("__") and node.name not in DUNDERS:
            yield "overloads an operator", node.name, True
        if any(isinstance(d, (ast.List, ast.Dict, ast.Set, ast.Call)) for d in node.args.defaults):
            yield "mutable default", node.name, False
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield "state between calls", ", ".join(node.names), False
    elif isinstance(node, ast.ExceptHandler):
        yield "handles an exception", ast.unparse(node.type) if node.type else "all", False
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) > MAX_LITERALS:
        yield "literal outputs", f"{len(node.elts)} literals", True
    elif isinstance(node, ast.Constant) and len(_text(node)) > 4 * MAX_LITERALS:
        yield "literal outputs", f"a literal of {len(_text(node))} characters", True


def _look_import(node: ast.Import | ast.ImportFrom, triton: bool, vendor_ok: bool, own: frozenset[str]) -> Look:
    if isinstance(node, ast.ImportFrom):
        if node.level:
            yield "import outside of the list", "a relative import", True
            return
        names = [f"{node.module}.{a.name}" for a in node.names]
    else:
        names = [a.name for a in node.names]
    for name in names:
        parts = name.split(".")
        roots = own | (MODULES | TRITON_MODULES if triton else MODULES)
        if parts[0] not in roots or set(parts[1:]) & _banned_parts(parts[0]):
            yield "import outside of the list", name, True
        elif parts[0] == "torch" and set(parts[1:]) & VENDOR and not vendor_ok:
            yield "vendor call", name, True
        if parts[-1] == "*":
            yield "import outside of the list", name, True


def _look_attribute(node: ast.Attribute, vendor_ok: bool, language: set[str]) -> Look:
    attr, root = node.attr, _root(node)
    if attr in BANNED_ATTRIBUTES or (attr.startswith("__") and attr not in DUNDERS):
        yield "looks behind an object", attr, True
    elif (root in language and attr in TRITON_BANNED) or (root == "torch" and attr in BANNED_PARTS):
        yield "part of the framework that no kernel needs", f"{root}.{attr}", True
    elif attr in VENDOR and not vendor_ok and root not in language:
        yield "vendor call", f"{root}.{attr}", True
    elif attr in CACHES:
        yield "may cache", attr, False


def _look_call(node: ast.Call) -> Look:
    if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        key = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            yield "attribute by a computed name", ast.unparse(node), True
        elif key.value in VENDOR | BANNED_ATTRIBUTES | BANNED_PARTS or key.value.startswith("_"):
            yield "attribute by name", ast.unparse(node), True
    elif isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) != 1:
        yield "makes a type", ast.unparse(node), True


def _banned_parts(root: str) -> frozenset[str]:
    return {"torch": BANNED_PARTS, "triton": TRITON_BANNED}.get(root, frozenset())


def _text(node: ast.Constant) -> str | bytes:
    return node.value if isinstance(node.value, (str, bytes)) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else type(node).__name__


if __name__ == "__main__":
    sys.setrecursionlimit(3000)
    given = frozenset(filter(None, sys.argv[3].split(",")))
    modules = frozenset(filter(None, sys.argv[4].split(",")))
    found = scan(sys.argv[1], sys.stdin.read(), triton=sys.argv[2] == "triton", allowed=given, own=modules)
    print(json.dumps(found))
