"""Bodies as route dependencies: read whole under the limit, parsed strictly, described in OpenAPI."""

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.dependencies import dependencies_of
from api.strict_json import read_model
from muster.domain.errors import FieldFault, UnsupportedMediaTypeError, ValidationFailedError
from muster.wire.host import WireMessage

Model = TypeVar("Model", bound=BaseModel)
Message = TypeVar("Message", bound=WireMessage)


async def raw_body(request: Request) -> bytes:
    """The body's bytes; their size is bounded by the middleware.

    Raises:
        UnsupportedMediaTypeError: another type than application/json, or any encoding.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaTypeError("the Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("a Content-Encoding is not taken here")
    body = await request.body()
    request.state.raw_body = body
    return body


def json_body(model: type[Model]) -> Any:
    """The body as ``model``, read off the event loop."""

    async def read(request: Request, body: Annotated[bytes, Depends(raw_body)]) -> Model:
        depth = dependencies_of(request).limits.json_depth
        return await run_in_threadpool(read_model, body, model, max_depth=depth)

    return Depends(read)


def wire_body(message_type: type[Message]) -> Any:
    """The body as a message of the host protocol."""

    async def read(body: Annotated[bytes, Depends(raw_body)]) -> Message:
        try:
            return msgspec.json.decode(body, type=message_type)
        except msgspec.ValidationError as error:
            raise _message_fault(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _message_fault(f"not JSON: {error}") from None

    return Depends(read)


def _message_fault(detail: str) -> ValidationFailedError:
    text = detail.encode("utf-8", "replace").decode()[:500]
    return ValidationFailedError(text, faults=(FieldFault("/", "invalid_message", text),))


def described_by(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that a dependency reads."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{model.__name__}.{{model}}")
    definitions = schema.pop("$defs", {})
    return {
        "x-muster-definitions": {f"{model.__name__}.{name}": inner for name, inner in definitions.items()},
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }
