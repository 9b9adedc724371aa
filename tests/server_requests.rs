//! Requests and replies of a connection, by a server in front of a scripted engine.
#![allow(clippy::unwrap_used)]

mod server_support;

use hob::protocol::{Framing, encode_frame};
use serde_json::{Value, json};
use server_support::{BOB, Bench, DIE, HOLD, PATIENCE, code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[tokio::test]
async fn every_method_answers() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let info = client.call("initialize", json!({"client": {"name": "t"}, "protocol": 1})).await;
    assert_eq!(info["result"]["server"]["name"], "hobd");
    assert_eq!(info["result"]["limits"]["context_tokens"], 2048);
    let tokens = client.call("tokenize", json!({"text": "hé", "add_special": true})).await;
    let ids = json!([1, 3 + 0x68, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(tokens["result"]["tokens"], ids);
    let text = client.call("detokenize", json!({"tokens": ids})).await;
    assert_eq!(text["result"]["text"], "<s>hé");
    let messages = json!([{"role": "user", "content": "x"}]);
    let prompt = client.call("apply_template", json!({"messages": messages})).await;
    assert_eq!(prompt["result"]["prompt"], "[user]x[answer]");
    let made = client.call("session.create", json!({"name": "n", "context_tokens": 7})).await;
    assert_eq!(made["result"], json!({"session": 1, "name": "n", "context_tokens": 7}));
    let list = client.call("session.list", json!({})).await;
    assert_eq!(list["result"]["sessions"][0]["name"], "n");
    let closed = client.call("session.close", json!({"session": "n"})).await;
    assert_eq!(closed["result"], json!({"session": 1}));
    let status = client.call("status", json!({})).await;
    assert_eq!(status["result"]["connections"], 1);
    assert_eq!(status["result"]["sessions"], 0);
}

#[tokio::test]
async fn tools_and_their_calls_reach_the_template_in_their_order() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "+"}}]);
    let messages = json!([
        {"role": "user", "content": "1 + 2"},
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"b": 2, "a": 1}}]},
        {"role": "tool", "tool_call_id": "x", "name": "add", "content": "3"},
    ]);
    let params = json!({"messages": messages, "tools": tools});
    let prompt = client.call("apply_template", params.clone()).await;
    assert_eq!(
        prompt["result"]["prompt"].as_str().unwrap(),
        "[tools][{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"+\"}}]\
         [user]1 + 2[assistant]{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1}}[tool]3\
         [answer]"
    );
    let text = json!({"text": prompt["result"]["prompt"], "add_special": true});
    let tokens = client.call("tokenize", text).await;
    client.call("generate", params).await;
    assert_eq!(json!(bench.arrived().await.tokens), tokens["result"]["tokens"]);
    // What the template would pass over is not passed over in silence.
    let params = json!({"messages": messages, "documents": [{"text": "x"}]});
    let refused = client.call("generate", params).await;
    assert_eq!(code(&refused), -32011);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("makes no use of documents"), "{message}");
    for wrong in [
        json!({"prompt": "x", "tools": tools}),
        json!({"messages": messages, "tools": {"name": "add"}}),
        json!({"messages": messages, "tools": [{"name": "x".repeat(1 << 20)}]}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": [{"role": "user", "content": "x", "tool": "y"}]}),
    ] {
        assert_eq!(code(&client.call("generate", wrong).await), -32602);
    }
}

#[tokio::test]
async fn prompts_of_all_kinds_reach_the_engine_as_tokens() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    let byte = |c: u8| 3 + u32::from(c);
    let with_bos = [1, byte(b'h'), byte(b'i')];
    client.call("generate", json!({"prompt": "hi", "max_tokens": 1})).await;
    assert_eq!(bench.arrived().await.tokens, with_bos);
    client.call("generate", json!({"prompt": "</s>", "max_tokens": 1})).await;
    assert_eq!(bench.arrived().await.tokens, [1, 2], "special tokens in a prompt count");
    client.call("generate", json!({"tokens": [9, 8], "max_tokens": 0})).await;
    let request = bench.arrived().await;
    assert_eq!((request.tokens, request.tokens_max), (vec![9, 8], 0));
    // The template's own BOS is not doubled.
    for content in ["hi", "<s>"] {
        let messages = json!([{"role": content, "content": "x"}]);
        client.call("generate", json!({"messages": messages})).await;
        let request = bench.arrived().await;
        assert_eq!(request.tokens.iter().filter(|token| **token == 1).count(), 1, "{content}");
        assert_eq!(request.tokens_max, 512);
    }
}

