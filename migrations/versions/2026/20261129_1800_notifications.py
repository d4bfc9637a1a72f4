"""Routes by which events leave the system, their notifications and tries."""

from alembic import op

revision = "20261129_1800"
down_revision = "20261129_1700"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_routes()
    _create_notifications()
    _create_tries()


def _create_routes() -> None:
    op.execute("""
        CREATE TABLE notification_routes (
            id text CONSTRAINT pk_notification_routes PRIMARY KEY,
            tenant_id text CONSTRAINT fk_notification_routes_tenant_id REFERENCES tenants (id) ON DELETE CASCADE,
            name text NOT NULL,
            kind text NOT NULL,
            target text NOT NULL,
            kinds jsonb NOT NULL,
            least text NOT NULL,
            version integer NOT NULL,
            key_id text NOT NULL,
            wrapped_key bytea NOT NULL,
            nonce bytea NOT NULL,
            sealed bytea NOT NULL,
            sealed_at_version integer NOT NULL,
            from_position bigint NOT NULL,
            created_at timestamptz NOT NULL,
            created_by text NOT NULL,
            updated_at timestamptz NOT NULL,
            num_failures integer NOT NULL,
            paused_until timestamptz,
            off_reason text,
            deleted_at timestamptz,
            CONSTRAINT ck_notification_routes_version CHECK (version > 0),
            CONSTRAINT ck_notification_routes_kind
                CHECK (kind IN ('webhook', 'email', 'slack', 'pagerduty', 'alertmanager')),
            CONSTRAINT ck_notification_routes_least CHECK (least IN ('page', 'ticket', 'info'))
        )
    """)
    op.execute(
        "CREATE UNIQUE INDEX uq_notification_routes_name ON notification_routes (coalesce(tenant_id, ''), name) "
        "WHERE deleted_at IS NULL"
    )
    op.execute("CREATE INDEX ix_notification_routes_key_id ON notification_routes (key_id)")


def _create_notifications() -> None:
    op.execute("""
        CREATE TABLE notifications (
            id text CONSTRAINT pk_notifications PRIMARY KEY,
            route_id text NOT NULL
                CONSTRAINT fk_notifications_route_id REFERENCES notification_routes (id) ON DELETE CASCADE,
            event_id text NOT NULL,
            position bigint NOT NULL,
            subject_id text NOT NULL,
            fact jsonb NOT NULL,
            title text NOT NULL,
            severity text NOT NULL,
            state text NOT NULL,
            created_at timestamptz NOT NULL,
            next_try_at timestamptz NOT NULL,
            expires_at timestamptz NOT NULL,
            tries integer NOT NULL,
            num_refusals integer NOT NULL,
            claimed_until timestamptz,
            ended_at timestamptz,
            last_words text,
            CONSTRAINT uq_notifications_route_id_event_id UNIQUE (route_id, event_id),
            CONSTRAINT ck_notifications_severity CHECK (severity IN ('page', 'ticket', 'info')),
            CONSTRAINT ck_notifications_state CHECK (state IN ('PENDING', 'DELIVERED', 'GIVEN_UP'))
        )
    """)
    op.execute("CREATE INDEX ix_notifications_pending ON notifications (route_id, position) WHERE state = 'PENDING'")
    op.execute("CREATE INDEX ix_notifications_due ON notifications (route_id, next_try_at) WHERE state = 'PENDING'")
    op.execute("CREATE INDEX ix_notifications_expires_at ON notifications (expires_at) WHERE state = 'PENDING'")
    op.execute("CREATE INDEX ix_notifications_ended_at ON notifications (ended_at) WHERE ended_at IS NOT NULL")
    op.execute("CREATE INDEX ix_notifications_route_id_created_at_id ON notifications (route_id, created_at, id)")
    op.execute("CREATE INDEX ix_notifications_subject_id ON notifications (subject_id)")


def _create_tries() -> None:
    op.execute("""
        CREATE TABLE notification_tries (
            notification_id text NOT NULL
                CONSTRAINT fk_notification_tries_notification_id REFERENCES notifications (id) ON DELETE CASCADE,
            number integer NOT NULL,
            at timestamptz NOT NULL,
            took_ms integer NOT NULL,
            outcome text NOT NULL,
            words text NOT NULL,
            status integer,
            CONSTRAINT pk_notification_tries PRIMARY KEY (notification_id, number)
        )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS notification_tries")
    op.execute("DROP TABLE IF EXISTS notifications")
    op.execute("DROP TABLE IF EXISTS notification_routes")
