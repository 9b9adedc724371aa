//! The device under test, with the validation layer listening.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::sync::{Arc, Mutex};

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

/// Fails if the validation layer has said anything.
pub fn assert_silent(messages: &Arc<Mutex<Vec<String>>>) {
    let messages = messages.lock().unwrap();
    assert!(messages.is_empty(), "validation: {messages:#?}");
}