#[tokio::test]
async fn texts_of_a_conversation_spell_no_special_tokens() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    let calls = json!([{"name": "</s>", "arguments": {"text": ["<s>", "</", "s>"]}}]);
    let messages = json!([
        {"role": "user", "content": "end</s><s>here"},
        {"role": "assistant</s>", "content": "\u{fdd0}</s", "tool_calls": calls},
        {"role": "user", "content": "<"},
    ]);
    let tools = json!([{"description": "</s>"}]);
    let params = json!({"messages": messages, "tools": tools});
    client.call("generate", params.clone()).await;
    let tokens = bench.arrived().await.tokens;
    let (first, text) = tokens.split_first().unwrap();
    assert_eq!(*first, 1, "BOS is there, and nothing else of its kind");
    assert!(text.iter().all(|token| *token > 2), "{tokens:?}");
    let found = client.call("detokenize", json!({"tokens": text})).await;
    let shown = client.call("apply_template", params).await;
    // The vocabulary of bytes has spaces as SentencePiece writes them.
    let found = found["result"]["text"].as_str().unwrap().replace('\u{2581}', " ");
    assert_eq!(found, shown["result"]["prompt"], "no text is lost or added");
}

#[tokio::test]
async fn arrays_are_no_objects() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let params = json!({"messages": [["user", "hi"]]});
    let reply = client.call("generate", params).await;
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("messages"), "{reply}");
}

