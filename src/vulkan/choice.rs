//! Which devices there are, and which one to take.

use super::VulkanConfig;
use super::instance::Instance;
use super::physical_device::{Candidate, DeviceInfo, Identity, describe};
use super::results::failed;
use crate::gpu::DeviceError;

/// Lists the devices in the order hob prefers them.
///
/// # Errors
/// [`DeviceError::NoLoader`], [`DeviceError::NoDevice`] or a failed call.
pub fn list_devices() -> Result<Vec<DeviceInfo>, DeviceError> {
    let instance = Instance::new(false)?;
    Ok(candidates(&instance, false)?.into_iter().map(|candidate| candidate.info).collect())
}

/// Finds the device that the configuration asks for, or the best.
pub(super) fn choose(instance: &Instance, config: &VulkanConfig) -> Result<Candidate, DeviceError> {
    let candidates = candidates(instance, config.disable_subgroup_ops)?;
    let chosen = match &config.device {
        Some(wanted) => select(&candidates, wanted)?,
        None => {
            let usable = candidates.iter().find(|candidate| candidate.info.unusable.is_none());
            usable.unwrap_or(&candidates[0])
        }
    };
    if let Some(reason) = &chosen.info.unusable {
        return Err(DeviceError::Unsupported {
            device: chosen.info.capabilities.device_name.clone(),
            what: "Vulkan 1.2 with a compute queue".into(),
            found: reason.clone(),
        });
    }
    Ok(chosen.clone())
}

fn select<'a>(candidates: &'a [Candidate], wanted: &str) -> Result<&'a Candidate, DeviceError> {
    let simple = wanted.trim().to_lowercase();
    let hex: String = simple.chars().filter(|c| *c != '-').collect();
    let found = match simple.parse::<usize>() {
        Ok(index) if index < candidates.len() => candidates.get(index),
        _ => candidates.iter().find(|c| c.info.uuid_text() == hex).or_else(|| {
            let named = |c: &&Candidate| {
                !simple.is_empty()
                    && c.info.capabilities.device_name.to_lowercase().contains(&simple)
            };
            candidates.iter().find(named)
        }),
    };
    found.ok_or_else(|| {
        let list: Vec<String> = candidates
            .iter()
            .map(|c| format!("{}: {:?}", c.info.index, c.info.capabilities.device_name))
            .collect();
        DeviceError::DeviceNotFound { wanted: wanted.to_owned(), found: list.join(", ") }
    })
}

/// All devices, best first, each GPU once.
fn candidates(
    instance: &Instance,
    disable_subgroup_ops: bool,
) -> Result<Vec<Candidate>, DeviceError> {
    // SAFETY: the instance is alive.
    let devices = unsafe { instance.raw.enumerate_physical_devices() }
        .map_err(failed("vkEnumeratePhysicalDevices"))?;
    let mut found: Vec<(Candidate, Identity)> = Vec::new();
    for raw in devices {
        let (candidate, identity) = describe(instance, raw, disable_subgroup_ops)?;
        // Two drivers for one card: the first in the loader's order stays, unless only the second
        // works.
        match found.iter_mut().find(|(_, known)| known.is_same_gpu(&identity)) {
            Some(known) if known.0.info.unusable.is_some() && candidate.info.unusable.is_none() => {
                *known = (candidate, identity);
            }
            Some(_) => {}
            None => found.push((candidate, identity)),
        }
    }
    if found.is_empty() {
        return Err(DeviceError::NoDevice { reason: "the drivers list none".into() });
    }
    let mut candidates: Vec<Candidate> =
        found.into_iter().map(|(candidate, _)| candidate).collect();
    candidates.sort_by_key(|c| (c.info.unusable.is_some(), c.info.capabilities.device_type));
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.info.index = index;
    }
    Ok(candidates)
}
