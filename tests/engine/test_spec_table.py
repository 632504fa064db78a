"""Every draft algorithm with every sampling parameter: plain decoding's output, a law, or a refusal."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from support.eagle3 import teach
from support.engines import TINY, make
from support.sampled import convince
from test_spec_engine_law import SAMPLINGS as LAWS

from engine.answers import RequestOutput
from engine.errors import UserError
from engine.llm import LLM
from engine.params import SamplingConfig, SamplingParams

PROMPTS = [[65 + i, 2 * i, 7, 9, i] * (2 + i) for i in range(4)]
EOS = 257
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
NGRAM = ("spec=ngram", "spec.adaptive=false", "spec.drafts=4")
ALGORITHMS = {
    "ngram chain": NGRAM,
    "ngram tree": (*NGRAM, "spec.branches=3"),
    "eagle3 chain": EAGLE3,
    "eagle3 tree": (*EAGLE3, "spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=9"),
    "eagle3 ratio": (*EAGLE3, "spec.acceptance=ratio"),
}
SAMPLED = {"temperature": 0.9, "seed": 4}
PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": SAMPLED,
    "top_k": {**SAMPLED, "top_k": 3},
    "top_p": {**SAMPLED, "top_p": 0.7},
    "min_p": {**SAMPLED, "min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "repetition_penalty sampled": {**SAMPLED, "repetition_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "frequency_penalty sampled": {**SAMPLED, "frequency_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.5},
    "presence_penalty sampled": {**SAMPLED, "presence_penalty": 1.5},
    "logit_bias": {"logit_bias": {66: 4.0, 67: -100.0}},
    "logit_bias sampled": {**SAMPLED, "logit_bias": {66: 4.0, 67: -100.0}},
    "min_tokens": {"min_tokens": 9, "logit_bias": {EOS: 100.0}},
    "min_tokens sampled": {**SAMPLED, "min_tokens": 9, "logit_bias": {EOS: 100.0}},
    "max_tokens": {"max_tokens": 7},
    "max_tokens sampled": {**SAMPLED, "max_tokens": 7},
    "stop_token_ids": {"stop_token_ids": (82, 314, 188, 333)},
    "stop_token_ids sampled": {**SAMPLED, "stop_token_ids": tuple(range(60, 76))},
    "stop": {"stop": ("R", "++V", "\u07e2")},
    "include_stop": {"stop": ("R", "++V", "\u07e2"), "include_stop": True},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {EOS: 2.0}},
    "ignore_eos false": {"ignore_eos": False, "logit_bias": {EOS: 2.0}},
    "logprobs": {"logprobs": 0},
    "top logprobs": {**SAMPLED, "top_p": 0.3, "logprobs": 5},
    "seed": {**SAMPLED, "seed": 99},
    "n": {**SAMPLED, "n": 3},
    "speculative": {"speculative": False},
    "speculative sampled": {**SAMPLED, "speculative": False},
}
REFUSED = {"prompt_logprobs": {"prompt_logprobs": 1}}
# Under the ratio test sampled output has the law of plain decoding, not its tokens: where that is tested.
LAW_OF = {
    "temperature": "top-k",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "repetition_penalty sampled": "penalties",
    "frequency_penalty sampled": "penalties",
    "presence_penalty sampled": "penalties",
    "logit_bias sampled": "bias",
    "min_tokens sampled": "min tokens",
}


def request(name: str) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, **PARAMETERS[name]})


@dataclass
class Engine:
    """An engine and what its draft model, if it has one, is told to believe."""

    llm: LLM
    table: dict[int, int] = field(default_factory=dict)
    beliefs: torch.Tensor = field(default_factory=lambda: torch.zeros(512, 512))

    def expect(self, outputs: Sequence[RequestOutput]) -> None:
        """Draft what came last after each token in these outputs."""
        self.table.clear()
        self.beliefs.zero_()
        for output in outputs:
            for sample in output.completions:
                known = [*output.prompt_ids, *sample.token_ids]
                self.table.update(itertools.pairwise(known))
        for token, following in self.table.items():
            self.beliefs[token, following] = 7.0


@pytest.fixture(scope="module", params=ALGORITHMS)
def drafting(request: pytest.FixtureRequest) -> Iterator[tuple[str, Engine]]:
    name = request.param
    engine = Engine(make(*TINY, *ALGORITHMS[name], "overlap.debug=true"))
    if name == "eagle3 ratio":
        convince(engine.llm, engine.beliefs)
    elif name.startswith("eagle3"):
        teach(engine.llm, engine.table)
    yield name, engine
    engine.llm.close()


@cache
def plain(name: str) -> list[RequestOutput]:
    with make(*TINY, "overlap=none") as llm:
        return llm.generate(PROMPTS, request(name))


@pytest.mark.parametrize("name", PARAMETERS)
def test_exact_or_a_law(drafting: tuple[str, Engine], name: str) -> None:
    algorithm, engine = drafting
    wanted, params = plain(name), request(name)
    engine.expect(wanted)
    before = engine.llm.metrics.snapshot()
    found = engine.llm.generate(PROMPTS, params)
    engine.llm.check()
    grown = {k: v - before[k] for k, v in engine.llm.metrics.snapshot().items()}
    assert grown["emitted_tokens"] == sum(o.completion_tokens for o in found)
    assert grown["accepted_drafts"] <= grown["drafted_tokens"]
    assert params.speculative or not grown["drafted_tokens"]
    if algorithm.startswith("eagle3") and params.speculative:
        assert grown["accepted_drafts"] > 0
    if algorithm == "eagle3 ratio" and params.temperature > 0 and params.speculative:
        _obeys(engine.llm, found, params)
        assert LAW_OF.get(name, "top-k") in LAWS
    else:
        _equal(found, wanted)


def _equal(found: Sequence[RequestOutput], wanted: Sequence[RequestOutput]) -> None:
    """Ids, texts, reasons, sample by sample; logprobs up to rounding."""
    for mine, theirs in zip(found, wanted, strict=True):
        for a, b in zip(mine.completions, theirs.completions, strict=True):
            assert (a.index, a.token_ids, a.text, a.finish_reason) == (
                b.index,
                b.token_ids,
                b.text,
                b.finish_reason,
            )
            assert (a.logprobs is None) == (b.logprobs is None)
            for x, y in zip(a.logprobs or (), b.logprobs or (), strict=True):
                assert (x.token, [t for t, _ in x.top]) == (y.token, [t for t, _ in y.top])
                assert x.logprob == pytest.approx(y.logprob, abs=1e-3)


def _obeys(llm: LLM, found: Sequence[RequestOutput], params: SamplingParams) -> None:
    """What a sampled output owes to its parameters whatever was drawn; and it can be repeated."""
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    for output in found:
        assert [sample.index for sample in output.completions] == list(range(params.n))
        assert len({sample.token_ids for sample in output.completions}) == params.n
        for sample in output.completions:
            ids = sample.token_ids
            assert params.min_tokens < len(ids) <= (params.max_tokens or 0)
            assert not ends.intersection(ids[:-1])
            assert sample.finish_reason == ("stop" if ids[-1] in ends else "length")
            assert not {t for t, bias in params.logit_bias.items() if bias == -100}.intersection(ids)
            if params.logprobs is not None:
                _has_its_logprobs(llm, output.prompt_ids, ids, sample.logprobs)
    again = llm.generate([list(output.prompt_ids) for output in found], params)
    assert [o.completions[0].token_ids for o in again] == [o.completions[0].token_ids for o in found]


def _has_its_logprobs(llm: LLM, prompt: Sequence[int], ids: Sequence[int], logprobs: Any) -> None:
    """P2, P3: every token's own, under the unfiltered distribution, by a fresh prefill."""
    assert [entry.token for entry in logprobs] == list(ids)
    for at in range(0, len(ids), 5):
        exact = llm.next_token_logits([*prompt, *ids[:at]]).log_softmax(-1)
        assert logprobs[at].logprob == pytest.approx(exact[ids[at]].item(), abs=1e-3)
        assert [value for _, value in logprobs[at].top] == pytest.approx(
            exact.topk(5).values.tolist(), abs=1e-3
        )
        assert all(math.isfinite(value) for _, value in logprobs[at].top)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"sampling.{name}=.* is not supported"):
        SamplingParams(**REFUSED[name])