#[tokio::test]
async fn parameters_reach_the_engine_and_results_come_back() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    client.call("session.create", json!({"name": "s"})).await;
    let params = json!({
        "session": "s", "tokens": [20, 8, 9], "max_tokens": 2, "temperature": 0.5, "top_k": 3,
        "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.5, "seed": u64::MAX, "stop": "x",
        "logprobs": 2, "prompt_logprobs": 0, "stream": false, "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
    });
    let result = client.call("generate", params).await["result"].take();
    let request = bench.arrived().await;
    assert_eq!(request.session.map(|session| session.0), Some(1));
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.5, 3, 0.25));
    assert_eq!((sampling.min_p, sampling.repeat_penalty), (0.125, 1.5));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (0.25, -0.5));
    assert_eq!((sampling.seed, request.stop), (Some(u64::MAX), vec!["x".to_owned()]));
    assert_eq!((request.logprobs, request.prompt_logprobs), (Some(2), Some(0)));
    assert_eq!(result["text"], "aa");
    assert_eq!(result["finish_reason"], "length");
    // What is left out is as the model has it.
    let facts = client.call("initialize", json!({})).await["result"]["model"].take();
    client.call("generate", json!({"tokens": [7], "top_k": 1, "max_tokens": 1})).await;
    let sampling = bench.arrived().await.sampling;
    assert_eq!((sampling.top_k, sampling.min_p, sampling.temperature), (1, 0.25, 0.8));
    assert_eq!(facts["sampling"]["min_p"], 0.25);
    let usage = json!({"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 2});
    assert_eq!(result["usage"], usage);
    let entry = json!({"id": 100, "logprob": -0.5, "top": [[100, -0.5], [101, -1.5]]});
    assert_eq!(result["logprobs"], json!([entry, entry]));
    assert_eq!(result["prompt_logprobs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn tokens_stream_in_order_before_the_result() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let params = json!({"tokens": [9], "max_tokens": 5, "stream": true, "logprobs": 1});
    client.ask("é", "generate", params).await;
    for _ in 0..5 {
        let token = client.message().await;
        assert_eq!(token["method"], "generate.token");
        let expected = json!({
            "id": "é", "text": "a", "token": 100, "logprob": -0.5, "top": [[100, -0.5]]
        });
        assert_eq!(token["params"], expected);
    }
    assert_eq!(client.message().await["result"]["text"], "aaaaa");
}

#[tokio::test]
async fn both_framings_are_answered_in_kind() {
    let bench = Bench::start();
    let mut stream = bench.raw_as(server_support::ADA);
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tokenize", "params": {"text": "a"}});
    let frame = encode_frame(Framing::ContentLength, request.to_string().as_bytes());
    let reply = json!({"jsonrpc": "2.0", "id": 1, "result": {"tokens": [100]}}).to_string();
    let expected = encode_frame(Framing::ContentLength, reply.as_bytes());
    for cut in [9, 30, frame.len()] {
        for piece in [&frame[..cut], &frame[cut..]] {
            stream.write_all(piece).await.unwrap();
        }
        let mut found = vec![0; expected.len()];
        timeout(PATIENCE, stream.read_exact(&mut found)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), String::from_utf8(expected.clone()).unwrap());
    }
}

#[tokio::test]
async fn several_requests_are_in_flight_and_one_is_cancelled() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    for id in [1, 2] {
        client.ask(id, "generate", json!({"tokens": [HOLD]})).await;
        bench.arrived().await;
    }
    // Answered while the two are running.
    assert!(client.call("tokenize", json!({"text": "a"})).await["result"].is_object());
    client.ask(1, "status", json!({})).await;
    let duplicate = client.message().await;
    assert_eq!((code(&duplicate), &duplicate["id"]), (-32016, &json!(1)));
    assert_eq!(client.call("cancel", json!({"id": 7})).await["result"]["cancelled"], false);
    client.ask(3, "cancel", json!({"id": 2})).await;
    let replies = [client.message().await, client.message().await];
    let reply = |id: i64| replies.iter().find(|reply| reply["id"] == id).unwrap();
    assert_eq!(reply(3)["result"]["cancelled"], true);
    assert_eq!(reply(2)["result"]["finish_reason"], "cancelled");
    bench.cancelled().await;
    // The other goes on, and the id of the one that ended can be used again.
    client.ask(2, "generate", json!({"tokens": [9], "max_tokens": 1})).await;
    assert_eq!(client.message().await["result"]["finish_reason"], "length");
    // A notification cancels as well, and gets no reply.
    client.send(json!({"jsonrpc": "2.0", "method": "cancel", "params": {"id": 1}})).await;
    let last = client.message().await;
    assert_eq!((&last["id"], &last["result"]["finish_reason"]), (&json!(1), &json!("cancelled")));
}

#[tokio::test]
async fn wrong_parameters_name_field_wanted_and_found() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    for (params, field) in [
        (json!({}), "prompt"),
        (json!({"prompt": "a", "tokens": [1]}), "prompt"),
        (json!({"messages": []}), "messages"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "prompt_logprobs": 21}), "prompt_logprobs"),
        (json!({"prompt": "a", "temperature": -1}), "temperature"),
        (json!({"prompt": "a", "top_p": 1.5}), "top_p"),
        (json!({"prompt": "a", "top_k": -1}), "top_k"),
        (json!({"prompt": "a", "stop": [""]}), "stop"),
        (json!({"prompt": "a", "stop": many}), "stop"),
        (json!({"prompt": "a", "max_tokens": "x"}), "max_tokens"),
    ] {
        let reply = client.call("generate", params.clone()).await;
        let data = &reply["error"]["data"];
        assert_eq!((code(&reply), &data["field"]), (-32602, &json!(field)), "{params}: {reply}");
        assert!(data["wanted"].is_string() && data["found"].is_string(), "{reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains(field), "{reply}");
    }
    let reply = client.call("generate", json!({"promt": "a"})).await;
    assert_eq!(reply["error"]["data"]["nearest"], "prompt");
    for (context, name) in [(0, "n"), (2049, "n"), (1, "")] {
        let params = json!({"name": name, "context_tokens": context});
        assert_eq!(code(&client.call("session.create", params).await), -32602);
    }
    assert_eq!(code(&client.call("initialize", json!({"protocol": 2})).await), -32602);
    let reply = client.call("tokenise", json!({})).await;
    assert_eq!((code(&reply), &reply["error"]["data"]["nearest"]), (-32601, &json!("tokenize")));
    let reply = client.call("detokenize", json!({"tokens": [5000]})).await;
    assert_eq!((code(&reply), &reply["error"]["data"]["token"]), (-32008, &json!(5000)));
}

