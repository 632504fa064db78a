"""The pool: zero at the start, page 0 in front, and moves that read before they write."""

import torch

from engine.batch import KVGroup, KVLayout
from engine.kv_pool import POISON, KVPool

LAYOUT = KVLayout((KVGroup(2, 1, 2), KVGroup(1, 3, 4)), "float32")


def test_sizes_and_padding_page() -> None:
    pool = KVPool(LAYOUT, pages=5, page_size=4, device=torch.device("cpu"))
    assert [tuple(layer.k.shape) for layer in pool.layers] == [(24, 1, 2), (24, 1, 2), (24, 3, 4)]
    assert [layer.index for layer in pool.layers] == [0, 1, 2]
    assert all(not layer.k.any() and not layer.v.any() for layer in pool.layers)
    real = sum(t.numel() * t.element_size() for layer in pool.layers for t in (layer.k, layer.v))
    assert pool.nbytes() == real == 24 * LAYOUT.bytes_per_token()


def test_poison_spares_page_zero_and_is_finite() -> None:
    pool = KVPool(LAYOUT, pages=2, page_size=4, device=torch.device("cpu"), poison=True)
    k = pool.layers[0].k
    assert not k[:4].any()
    assert torch.all(k[4:] == POISON)
    assert torch.isfinite(k).all()
