"""Command-line overrides before Hydra sees them: free text quoted, unknown names refused all together.

Hydra stops at its first error, accepts `+typo=1`, and fails with a traceback on `overlap=true`. Knows the
names in conf/; composes nothing and checks no values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_type_hints

from engine.conf_tree import ConfTree, Option
from engine.errors import UserError
from engine.quoting import quote
from engine.typed import nearest

_OVERRIDE = re.compile(
    r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=@\s]+)(?P<package>@[^=\s]+)?(?:(?P<equal>=)(?P<value>.*))?", re.DOTALL
)
_WORD = re.compile(r"[\w./\[\]-]+")


@dataclass(frozen=True)
class Override:
    """One argument. prefix: "", "+", "++" or "~". package: "@where" after a group. value None: no "="."""

    raw: str
    prefix: str
    key: str
    package: str
    value: str | None

    @property
    def root(self) -> str:
        return self.key.partition(".")[0]

    @property
    def is_hydra(self) -> bool:
        return self.root == "hydra" or self.key.startswith("hydra/")

    def line(self, prefix: str) -> str:
        """The argument as Hydra gets it."""
        return f"{prefix}{self.key}{self.package}={self.value}"


@dataclass(frozen=True)
class Checked:
    """Overrides that can be composed, what is wrong with the others, and the groups they were for.

    plain: what Hydra is given; no key can be added here, so `+` and `++` say nothing and are dropped. forced:
    the values as `++key=value`, so that composing never stops at an unknown key: the typed merge of the parts
    names those, all at once.
    """

    plain: tuple[str, ...]
    forced: tuple[str, ...]
    problems: tuple[str, ...]
    doubtful: frozenset[str]


def check_overrides(arguments: Sequence[str], tree: ConfTree, *, sweep: bool = False) -> Checked:
    """Look at every argument; with `sweep` a value may be a comma-separated list of choices."""
    plain, forced, problems, doubtful = [], [], [], set()
    seen: set[str] = set()
    chosen = chosen_options(arguments, tree)
    for argument in arguments:
        override = parse(argument, tree, sweep=sweep)
        found = _problem(override, argument, tree, sweep) or _repeated(override, tree, seen)
        found = found or _misplaced(override, tree, chosen)
        if found or override is None:
            problems.append(found)
            doubtful.add(override.root if override else "")
            continue
        selects = _selects(override, tree)
        plus = override.prefix if selects and override.key not in tree.defaults else ""
        plain.append(override.line(plus))
        forced.append(override.line(plus if selects or override.is_hydra else "++"))
    return Checked(tuple(plain), tuple(forced), tuple(problems), frozenset(doubtful))


def parse(argument: str, tree: ConfTree, *, sweep: bool = False) -> Override | None:
    """The parts of one argument, its value quoted where it is free text; None: not an override."""
    match = _OVERRIDE.fullmatch(argument)
    if match is None or (match["equal"] is None and match["prefix"] != "~"):
        return None
    key, value = match["key"], match["value"]
    if value is not None and is_text(key, tree):
        value = quote(value, sweep=sweep)
    return Override(argument, match["prefix"] or "", key, match["package"] or "", value)


def parse_all(overrides: Sequence[str], tree: ConfTree) -> list[Override]:
    """The parts of those that are overrides."""
    found = (parse(line, tree) for line in overrides)
    return [override for override in found if override is not None]


def chosen_options(overrides: Sequence[str], tree: ConfTree) -> dict[str, str]:
    """group -> option of a checked command line: the defaults, and what was chosen over them."""
    found = [o for o in parse_all(overrides, tree) if not o.package and o.key in tree.groups]
    chosen = {o.key: str(o.value).strip("'\"") for o in found}
    return {**tree.defaults, **chosen}


def is_text(key: str, tree: ConfTree) -> bool:
    """Whether the key holds free text: taken verbatim, never read as a number, list, null or interpolation.

    True of the root's prompt, of every `path`, and of every option that a part's Config declares as plain
    `str` without choices.
    """
    group, _, name = key.rpartition(".")
    if not group:
        return key == "prompt"
    return name == "path" or any(name in _text_fields(cls) for cls in _classes(group, tree))


def _classes(group: str, tree: ConfTree) -> list[type]:
    found = []
    for option in tree.groups.get(group, {}).values():
        try:
            cls = option.part_class()
        except UserError:
            continue  # an option whose package is missing: reported when it is chosen
        if cls is not None:
            found.append(cls)
    return found


def _text_fields(cls: type) -> set[str]:
    config = getattr(cls, "Config", None)
    if config is None:
        return set()
    hints = get_type_hints(config)
    plain = {name for name, hint in hints.items() if hint in (str, str | None)}
    return {name for name in plain if "choices" not in config.__dataclass_fields__[name].metadata}


def _selects(override: Override, tree: ConfTree) -> bool:
    """Whether the override chooses a group's option."""
    return override.key in tree.groups


