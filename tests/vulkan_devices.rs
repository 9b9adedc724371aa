//! Which device is opened, and what is said where there is none.
#![allow(clippy::unwrap_used)]

#[path = "common/device.rs"]
mod device;

use std::process::Command;

use hob::gpu::{DeviceError, Executor};
use hob::vulkan::{DeviceInfo, VulkanConfig, VulkanExecutor, list_devices};

fn config(wanted: &str) -> VulkanConfig {
    VulkanConfig { device: Some(wanted.to_owned()), ..Default::default() }
}

fn devices() -> Vec<DeviceInfo> {
    list_devices().unwrap_or_else(|error| panic!("{error}\n(tests need a driver: run `make deps`)"))
}

#[test]
fn devices_are_listed_best_first_and_with_what_they_can_do() {
    let devices = devices();
    let order: Vec<_> =
        devices.iter().map(|d| (d.unusable.is_some(), d.capabilities.device_type)).collect();
    assert!(order.is_sorted(), "{order:?}");
    for (index, device) in devices.iter().enumerate() {
        assert_eq!(device.index, index);
        assert!(!device.capabilities.device_name.is_empty());
        assert_eq!(device.uuid_text().len(), 32);
        if device.unusable.is_none() {
            let caps = &device.capabilities;
            assert!(caps.lanes.is_power_of_two() && caps.lanes <= 64, "{caps:?}");
            assert!(caps.workgroup_invocations_max >= 128 && caps.shared_bytes_max >= 16384);
            assert!(caps.storage_range_max >= 1 << 27 && caps.storage_align <= 256);
            assert!(device.memory_bytes > 0 && device.api_version.starts_with("1."));
        }
    }
}

#[test]
fn a_device_is_chosen_by_index_name_or_uuid() {
    for device in devices().iter().filter(|device| device.unusable.is_none()) {
        let name = &device.capabilities.device_name;
        let uuid = device.uuid_text();
        let dashed = format!("{}-{}", &uuid[..8], uuid[8..].to_uppercase());
        let part: String = name.chars().take(6).collect::<String>().to_uppercase();
        for wanted in [device.index.to_string(), name.clone(), part, uuid.clone(), dashed] {
            let executor = device::open_as(&config(&wanted));
            assert_eq!(executor.capabilities(), &device.capabilities, "by {wanted:?}");
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let first = &devices()[0].capabilities.device_name;
    for wanted in ["no such card", "99", "", "00112233445566778899aabbccddeeff"] {
        match VulkanExecutor::new(&config(wanted)) {
            Err(DeviceError::DeviceNotFound { wanted: said, found }) => {
                assert_eq!(said, wanted);
                assert!(found.contains(first), "{found}");
            }
            other => panic!("{wanted:?}: {other:?}"),
        }
    }
}

#[test]
fn without_subgroup_operations_the_device_is_the_same() {
    let plain = device::open(false);
    let shared = device::open(true);
    let (plain, shared) = (plain.capabilities(), shared.capabilities());
    assert!(!shared.subgroup_ops && shared.workarounds.no_subgroup_ops);
    assert_eq!(plain.uuid, shared.uuid);
}

/// Set for a child that [`in_a_child`] starts.
const CHILD: &str = "HOB_TEST_CHILD";

/// What opening a device comes to, for [`in_a_child`], which runs this test alone in another
/// process with another environment; on its own, a device opens.
#[test]
fn a_device_opens() {
    let listed = list_devices().map(|devices| devices.len());
    let opened = VulkanExecutor::new(&VulkanConfig::default());
    if std::env::var_os(CHILD).is_some() {
        println!("listed: {}", listed.unwrap_err());
        println!("opened: {}", opened.unwrap_err());
        return;
    }
    assert!(listed.unwrap() > 0);
    opened.unwrap();
}

/// What a process with another environment says of opening a device.
fn in_a_child(change: impl FnOnce(&mut Command)) -> String {
    // Not current_exe(): a driver with a C library of its own is started through its dynamic
    // linker.
    let program = std::env::args_os().next().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "a_device_opens", "--nocapture"]).env(CHILD, "1");
    // The child meets no driver, so it needs none of a driver's libraries.
    command.env_remove("LD_LIBRARY_PATH").env_remove("VK_ADD_DRIVER_FILES");
    change(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    text
}

#[test]
fn without_a_driver_the_error_says_what_to_install() {
    let text = in_a_child(|command| {
        command.env("VK_ICD_FILENAMES", "/nonexistent.json");
        command.env("VK_DRIVER_FILES", "/nonexistent.json");
    });
    let expected = DeviceError::NoDevice { reason: String::new() }.to_string();
    let (start, hint) = expected.split_once(": ").unwrap();
    assert!(hint.contains("mesa-vulkan-drivers"), "{hint}");
    for verb in ["listed", "opened"] {
        let line = text.lines().find(|line| line.contains(&format!("{verb}: "))).unwrap();
        assert!(line.contains(start) && line.contains("apt install mesa-vulkan-drivers"), "{line}");
    }
}

#[test]
fn without_a_loader_the_error_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libvulkan.so.1"), "no library").unwrap();
    let text = in_a_child(|command| {
        command.env("LD_LIBRARY_PATH", folder.path());
    });
    for verb in ["listed", "opened"] {
        let line = text.lines().find(|line| line.contains(&format!("{verb}: "))).unwrap();
        assert!(line.contains("no Vulkan loader") && line.contains("libvulkan1"), "{line}");
    }
}
