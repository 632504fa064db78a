"""Rules about parts and pairs of parts: model, dtype, attention, draft algorithm, sampling."""

from __future__ import annotations

from engine.errors import UserError
from engine.facts import DRAFT_NODE, DRAFT_SLOTS, Facts, Slot
from engine.rules.base import Answer, Rule, first_problem, not_applicable, ok, unknown, violated
from engine.rules.questions import arrivals, evaluation, workload
from speculative.base import Speculator


def model(facts: Facts) -> Answer:
    """The source can be read and its architecture is known."""
    failure = facts.failures.get("model") or facts.failures.get("shape")
    if failure:
        return violated(failure)
    if facts.shape is None:
        return unknown("the model is not on this machine yet; its shape is read when it has been fetched")
    return ok(f"{facts.named('model')} is {facts.shape.architecture} with {facts.shape.num_layers} layers")


def attention_device(facts: Facts) -> Answer:
    """Every backend computes on the device at all."""
    kind = facts.device.kind
    wrong = [
        f"{_spelled(facts, slot)} does not run on {kind}, only on {', '.join(slot.backend.dtypes)}; "
        f"use device={next(iter(slot.backend.dtypes), 'cpu')} or attention=torch"
        for slot in facts.slots
        if slot.backend is not None and not slot.backend.dtypes.get(kind)
    ]
    return first_problem(wrong, f"every attention slot runs on {kind}")


def dtype(facts: Facts) -> Answer:
    """The weights' dtype works with the source, the device and the target's attention."""
    failure = facts.failures.get("dtype")
    if failure and failure == facts.failures.get("shape"):
        return unknown("the model's files cannot be read")
    if failure:
        return violated(f"{failure} ({facts.named('attention')}, device {facts.device.kind})")
    if facts.weights is None:
        return unknown("the dtype is chosen when the model's files are known")
    return ok(f"weights in {facts.weights}, arithmetic in {facts.compute}")


def draft_dtype(facts: Facts) -> Answer:
    """Draft attention computes in the target's dtype."""
    drafts = [slot for slot in facts.slots[1:] if slot.backend is not None]
    if not drafts or facts.compute is None:
        return not_applicable("no draft attention")
    wrong = [
        f"{_spelled(facts, slot)} does not compute in {facts.compute} on {facts.device.kind}; "
        f"leave {slot.where} out to follow the target's attention"
        for slot in drafts
        if slot.backend is not None and facts.compute not in slot.backend.dtypes.get(facts.device.kind, ())
    ]
    return first_problem(wrong, f"draft attention computes in {facts.compute}")


def page_size(facts: Facts) -> Answer:
    """Every backend reads pages of this size."""
    size = facts.option("cache", "page_size")
    if size is None:
        return not_applicable("no page size")
    wrong = [
        f"cache.page_size={size}: {_spelled(facts, slot)} takes pages of "
        f"{', '.join(map(str, sizes))}; use cache.page_size={min(sizes, key=lambda s: abs(s - size))}"
        for slot in facts.slots
        if slot.backend is not None and (sizes := slot.backend.page_sizes) is not None and size not in sizes
    ]
    return first_problem(wrong, f"every attention slot takes pages of {size}")


def verify_width(facts: Facts) -> Answer:
    """Every attention takes passes as wide as the drafts ask for."""
    width = facts.width
    wrong = [
        f"{facts.named('spec')} verifies {width} tokens at once, {_spelled(facts, slot)} at most {most}; "
        f"draft {most - 1} tokens or fewer"
        for slot in facts.slots
        if slot.backend is not None and width > (most := slot.backend.max_verify_width)
    ]
    most = min((slot.backend.max_verify_width for slot in facts.slots if slot.backend is not None), default=0)
    return first_problem(wrong, f"width {width} of at most {most}")


