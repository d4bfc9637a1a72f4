"""Two servers to compare telemetry with: ``python -m benchmarks.ingest_baseline usual|bare URL PORT``.

``usual``: FastAPI, Pydantic, one commit a request. ``bare``: reads and decodes, and does nothing else; it shows the
machine's speed just now.
"""

import hashlib
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import uvicorn
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from starlette.types import Receive, Scope, Send

from muster.db.engine import make_engine
from muster.db.models import ApiKey, Gpu, TelemetryBlock
from muster.domain.gpu.metrics import NUM_METRICS
from muster.wire.telemetry import Report as WireReport

_decode = msgspec.json.Decoder(WireReport).decode
Value = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)] | None

_TABLE = """
CREATE TABLE IF NOT EXISTS gpu_latest (gpu_uuid text PRIMARY KEY REFERENCES gpus (uuid), node_id text NOT NULL,
    boot_id text NOT NULL, boot_order bigint NOT NULL, seq bigint NOT NULL, at timestamptz NOT NULL,
    received_at timestamptz NOT NULL, schema smallint NOT NULL, "values" double precision[] NOT NULL,
    is_lost boolean NOT NULL) WITH (fillfactor = 60)
"""
"""Table with a row a GPU, the usual first design."""
_UPSERT = """
INSERT INTO gpu_latest (gpu_uuid, node_id, boot_id, boot_order, seq, at, received_at, schema, "values", is_lost)
VALUES (%(gpu_uuid)s, %(node_id)s, %(boot_id)s, %(boot_order)s, %(seq)s, %(at)s, %(received_at)s, %(schema)s,
    %(values)s, %(is_lost)s)
ON CONFLICT (gpu_uuid) DO UPDATE SET node_id = excluded.node_id, boot_id = excluded.boot_id,
    boot_order = excluded.boot_order, seq = excluded.seq, at = excluded.at, received_at = excluded.received_at,
    schema = excluded.schema, "values" = excluded."values", is_lost = excluded.is_lost
WHERE (excluded.boot_order, excluded.seq) > (gpu_latest.boot_order, gpu_latest.seq)
"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GpuReport(_Strict):
    uuid: Annotated[str, Field(max_length=128)]
    values: Annotated[list[Value], Field(min_length=NUM_METRICS, max_length=NUM_METRICS)]
    is_lost: bool = False


class Report(_Strict):
    protocol: int
    boot_id: Annotated[str, Field(min_length=1, max_length=64)]
    seq: Annotated[int, Field(ge=0)]
    at_ms: Annotated[int, Field(ge=0)]
    schema_: Annotated[int, Field(alias="schema")]
    is_history: bool = False
    gpus: list[GpuReport] = []
    node: dict[str, Any] | None = None
    events: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []


def make_app(database_url: str) -> FastAPI:
    engine = make_engine(database_url, pool_size=40, max_overflow=0)
    with engine.begin() as connection:
        connection.exec_driver_sql(_TABLE)
    app = FastAPI()

    @app.post("/v1/telemetry")
    def take(report: Report, authorization: Annotated[str, Header()]) -> dict[str, Any]:
        now = datetime.now(UTC)
        with Session(engine) as session, session.begin():
            node_id = _node_of(session, authorization.removeprefix("Bearer "))
            own = set(session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id)))
            if any(gpu.uuid not in own for gpu in report.gpus):
                raise HTTPException(409)
            is_new = _keep_block(session, node_id, report, now)
            if is_new:
                _move_latest(session, node_id, report, now)
        return {"boot_id": report.boot_id, "seq": report.seq, "is_duplicate": not is_new}

    return app


def _node_of(session: Session, token: str) -> str:
    key = session.scalars(select(ApiKey).where(ApiKey.prefix == token[4:14])).one_or_none()
    if key is None or key.secret_sha256 != hashlib.sha256(token.encode()).digest() or key.node_id is None:
        raise HTTPException(401)
    return key.node_id


def _keep_block(session: Session, node_id: str, report: Report, now: datetime) -> bool:
    at = func.to_timestamp(report.at_ms / 1000)
    row = {"node_id": node_id, "boot_id": report.boot_id, "seq": report.seq, "at": at, "received_at": now}
    content = report.model_dump_json(include={"gpus"}).encode()
    statement = insert(TelemetryBlock).values(**row, schema=report.schema_, content=content)
    return session.execute(statement.on_conflict_do_nothing().returning(TelemetryBlock.seq)).one_or_none() is not None


def _move_latest(session: Session, node_id: str, report: Report, now: datetime) -> None:
    rows = [
        {
            "gpu_uuid": gpu.uuid,
            "node_id": node_id,
            "boot_id": report.boot_id,
            "boot_order": 1,
            "seq": report.seq,
            "at": datetime.fromtimestamp(report.at_ms / 1000, UTC),
            "received_at": now,
            "schema": report.schema_,
            "values": [float("nan") if value is None else value for value in gpu.values],
            "is_lost": gpu.is_lost,
        }
        for gpu in sorted(report.gpus, key=lambda gpu: gpu.uuid)
    ]
    session.connection().exec_driver_sql(_UPSERT, rows)


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    body = (await receive()).get("body", b"")
    if body:
        _decode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    uvicorn.run(
        bare if sys.argv[1] == "bare" else make_app(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[3]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        lifespan="off",
    )
