"""One prefill of a token list on a pool of its own: what a model says next, apart from any request.

For references and diagnostics; knows nothing of the request table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from backends.base import AttentionBackend
from engine.batch import ForwardBatch, Mode, SeqLens
from engine.kv_pool import KVPool
from engine.models.base import CausalLM

if TYPE_CHECKING:
    from engine.factories import Sizes


@torch.inference_mode()
def full_prefill_logits(
    model: CausalLM, attention: AttentionBackend, size: Sizes, device: torch.device, ids: Sequence[int]
) -> torch.Tensor:
    """fp32 [V] on the host: logits of the token after `ids`."""
    count, page_size = len(ids), size.page_size
    pages = -(-count // page_size)
    pool = KVPool(model.kv_layout, pages, page_size, device)
    table = torch.zeros(2, size.table.pages_per_row, dtype=torch.int32, device=device)
    table[1, :pages] = torch.arange(1, pages + 1, dtype=torch.int32, device=device)
    positions = torch.arange(count, device=device)
    batch = ForwardBatch(
        mode=Mode.EXTEND,
        rows=torch.ones(1, dtype=torch.int64, device=device),
        input_ids=torch.tensor(ids, dtype=torch.int64, device=device),
        positions=positions,
        slots=positions + page_size,
        seq_lens=SeqLens(torch.zeros(1, dtype=torch.int32, device=device), (0,), (0,)),
        query_start=torch.tensor([0, count], dtype=torch.int32, device=device),
        query_lens=(count,),
        page_table=table,
        page_size=page_size,
    )
    attention.init_forward_metadata(batch)
    hidden, _ = model.forward_with_aux(batch, attention, pool.layers)
    return model.logits(hidden[-1:])[0].float().cpu()