def tree_mask(facts: Facts) -> Answer:
    """A drafter of trees needs masks of the target's attention and of its own."""
    if not facts.spec.tree:
        return not_applicable(f"{facts.named('spec')} drafts no trees")
    wrong = [
        f"{facts.named('spec')} drafts trees, and {_spelled(facts, slot)} has no tree mask; "
        "use attention=torch, or let the drafter make a chain"
        for slot in facts.slots[:2]
        if slot.backend is not None and not slot.backend.tree_mask
    ]
    return first_problem(wrong, "attention honours tree masks")


def draft_model(facts: Facts) -> Answer:
    """A draft model belongs to the target."""
    part = facts.parts.get("spec")
    if part is None or not facts.spec.draft_extend:
        return not_applicable(f"{facts.named('spec')} has no model of its own")
    if not facts.flag("model", "shows_states", True):
        return violated(
            f"{facts.named('spec')} reads the states of the target's layers, and {facts.named('model')} has "
            "none to show; use spec=ngram or spec=none, or another model"
        )
    if facts.shape is None:
        return unknown("the target's shape is not known yet")
    ask: type[Speculator] = part.cls
    found = ask.target_problems(part.config, facts.named("model"), facts.shape)
    return first_problem(found, f"the draft fits {facts.named('model')}")


def draft_slots(facts: Facts) -> Answer:
    """A drafter with its own attention has been given one."""
    wanted = dict(zip(DRAFT_SLOTS, (facts.spec.draft, facts.spec.draft_extend), strict=True))
    if not any(wanted.values()):
        return not_applicable(f"{facts.named('spec')} has no attention of its own")
    absent = [slot.role for slot in facts.slots[1:] if slot.backend is None and wanted[slot.role]]
    if not absent:
        return ok(f"{' and '.join(role for role in wanted if wanted[role])} have a backend")
    why = facts.failures.get(f"spec.{DRAFT_NODE}", f"spec.{DRAFT_NODE} is empty")
    return violated(
        f"{facts.named('spec')} needs attention for its draft, and {why}; leave it to follow attention"
    )


def own_checks(facts: Facts) -> Answer:
    """What a part's class says of its own values (`check`: config -> sentences)."""
    found = [
        problem
        for part in facts.parts.values()
        if callable(check := getattr(part.cls, "check", None))
        for problem in check(part.config)
    ]
    return first_problem(found, "no part objects to its own values")


def sampling(facts: Facts) -> Answer:
    """The sampling values fit each other and the model's vocabulary."""
    part = facts.parts.get("sampling")
    make = None if part is None else getattr(part.cls, "from_config", None)
    if part is None or make is None:
        return not_applicable("no sampling values")
    try:
        params = make(part.config)
        if facts.shape is not None:
            params.check_vocab(facts.shape.vocab_size)
    except UserError as error:
        return violated("; ".join(str(error).splitlines()))
    return ok("the sampling values fit each other and the vocabulary")


def _spelled(facts: Facts, slot: Slot) -> str:
    group = slot.where.partition(".")[0]
    return facts.named(group) if slot.where == group else f"{slot.where} ({facts.named(group)})"


PART_RULES = (
    Rule("model", "the model can be read", model),
    Rule("attention device", "attention runs on the device", attention_device),
    Rule("dtype", "weights, device and attention agree on a dtype", dtype),
    Rule("draft dtype", "draft attention computes in the target's dtype", draft_dtype),
    Rule("page size", "attention takes the pages' size", page_size),
    Rule("verify width", "attention takes the drafts' number", verify_width),
    Rule("tree mask", "attention honours the drafts' tree", tree_mask),
    Rule("draft model", "the draft model was made for the target", draft_model),
    Rule("draft attention", "a drafter has the attention it needs", draft_slots),
    Rule("own checks", "each part accepts its values", own_checks),
    Rule("workload", "the prompts can be read", workload),
    Rule("evaluation", "the questions of a test of accuracy can be read", evaluation),
    Rule("arrivals", "times of arrival go with a workload", arrivals),
    Rule("sampling", "sampling values fit each other and the model", sampling),
)
