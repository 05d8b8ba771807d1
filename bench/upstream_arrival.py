"""How long an engine needs to read a request and to cut its text into tokens, for each byte, before it counts the request.

Sends one request that is far longer than the model's context, to be refused; what that takes more than a short one is the reading. Prints a
line. `crates/upstream` allows 2 µs a byte before it takes "counts none" for a proof (`on_its_way`).

    python3 bench/upstream_arrival.py http://127.0.0.1:8000
"""

import argparse
import http.client
import json
import statistics
import time
import urllib.parse

WORD = "The lighthouse keeper counted seventeen ships before breakfast; "


def refused_s(url, model, size):
    """Seconds until an answer to a chat of so many bytes."""
    connection = http.client.HTTPConnection(url.netloc, timeout=120)
    text = WORD * (size // len(WORD))
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1})
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    took = time.monotonic() - began
    connection.close()
    if size > 1_000_000 and answer.status < 400:
        raise SystemExit(f"{size} bytes fit into the model's context ({answer.status}): {said[:200]!r}; name a larger --bytes")
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="of the long text (default: %(default)s)")
    parser.add_argument("--tries", type=int, default=5)
    args = parser.parse_args()
    url = urllib.parse.urlsplit(args.url)
    connection = http.client.HTTPConnection(url.netloc, timeout=10)
    connection.request("GET", "/v1/models")
    model = json.loads(connection.getresponse().read())["data"][0]["id"]
    short = statistics.median(refused_s(url, model, 100) for _ in range(args.tries))
    tries = sorted(refused_s(url, model, args.bytes) for _ in range(args.tries))
    each = [(took - short) / args.bytes * 1e9 for took in tries]
    print(f"{args.bytes} bytes: {tries[0]:.2f} to {tries[-1]:.2f} s until refused, a short one {short:.2f} s: {max(each):.0f} ns a byte at most")


if __name__ == "__main__":
    main()
