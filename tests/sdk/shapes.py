"""What every answer of the Responses API must be: valid for the models of OpenAI's own client, read strictly, and for the schema that
OpenAI publishes (openai-responses.schema.json, cut by cut_schema.py to what kvit says)."""

import json
import pathlib

from jsonschema import Draft202012Validator
from openai.types import responses as types
from pydantic import TypeAdapter

HERE = pathlib.Path(__file__).parent
PUBLISHED = json.loads((HERE / "openai-responses.schema.json").read_text(encoding="utf-8"))
# Names by the type of an event.
EVENTS = {
    "response.created": "ResponseCreatedEvent",
    "response.queued": "ResponseQueuedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.failed": "ResponseFailedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
}
TERMINAL = ("response.completed", "response.failed", "response.incomplete")


def schema(name):
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **PUBLISHED})


VALIDATORS = {name: schema(name) for name in ("Response", "ResponseItemList", *EVENTS.values())}
STRICT = {"event": TypeAdapter(types.ResponseStreamEvent), "response": TypeAdapter(types.Response)}


def properties(node):
    """All properties that a schema and what it refers to name."""
    if "$ref" in node:
        return properties(PUBLISHED["components"]["schemas"][node["$ref"].rsplit("/", 1)[-1]])
    return set(node.get("properties", {})).union(*(properties(part) for part in node.get("allOf", [])))


RESPONSE = properties({"$ref": "#/components/schemas/Response"})


def valid(body, name, strict=None):
    errors = [f"{e.json_path}: {e.message}" for e in VALIDATORS[name].iter_errors(body)]
    assert not errors, (errors, body)
    if strict:
        STRICT[strict].validate_json(json.dumps(body), strict=True)


def valid_response(body):
    """Checks a response object; what is kvit's own stands in one place."""
    valid(body, "Response", "response")
    # `store` is in OpenAI's answers and examples, and not in its schema.
    assert set(body) - RESPONSE == {"kvit", "store"}, set(body) - RESPONSE
    terminal = body["status"] in ("completed", "failed", "cancelled", "incomplete")
    assert (body["kvit"]["cause"] is not None) == terminal == ("usage" in body), body
    assert (body["error"] is not None) == (body["status"] == "failed"), body
    assert (body["incomplete_details"] is not None) == (body["status"] == "incomplete"), body
    return body


def valid_event(body):
    valid(body, EVENTS[body["type"]], "event")
    if "response" in body:
        valid_response(body["response"])
    return body


def valid_items(body):
    valid(body, "ResponseItemList")
    return body
