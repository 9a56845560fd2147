"""Runs in the serving environment: write a Llama checkpoint (config, tokenizer, weights), nothing downloaded.

Usage: make_model.py DIRECTORY JSON, where JSON holds the fields of `ReferenceShape`. The weights are random,
from a seed. vLLM's own dummy weights (uniform within 1e-3) will not do: they leave every token equally likely
to five digits, so that a kernel that returns garbage changes no log-probability.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread: the merges come out the same each time
os.environ["HF_HUB_OFFLINE"] = "1"

CORPUS_BYTES = 8 << 20


def corpus() -> list[str]:
    """The standard library's sources in a fixed order: enough text for 10,240 merges, on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    size = 0
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).parts
        if "site-packages" in relative or "__pycache__" in relative:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        texts.append(text)
        size += len(text)
        if size > CORPUS_BYTES:
            break
    return texts


def make_tokenizer(vocab: int, target: Path) -> None:
    """Train a byte-level BPE tokenizer of exactly `vocab` entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "</s>"],
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    missing = vocab - tokenizer.get_vocab_size()
    if missing > 0:  # a stripped standard library: the model's matrices keep their shape all the same
        tokenizer.add_tokens([f"<|unused{i}|>" for i in range(missing)])
    size = tokenizer.get_vocab_size()
    if size != vocab:
        raise SystemExit(f"the tokenizer has {size} entries, wanted {vocab}")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # noqa: S106
    wrapped.save_pretrained(target)


def make_config(shape: dict[str, Any], target: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        vocab_size=shape["vocab"],
        max_position_embeddings=shape["max_position"],
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(target)


def make_weights(shape: dict[str, Any], target: Path) -> None:
    """Normal weights with a standard deviation of 1/sqrt(fan-in), so that activations keep their size.

    The output head is twice that: the logits then have a standard deviation of about two, and the next token
    is as sharp as a trained model's rather than a coin toss among thousands.
    """
    import torch
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    generator = torch.Generator().manual_seed(shape["seed"])

    def normal(rows: int, columns: int, gain: float = 1.0) -> Any:
        values = torch.randn(rows, columns, generator=generator)
        return (values * (gain / columns**0.5)).to(torch.bfloat16)

    hidden, inner = shape["hidden"], shape["intermediate"]
    q, kv = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": normal(shape["vocab"], hidden, gain=hidden**0.5),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": normal(shape["vocab"], hidden, gain=2.0),
    }
    for i in range(shape["layers"]):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": ones.clone(),
            f"{layer}.post_attention_layernorm.weight": ones.clone(),
            f"{layer}.self_attn.q_proj.weight": normal(q, hidden),
            f"{layer}.self_attn.k_proj.weight": normal(kv, hidden),
            f"{layer}.self_attn.v_proj.weight": normal(kv, hidden),
            f"{layer}.self_attn.o_proj.weight": normal(hidden, q),
            f"{layer}.mlp.gate_proj.weight": normal(inner, hidden),
            f"{layer}.mlp.up_proj.weight": normal(inner, hidden),
            f"{layer}.mlp.down_proj.weight": normal(hidden, inner),
        }
    path = target / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def main() -> None:
    target, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    make_tokenizer(shape["vocab"], target)
    make_config(shape, target)
    make_weights(shape, target)


if __name__ == "__main__":
    main()
