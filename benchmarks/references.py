"""`python -m benchmarks.references [OVERRIDES]`: other engines on the same shape, in one run with ours.

transformers decodes with this engine's own weights (shared, not copied); vLLM, where it is installed, with
dummy weights of the same shape. Knows how to run them, not what to make of the figures.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import tables
from benchmarks.decode import side_by_side
from benchmarks.stepping import decode, prompts_of
from engine import LLM
from engine.errors import UserError
from engine.models.llama import LlamaModel
from engine.models.shape import ModelShape

TOKENS = 64
REPEATS = 3


def hf_config(shape: ModelShape) -> dict[str, Any]:
    """The shape as a Hugging Face config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def as_transformers(model: LlamaModel) -> Any:
    """A LlamaForCausalLM whose parameters are views of this model's weights. Dense linears only."""
    import transformers

    library: Any = transformers
    fields = {k: v for k, v in hf_config(model.shape).items() if k not in ("architectures", "torch_dtype")}
    config = library.LlamaConfig(**{k: v for k, v in fields.items() if k != "model_type"})
    with torch.device("meta"):
        made = library.LlamaForCausalLM(config).to(model.dtype)
    made.load_state_dict(_state(model), strict=not model.shape.tied, assign=True)
    made.tie_weights()
    made.model.rotary_emb = type(made.model.rotary_emb)(config=config).to(model.device)
    return made.eval()


def _state(model: LlamaModel) -> dict[str, torch.Tensor]:
    shape, weights = model.shape, model.weights
    state = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.final_norm}
    if not shape.tied:
        state["lm_head.weight"] = _dense(weights.head)
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}."
        q, k, v = torch.split(_dense(layer.qkv), [shape.q_size, shape.kv_size, shape.kv_size])
        gate, up = _dense(layer.gate_up).chunk(2)
        names = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v}
        names |= {"self_attn.o_proj": _dense(layer.output), "mlp.gate_proj": gate, "mlp.up_proj": up}
        names |= {"mlp.down_proj": _dense(layer.down), "input_layernorm": layer.input_norm}
        names |= {"post_attention_layernorm": layer.post_norm}
        state |= {f"{at}{name}.weight": tensor for name, tensor in names.items()}
    return state


def _dense(linear: Any) -> torch.Tensor:
    weight: torch.Tensor = linear.weight
    return weight


@torch.inference_mode()
def transformers_step(model: LlamaModel, batch: int, context: int) -> float:
    """Seconds of a decode step of `generate`, prefill taken out by the difference of two lengths."""
    made = as_transformers(model)
    ids = torch.tensor(prompts_of(model.shape.vocab_size, batch, context), device=model.device)
    mask = torch.ones_like(ids)

    def run(tokens: int) -> float:
        torch.cuda.synchronize() if ids.is_cuda else None
        start = time.perf_counter()
        made.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        torch.cuda.synchronize() if ids.is_cuda else None
        return time.perf_counter() - start

    run(4)
    pairs = [(run(4), run(4 + TOKENS)) for _ in range(REPEATS)]
    return statistics.median((long - short) / TOKENS for short, long in pairs)


def vllm_step(shape: ModelShape, batch: int, context: int) -> float:
    """The same of vLLM with dummy weights; its start takes a minute."""
    vllm: Any = importlib.import_module("vllm")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hf_config(shape)))
        llm = vllm.LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=context + 2 * TOKENS,
            max_num_seqs=batch,
            enable_prefix_caching=False,
            gpu_memory_utilization=0.6,
        )
        prompts = [{"prompt_token_ids": ids} for ids in prompts_of(shape.vocab_size, batch, context)]

        def run(tokens: int) -> float:
            params = vllm.SamplingParams(
                max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False
            )
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            return time.perf_counter() - start

        run(4)
        pairs = [(run(4), run(4 + TOKENS)) for _ in range(REPEATS)]
    return statistics.median((long - short) / TOKENS for short, long in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--batches", type=tables.numbers, default=[1, 8])
    made.add_argument("--context", type=int, default=256)
    given = made.parse_args(arguments)
    rows: list[tables.Row] = []
    usual = side_by_side(max(given.batches))
    with LLM(*tables.preferring(given.overrides, *usual)) as llm:
        device, shape = llm.device, llm.shape
        model = llm.model
        if not isinstance(model, LlamaModel):
            raise UserError(f"{shape.architecture} has no counterpart in transformers here")
        for batch in given.batches:
            tables.say(f"transformers, batch {batch}")
            ours = decode(llm, batch, given.context).seconds
            theirs = transformers_step(model, batch, given.context)
            row: tables.Row = {"batch": batch, "ms a step": 1e3 * ours, "transformers, ms": 1e3 * theirs}
            rows.append(row | {"times as fast": theirs / ours})
    if importlib.util.find_spec("vllm") is not None and device.startswith("cuda"):
        torch.cuda.empty_cache()
        for row in rows:
            theirs = vllm_step(shape, row["batch"], given.context)
            row |= {"vLLM, ms": 1e3 * theirs, "times vLLM": 1e3 * theirs / row["ms a step"]}
    note = "" if "vLLM, ms" in rows[0] else "vLLM is not installed here."
    title = f"Other engines, {' '.join(given.overrides)}"
    tables.publish(tables.heading(device), [tables.Section(title, rows, note)], given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
