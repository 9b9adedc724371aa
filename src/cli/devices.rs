//! `hob devices`: the Vulkan devices of this machine.

use serde::Serialize;

use super::args::DevicesOptions;
use super::output::{Output, bytes};
use super::table::{Align, Table};
use super::{CliError, exit};
use crate::gpu::DeviceType;
use crate::vulkan::{self, DeviceInfo};

/// A device that the Vulkan loader lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct DeviceEntry {
    /// Place in the list, for `--device`.
    index: usize,
    /// The driver's name for it.
    name: String,
    /// Kind of device, in lower case.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Driver's name and version.
    driver: String,
    /// `deviceUUID`, in hexadecimal.
    uuid: String,
    /// Bytes of device memory.
    memory_bytes: u64,
    /// hobd takes this one unless told otherwise.
    default: bool,
    /// Reason hob cannot use the device; `None` if it can.
    unusable: Option<String>,
}

pub(crate) fn run(options: &DevicesOptions) -> Result<u8, CliError> {
    let devices = list()?;
    let mut output = Output::stdout();
    if options.json {
        output.json(&devices)?;
    } else {
        write(&devices, &mut output)?;
    }
    Ok(exit::DONE)
}

fn write(devices: &[DeviceEntry], output: &mut Output) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("INDEX", Align::Right),
        ("NAME", Align::Left),
        ("TYPE", Align::Left),
        ("MEMORY", Align::Right),
        ("DRIVER", Align::Left),
        ("UUID", Align::Left),
    ]);
    for device in devices {
        table.row(vec![
            if device.default { "*".into() } else { String::new() },
            device.index.to_string(),
            device.name.clone(),
            device.kind.to_owned(),
            bytes(device.memory_bytes),
            device.driver.clone(),
            device.uuid.clone(),
        ]);
    }
    table.write(output)?;
    for device in devices {
        if let Some(reason) = &device.unusable {
            output.line(&format!("device {} is not usable: {reason}", device.index))?;
        }
    }
    Ok(())
}

/// The devices in the order of preference; hobd takes the first that it can use.
fn list() -> Result<Vec<DeviceEntry>, CliError> {
    let devices = vulkan::list_devices()?;
    let default = devices.iter().position(|device| device.unusable.is_none());
    let entry = |(place, device): (usize, DeviceInfo)| DeviceEntry {
        index: device.index,
        uuid: device.uuid_text(),
        name: device.capabilities.device_name,
        kind: kind(device.capabilities.device_type),
        driver: device.capabilities.driver,
        memory_bytes: device.memory_bytes,
        default: default == Some(place),
        unusable: device.unusable,
    };
    Ok(devices.into_iter().enumerate().map(entry).collect())
}

fn kind(kind: DeviceType) -> &'static str {
    match kind {
        DeviceType::Discrete => "discrete",
        DeviceType::Integrated => "integrated",
        DeviceType::Virtual => "virtual",
        DeviceType::Cpu => "cpu",
        DeviceType::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_as_json() {
        let device = DeviceEntry {
            index: 0,
            name: "llvmpipe".into(),
            kind: kind(DeviceType::Cpu),
            driver: "Mesa".into(),
            uuid: "00".repeat(16),
            memory_bytes: 7,
            default: true,
            unusable: None,
        };
        let json = serde_json::to_string(&device).unwrap();
        assert_eq!(
            json,
            "{\"index\":0,\"name\":\"llvmpipe\",\"type\":\"cpu\",\"driver\":\"Mesa\",\
             \"uuid\":\"00000000000000000000000000000000\",\"memory_bytes\":7,\
             \"default\":true,\"unusable\":null}"
        );
    }
}