def test_every_sampling_parameter_has_its_line() -> None:
    named = {name.partition(" ")[0] for name in (*PARAMETERS, *REFUSED)}
    assert {f.name for f in dataclasses.fields(SamplingConfig)} <= named


def test_the_table_is_worth_comparing_with() -> None:
    """Every parameter changes the output, so a path that ignored one would show."""
    ordinary = {
        name: [c.token_ids for o in plain(name) for c in o.completions] for name in ("nothing", "temperature")
    }
    same = {"include_stop", "logprobs", "speculative", "speculative sampled", "ignore_eos false"}
    for name, extra in PARAMETERS.items():
        if name not in ordinary and name not in same:
            base = ordinary["temperature" if "temperature" in extra else "nothing"]
            assert [c.token_ids for o in plain(name) for c in o.completions] != base, name
    assert plain("include_stop")[0].completions[0].text != plain("stop")[0].completions[0].text


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_ratio_test_is_not_compared_with_plain_decoding(temperature: float) -> None:
    """task=verify says by name why it cannot judge its samples; greedy answers it can."""
    options = ("task=verify", *TINY, *ALGORITHMS["eagle3 ratio"], f"sampling.temperature={temperature}")
    if temperature == 0:
        make(*options).close()
        return
    with pytest.raises(
        UserError, match=r"spec\.acceptance=ratio samples other tokens than plain decoding"
    ) as caught:
        make(*options)
    assert "spec.acceptance=match, or sampling.temperature=0" in str(caught.value)


def test_the_ratio_test_takes_no_trees() -> None:
    with pytest.raises(UserError, match=r"spec\.acceptance=ratio .* spec.topk=3"):
        make(*TINY, *ALGORITHMS["eagle3 tree"], "spec.acceptance=ratio")
