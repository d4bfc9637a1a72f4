"""Persons who sign in to the console: the calls."""

from typing import Unpack

from muster import documents
from muster.client.calls import Call, answered, change, change_once, listed, pages
from muster.client.tenants import AccessConditions


class PersonCalls:
    @answered
    def create_person(
        self, wanted: documents.NewPerson, *, dry_run: bool = False
    ) -> Call[documents.PersonWithPassword]:
        """``password`` is in this answer alone, so it is never asked for twice."""
        return change_once("/v1/persons", documents.PersonWithPassword, body=wanted, dry_run=dry_run)

    @listed
    def persons(
        self, *, order: str | None = None, limit: int | None = None, **where: Unpack[AccessConditions]
    ) -> Call[documents.Person]:
        """All persons who may sign in, and persons who could earlier, by name."""
        query = {**where, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/persons", documents.PersonPage, documents.Person, query=query)

    @answered
    def reset_password(self, person_id: str, *, dry_run: bool = False) -> Call[documents.PersonWithPassword]:
        """Set a new password, which is in this answer alone; every session of the person ends."""
        path, path_values = "/v1/persons/{person_id}/reset-password", {"person_id": person_id}
        return change_once(path, documents.PersonWithPassword, path_values, body=None, dry_run=dry_run)

    @answered
    def disable_person(self, person_id: str, *, dry_run: bool = False) -> Call[documents.ChangedPerson]:
        """Refuse the person further sign-ins, and end all sessions of the person."""
        path, path_values = "/v1/persons/{person_id}/disable", {"person_id": person_id}
        return change("POST", path, documents.ChangedPerson, path_values, body=None, dry_run=dry_run)
