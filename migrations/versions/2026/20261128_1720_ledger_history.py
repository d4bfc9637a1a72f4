"""What the ledger needs of the past: contact of nodes, holds that ended, why jobs waited; and which hours are due."""

import sqlalchemy as sa
from alembic import op

revision = "20261128_1720"
down_revision = "20261128_1710"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create("node_contact_changes", _text("node_id"), _time("at"), _text("contact"))
    op.create_foreign_key(op.f("fk_node_contact_changes_node_id"), "node_contact_changes", "nodes", ["node_id"], ["id"])
    is_contact = "contact IN ('LIVE', 'SILENT', 'LOST')"
    op.create_check_constraint(op.f("ck_node_contact_changes_contact"), "node_contact_changes", is_contact)
    _index("node_contact_changes", "node_id", "at")
    _index("node_contact_changes", "at")
    op.execute("INSERT INTO node_contact_changes (node_id, at, contact) SELECT id, now(), contact FROM nodes")
    _create("gpu_hold_spans", _text("gpu_uuid"), _text("job_id"), _time("began_at"), _time("ended_at"))
    op.create_check_constraint(op.f("ck_gpu_hold_spans_ended_at"), "gpu_hold_spans", "began_at <= ended_at")
    _index("gpu_hold_spans", "ended_at")
    _create("job_wait_changes", _text("job_id"), _time("at"), sa.Column("binding", sa.Text(), nullable=True))
    _index("job_wait_changes", "job_id", "at")
    _index("job_wait_changes", "at")
    op.add_column("ledger_hours", sa.Column("due_at", sa.TIMESTAMP(timezone=True), nullable=True))
    op.create_index("ix_ledger_hours_due", "ledger_hours", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_ledger_hours_due", "ledger_hours")
    op.drop_column("ledger_hours", "due_at")
    op.drop_table("job_wait_changes")
    op.drop_table("gpu_hold_spans")
    op.drop_table("node_contact_changes")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=False)


def _create(table: str, *columns: "sa.Column[object] | sa.Column[str]") -> None:
    own_id = sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False)
    op.create_table(table, own_id, *columns, sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")))


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))
