"""Nodes by id or by name: people type the one that they have."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, or_, select

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.fleet.types import NodeRecord
from muster.db.models import Node
from muster.domain.errors import NotFoundError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission


def is_node(column: SQLColumnExpression[Any], text: str) -> ColumnElement[bool]:
    """Return the condition that ``column`` is the node with ``text`` as id or name; false without such a node."""
    return column.in_(select(Node.id).where(or_(Node.id == text, Node.name == text)))


def find_node(unit: UnitOfWork, text: str) -> Node:
    """Return the node whose id or name is ``text``. Raises ``NotFoundError``."""
    unit.principal.require(Permission.NODE_READ)
    found = unit.session.scalar(select(Node).where(or_(Node.id == text, Node.name == text)))
    if found is None:
        raise NotFoundError("there is no such node")
    return found


def node_named(unit: UnitOfWork, text: str) -> NodeRecord:
    """Return the record of the node whose id or name is ``text``. Raises ``NotFoundError``."""
    return record_of(find_node(unit, text), NodeRecord)


def names_of(unit: UnitOfWork, ids: Collection[NodeId]) -> Mapping[NodeId, str]:
    """Return the names of the nodes that exist."""
    unit.principal.require(Permission.NODE_READ)
    return dict(unit.session.execute(select(Node.id, Node.name).where(Node.id.in_(ids))).all())
