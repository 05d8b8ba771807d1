"""A model that says its prompt again: a byte is a token, and each step gives every running attempt one token for each of its answers."""

CONTEXT = 4096


def tokens(submit):
    """The prompt's tokens."""
    kind = submit.WhichOneof("prompt")
    if kind == "tokens":
        return list(submit.tokens.ids)
    text = submit.text.text if kind == "text" else "".join(turn.content for turn in submit.chat.turns)
    return list(text.encode())


def can(params):
    """Whether it can do all that is asked for. What it cannot do it must not leave out in silence."""
    sampling = params.sampling
    asks_for_more = params.stop or params.stop_token_ids or sampling.logit_bias or sampling.HasField("logprobs")
    in_range = 1 <= params.n <= 16 and (not params.HasField("max_tokens") or params.max_tokens >= 1)
    return in_range and not asks_for_more


def token(prompt, made):
    """The next token after `made` of them, and its text."""
    token = prompt[made % len(prompt)]
    return token, chr(token) if token < 128 else "?"
