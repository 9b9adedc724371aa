//! The driver's compiled pipelines, kept on disk between runs.
//!
//! The file is named by device and driver and begins with the header that Vulkan defines for it,
//! which is checked before the driver sees it: a file that is cut, corrupt or of another device is
//! ignored and replaced. A folder that cannot be written costs a warning and nothing else.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;

use super::device::Device;
use super::results::failed;
use crate::gpu::DeviceError;

/// Largest file that is read; hob's pipelines take a few megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Least time between two writes of the file while pipelines are still being made.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Vulkan's header, version one: length, version, vendor, device, UUID.
const HEADER_BYTES: usize = 32;

/// A VkPipelineCache and the file behind it.
pub(super) struct PipelineCache {
    device: Arc<Device>,
    pub raw: vk::PipelineCache,
    file: Option<PathBuf>,
    changed: bool,
    saved_at: Option<Instant>,
}

impl PipelineCache {
    pub(super) fn open(device: Arc<Device>, folder: Option<&Path>) -> Result<Self, DeviceError> {
        let file = folder.map(|folder| folder.join(file_name(&device)));
        let data = file.as_deref().and_then(|file| read(file, &expected_header(&device)));
        let info = vk::PipelineCacheCreateInfo::default()
            .initial_data(data.as_deref().unwrap_or_default());
        // SAFETY: the data carry the header of this very device; drivers check the rest.
        let raw = unsafe { device.raw.create_pipeline_cache(&info, None) }
            .map_err(failed("vkCreatePipelineCache"))?;
        device.name(raw, "pipeline cache");
        Ok(Self { device, raw, file, changed: false, saved_at: None })
    }

    /// Notes that pipelines were compiled that the file may not hold.
    pub(super) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Writes the file if there is something new, at most once in [`SAVE_INTERVAL`].
    pub(super) fn save_now_and_then(&mut self) {
        if self.saved_at.is_none_or(|at| at.elapsed() >= SAVE_INTERVAL) {
            self.save();
        }
    }

    /// Writes the file if there is something new.
    fn save(&mut self) {
        let Some(file) = self.file.as_deref().filter(|_| self.changed) else { return };
        self.changed = false;
        self.saved_at = Some(Instant::now());
        // SAFETY: the cache is alive.
        let data = match unsafe { self.device.raw.get_pipeline_cache_data(self.raw) } {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(%error, "the driver does not hand out its pipeline cache");
                return;
            }
        };
        if let Err(error) = write(file, &data) {
            tracing::warn!(file = %file.display(), %error, "cannot save compiled pipelines");
        }
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        self.save();
        // SAFETY: no pipeline is being created any more.
        unsafe { self.device.raw.destroy_pipeline_cache(self.raw, None) };
    }
}

/// `pipelines-VENDOR-DEVICE-HASH.bin`; the hash covers the driver and the subgroup size asked for.
fn file_name(device: &Device) -> String {
    let caps = &device.chosen.info.capabilities;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(caps.driver.as_bytes());
    add(&caps.uuid);
    add(&caps.lanes.to_le_bytes());
    format!("pipelines-{:04x}-{:04x}-{hash:016x}.bin", caps.vendor_id, caps.device_id)
}

fn expected_header(device: &Device) -> [u8; HEADER_BYTES] {
    // SAFETY: the physical device belongs to the live instance.
    let properties =
        unsafe { device.instance.raw.get_physical_device_properties(device.chosen.raw) };
    let mut header = [0; HEADER_BYTES];
    let words = [
        HEADER_BYTES as u32,
        vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32,
        properties.vendor_id,
        properties.device_id,
    ];
    header[..16].copy_from_slice(bytemuck::cast_slice(&words));
    header[16..].copy_from_slice(&properties.pipeline_cache_uuid);
    header
}

fn read(file: &Path, header: &[u8]) -> Option<Vec<u8>> {
    let size = fs::metadata(file).ok()?.len();
    if size > FILE_BYTES_MAX {
        tracing::warn!(file = %file.display(), size, "pipeline cache is too large; it is ignored");
        return None;
    }
    match fs::read(file) {
        // The last eight bytes are ours: a checksum, so that the driver never parses a damaged
        // file.
        Ok(data) if data.starts_with(header) => {
            let (data, sum) = data.split_at(data.len().saturating_sub(8));
            if sum == checksum(data) {
                return Some(data.to_vec());
            }
            tracing::info!(file = %file.display(), "pipeline cache is damaged; it is rebuilt");
        }
        Ok(_) => {
            let file = file.display();
            tracing::info!(%file, "pipeline cache is of another driver; it is rebuilt");
        }
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the pipeline cache");
        }
    }
    None
}

fn checksum(data: &[u8]) -> [u8; 8] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for byte in data {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.to_le_bytes()
}

/// Writes beside the file and renames: a reader sees the old file or the new one.
fn write(file: &Path, data: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = file.with_extension(format!("tmp{}", std::process::id()));
    let _ = fs::remove_file(&temporary); // one of another process of this number
    // Nothing that somebody put there is followed or written to.
    let result = fs::File::create_new(&temporary)
        .and_then(|mut out| {
            out.write_all(data)?;
            out.write_all(&checksum(data))?;
            out.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, file));
    if result.is_err() {
        let _ = fs::remove_file(&temporary); // whatever was left of it
    }
    result
}
