"""Sign-ins of the command by a code that a person confirms in the console."""

from typing import Final

from alembic import op

revision = "20261128_1220"
down_revision = "20261128_1215"
branch_labels = None
depends_on = None

UP: Final = """
CREATE TABLE command_logins (
    id text NOT NULL,
    code text NOT NULL,
    prefix text NOT NULL,
    secret_sha256 bytea NOT NULL,
    device text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    address text,
    decided_at timestamptz,
    is_confirmed boolean,
    person_id text,
    holder_key_id text,
    key_id text,
    CONSTRAINT pk_command_logins PRIMARY KEY (id),
    CONSTRAINT uq_command_logins_code UNIQUE (code),
    CONSTRAINT uq_command_logins_prefix UNIQUE (prefix),
    CONSTRAINT uq_command_logins_key_id UNIQUE (key_id),
    CONSTRAINT ck_command_logins_expires_at CHECK (expires_at > created_at),
    CONSTRAINT ck_command_logins_decided CHECK ((decided_at IS NULL) = (is_confirmed IS NULL)),
    CONSTRAINT ck_command_logins_holder
        CHECK ((decided_at IS NULL) = (person_id IS NULL AND holder_key_id IS NULL)),
    CONSTRAINT ck_command_logins_one_holder CHECK (person_id IS NULL OR holder_key_id IS NULL),
    CONSTRAINT ck_command_logins_key_id CHECK (key_id IS NULL OR is_confirmed),
    CONSTRAINT fk_command_logins_person_id FOREIGN KEY (person_id) REFERENCES persons (id),
    CONSTRAINT fk_command_logins_holder_key_id FOREIGN KEY (holder_key_id) REFERENCES api_keys (id),
    CONSTRAINT fk_command_logins_key_id FOREIGN KEY (key_id) REFERENCES api_keys (id)
);
CREATE INDEX ix_command_logins_person_id ON command_logins (person_id);
CREATE INDEX ix_command_logins_holder_key_id ON command_logins (holder_key_id);
CREATE INDEX ix_command_logins_without_a_key ON command_logins (expires_at) WHERE key_id IS NULL;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute("DROP TABLE command_logins")
