"""Puts the parts of an EAGLE3 drafter together, and the index arithmetic between them.

The half of drafter.py that needs torch. Legend: B requests, W width, D rows of a draft-extend.
"""

from __future__ import annotations

from speculative.base import DraftHost, DraftTarget, SpecPlan
from speculative.eagle3 import source
from speculative.eagle3.chain import Chain, Proposal, SampledChain
from speculative.eagle3.checkpoint import load_draft
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.dummy import random_draft
from speculative.eagle3.growth import Growth, TorchGrowth, TreeSize
from speculative.eagle3.options import Options, narrows
from speculative.eagle3.passes import DraftPasses
from speculative.eagle3.pauses import NoPauses, Pauses, Ring
from speculative.eagle3.silence import Silenced, silenced
from speculative.eagle3.tree_draft import Tree


def load(config: Options, target: DraftTarget) -> Eagle3Draft:
    """The draft that `config` means, for this target."""
    if config.load == "dummy":
        return random_draft(target, config.seed)
    place = source.folder(config, target.name, target.shape)
    draft = load_draft(place, target)
    draft.expected = source.expected_acceptance(place)
    return draft


def draft_of(host: DraftHost) -> Eagle3Draft:
    """The draft model, under its own type."""
    assert isinstance(host.model, Eagle3Draft), "the drafter was given the model of another algorithm"
    return host.model


def passes(host: DraftHost) -> DraftPasses:
    """The forwards of the draft."""
    return DraftPasses(draft_of(host), host)


def proposal(config: Options, plan: SpecPlan, host: DraftHost) -> Proposal:
    """Chain, tree, or a chain of drawn drafts."""
    draft = draft_of(host)
    if plan.tree:
        size = TreeSize(config.topk, config.num_steps, host.first_scratch, plan.scratch)
        return Tree(draft, passes(host), size, _growth(size, host))
    if config.acceptance == "ratio":
        return SampledChain(draft, passes(host), host.vocab_size)
    return Chain(draft, passes(host))


def _growth(size: TreeSize, host: DraftHost) -> Growth:
    if host.kernels == "triton":
        from speculative.eagle3.triton_growth import TritonGrowth  # decorates kernels

        return TritonGrowth(size, host.early)
    return TorchGrowth(size)


def pauses(config: Options, host: DraftHost) -> Pauses:
    """A ring only where the width may fall to 1."""
    draft = draft_of(host)
    if not narrows(config):
        return NoPauses()
    return Ring(passes(host), draft.shape.states_width, draft.kv_layout.dtype)


def silenced_by(host: DraftHost) -> Silenced:
    """What takes the drafts of some requests away."""
    if host.kernels == "triton":
        from speculative.eagle3.triton_silence import TritonSilenced  # decorates kernels

        return TritonSilenced(host.early)
    return silenced
