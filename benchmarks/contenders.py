"""The contenders of benchmarks/cpu.py: each makes the same number of tokens after the same prompts, greedily.

Knows how to run each of them; neither when, nor how often, nor what to make of the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from engine import LLM, SamplingParams
from engine.batch import ForwardBatch, Mode, SeqLens
from engine.compose import compose
from engine.container import EngineContainer

Prompts = Sequence[Sequence[int]]


class Contender(Protocol):
    """name: the table's row. batches: the batch sizes it can run."""

    name: str

    @property
    def batches(self) -> tuple[int, ...]: ...

    def run(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """`tokens` new tokens for each prompt, the ends of sequences ignored; all prompts as one batch."""


class Syncless:
    """This engine through its Python API. No prefix cache, so that no repeat finds its prompt computed."""

    batches: tuple[int, ...] = (1, 8)

    def __init__(self, *overrides: str) -> None:
        self.name = "syncless int4"
        self.llm = LLM("model=smollm2", "model.dtype=int4", "cache=none", *overrides)

    def run(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        outputs = self.llm.generate([list(ids) for ids in prompts], params)
        return [list(output.completions[0].token_ids) for output in outputs]


class BareLoop:
    """The same int4 model and attention in a loop written for this one case: no scheduler, no requests, no
    text, no early end, and no token read on the host before all are made."""

    name = "bare loop int4"
    batches: tuple[int, ...] = (1, 8)

    def __init__(self, *overrides: str) -> None:
        config = compose(["model=smollm2", "model.dtype=int4", "cache=none", *overrides]).cfg
        container = EngineContainer()
        container.config.from_dict(dict(config))
        self._model, self._attention = container.model(), container.attention()
        self._pool, self._size = container.pool(), container.sizes()

    @torch.inference_mode()
    def run(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        lens = [len(ids) for ids in prompts]
        table = self._page_table(lens, tokens)
        made = [self._forward(self._prefill(prompts, table))]
        for step in range(tokens - 1):
            made.append(self._forward(self._decode(made[-1], [n + step for n in lens], table)))
        return [list(row) for row in torch.stack(made, 1).tolist()]

    def _page_table(self, lens: Sequence[int], tokens: int) -> torch.Tensor:
        """int32 [B + 1, P]: a row owns the pages of its prompt and answer; row 0 and page 0 are padding."""
        per_row = max(-(-(n + tokens) // self._size.page_size) for n in lens)
        pages = torch.arange(1, len(lens) * per_row + 1, dtype=torch.int32).view(len(lens), per_row)
        table = torch.zeros(len(lens) + 1, self._size.table.pages_per_row, dtype=torch.int32)
        table[1:, :per_row] = pages
        return table

    def _prefill(self, prompts: Prompts, table: torch.Tensor) -> ForwardBatch:
        lens = [len(ids) for ids in prompts]
        rows = torch.arange(1, len(lens) + 1)
        positions = torch.cat([torch.arange(n) for n in lens])
        starts = torch.tensor([0, *lens], dtype=torch.int32).cumsum(0).int()
        return ForwardBatch(
            mode=Mode.EXTEND,
            rows=rows,
            input_ids=torch.tensor([token for ids in prompts for token in ids]),
            positions=positions,
            slots=self._slots(table, rows.repeat_interleave(torch.tensor(lens)), positions),
            seq_lens=SeqLens(torch.zeros(len(lens), dtype=torch.int32), (0,) * len(lens), (0,) * len(lens)),
            query_start=starts,
            query_lens=tuple(lens),
            page_table=table,
            page_size=self._size.page_size,
            logit_rows=starts[1:].long() - 1,
        )

    def _decode(self, ids: torch.Tensor, lens: Sequence[int], table: torch.Tensor) -> ForwardBatch:
        rows, positions = torch.arange(1, len(lens) + 1), torch.tensor(lens)
        return ForwardBatch(
            mode=Mode.VERIFY,
            rows=rows,
            input_ids=ids,
            positions=positions,
            slots=self._slots(table, rows, positions),
            seq_lens=SeqLens(positions.int(), tuple(lens), tuple(lens)),
            query_start=torch.arange(len(lens) + 1, dtype=torch.int32),
            query_lens=(1,) * len(lens),
            page_table=table,
            page_size=self._size.page_size,
            width=1,
        )

    def _slots(self, table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        size = self._size.page_size
        slots: torch.Tensor = table[rows, positions // size].long() * size + positions % size
        return slots

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.init_forward_metadata(batch)
        hidden, _ = self._model.forward_with_aux(batch, self._attention, self._pool.layers)
        picked = hidden if batch.logit_rows is None else hidden[batch.logit_rows]
        ids: torch.Tensor = self._model.logits(picked).argmax(-1)
        return ids


class Transformers:
    """Hugging Face's generate on the same GGUF file in bfloat16, left-padded batches."""

    name = "transformers bf16"
    batches: tuple[int, ...] = (1, 8)

    def __init__(self, gguf: str, pad: int) -> None:
        """transformers' own reading of the file; its from_pretrained would ask for accelerate as well."""
        import transformers
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        library: Any = transformers
        read: Any = load_gguf_checkpoint
        config = library.LlamaConfig(**read(gguf)["config"])
        model = library.LlamaForCausalLM(config).float().eval()
        model.load_state_dict(read(gguf, return_tensors=True, model_to_load=model)["tensors"], strict=False)
        model.tie_weights()
        self._model: Any = model.to(torch.bfloat16)
        self._pad = pad

    @torch.inference_mode()
    def run(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        longest = max(len(ids) for ids in prompts)
        ids = torch.tensor([[self._pad] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=self._pad,
        )
        return [list(row) for row in out[:, longest:].tolist()]


class LlamaCpp:
    """llama.cpp through llama-cpp-python, one request at a time."""

    name = "llama.cpp"
    batches: tuple[int, ...] = (1,)

    def __init__(self, gguf: str, threads: int) -> None:
        from llama_cpp import Llama

        self._llama: Any = Llama(gguf, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def run(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        self._llama.reset()
        stream = self._llama.generate(list(prompts[0]), temp=0.0, repeat_penalty=1.0, reset=True)
        return [[token for token, _ in zip(stream, range(tokens), strict=False)]]
