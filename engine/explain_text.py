"""An explanation for a person: tables in plain text. Knows rich, and nothing of how the facts were found."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.explain import Explanation, graph_contents, kernels_text, part_rows, slot_row
from engine.facts import Slot
from engine.memory import plan_rows
from engine.rules.graphs import planned_sizes

_STYLES = {"ok": "green", "violated": "bold red", "unknown": "yellow", "not applicable": "dim"}


def render(explanation: Explanation, width: int = 110, color: bool = False) -> str:
    """The whole text, no line longer than `width`."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, color_system="auto" if color else None, highlight=False
    )
    for block in (_parts, _slots, _lengths, _step, _memory, _rules):
        block(console, explanation)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _parts(console: Console, explanation: Explanation) -> None:
    rows = [(row["group"], row["option"] or "?", row["class"]) for row in part_rows(explanation.facts)]
    console.print(_table("parts", ("group", "option", "class"), rows))


def _slots(console: Console, explanation: Explanation) -> None:
    titles = ("attention slot", "backend", "host_lens", "tree_mask", "device_metadata", "pages", "max width")
    console.print(_table("attention", titles, [_slot(slot) for slot in explanation.facts.slots]))


def _slot(slot: Slot) -> tuple[str, ...]:
    row = slot_row(slot)
    if row["backend"] is None:
        return (slot.role, "-", "-", "-", "-", "-", "-")
    pages = "any" if row["page_sizes"] is None else ", ".join(map(str, row["page_sizes"]))
    flags = (row["host_lens"], _yes(row["tree_mask"]), _yes(row["device_metadata"]))
    return (slot.role, row["backend"].rpartition(".")[2], *flags, pages, str(row["max_verify_width"]))


def _lengths(console: Console, explanation: Explanation) -> None:
    causes = explanation.caused_by
    why = f"caused by {', '.join(causes)}" if causes else "no injected part reads exact lengths on the host"
    console.print(f"needs_cpu_seq_lens: {str(explanation.needs_cpu_seq_lens).lower()} ({why})\n")


def _step(console: Console, explanation: Explanation) -> None:
    facts = explanation.facts
    contents = graph_contents(facts)
    inside = ", ".join(contents) if contents else "nothing; every stage runs eagerly"
    console.print(f"decode step: width {facts.width}; its graph holds: {inside}")
    sizes = planned_sizes(facts)
    if sizes:
        console.print(f"captured at start for batches of {', '.join(map(str, sizes))}")
    console.print(
        f"device: {facts.device.kind}; weights: {facts.weights or '?'}; arithmetic: {facts.compute or '?'}"
    )
    console.print(f"products of few tokens: {kernels_text(facts)}\n")


def _memory(console: Console, explanation: Explanation) -> None:
    if explanation.plan is None:
        console.print("memory plan: not known before the model is on this machine\n")
        return
    console.print(_table("memory plan", ("item", "size", "how"), plan_rows(explanation.plan)))


def _rules(console: Console, explanation: Explanation) -> None:
    table = _table("rules", ("rule", "verdict", "reason"), ())
    for verdict in explanation.verdicts:
        style = _STYLES.get(verdict.verdict, "")
        table.add_row(verdict.rule, Text(verdict.verdict, style), Text(verdict.reason))
    console.print(table)
    bad = sum(verdict.violated for verdict in explanation.verdicts)
    console.print("this configuration is accepted" if not bad else f"REFUSED: {bad} violated")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
