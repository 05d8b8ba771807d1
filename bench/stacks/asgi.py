"""An ASGI gateway of the usual kind, as people write it: uvicorn, Starlette, httpx to the engine. Its handler for whole answers asks
`request.is_disconnected()` while it waits; `--layers` puts so many of `BaseHTTPMiddleware` around it, as request logs, keys and timings are
commonly added. `--plain` is the handler that awaits the engine and looks at nothing.

It is judged and judges nothing. Started by `cargo xtask stacks` in an environment that has uvicorn, starlette and httpx.
"""

import argparse
import asyncio
import contextlib
import time

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

LOOK_S = 0.1
ANSWER_LIMIT_S = 600


class Timed(BaseHTTPMiddleware):
    """Says how long an answer took."""

    async def dispatch(self, request, call_next):
        began = time.monotonic()
        response = await call_next(request)
        response.headers["x-process-time"] = f"{time.monotonic() - began:.3f}"
        return response


def gateway(upstream, layers, plain):
    """The application, in front of that engine."""

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with httpx.AsyncClient(base_url=upstream, timeout=ANSWER_LIMIT_S) as app.state.client:
            yield

    async def stream(client, body, headers):
        async with client.stream("POST", "/v1/chat/completions", content=body, headers=headers) as answer:
            async for part in answer.aiter_raw():
                yield part

    async def whole(request, client, body, headers):
        asking = asyncio.create_task(client.post("/v1/chat/completions", content=body, headers=headers))
        while not asking.done():
            if not plain and await request.is_disconnected():
                asking.cancel()
                return Response(status_code=499)
            await asyncio.wait([asking], timeout=LOOK_S)
        answer = asking.result()
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def chat(request):
        body, client = await request.body(), request.app.state.client
        headers = {"content-type": "application/json", "x-request-id": request.headers.get("x-request-id", "")}
        if (await request.json()).get("stream"):
            return StreamingResponse(stream(client, body, headers), media_type="text/event-stream")
        return await whole(request, client, body, headers)

    async def models(request):
        answer = await request.app.state.client.get("/v1/models")
        return Response(answer.content, answer.status_code, media_type="application/json")

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)]
    return Starlette(routes=routes, middleware=[Middleware(Timed)] * layers, lifespan=lifespan)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, metavar="URL")
    parser.add_argument("--layers", type=int, default=0, help="of BaseHTTPMiddleware (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="the handler of whole answers does not look for its caller")
    args = parser.parse_args()
    uvicorn.run(gateway(args.upstream, args.layers, args.plain), host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
