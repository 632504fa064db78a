"""The engine as a model of lm-evaluation-harness (optional extra `lm-eval`), for its Python API.

Knows that library's model interface; the tasks, their prompts and their metrics are the library's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.llm import LLM
from engine.params import SamplingParams
from engine.scores import Asked, score
from engine.target_states import TargetStates

try:
    from lm_eval.api.model import LM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise UserError("engine.evals.harness needs lm-eval: pip install 'syncless[lm-eval]'") from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_length")  # spellings of one limit
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class HarnessModel(LM):
    """`lm_eval.simple_evaluate(model=HarnessModel(LLM(...)), tasks=[...])`.

    Generation runs as one batch of requests, with drafts where the engine has them. Log-likelihoods are
    computed by whole prefills beside the KV pool, which need some memory of their own.
    """

    def __init__(self, llm: LLM, max_tokens: int = 256) -> None:
        """max_tokens: of an answer whose task names no limit."""
        super().__init__()
        self._llm = llm
        self._max_tokens = max_tokens
        self._special = False  # whether control tokens are spelled out in the contexts

    # --- generation ---------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers to (context, options), each up to the first of its stop texts."""
        params = [self._params(request.args[1]) for request in requests]
        prompts = [
            self._fitting(self._encode(request.args[0]), own)
            for request, own in zip(requests, params, strict=True)
        ]
        texts = [output.text for output in self._llm.generate(prompts, params)]
        self._remember("generate_until", requests, texts)
        return texts

    def _params(self, options: Mapping[str, Any]) -> SamplingParams:
        """A task's options as sampling parameters; UserError for one that would go unheard."""
        unknown = set(options) - {"until", "do_sample", *LENGTHS, *SAMPLING}
        if unknown:
            raise UserError(
                f"the task asks for {', '.join(sorted(unknown))}, which this adapter does not know"
            )
        until = options.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        limit = next((int(options[name]) for name in LENGTHS if name in options), self._max_tokens)
        given = {name: options[name] for name in SAMPLING if name in options}
        if not options.get("do_sample", bool(given.get("temperature"))):
            given = {name: value for name, value in given.items() if name == "repetition_penalty"}
        elif "temperature" not in given:
            given["temperature"] = 1.0
        return SamplingParams(max_tokens=limit, stop=tuple(text for text in stop if text), **given)

    def _fitting(self, ids: list[int], params: SamplingParams) -> list[int]:
        """The end of the prompt, so that prompt and answer fit the context."""
        room = self._llm.max_context - min(params.max_tokens or 1, self._llm.max_context // 2)
        return ids[-room:]

    # --- log-likelihoods ----------------------------------------------------------------------------------

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """(log-probability of the continuation, whether greedy decoding makes it), by (context,
        continuation)."""
        asked = [self._continuation(*request.args) for request in requests]
        found = [(sum(s.logprobs), all(s.greedy)) for s in score(self._states, asked)]
        self._remember("loglikelihood", requests, found)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows of the longest context."""
        found = [self._rolled(request.args[0]) for request in requests]
        self._remember("loglikelihood_rolling", requests, found)
        return found

    def _rolled(self, text: str) -> float:
        windows = map(
            make_disjoint_window,
            get_rolling_token_windows(
                token_list=self._encode(text, bos=False),
                prefix_token=self._prefix_token,
                max_seq_len=self._llm.max_context - 1,
                context_len=1,
            ),
        )
        asked = [self._cut((*context, *target), len(context)) for context, target in windows]
        return sum(sum(scored.logprobs) for scored in score(self._states, asked))

    def _continuation(self, context: str, continuation: str) -> Asked:
        """Context and continuation as one text; spaces that end the context belong to what follows."""
        kept = context.rstrip()
        whole = self._encode(kept + context[len(kept) :] + continuation)
        if not kept:
            whole = [self._prefix_token, *self._encode(context + continuation, bos=False)]
            return self._cut(tuple(whole), 1)
        start = len(self._encode(kept))
        return self._cut(tuple(whole), max(1, min(start, len(whole) - 1)))

    def _cut(self, ids: tuple[int, ...], start: int) -> Asked:
        """The end of the sequence, as far as the model reads."""
        over = max(0, len(ids) - 1 - self._llm.max_context)
        return Asked(ids[over:], max(1, start - over))

    @cached_property
    def _states(self) -> TargetStates:
        return self._llm.target_states(())

    # --- text ---------------------------------------------------------------------------------------------

    def _encode(self, text: str, *, bos: bool = True) -> list[int]:
        tokenizer = self._llm.tokenizer
        ids = tokenizer.encode(text, special=self._special)
        front = [tokenizer.bos_id] if bos and tokenizer.add_bos and tokenizer.bos_id is not None else []
        return ids if ids[:1] == front else [*front, *ids]

    @property
    def _prefix_token(self) -> int:
        """What stands before a text that has no context."""
        tokenizer = self._llm.tokenizer
        return tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_ids[0]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text. From now on control tokens in contexts are read as such."""
        self._special = True
        return self._llm.tokenizer.render_chat(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source; empty where it is not used."""
        return (self._llm.tokenizer.chat_template or "") if chat_template else ""

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the library's cache of requests."""
        return f"syncless/{self._llm.shape.architecture}/{self._llm.tokenizer.vocab_size}"

    def _remember(self, kind: str, requests: Sequence[Instance], results: Sequence[Any]) -> None:
        """Offer the results to the library's cache."""
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial(kind, request.args, result)