#[tokio::test]
async fn what_is_no_request_is_answered_and_the_connection_lives() {
    let bench = Bench::start();
    let mut client = bench.connect();
    for (frame, expected, id) in [
        (&b"{\"a\": \xff}\n"[..], -32700, Value::Null),
        (b"{\"a\": \n", -32700, Value::Null),
        (b"[]\n", -32600, Value::Null),
        (b"{\"id\": 3, \"jsonrpc\": \"1.0\", \"method\": \"status\"}\n", -32600, json!(3)),
        (b"{\"id\": 1.5, \"jsonrpc\": \"2.0\", \"method\": \"status\"}\n", -32600, Value::Null),
    ] {
        client.send_bytes(frame).await;
        let reply = client.message().await;
        assert_eq!((code(&reply), &reply["id"]), (expected, &id), "{reply}");
    }
    // Neither a notification's result nor its error is sent.
    client.send(json!({"jsonrpc": "2.0", "method": "status"})).await;
    client.send(json!({"jsonrpc": "2.0", "method": "nothing"})).await;
    assert!(client.call("status", json!({})).await["result"].is_object());
}

#[tokio::test]
async fn sessions_of_others_are_invisible() {
    let bench = Bench::start();
    let (mut ada, mut bob) = (bench.connect(), bench.connect_as(BOB));
    let session = ada.call("session.create", json!({"name": "diary"})).await["result"].take();
    assert_eq!(bob.call("session.list", json!({})).await["result"], json!({"sessions": []}));
    for reference in [session["session"].clone(), json!("diary")] {
        let params = json!({"session": reference, "tokens": [9]});
        assert_eq!(code(&bob.call("generate", params).await), -32003);
        let refused = bob.call("session.close", json!({"session": reference})).await;
        assert_eq!(code(&refused), -32003);
        assert_eq!(refused["error"]["data"]["session"], reference, "as it was asked for");
    }
    assert!(bob.call("session.create", json!({"name": "diary"})).await["result"].is_object());
    let again = ada.call("session.create", json!({"name": "diary"})).await;
    assert_eq!(code(&again), -32005);
    // Ids of requests belong to a connection.
    ada.ask(1, "generate", json!({"tokens": [HOLD], "stream": true})).await;
    ada.message().await;
    assert_eq!(bob.call("cancel", json!({"id": 1})).await["result"]["cancelled"], false);
}

#[tokio::test]
async fn a_dead_engine_is_told() {
    let bench = Bench::start();
    let mut client = bench.connect();
    assert_eq!(code(&client.call("generate", json!({"tokens": [DIE]})).await), -32018);
    bench.mock.handle.commands.control(hob::engine::Control::Shutdown).unwrap();
    bench.mock.handle.commands.closed().await;
    for (method, params) in [("status", json!({})), ("generate", json!({"tokens": [9]}))] {
        assert_eq!(code(&client.call(method, params).await), -32018);
    }
}

#[tokio::test]
async fn adapters_are_named_with_their_scales_where_there_is_no_session() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    let lora = json!([{"name": "law"}, {"name": "verse", "scale": -0.5}]);
    client.call("generate", json!({"tokens": [9], "max_tokens": 1, "lora": lora})).await;
    let found: Vec<(String, f32)> =
        bench.arrived().await.adapters.into_iter().map(|used| (used.name, used.scale)).collect();
    assert_eq!(found, [("law".to_owned(), 1.0), ("verse".to_owned(), -0.5)]);
    client.call("session.create", json!({"name": "s", "lora": lora})).await;
    for (params, told) in [
        (json!({"tokens": [9], "session": "s", "lora": lora}), "none beside session"),
        (json!({"tokens": [9], "lora": [{"name": "law", "scale": 101}]}), "scales of -100 to 100"),
        (json!({"tokens": [9], "lora": [{"name": "law", "weight": 1}]}), "unknown field `weight`"),
        (json!({"tokens": [9], "lora": "law"}), "wanted an array of {name, scale?}"),
    ] {
        let refused = client.call("generate", params.clone()).await;
        assert_eq!(code(&refused), -32602, "{params}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(told), "{params}: {message}");
    }
}
