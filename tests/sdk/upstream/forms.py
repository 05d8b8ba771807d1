"""What vLLM, llama.cpp, SGLang and Ollama answer, each in its own form: who it is, its counters, the chunks of a stream, an answer, an error.

vLLM's and llama.cpp's were read off vLLM 0.32.0 and llama-server 11434; SGLang's and Ollama's stand in what they publish (SGLang's page on
tool calls prints them; Ollama's on OpenAI's API names the fields that it knows, and its source the keys of an answer). What differs between them is what a client may stumble over: which keys are missing and which are null, where usage stands, what a
call's first piece has, and which word ends an answer with a call.
"""

import json


class Form:
    """What all of them have in common."""

    kind, version, owner = "", "", ""
    # Always the same, so that two answers to one request are the same bytes.
    model, id = "scripted", "chatcmpl-scripted"
    # How many answers it gives where several are asked for, whether it gives log-probabilities, and whether it refuses what it does not know.
    answers_max, has_logprobs, is_strict = 128, True, True
    # What bounds an answer.
    caps = ("max_completion_tokens", "max_tokens")

    def __init__(self, request):
        self.request, self.usage = request, None
        self.includes_usage = bool((request.get("stream_options") or {}).get("include_usage"))

    @classmethod
    def told(cls, running):
        """path -> what it is answered with; text is Prometheus'."""
        models = {"object": "list", "data": [{"id": cls.model, "object": "model", "created": 1, "owned_by": cls.owner, **cls.about()}]}
        return {"/v1/models": models, "/health": {}, "/metrics": "".join(f"{name} {value}\n" for name, value in cls.counters(running))}

    @classmethod
    def about(cls):
        return {}

    @classmethod
    def error(cls, message):
        return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}

    def chunk(self, choices, **more):
        return {"id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model, "choices": choices, **more}

    def first(self, index):
        """The chunk that begins an answer."""
        return self.said(index, {"role": "assistant", "content": ""})

    def said(self, index, delta, finish=None, logprobs=None):
        return self.chunk([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])

    def text(self, index, piece, logprobs):
        return self.said(index, {"content": piece}, logprobs=logprobs)

    def last(self, index, finish):
        return self.said(index, {}, finish)

    def logprobs(self, pieces):
        """One entry a token."""
        return {"content": [self.logprob(piece) for piece in pieces]}

    def logprob(self, piece):
        entry = {"token": piece, "logprob": -0.25, "bytes": list(piece.encode())}
        return entry | {"top_logprobs": [entry]}

    def counted(self, prompt, generated):
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


class Vllm(Form):
    kind, version, owner = "vllm", "0.32.0", "vllm"

    @classmethod
    def about(cls):
        return {"root": cls.model, "parent": None, "max_model_len": 4096}

    @classmethod
    def counters(cls, running):
        return [('vllm:num_requests_running{engine="0"}', float(running)), ('vllm:num_requests_waiting{engine="0"}', 0.0)]

    @classmethod
    def told(cls, running):
        return super().told(running) | {"/version": {"version": cls.version}}

    def first(self, index):
        return super().first(index) | {"prompt_token_ids": None, "prompt_text": None}

    def said(self, index, delta, finish=None, logprobs=None):
        chunk = super().said(index, delta, finish, logprobs)
        if "role" not in delta:
            chunk["choices"][0] |= ({"stop_reason": None} if finish else {}) | {"token_ids": None}
        return chunk

    def call(self, index, number, name, arguments):
        """The first piece has no arguments, and every piece has a content that is null."""
        pieces = [{"id": f"chatcmpl-tool-{number}", "type": "function", "index": number, "function": {"name": name}}]
        pieces += [{"index": number, "function": {"arguments": piece}} for piece in arguments]
        return [self.said(index, {"content": None, "tool_calls": [piece]}) for piece in pieces]

    def ended_by(self, calls):
        """A call that was asked for by its name ends like a text."""
        return "stop" if not calls or isinstance(self.request.get("tool_choice"), dict) else "tool_calls"

    def ending(self):
        return [self.chunk([], usage=self.usage, system_fingerprint="vllm")] if self.includes_usage else []

    def whole(self, answers, usage):
        choices = []
        for index, (text, calls, finish, logprobs) in enumerate(answers):
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None, "function_call": None}
            if calls:
                message["tool_calls"] = [
                    {"id": f"chatcmpl-tool-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
                    for n, (name, arguments) in enumerate(calls)
                ]
            message["reasoning"] = None
            more = {"stop_reason": None, "token_ids": None, "routed_experts": None}
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish, **more})
        head = {"id": self.id, "object": "chat.completion", "created": 1, "model": self.model, "choices": choices}
        usage = usage | {"prompt_tokens_details": None, "completion_tokens_details": None}
        return head | {"service_tier": None, "usage": usage, "prompt_logprobs": None, "kv_transfer_params": None, "metrics": None}


