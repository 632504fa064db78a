"""The hybrid backend: which child gets which pass, its facts, and its composition in Hydra."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attention_cases import Case, World, build, close, extend, reference, run, verify
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from backends.base import AttentionBackend, BackendFacts, facts_of, host_lens_of
from backends.hybrid import Hybrid
from backends.torch_ops import TorchOps
from backends.torch_sdpa import TorchSDPA
from backends.triton import TritonAttention
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode
from engine.errors import UserError

CONF = Path(__file__).parents[2] / "conf"


class Recorder(TorchSDPA):
    """A torch backend that remembers what it was asked."""

    def __init__(self, world: World) -> None:
        super().__init__(TorchSDPA.Config(), world.context)
        self.seen: list[Mode] = []

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> torch.Tensor:
        self.seen.append(batch.mode)
        return super().forward(q, k, v, kv, batch)


def hybrid_of(prefill: AttentionBackend, decode: AttentionBackend, world: World) -> Hybrid:
    return Hybrid(Hybrid.Config(), world.context, {"prefill": prefill, "decode": decode})


CASES = [extend((3, 9), (0, 5)), verify(1), verify(4, tree=True), Case(mode=Mode.IDLE, lens=(), queries=())]


@pytest.mark.parametrize("case", CASES, ids=["extend", "decode", "tree", "idle"])
def test_each_pass_goes_to_its_child(case: Case) -> None:
    world = build(case)
    prefill, decode = Recorder(world), Recorder(world)
    hybrid = hybrid_of(prefill, decode, world)
    close(run(hybrid, world), reference(world), case.dtype)
    chosen, other = (prefill, decode) if case.mode is Mode.EXTEND else (decode, prefill)
    assert chosen.seen == [case.mode]
    assert other.seen == []
    assert hybrid.ops is chosen.ops
    assert hybrid.children() == (prefill, decode)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton is compiled in this process")
def test_prefill_by_torch_then_decode_by_triton() -> None:
    world = build(extend((3, 9), (0, 5), dim=64))
    after = build(verify(2, lens=(3, 14), dim=64))
    hybrid = hybrid_of(
        TorchSDPA(TorchSDPA.Config(), world.context),
        TritonAttention(TritonAttention.Config(), after.context),
        world,
    )
    close(run(hybrid, world), reference(world), torch.float32)
    assert isinstance(hybrid.ops, TorchOps)
    assert hybrid.step_kernels == "triton"  # the step is a decode step
    close(run(hybrid, after), reference(after), torch.float32)
    assert not isinstance(hybrid.ops, TorchOps)


def facts(**changes: object) -> BackendFacts:
    base = {
        "name": "x", "host_lens": HostLens.NONE, "tree_mask": False, "device_metadata": False,
        "page_sizes": None, "dtypes": {"cpu": ("float32",)}, "max_verify_width": 1,
    }  # fmt: skip
    return BackendFacts(**(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("first", list(HostLens))
@pytest.mark.parametrize("second", list(HostLens))
def test_host_lens_is_the_stronger(first: HostLens, second: HostLens) -> None:
    combined = Hybrid.facts({"prefill": facts(host_lens=first), "decode": facts(host_lens=second)})
    order = [HostLens.NONE, HostLens.BOUND, HostLens.EXACT]
    assert order.index(combined.host_lens) == max(order.index(first), order.index(second))


def test_verify_facts_come_from_decode() -> None:
    strong = {"tree_mask": True, "device_metadata": True, "max_verify_width": 16, "step_kernels": "triton"}
    yes = Hybrid.facts({"prefill": facts(), "decode": facts(**strong)})
    no = Hybrid.facts({"prefill": facts(**strong), "decode": facts()})
    assert (yes.step_kernels, no.step_kernels) == ("triton", "torch")
    assert (yes.tree_mask, yes.device_metadata, yes.max_verify_width) == (True, True, 16)
    assert (no.tree_mask, no.device_metadata, no.max_verify_width) == (False, False, 1)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [(None, None, None), (None, (1, 16), (1, 16)), ((16, 64), None, (16, 64)), ((1, 16), (16, 64), (16,)),
     ((1,), (16,), ())],
)  # fmt: skip
def test_page_sizes_intersect(
    first: tuple[int, ...] | None, second: tuple[int, ...] | None, both: tuple[int, ...] | None
) -> None:
    combined = Hybrid.facts({"prefill": facts(page_sizes=first), "decode": facts(page_sizes=second)})
    assert combined.page_sizes == both


def test_dtypes_intersect_per_device() -> None:
    first = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)}
    second = {"cpu": ("bfloat16", "float16")}
    combined = Hybrid.facts({"prefill": facts(dtypes=first), "decode": facts(dtypes=second)})
    assert combined.dtypes == {"cpu": ("bfloat16",)}


def test_an_instance_carries_the_combined_facts() -> None:
    world = build(verify(1))

    class Exact(TorchSDPA):
        host_lens = HostLens.EXACT
        page_sizes = (16,)

    hybrid = hybrid_of(
        Exact(TorchSDPA.Config(), world.context), TorchSDPA(TorchSDPA.Config(), world.context), world
    )
    assert host_lens_of(hybrid) is HostLens.EXACT
    assert facts_of(hybrid).page_sizes == (16,)
    assert facts_of(hybrid).tree_mask
    nested = hybrid_of(hybrid, TorchSDPA(TorchSDPA.Config(), world.context), world)
    assert host_lens_of(nested) is HostLens.EXACT


@pytest.mark.parametrize("children", [{}, {"prefill": facts()}, {"prefill": facts(), "decoder": facts()}])
def test_missing_children_are_named(children: dict[str, BackendFacts]) -> None:
    with pytest.raises(UserError, match="prefill and decode"):
        Hybrid.facts(children)


def composed(tmp_path: Path, *overrides: str) -> dict[str, object]:
    """A minimal root over this project's attention group."""
    root = [
        "defaults:",
        "  - attention: torch",
        "  - _self_",
        "hydra:",
        "  searchpath: [file://" + str(CONF) + "]",
    ]
    (tmp_path / "root.yaml").write_text("\n".join(root))
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        plain = OmegaConf.to_container(compose("root", list(overrides)))
    assert isinstance(plain, dict)
    return plain["attention"]


@pytest.mark.parametrize(
    ("overrides", "prefill", "decode"),
    [
        ((), "torch_sdpa.TorchSDPA", "triton.TritonAttention"),
        (("attention@attention.prefill=triton",), "triton.TritonAttention", "triton.TritonAttention"),
        (("attention@attention.decode=torch",), "torch_sdpa.TorchSDPA", "torch_sdpa.TorchSDPA"),
    ],
)
def test_composes_in_hydra(tmp_path: Path, overrides: tuple[str, ...], prefill: str, decode: str) -> None:
    node = composed(tmp_path, "attention=hybrid", *overrides)
    assert node["_target_"] == "backends.hybrid.Hybrid"
    assert node["prefill"]["_target_"] == f"backends.{prefill}"
    assert node["decode"]["_target_"] == f"backends.{decode}"


def test_an_option_of_a_child_can_be_set(tmp_path: Path) -> None:
    node = composed(tmp_path, "attention=hybrid", "attention.decode.kv_splits=4")
    assert node["decode"]["kv_splits"] == 4


@pytest.mark.parametrize("option", ["torch", "triton", "hybrid"])
def test_yaml_equals_the_class_defaults(tmp_path: Path, option: str) -> None:
    from engine.build import make_config, target_class

    node = composed(tmp_path, f"attention={option}")
    cls = target_class(node["_target_"])
    assert make_config(cls, node, "attention") == cls.Config()
