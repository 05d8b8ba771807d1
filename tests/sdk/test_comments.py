"""Comments on a silent stream: on the wire they are there, and OpenAI's own Python client takes no notice of them.

Starts a server of its own, whose streams are silent for 20 ms at most.
"""

import json
import urllib.request
import uuid

import pytest
from openai import OpenAI

from own import serve


@pytest.fixture(scope="module")
def server():
    with serve("--keepalive-comment-ms", "20") as address:
        yield address


def body(word):
    # Long enough for a prefill that several comments fit into, and new each time, so that no cached prefix shortens it.
    prompt = f"{uuid.uuid4()} {word} " + "The keeper wrote the names of the ships into the book. " * 100
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "temperature": 0}


def test_a_stream_has_comments_while_its_prompt_is_computed(server):
    data = json.dumps({**body("raw"), "stream": True}).encode()
    request = urllib.request.Request(f"{server}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        events = answer.read().decode().split("\n\n")
    assert ": keepalive" in events
    assert all(event == ": keepalive" or event.startswith("data: ") for event in events if event)
    assert events[-2] == "data: [DONE]"


def test_the_client_sees_the_same_answer_with_and_without_them(server):
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        asked = body("client")
        model = client.models.list().data[0].id
        chunks = list(client.chat.completions.create(model=model, stream=True, **asked))
        whole = client.chat.completions.create(model=model, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