class LlamaCpp(Form):
    kind, version, owner = "llamacpp", "b11434-scripted", "llamacpp"

    @classmethod
    def about(cls):
        return {"aliases": [cls.model], "tags": [], "meta": {"vocab_type": 2, "n_ctx": 4096, "n_ctx_train": 8192}}

    @classmethod
    def counters(cls, running):
        return [("llamacpp:requests_processing", running), ("llamacpp:requests_deferred", 0)]

    @classmethod
    def told(cls, running):
        props = {"default_generation_settings": {"n_ctx": 4096, "params": {}}, "total_slots": 4, "build_info": cls.version}
        return super().told(running) | {"/props": props}

    @classmethod
    def error(cls, message):
        return {"error": {"code": 400, "message": message, "type": "invalid_request_error"}}

    def chunk(self, choices, **more):
        """Its keys come in another order, and the choices are the first of them."""
        head = {"choices": choices, "created": 1, "id": self.id, "model": self.model, "system_fingerprint": self.version}
        return head | {"object": "chat.completion.chunk", **more}

    def said(self, index, delta, finish=None, logprobs=None):
        return self.chunk([{"finish_reason": finish, "index": index, "delta": delta, **({"logprobs": logprobs} if logprobs else {})}])

    def first(self, index):
        return self.said(index, {"role": "assistant", "content": None})

    def logprob(self, piece):
        return {"id": len(piece)} | super().logprob(piece)

    def call(self, index, number, name, arguments):
        """The first piece brings the beginning of the arguments."""
        head, *rest = arguments
        pieces = [{"index": number, "id": f"id{number}", "type": "function", "function": {"name": name, "arguments": head}}]
        pieces += [{"index": number, "function": {"arguments": piece}} for piece in rest]
        return [self.said(index, {"tool_calls": [piece]}) for piece in pieces]

    def ended_by(self, calls):
        return "tool_calls" if calls else "stop"

    def counted(self, prompt, generated):
        return super().counted(prompt, generated) | {"prompt_tokens_details": {"cached_tokens": 0}}

    def last(self, index, finish):
        chunk = super().last(index, finish)
        return chunk if self.includes_usage else chunk | {"timings": self.timings()}

    def timings(self):
        return {"cache_n": 0, "prompt_n": 1, "predicted_n": 1}

    def ending(self):
        return [self.chunk([], usage=self.usage, timings=self.timings())] if self.includes_usage else []

    def whole(self, answers, usage):
        choices = []
        for index, (text, calls, finish, logprobs) in enumerate(answers):
            message = {"role": "assistant", "content": text}
            if calls:
                message["tool_calls"] = [
                    {"type": "function", "function": {"name": name, "arguments": arguments}, "id": f"id{n}"}
                    for n, (name, arguments) in enumerate(calls)
                ]
            choices.append({"finish_reason": finish, "index": index, "message": message, **({"logprobs": logprobs} if logprobs else {})})
        head = {"choices": choices, "created": 1, "model": self.model, "system_fingerprint": self.version, "object": "chat.completion"}
        return head | {"usage": usage, "id": self.id, "timings": self.timings()}


