//! The loader, the instance, and what the validation layer says.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

use ash::{ext, vk};

use super::results::failed;
use crate::gpu::DeviceError;

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Most validation messages kept; the rest are only logged.
const MESSAGES_MAX: usize = 256;

type Messages = Arc<Mutex<Vec<String>>>;

/// A loaded Vulkan instance.
pub(super) struct Instance {
    pub entry: ash::Entry,
    pub raw: ash::Instance,
    pub api_version: u32,
    messenger: Option<Messenger>,
    pub messages: Messages,
}

struct Messenger {
    functions: ext::debug_utils::Instance,
    raw: vk::DebugUtilsMessengerEXT,
    /// User data of the callback; freed after the messenger is destroyed.
    messages: *const Mutex<Vec<String>>,
}

// SAFETY: the pointer is an Arc's, whose contents are Sync; it is only given back to the Arc on
// drop.
unsafe impl Send for Instance {}
// SAFETY: as above; all methods of the Vulkan instance in use are free of external synchronisation.
unsafe impl Sync for Instance {}

impl Instance {
    /// Loads Vulkan and creates an instance of version 1.2 or 1.3.
    pub(super) fn new(validation: bool) -> Result<Self, DeviceError> {
        // SAFETY: loads the system's Vulkan loader, which must be sound to run its initialisers.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|error| DeviceError::NoLoader { reason: error.to_string() })?;
        // SAFETY: the entry is loaded.
        let offered = unsafe { entry.try_enumerate_instance_version() }
            .map_err(failed("vkEnumerateInstanceVersion"))?
            .unwrap_or(vk::API_VERSION_1_0);
        if offered < vk::API_VERSION_1_2 {
            let found = super::physical_device::version_text(offered);
            let reason = format!("the loader offers Vulkan {found}, hob needs 1.2");
            return Err(DeviceError::NoLoader { reason });
        }
        let api_version = offered.min(vk::API_VERSION_1_3);
        if validation {
            check_validation_layer(&entry)?;
        }
        let raw = create(&entry, api_version, validation)?;
        let messages = Messages::default();
        let mut instance = Self { entry, raw, api_version, messenger: None, messages };
        if validation {
            instance.messenger = Some(instance.create_messenger()?);
        }
        Ok(instance)
    }

    /// True if debug names can be given.
    pub(super) fn has_debug_utils(&self) -> bool {
        self.messenger.is_some()
    }

    fn create_messenger(&self) -> Result<Messenger, DeviceError> {
        let functions = ext::debug_utils::Instance::new(&self.entry, &self.raw);
        let messages = Arc::into_raw(Arc::clone(&self.messages));
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                    | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                    | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
            )
            .pfn_user_callback(Some(on_message))
            .user_data(messages.cast_mut().cast());
        // SAFETY: the instance lives as long as the messenger, and so does what user_data points
        // to.
        let raw = unsafe { functions.create_debug_utils_messenger(&info, None) }
            .map_err(failed("vkCreateDebugUtilsMessengerEXT"))?;
        Ok(Messenger { functions, raw, messages })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(messenger) = self.messenger.take() {
            // SAFETY: created from this instance, destroyed once; the pointer came from
            // Arc::into_raw and no callback can run any more.
            unsafe {
                messenger.functions.destroy_debug_utils_messenger(messenger.raw, None);
                drop(Arc::from_raw(messenger.messages));
            }
        }
        // SAFETY: everything made from the instance holds an Arc of it, so nothing is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

fn check_validation_layer(entry: &ash::Entry) -> Result<(), DeviceError> {
    // SAFETY: the entry is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(failed("vkEnumerateInstanceLayerProperties"))?;
    let has = |layer: &vk::LayerProperties| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER);
    if layers.iter().any(has) {
        return Ok(());
    }
    Err(DeviceError::Unsupported {
        device: "the Vulkan loader".into(),
        what:
            "the Khronos validation layer (Debian, Ubuntu: `apt install vulkan-validationlayers`)"
                .into(),
        found: format!("{} other layers", layers.len()),
    })
}

fn create(
    entry: &ash::Entry,
    api_version: u32,
    validation: bool,
) -> Result<ash::Instance, DeviceError> {
    let application = vk::ApplicationInfo::default()
        .application_name(c"hob")
        .engine_name(c"hob")
        .api_version(api_version);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    let created = if validation {
        create_validated(entry, info)
    } else {
        // SAFETY: all pointers in the structures live until the call returns.
        unsafe { entry.create_instance(&info, None) }
    };
    created.map_err(|result| match result {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
            DeviceError::NoDevice { reason: "no driver is installed".into() }
        }
        other => failed("vkCreateInstance")(other),
    })
}

/// Creates an instance under the validation layer, with synchronization validation in full.
///
/// Older layers are told by `VkValidationFeaturesEXT`. Newer ones leave out what shaders do to
/// buffers, which is all that hob does, unless a setting asks for it.
fn create_validated(
    entry: &ash::Entry,
    info: vk::InstanceCreateInfo<'_>,
) -> Result<ash::Instance, vk::Result> {
    let layers = [VALIDATION_LAYER.as_ptr()];
    let mut extensions =
        vec![ext::debug_utils::NAME.as_ptr(), ext::validation_features::NAME.as_ptr()];
    let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
    // SAFETY: the entry is loaded, and the layer is there.
    let offered = unsafe { entry.enumerate_instance_extension_properties(Some(VALIDATION_LAYER)) }?;
    let on = vk::TRUE;
    let settings =
        [c"validate_sync", c"syncval_shader_accesses_heuristic"].map(|name| vk::LayerSettingEXT {
            value_count: 1,
            p_values: std::ptr::from_ref(&on).cast(),
            ..vk::LayerSettingEXT::default()
                .layer_name(VALIDATION_LAYER)
                .setting_name(name)
                .ty(vk::LayerSettingTypeEXT::BOOL32)
        });
    let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&settings);
    let mut info = info.enabled_layer_names(&layers).push_next(&mut features);
    let has_settings =
        offered.iter().any(|e| e.extension_name_as_c_str() == Ok(ext::layer_settings::NAME));
    if has_settings {
        info = info.push_next(&mut settings);
        extensions.push(ext::layer_settings::NAME.as_ptr());
    }
    // SAFETY: all pointers in the structures live until the call returns.
    let created =
        unsafe { entry.create_instance(&info.enabled_extension_names(&extensions), None) };
    if has_settings && matches!(created, Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT)) {
        // A loader older than the layer does not let the extension through, but the settings.
        extensions.pop();
        // SAFETY: see above.
        return unsafe { entry.create_instance(&info.enabled_extension_names(&extensions), None) };
    }
    created
}

/// Logs and keeps a message of the validation layer.
unsafe extern "system" fn on_message(
    severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _types: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user_data: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer hands in valid data; user_data is the Mutex given at creation, alive until
    // the messenger is destroyed.
    let (text, messages) = unsafe {
        let text = (*data).message_as_c_str().map_or("".into(), CStr::to_string_lossy);
        (text, &*user_data.cast::<Mutex<Vec<String>>>())
    };
    tracing::warn!(?severity, "validation: {text}");
    if let Ok(mut messages) = messages.lock()
        && messages.len() < MESSAGES_MAX
    {
        messages.push(text.into_owned());
    }
    vk::FALSE
}
