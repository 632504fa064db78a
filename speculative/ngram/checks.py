"""Which values of `spec=ngram` do not fit each other: one sentence each. Reads no file, free of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from speculative.ngram.reading import corpus_problems

if TYPE_CHECKING:
    from speculative.ngram.drafter import Ngram

MAX_TREE = 64  # nodes of a step; attention may take fewer, which the rules tell


def narrows(config: Ngram.Config) -> bool:
    """Whether the width is chosen batch by batch. Forced acceptance is about one width: it stays."""
    return config.adaptive and config.simulate_accept_length is None


def config_problems(config: Ngram.Config) -> list[str]:
    """All problems of a configuration."""
    found = [_match_lengths(config), _size(config), _forced(config)]
    return [problem for problem in found if problem] + _corpus(config)


def _match_lengths(config: Ngram.Config) -> str:
    least, most = config.min_match, config.max_match
    if least <= most:
        return ""
    return (
        f"spec.min_match={least} is more than spec.max_match={most}, so nothing could ever match; "
        f"use spec.max_match={least} or more"
    )


def _size(config: Ngram.Config) -> str:
    nodes = 1 + config.drafts * config.branches
    if nodes <= MAX_TREE:
        return ""
    return (
        f"spec.branches={config.branches} of spec.drafts={config.drafts} tokens make a step of {nodes} "
        f"tokens, more than {MAX_TREE}; use spec.drafts={(MAX_TREE - 1) // config.branches} or fewer"
    )


def _forced(config: Ngram.Config) -> str:
    forced, longest = config.simulate_accept_length, config.drafts + 1
    if forced is None or forced <= longest:
        return ""
    return (
        f"spec.simulate_accept_length={forced:g} cannot be reached: spec.drafts={config.drafts} emits at "
        f"most {longest} tokens a step; use a value from 1 to {longest}, or more drafts"
    )


def _corpus(config: Ngram.Config) -> list[str]:
    if config.corpus is None:
        return []
    problems = corpus_problems(config.corpus_paths())
    if config.corpus_limit <= config.max_match:
        problems.append(
            f"spec.corpus_limit={config.corpus_limit} holds no context of spec.max_match={config.max_match} "
            f"tokens and its continuation; use spec.corpus_limit={config.max_match + config.drafts} or more"
        )
    return problems