class Sglang(Form):
    kind, version, owner = "sglang", "0.5.9", "sglang"

    @classmethod
    def about(cls):
        return {"root": cls.model, "max_model_len": 4096}

    @classmethod
    def counters(cls, running):
        # As old as its gauges are: they move at prefills.
        return [('sglang:num_running_reqs{model_name="scripted"}', 0.0), ('sglang:num_queue_reqs{model_name="scripted"}', 0.0)]

    @classmethod
    def told(cls, running):
        info = {"tp_size": 1, "version": cls.version, "max_running_requests": 48, "max_total_num_tokens": 9000}
        return super().told(running) | {"/server_info": info, "/get_server_info": info}

    @classmethod
    def error(cls, message):
        return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}

    def said(self, index, delta, finish=None, logprobs=None):
        """Whatever it does not say is null, usage too."""
        delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None} | delta
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish, "matched_stop": None}
        return self.chunk([choice], usage=None)

    def call(self, index, number, name, arguments):
        """Later pieces repeat the type, and have an id and a name that are null."""
        pieces = [{"id": f"call_{number}", "index": number, "type": "function", "function": {"name": name, "arguments": ""}}]
        later = {"id": None, "index": number, "type": "function"}
        pieces += [later | {"function": {"name": None, "arguments": piece}} for piece in arguments]
        return [self.said(index, {"tool_calls": [piece]}) for piece in pieces]

    def ended_by(self, calls):
        return "tool_calls" if calls else "stop"

    def counted(self, prompt, generated):
        return super().counted(prompt, generated) | {"prompt_tokens_details": None, "reasoning_tokens": 0}

    def ending(self):
        return [self.chunk([], usage=self.usage)] if self.includes_usage else []

    def whole(self, answers, usage):
        choices = []
        for index, (text, calls, finish, logprobs) in enumerate(answers):
            # Of a call it gives the place among those of its parser, which is 0 for each.
            told = [
                {"id": f"call_{n}", "index": 0, "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(calls)
            ]
            message = {"role": "assistant", "content": text or None, "reasoning_content": None, "tool_calls": told or None}
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish, "matched_stop": None})
        head = {"id": self.id, "object": "chat.completion", "created": 1, "model": self.model, "choices": choices}
        return head | {"usage": usage, "metadata": {"weight_version": "default"}}


class Ollama(Form):
    """It shows no counters and no health, and reads over every field that it does not know."""

    kind, owner = "ollama", "library"
    answers_max, has_logprobs, is_strict = 1, False, False
    caps = ("max_tokens",)

    @classmethod
    def told(cls, running):
        models = {"object": "list", "data": [{"id": cls.model, "object": "model", "created": 1, "owned_by": cls.owner}]}
        return {"/v1/models": models, "/": "Ollama is running", "/api/version": {"version": "0.12.0"}}

    @classmethod
    def error(cls, message):
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

    def chunk(self, choices, **more):
        head = {"id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model}
        return head | {"system_fingerprint": "fp_ollama", "choices": choices, **more}

    def said(self, index, delta, finish=None, logprobs=None):
        """The role stands in each piece, and a content always."""
        return self.chunk([{"index": index, "delta": {"role": "assistant", "content": ""} | delta, "finish_reason": finish}])

    def first(self, index):
        """It says nothing before its first token."""

    def call(self, index, number, name, arguments):
        """A call comes whole."""
        function = {"name": name, "arguments": "".join(arguments)}
        return [self.said(index, {"tool_calls": [{"id": f"call_{number}", "index": number, "type": "function", "function": function}]})]

    def ended_by(self, calls):
        return "tool_calls" if calls else "stop"

    def ending(self):
        return [self.chunk([], usage=self.usage)] if self.includes_usage else []

    def whole(self, answers, usage):
        choices = []
        for index, (text, calls, finish, _) in enumerate(answers):
            told = [
                {"id": f"call_{n}", "index": n, "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(calls)
            ]
            message = {"role": "assistant", "content": text, **({"tool_calls": told} if told else {})}
            choices.append({"index": index, "message": message, "finish_reason": finish})
        head = {"id": self.id, "object": "chat.completion", "created": 1, "model": self.model, "system_fingerprint": "fp_ollama"}
        return head | {"choices": choices, "usage": usage}


FORMS = {form.kind: form for form in (Vllm, LlamaCpp, Sglang, Ollama)}


def event(value):
    """One of a stream."""
    return f"data: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n\n".encode()
