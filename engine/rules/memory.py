"""Rules about sizes: context, pool and answers fit into each other."""

from __future__ import annotations

from engine.facts import Facts
from engine.pool_size import auto_context
from engine.rules.base import Answer, Rule, not_applicable, ok, unknown, violated


def context(facts: Facts) -> Answer:
    """The longest request is one the model has positions for."""
    asked = facts.option("cache", "max_context")
    if not isinstance(asked, int):
        return not_applicable("cache.max_context is automatic")
    if facts.shape is None:
        return unknown("the model's positions are not known yet")
    problem = facts.shape.context_problem(asked)
    if problem:
        most = facts.shape.longest
        return violated(
            f"cache.max_context={asked} cannot work with {facts.named('model')}: {problem}; "
            f"use cache.max_context={most}"
        )
    return ok(f"{asked} of {facts.shape.max_positions} positions")


def pool(facts: Facts) -> Answer:
    """The pool holds a page, and a request of the longest kind that was asked for."""
    tokens, asked = facts.option("cache", "tokens"), facts.option("cache", "max_context")
    page = facts.option("cache", "page_size") or 1
    if not isinstance(tokens, int):
        return not_applicable("cache.tokens is automatic")
    if tokens < page + facts.width:
        least = 2 * page * -(-(page + facts.width) // (2 * page))
        return violated(
            f"cache.tokens={tokens} is too small for pages of cache.page_size={page} and a step of "
            f"{facts.width}; use cache.tokens={least}"
        )
    if isinstance(asked, int) and asked > tokens:
        return violated(
            f"cache.max_context={asked} does not fit into a pool of cache.tokens={tokens}; "
            f"use cache.max_context={tokens} or cache.tokens={asked}"
        )
    return ok(f"{tokens} tokens in pages of {page}")


def answer(facts: Facts) -> Answer:
    """An answer as long as asked for leaves room for a prompt."""
    wanted = facts.option("sampling", "max_tokens")
    if not isinstance(wanted, int):
        return not_applicable("sampling.max_tokens ends with the context")
    limit = longest_request(facts)
    if limit is None:
        return unknown("the model's positions are not known yet")
    if wanted >= limit:
        return violated(
            f"sampling.max_tokens={wanted} leaves no room for a prompt: a request holds {limit} tokens "
            f"({facts.named('model')}, {facts.named('cache')}); use sampling.max_tokens={limit // 2}"
        )
    return ok(f"{wanted} of {limit} tokens")


def longest_request(facts: Facts) -> int | None:
    """Tokens that a request and its answer may have; None where the model is not known."""
    if facts.shape is None:
        return None
    asked, tokens = facts.option("cache", "max_context"), facts.option("cache", "tokens")
    limit = auto_context("auto" if asked is None else asked, facts.shape.longest)
    return min(limit, tokens) if isinstance(tokens, int) else limit


MEMORY_RULES = (
    Rule("context", "the model has positions for the longest request", context),
    Rule("pool", "the pool holds what was asked for", pool),
    Rule("answer", "the answer leaves room for a prompt", answer),
)
