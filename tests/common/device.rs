//! The device under test, with the validation layer listening.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::sync::{Arc, Mutex};

use hob::gpu::Capabilities;
use hob::vulkan::{VulkanConfig, VulkanExecutor};

/// Opens the device that the environment names; a missing one fails the test.
pub fn open(disable_subgroup_ops: bool) -> VulkanExecutor {
    open_as(&VulkanConfig { disable_subgroup_ops, ..Default::default() })
}

/// The same with more to say; validation is always on.
pub fn open_as(config: &VulkanConfig) -> VulkanExecutor {
    let config = VulkanConfig { validation: true, ..config.clone() };
    VulkanExecutor::new(&config).unwrap_or_else(|error| {
        panic!("{error}\n(tests need a Vulkan driver and the validation layer: run `make deps`)")
    })
}

/// Lavapipe 25.0 has subgroup operations; most variants without them, which it never runs but by
/// choice, take it half a minute each to compile, and large ones minutes. It is spared all but a
/// few.
pub fn compiles_variants_slowly() -> bool {
    std::env::var_os("HOB_DRIVER").is_some_and(|name| name == "lavapipe-25.0")
}

/// Whether the device takes all that a test has for it: of the drivers that run on the CPU only the
/// fastest does. The others take a part of each kind, which shows what they make of the shaders,
/// and all of it where `HOB_TEST_ALL` is set.
pub fn runs_all(caps: &Capabilities) -> bool {
    !caps.is_cpu()
        || std::env::var_os("HOB_TEST_ALL").is_some()
        || std::env::var_os("HOB_DRIVER").is_some_and(|name| name == "lavapipe-26.1")
}

/// Fails if the validation layer has said anything.
pub fn assert_silent(messages: &Arc<Mutex<Vec<String>>>) {
    let messages = messages.lock().unwrap();
    assert!(messages.is_empty(), "validation: {messages:#?}");
}
