"""Cuts out of OpenAI's published API description (`openapi.json` of the repository openai/openai-openapi, MIT licence) what kvit's Responses
API answers, into openai-responses.schema.json. Not a test: run it by hand when the description has changed.

    python3 tests/sdk/cut_schema.py openapi.json COMMIT > tests/sdk/openai-responses.schema.json

What is cut: descriptions, examples, and of each union the members that kvit never says (hosted tools, reasoning, images, ...). Nothing is added but
`discriminator`s' meaning, which JSON Schema has no word for: a union says which of its members must fit.
"""

import json
import sys

# What is validated.
ROOTS = [
    "Response", "ResponseItemList", "ResponseCreatedEvent", "ResponseQueuedEvent", "ResponseInProgressEvent", "ResponseOutputItemAddedEvent",
    "ResponseContentPartAddedEvent", "ResponseTextDeltaEvent", "ResponseTextDoneEvent", "ResponseContentPartDoneEvent",
    "ResponseOutputItemDoneEvent", "ResponseFunctionCallArgumentsDeltaEvent", "ResponseFunctionCallArgumentsDoneEvent",
    "ResponseCompletedEvent", "ResponseFailedEvent", "ResponseIncompleteEvent",
]
# Of these unions only the members that kvit says.
UNIONS = {
    "OutputItem": ["OutputMessage", "FunctionToolCall"],
    "ItemResource": ["InputMessageResource", "OutputMessage", "FunctionToolCallResource", "FunctionToolCallOutputResource"],
    "OutputContent": ["OutputTextContent"],
    "OutputMessageContent": ["OutputTextContent"],
    "InputContent": ["InputTextContent"],
    "ToolChoiceParam": ["ToolChoiceOptions", "ToolChoiceFunction"],
    "Tool": ["FunctionTool"],
    "TextResponseFormatConfiguration": ["ResponseFormatText", "TextResponseFormatJsonSchema", "ResponseFormatJsonObject"],
}
# kvit says none of these, so none is allowed.
NEVER = [
    "Annotation", "InputItem", "Prompt", "ResponseConversation", "PromptCacheOptions", "Moderation", "ToolCallCaller", "ToolCallCallerParam",
    "CallableToolAllowedCaller", "FunctionAndCustomToolCallOutput",
]
WORDS = ("description", "example", "examples", "title", "deprecated", "default", "discriminator", "format")


def stripped(node):
    if isinstance(node, dict):
        return {k: stripped(v) for k, v in node.items() if k == "properties" or not (k in WORDS or k.startswith("x-"))} | (
            {"properties": {k: stripped(v) for k, v in node["properties"].items()}} if isinstance(node.get("properties"), dict) else {}
        )
    return [stripped(v) for v in node] if isinstance(node, list) else node


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rsplit("/", 1)[-1]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def cut(schemas):
    kept, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name in kept:
            continue
        if name in NEVER:
            kept[name] = False
        elif name in UNIONS:
            word = next(w for w in ("oneOf", "anyOf") if w in schemas[name])
            published = list(references(schemas[name][word]))
            assert set(UNIONS[name]) <= set(published), (name, published)
            kept[name] = {word: [{"$ref": f"#/components/schemas/{member}"} for member in UNIONS[name]]}
        else:
            kept[name] = stripped(schemas[name])
        todo += references(kept[name])
    return dict(sorted(kept.items()))


if __name__ == "__main__":
    description, commit = sys.argv[1:]
    with open(description, encoding="utf-8") as file:
        published = json.load(file)
    about = f"Cut by cut_schema.py from OpenAI's API description {published['info']['version']}, openai/openai-openapi {commit}, MIT licence."
    json.dump({"about": about, "components": {"schemas": cut(published["components"]["schemas"])}}, sys.stdout, indent=1)
    print()
