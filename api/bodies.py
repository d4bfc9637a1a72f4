"""Bodies as route dependencies: read whole under the limit, parsed strictly, described in OpenAPI."""

from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.dependencies import dependencies_of
from api.refusals import refusing
from api.strict_json import read_model
from muster.domain.errors import (
    ConflictError,
    FieldFault,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    UpgradeRequiredError,
    ValidationFailedError,
)
from muster.wire.messages import WireAnswer, WireMessage

Model = TypeVar("Model", bound=BaseModel)
_OF_A_BODY: Final = (PayloadTooLargeError, UnsupportedMediaTypeError, ValidationFailedError)
Message = TypeVar("Message", bound=WireMessage)


async def raw_body(request: Request) -> bytes:
    """Return the body's bytes; the middleware limits their size.

    Raises:
        UnsupportedMediaTypeError: another type than application/json, or any encoding.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaTypeError("the Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("a Content-Encoding is not accepted here")
    body = await request.body()
    request.state.raw_body = body
    return body


def json_body(model: type[Model]) -> Any:
    """Return a dependency that gives the body as ``model``, read off the event loop."""

    async def read(request: Request, body: Annotated[bytes, Depends(raw_body)]) -> Model:
        depth = dependencies_of(request).limits.json_depth
        return await run_in_threadpool(read_model, body, model, max_depth=depth)

    return Depends(refusing(read, *_OF_A_BODY))


def wire_body(message_type: type[Message]) -> Any:
    """Return a dependency that gives the body as a message of the host protocol."""

    async def read(body: Annotated[bytes, Depends(raw_body)]) -> Message:
        try:
            return msgspec.json.decode(body, type=message_type)
        except msgspec.ValidationError as error:
            raise _message_fault(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _message_fault(f"not JSON: {error}") from None

    return Depends(refusing(read, *_OF_A_BODY, UpgradeRequiredError, ConflictError))


def _message_fault(detail: str) -> ValidationFailedError:
    text = detail.encode("utf-8", "replace").decode()[:500]
    return ValidationFailedError(text, faults=(FieldFault("/", "invalid_message", text),))


def described_by(model: type[BaseModel]) -> dict[str, Any]:
    """Return OpenAPI's description of a body that a dependency reads."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = {**schema.pop("$defs", {}), model.__name__: schema}
    return {"x-muster-definitions": definitions, "requestBody": _required(_ref(model.__name__))}


def described_by_wire(message_type: type[Message], answer_type: type[WireAnswer]) -> dict[str, Any]:
    """Return the same for a message of the host protocol and its answer."""
    (message, answer), definitions = msgspec.json.schema_components(
        [message_type, answer_type], ref_template="#/components/schemas/{name}"
    )
    content = {"application/json": {"schema": answer}}
    return {
        "x-muster-definitions": definitions,
        "requestBody": _required(message),
        "responses": {"200": {"description": "Taken", "content": content}},
    }


def _required(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
