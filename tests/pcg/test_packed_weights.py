"""Weights that oneDNN packed have no storage that could be asked for; passes over them are recorded too."""

from __future__ import annotations

import pytest
import torch

from engine.graphs.recording import record
from engine.models.linear import packs_bfloat16


@pytest.mark.skipif(not packs_bfloat16(), reason="this CPU's oneDNN packs no bfloat16 weights")
@torch.inference_mode()
def test_a_product_with_packed_weights_is_recorded() -> None:
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.randn(32, 16, dtype=torch.bfloat16), 16)
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    product = torch.ops.mkldnn._linear_pointwise.default
    recording, out = record(lambda: product(x, packed, None, "none", [], ""))
    for _ in range(2):
        x.copy_(torch.randn(4, 16))
        recording.replay()
        torch.testing.assert_close(out, product(x, packed, None, "none", [], ""))
        assert out.abs().sum() > 0
