"""The adapter for lm-evaluation-harness: what it asks of the engine, and a whole task over a local file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import LLM
from engine.errors import UserError
from engine.scores import Asked, score

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(
        "model=tiny",
        "model.dtype=float32",
        "device=cpu",
        "threads=1",
        "cache.max_context=128",
        "sampling.max_tokens=8",
    )


@pytest.fixture
def model(llm: LLM) -> Any:
    from engine.evals.harness import HarnessModel

    return HarnessModel(llm, max_tokens=6)


def asks(*arguments: Any) -> list[Any]:
    return [SimpleNamespace(args=args) for args in arguments]


def test_it_is_a_model_of_the_library(model: Any) -> None:
    from lm_eval.api.model import LM

    assert isinstance(model, LM)
    assert "tiny" in model.tokenizer_name


def test_answers_are_the_engines(llm: LLM, model: Any) -> None:
    from engine import SamplingParams

    found = model.generate_until(asks(("abc", {"until": []}), ("de", {"max_gen_toks": 3, "until": "\x00"})))
    wanted = llm.generate(["abc", "de"], [SamplingParams(max_tokens=6), SamplingParams(max_tokens=3)])
    assert found[0] == wanted[0].text
    assert found[1] == wanted[1].text.partition("\x00")[0]


@pytest.mark.parametrize(
    ("options", "temperature", "limit"),
    [
        ({}, 0.0, 6),
        ({"temperature": 0.0, "do_sample": False}, 0.0, 6),
        ({"temperature": 0.7}, 0.7, 6),
        ({"do_sample": True, "max_gen_toks": 9}, 1.0, 9),
        ({"temperature": 0.7, "do_sample": False}, 0.0, 6),
        ({"max_new_tokens": "5"}, 0.0, 5),
    ],
)
def test_options_become_sampling_parameters(
    model: Any, options: dict[str, Any], temperature: float, limit: int
) -> None:
    params = model._params(options)
    assert (params.temperature, params.max_tokens) == (temperature, limit)


def test_an_option_that_would_go_unheard_is_refused(model: Any) -> None:
    with pytest.raises(UserError, match="num_beams"):
        model.generate_until(asks(("abc", {"num_beams": 4})))


def test_long_prompts_keep_their_end_and_their_room(llm: LLM, model: Any) -> None:
    options = {"until": ["\x00"], "max_gen_toks": 5}
    (text,) = model.generate_until(asks(("x" * 500, options)))
    (wanted,) = llm.generate([[ord("x")] * (128 - 5)], model._params(options))
    assert text == wanted.text


@pytest.mark.parametrize(
    ("context", "continuation", "ids", "start"),
    [
        ("ab", "cd", (256, 97, 98, 99, 100), 3),
        ("ab ", "cd", (256, 97, 98, 32, 99, 100), 3),  # the space belongs to what follows
        ("", "cd", (256, 99, 100), 1),
        (" ", "c", (256, 32, 99), 1),
    ],
)
def test_continuations_are_scored_behind_their_context(
    llm: LLM, model: Any, context: str, continuation: str, ids: tuple[int, ...], start: int
) -> None:
    ((total, greedy),) = model.loglikelihood(asks((context, continuation)))
    (scored,) = score(llm.target_states(()), [Asked(ids, start)])
    assert total == pytest.approx(sum(scored.logprobs), abs=1e-5)
    assert greedy == all(scored.greedy)


def test_greedy_is_what_decoding_makes(llm: LLM, model: Any) -> None:
    likeliest = {chr(c): int(llm.next_token_logits([256, c]).argmax()) for c in range(97, 123)}
    printable = {context: chr(token) for context, token in likeliest.items() if 33 <= token < 127}
    assert printable
    for context, best in printable.items():
        other = "a" if best != "a" else "b"
        found = model.loglikelihood(asks((context, best), (context, other)))
        assert [greedy for _, greedy in found] == [True, False]
        assert found[0][0] > found[1][0]


def test_whole_texts_are_scored_in_windows_where_they_are_long(llm: LLM, model: Any) -> None:
    short = "hello there"
    (scored,) = score(llm.target_states(()), [Asked((256, *short.encode()), 1)])
    assert model.loglikelihood_rolling(asks((short,))) == pytest.approx([sum(scored.logprobs)], abs=1e-4)
    (long,) = model.loglikelihood_rolling(asks((short * 40,)))
    assert long < sum(scored.logprobs)


def test_rendered_chats_are_read_with_their_control_tokens(llm: LLM, model: Any) -> None:
    rendered = model.apply_chat_template([{"role": "user", "content": "hi"}])
    assert rendered == llm.tokenizer.render_chat([{"role": "user", "content": "hi"}], True)
    assert model._encode("<bos>a") == [256, 97]
    assert model.chat_template(True) == llm.tokenizer.chat_template
    assert model.chat_template(False) == ""


@pytest.mark.filterwarnings("ignore")
def test_a_task_over_a_local_file_runs_to_its_end(
    tmp_path: Path, llm: LLM, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No network: the data set is a file, and the library must not look for another."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    import lm_eval

    rows = [{"question": f"{n} + 1 = ?", "answer": str(n + 1), "wrong": str(n + 2)} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "sums.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{question}}\n",
    }
    generate = {
        **data,
        "task": "sums_generate",
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    choose = {
        **data,
        "task": "sums_choose",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{[answer, wrong]}}",
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    found = lm_eval.simple_evaluate(
        model=model, tasks=[generate, choose], log_samples=True, bootstrap_iters=0
    )
    assert found is not None
    assert found["results"]["sums_generate"]["exact_match,none"] == 0.0
    wanted = [
        model.loglikelihood(asks((f"{r['question']}\n", f" {r[k]}")))[0][0]
        for r in rows
        for k in ("answer", "wrong")
    ]
    right = [a > b for a, b in zip(wanted[::2], wanted[1::2], strict=True)]
    assert found["results"]["sums_choose"]["acc,none"] == sum(right) / 4
    said = [sample["resps"][0][0] for sample in found["samples"]["sums_generate"]]
    assert said == model.generate_until(
        asks(*((f"{r['question']}\n", generate["generation_kwargs"]) for r in rows))
    )
