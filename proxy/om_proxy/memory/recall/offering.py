"""Decide whether a request is offered the tool that looks up earlier messages, and under which name.

The decision depends on the request's own members and its model server alone, so it is the same in
every request of a client: a provider's prompt cache begins with the tools
(docs/contributing/recall.md#offered).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

# the second one for a client that has a tool with the first name
TOOL_NAMES = ("recall", "om_recall")


# what models put before a tool's name
_NAME_PREFIXES = ("", "functions.", "default_api.", "tools.")


class OwnNames(NamedTuple):
    """The names by which models call the tool. They misname it as `functions.recall` or `Recall`;
    a name that a tool of the client has is the client's."""

    tool: str
    client_tools: frozenset[str] = frozenset()

    def has(self, name: object) -> bool:
        """Return whether a call with this name is one of the tool."""
        if name == self.tool:
            return True
        return isinstance(name, str) and name not in self.client_tools and name in self._forms()

    def may_begin(self, name: str) -> bool:
        """Return whether a name that begins so may be one of the tool. Only the tool's own forms
        may be cut within their first word: a client's tool may be named `f`."""
        return any(
            form.startswith(name) and name.startswith(form[: -len(self.tool)])
            for form in self._forms()
        )

    def _forms(self) -> tuple[str, ...]:
        forms = (self.tool, self.tool.capitalize(), self.tool.upper())
        return tuple(prefix + form for prefix in _NAME_PREFIXES for form in forms)


class Offer(StrEnum):
    """The values of the header `x-om-recall`: `offered`, or why the tool is not offered."""

    OFFERED = "offered"
    CHOICES = "n"
    FUNCTIONS = "functions"
    NAME = "name"
    REFUSED = "refused"
    JSON = "json"
    UNSURE = "unsure"
    API = "api"  # which has no form for look-ups


class ToolUse(NamedTuple):
    """The tools that a request names."""

    choices: int  # `n`: the replies that it asks for
    has_functions: bool  # whether it has the legacy members for functions
    names: frozenset[str]  # of the client's tools, as far as they can clash with ours
    wants_json: bool = False  # whether the reply's text must be JSON


PLAIN_USE = ToolUse(choices=1, has_functions=False, names=frozenset())


class Offering(NamedTuple):
    """The decision for one request."""

    word: Offer
    tool: str | None = None  # the tool's name; None: it is not offered


_OFFERINGS_BY_NAME = {name: Offering(Offer.OFFERED, name) for name in TOOL_NAMES}


def decide_offering(
    use: ToolUse, *, is_refused: bool, is_automatic: bool = False, calls_tools: bool = True
) -> Offering:
    """Return whether the tool is offered. `is_refused`: the model server has refused it lately.
    `is_automatic`: only where it is sure to work: the reply is no JSON, and the model `calls_tools`,
    as far as is known."""
    if is_automatic and (use.wants_json or not calls_tools):
        return Offering(Offer.JSON if use.wants_json else Offer.UNSURE)
    if use.choices > 1:
        return Offering(Offer.CHOICES)
    if use.has_functions:
        return Offering(Offer.FUNCTIONS)
    free_names = [name for name in TOOL_NAMES if name not in use.names]
    if not free_names:
        return Offering(Offer.NAME)
    if is_refused:
        return Offering(Offer.REFUSED)
    return _OFFERINGS_BY_NAME[free_names[0]]
