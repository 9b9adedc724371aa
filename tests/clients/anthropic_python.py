"""anthropic-sdk-python over the daemon's Unix socket."""

import anthropic
import transport

USER = [{"role": "user", "content": "Say hello."}]
client = anthropic.Anthropic(
    base_url="http://hob",
    api_key="-",
    http_client=transport.sync_client(),
    max_retries=0,
)
MODEL = client.models.list().data[0].id


def message():
    reply = client.messages.create(model=MODEL, max_tokens=8, messages=USER, system="Be terse.")
    assert reply.type == "message" and reply.content[0].type == "text", reply
    assert reply.stop_reason in ("end_turn", "max_tokens"), reply
    assert reply.usage.output_tokens > 0, reply


def stream():
    with client.messages.stream(model=MODEL, max_tokens=8, messages=USER) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text and final.content[0].text == text, final
    assert final.usage.output_tokens > 0, final


async def asynchronous():
    http = transport.async_client()
    own = anthropic.AsyncAnthropic(
        base_url="http://hob", api_key="-", http_client=http, max_retries=0
    )
    async with own.messages.stream(model=MODEL, max_tokens=4, messages=USER) as events:
        assert "".join([text async for text in events.text_stream])


def counts_are_exact():
    counted = client.messages.count_tokens(model=MODEL, messages=USER, system="Be terse.")
    reply = client.messages.create(model=MODEL, max_tokens=1, messages=USER, system="Be terse.")
    used = reply.usage.input_tokens + reply.usage.cache_read_input_tokens
    assert counted.input_tokens == used, (counted, reply.usage)


def the_stop_sequence_is_named():
    reply = client.messages.create(
        model=MODEL, max_tokens=64, messages=USER, stop_sequences=["e", "o"]
    )
    if reply.stop_reason == "stop_sequence":
        assert reply.stop_sequence in ("e", "o"), reply


def errors():
    for kind, request in [
        (anthropic.BadRequestError, {"extra_body": {"temperature": 1000}}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "x " * 100000}]}),
        (anthropic.NotFoundError, {"model": "none such"}),
    ]:
        try:
            client.messages.create(
                **{"model": MODEL, "max_tokens": 4, "messages": USER, **request}
            )
            raise AssertionError(f"{request} was served")
        except kind as error:
            assert error.body["type"] == "error" and error.request_id, error
            if "messages" in request:
                assert "prompt is too long" in str(error), error


transport.run([message, stream, asynchronous, counts_are_exact, the_stop_sequence_is_named, errors])
