"""Persons who sign in to the console, as the API answers them and as they are made."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, OneOf, Page
from muster.domain.principals import Role


class NewPerson(TypedDict):
    name: str
    role: Annotated[str, OneOf(Role)]
    tenant_id: NotRequired[str | None]


class Person(TypedDict):
    id: str
    name: str
    role: Annotated[str, OneOf(Role)]
    tenant_id: str | None
    created_at: Moment
    disabled_at: Moment | None


class PersonWithPassword(Person, Trial):
    """``password`` is in this answer alone."""

    password: str


class ChangedPerson(Person, Trial):
    """The person after a change."""


class PersonPage(Page):
    items: list[Person]
