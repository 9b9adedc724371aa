"""openai-python over the daemon's Unix socket."""

import openai
import transport

URL = "http://hob/v1"
USER = [{"role": "user", "content": "Say hello."}]
client = openai.OpenAI(
    base_url=URL, api_key="-", http_client=transport.sync_client(), max_retries=0
)
MODEL = client.models.list().data[0].id


def models():
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object) == (MODEL, "model"), model


def chat():
    reply = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=8)
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, reply
    assert choice.finish_reason in ("stop", "length"), reply
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def chat_stream():
    stream = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text, chunks
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1]
    assert chunks[-2].choices[0].finish_reason in ("stop", "length"), chunks[-2]


def chat_stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=USER, max_tokens=8) as stream:
        kinds = [event.type for event in stream]
        assert "content.delta" in kinds, kinds
        try:
            assert stream.get_final_completion().choices[0].message.content
        except openai.LengthFinishReasonError as error:
            assert error.completion.choices[0].message.content, error


async def chat_async():
    http = transport.async_client()
    own = openai.AsyncOpenAI(base_url=URL, api_key="-", http_client=http, max_retries=0)
    reply = await own.chat.completions.create(model=MODEL, messages=USER, max_tokens=4)
    assert reply.choices[0].message.content, reply
    stream = await own.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=4, stream=True
    )
    assert [chunk async for chunk in stream]


def chat_logprobs_and_choices():
    reply = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=3, logprobs=True, top_logprobs=2, n=2, seed=1
    )
    assert [choice.index for choice in reply.choices] == [0, 1], reply
    first = reply.choices[0].logprobs.content[0]
    assert first.logprob <= 0 and len(first.top_logprobs) == 2 and first.bytes, first


def greedy_answers_are_the_same():
    def ask(**more):
        reply = client.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=8, temperature=0, **more
        )
        return reply.choices[0].message.content

    assert ask() == ask(seed=-9007199254740991)


def completions():
    reply = client.completions.create(
        model=MODEL, prompt=["Once upon", [1, 2, 3]], max_tokens=4, logprobs=2, echo=True
    )
    assert [choice.index for choice in reply.choices] == [0, 1], reply
    assert "upon" in reply.choices[0].text, reply
    logprobs = reply.choices[0].logprobs
    count = len(logprobs.tokens)
    assert logprobs.token_logprobs[0] is None, logprobs
    assert count == len(logprobs.token_logprobs) == len(logprobs.text_offset), logprobs
    stream = client.completions.create(model=MODEL, prompt="One", max_tokens=4, stream=True)
    assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")


def embeddings():
    # By default in base 64, which the client takes apart.
    coded = client.embeddings.create(model=MODEL, input=["one", "two"])
    plain = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
    for a, b in zip(coded.data, plain.data):
        assert len(a.embedding) == len(b.embedding)
        assert all(abs(x - y) < 1e-6 for x, y in zip(a.embedding, b.embedding))
        assert abs(sum(x * x for x in a.embedding) - 1) < 1e-3
    assert len(client.embeddings.create(model=MODEL, input="x", dimensions=8).data[0].embedding) == 8


def responses():
    first = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8)
    assert first.output_text and first.usage.output_tokens > 0, first
    second = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=first.id, max_output_tokens=8
    )
    assert second.usage.input_tokens > first.usage.input_tokens, second
    assert client.responses.retrieve(first.id).id == first.id
    assert len(client.responses.input_items.list(first.id).data) == 1
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        raise AssertionError("it is still there")
    except openai.NotFoundError:
        pass


def responses_stream():
    with client.responses.stream(
        model=MODEL, input="Say hello.", max_output_tokens=8
    ) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created", kinds
    assert "response.output_text.delta" in kinds, kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds


def tools_are_accepted():
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    try:
        reply = client.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=8, tools=[tool], tool_choice="auto"
        )
        assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls"), reply
    except openai.BadRequestError as error:
        # A template that makes no use of tools: the model would not know of them.
        assert "tools" in str(error), error


def errors():
    for kind, request in [
        (openai.BadRequestError, {"messages": USER, "temperature": 1000}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "x " * 100000}]}),
        (openai.NotFoundError, {"messages": USER, "model": "none such"}),
    ]:
        for stream in (False, True):
            try:
                client.chat.completions.create(**{"model": MODEL, "stream": stream, **request})
                raise AssertionError(f"{request} was served")
            except kind as error:
                assert error.request_id, error
                if "x x" in str(request):
                    assert error.code == "context_length_exceeded", error


transport.run(
    [
        models,
        chat,
        chat_stream,
        chat_stream_helper,
        chat_async,
        chat_logprobs_and_choices,
        greedy_answers_are_the_same,
        completions,
        embeddings,
        responses,
        responses_stream,
        tools_are_accepted,
        errors,
    ]
)
