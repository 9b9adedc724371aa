//! hob runs language models on any Vulkan device and serves local programs over one Unix socket.
//!
//! The layers, from the top; imports point down only (`tests/tidy.rs` holds them to it):
//!
//! ```text
//! cli                          the `hob` command line; `src/bin/` picks the executor
//! http                         other servers' interfaces, on the same socket
//! server                       tokio and interprocess: the only async code
//! protocol                     wire types
//! engine                       one OS thread that owns everything below
//! scheduler session sampler grammar tokenizer calls chat
//! model kv_cache probe
//! kernels                      one Rust file per shader: parameters, bindings, grid
//! gpu                          recordings, buffer handles, the Executor trait: pure data
//! tensor gguf hf               pure
//!
//! vulkan    -> gpu, tensor             implements gpu::Executor; all unsafe code
//! reference -> gpu, kernels, tensor    implements gpu::Executor in scalar f32 Rust
//! store     -> gguf                    models on disk; the only network code
//! config telemetry                     leaves
//! ```
//!
//! ARCHITECTURE.md walks one prompt through them.

pub mod calls;
pub mod chat;
pub mod cli;
pub mod config;
pub mod engine;
pub mod gguf;
pub mod gpu;
pub mod grammar;
pub mod hf;
pub mod http;
pub mod kernels;
pub mod kv_cache;
pub mod model;
pub mod probe;
pub mod protocol;
pub mod reference;
pub mod sampler;
pub mod scheduler;
pub mod server;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod tensor;
pub mod tokenizer;
pub mod vulkan;