def _problem(override: Override | None, argument: str, tree: ConfTree, sweep: bool) -> str:
    if override is None:
        return f"{_short(argument)} is not an override: write key=value, for example attention=torch"
    if override.is_hydra:
        return ""
    if override.prefix == "~":
        return (
            f"{argument}: nothing can be removed; every group has an option (mostly none) that turns it off"
        )
    if override.root not in (*tree.groups, *tree.scalars) and override.key not in tree.groups:
        return _unknown_root(override, tree)
    if _selects(override, tree):
        return _option_problem(override, tree, sweep)
    if override.package:
        return f"{argument}: {override.key} is no group, so @ cannot place it"
    return ""


def _unknown_root(override: Override, tree: ConfTree) -> str:
    owners = [group for group in tree.groups for cls in _classes(group, tree) if override.key in _fields(cls)]
    if owners:
        return f"{_short(override.raw)}: did you mean {owners[0]}.{override.key}?"
    guess = nearest(override.root, (*tree.groups, *tree.scalars))
    kinds = f" (groups are {', '.join(tree.groups)}; values are {', '.join(tree.scalars)})"
    return f"{_short(override.raw)}: there is no {override.root}{guess or kinds}"


def _fields(cls: type) -> set[str]:
    return set(getattr(getattr(cls, "Config", None), "__dataclass_fields__", {}))


def _option_problem(override: Override, tree: ConfTree, sweep: bool) -> str:
    options = tree.groups[override.key]
    value = (override.value or "").strip()
    wanted = [part.strip(" '\"") for part in value.split(",")] if sweep else [value.strip("'\"")]
    unknown = [name for name in wanted if name not in options]
    if not unknown:
        return ""
    if not sweep and all(part.strip(" '\"") in options for part in value.split(",")):
        return f"{_short(override.raw)}: these are several options of {override.key}; to run each add -m"
    names = (
        f"it has {', '.join(options)}" if len(options) > 1 else f"its only option is {next(iter(options))}"
    )
    return (
        f"{_short(override.raw)}: {override.key} has no option {unknown[0] or '(empty)'}; {names}"
        f"{nearest(unknown[0], options)}"
    )


def _misplaced(override: Override | None, tree: ConfTree, chosen: Mapping[str, str]) -> str:
    """`attention@spec.draft_attention=x` where the chosen option nests no part of that name."""
    if override is None or not override.package or not _selects(override, tree):
        return ""
    group, _, rest = override.package.removeprefix("@").partition(".")
    key = rest.partition(".")[0]
    options, names = tree.groups.get(group, {}), chosen.get(group, "").split(",")
    if not key or not options or any(name in options and _nests(options[name], key) for name in names):
        return ""
    owners = " or ".join(f"{group}={name}" for name, option in options.items() if _nests(option, key))
    place = f"{group}.{key} exists with {owners} only" if owners else f"{group} has no part called {key}"
    return f"{_short(override.raw)}: {group}={chosen.get(group)} takes no such part; {place}"


def _nests(option: Option, key: str) -> bool:
    return any(name == key for name, _ in option.parts)


def _repeated(override: Override | None, tree: ConfTree, seen: set[str]) -> str:
    if override is None or not _selects(override, tree):
        return ""
    key = override.key + override.package
    if key in seen:
        return f"{_short(override.raw)}: {key} is chosen twice; give it once"
    seen.add(key)
    return ""


def _short(argument: str, limit: int = 80) -> str:
    text = argument if _WORD.fullmatch(argument) or "=" in argument else repr(argument)
    return text if len(text) <= limit else text[: limit - 3] + "..."
