"""The expected table, ``routes.txt``: the callers of each route, and the answers for the objects that it names.

It is data, held against the declarations of the code and never made from them: a change of a declaration changes
this file too, and shows in the difference.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from muster.domain.principals import Role
from tests.authorisation.callers import Caller

TABLE: Final = Path(__file__).with_name("routes.txt")
PAGES: Final = ("/console", "/install")
SIGNED_IN: Final = "signed in"
PUBLIC: Final = "public"
HOLDERS: Final[Mapping[str, frozenset[Role]]] = {
    words: frozenset(Role(name) for name in names.split())
    for words, names in {
        "job:submit": "tenant_member tenant_admin operator",
        "job:read": "tenant_member tenant_admin auditor operator",
        "job:cancel": "tenant_member tenant_admin operator",
        "log:read": "tenant_member tenant_admin operator",
        "key:read": "tenant_admin auditor operator",
        "key:write": "tenant_admin operator",
        "route:read": "tenant_member tenant_admin operator auditor",
        "route:write": "tenant_admin operator",
        "secret:read": "tenant_member tenant_admin operator",
        "secret:write": "tenant_admin operator",
        "secret_key:write": "operator",
        "tenant:read": "tenant_member tenant_admin auditor operator",
        "tenant:write": "operator",
        "node:read": "auditor operator",
        "node:write": "operator",
        "gpu:read": "auditor operator",
        "gpu:write": "operator",
        "incident:read": "auditor operator",
        "incident:write": "operator",
        "event:read": "tenant_member tenant_admin auditor operator",
        "audit:read": "tenant_admin auditor operator",
        "policy:read": "auditor operator",
        "policy:write": "operator",
        "metrics:read": "auditor operator service",
        "host:report": "node",
        "system:run": "service",
    }.items()
}
"""Permission → the roles that hold it: written down again, so that a role's growth is seen too."""
Whose = Literal["own", "foreign", "missing"]
EVERYONES: Final[tuple[Whose, ...]] = ("own", "foreign", "missing")
_NAMED: Final = re.compile(r"\{([a-z_]+(?::path)?)\}")


@dataclass(frozen=True)
class Row:
    """``requested``: the path with its query. ``statuses``: by whose object it is, for tenants and roles that see all.

    Of a public route the second is for all callers that are signed in.
    """

    method: str
    requested: str
    may_call: str
    statuses: Mapping[Whose, tuple[int, int]]
    body: str

    @property
    def path(self) -> str:
        return self.requested.split("?")[0]

    @property
    def is_page(self) -> bool:
        return self.path.startswith(PAGES)

    def expected(self, caller: Caller, whose: Whose) -> int:
        """The one status that this caller must get."""
        of_tenants, of_all = self.statuses[whose]
        if self.may_call == PUBLIC:
            return of_all if self.knows(caller) else of_tenants
        if not self.knows(caller):
            return 303 if self.is_page else 401
        if self.may_call != SIGNED_IN and caller.role not in HOLDERS[self.may_call]:
            return 403
        return of_all if caller.sees_all_tenants else of_tenants

    def knows(self, caller: Caller) -> bool:
        """Whether the caller's key or session opens anything. A host's key opens no page."""
        return caller.role is not None and not (self.is_page and caller.role is Role.NODE)

    def filled(self, ids: Mapping[str, str]) -> tuple[str, str]:
        """Its address and body, with these objects named."""
        return _fill(self.requested, ids), _fill(self.body, ids)


def _fill(text: str, ids: Mapping[str, str]) -> str:
    return _NAMED.sub(lambda found: ids[found.group(1)], text)


@cache
def read_table() -> Sequence[Row]:
    """Every row, in order. Columns stand two spaces or more apart."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [_row(line) for line in lines if line and not line.startswith("#")]


def _row(line: str) -> Row:
    method, asked, may_call, own, foreign, missing, *body = re.split(r" {2,}", line, maxsplit=6)
    cells = zip(EVERYONES, (own, foreign, missing), strict=True)
    own_status = int(own.split("/")[0])
    statuses = {whose: _statuses(cell, own_status, whose) for whose, cell in cells if cell != "-"}
    return Row(method, asked, may_call, statuses, body[0] if body else "")


def _statuses(cell: str, own: int, whose: Whose) -> tuple[int, int]:
    """``403/422``: tenants and roles that see all. One number is for all, but nothing is foreign to the latter."""
    of_tenants, _, of_all = cell.partition("/")
    fallback = own if whose == "foreign" else int(of_tenants)
    return int(of_tenants), int(of_all) if of_all else fallback


def fields_of(body: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body) if body else {}
    return fields
