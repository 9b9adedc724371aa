//! Which models this daemon has, where each is, and how it is loaded: those of the configuration's
//! tables, and those of the store.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tracing::{info, warn};

use hob::config::{Config, Lora, ModelTable, Places};
use hob::engine::{
    self, AdapterSource, EngineHandle, EngineOptions, EngineThread, LoadFailure, OpenExecutor,
};
use hob::gpu::Executor;
use hob::server::{self, ModelSpec};
use hob::store::{Entry, Store};
use hob::vulkan::{VulkanConfig, VulkanExecutor};

use super::DaemonError;

/// The daemon's models.
#[derive(Debug)]
pub(crate) struct Library {
    store: Option<Store>,
    tables: Vec<ModelTable>,
    vulkan: VulkanConfig,
    options: EngineOptions,
    /// The model that the daemon began with, and whether the store has it by its name.
    default: OnceLock<(Located, bool)>,
}

/// A model, and how to load it.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) spec: ModelSpec,
    pub(crate) path: PathBuf,
    pub(crate) options: EngineOptions,
}

impl Located {
    /// Its sessions are saved under its name.
    fn new(spec: ModelSpec, path: PathBuf, mut options: EngineOptions) -> Self {
        if let Some(state) = &mut options.state {
            state.model.clone_from(&spec.name);
        }
        Self { spec, path, options }
    }
}

impl Library {
    pub(crate) fn new(config: &Config, places: &Places, options: EngineOptions) -> Self {
        let vulkan = VulkanConfig {
            device: Some(config.device.clone()).filter(|device| !device.is_empty()),
            validation: config.validation,
            pipeline_cache_dir: places.cache_dir(config),
            ..VulkanConfig::default()
        };
        let store = places.models_dir().map(Store::new);
        Self { store, tables: config.models.clone(), vulkan, options, default: OnceLock::new() }
    }

    /// Folder of saved sessions.
    pub(crate) fn state_folder(&self) -> Option<&Path> {
        self.options.state.as_ref().map(|state| state.folder.as_path())
    }

    /// The model to begin with: the one that is configured, by name or by path, the first table's,
    /// or the store's default.
    pub(crate) fn default_model(
        &self,
        config: &Config,
        places: &Places,
    ) -> Result<Located, DaemonError> {
        let mut located = self.locate_default(config, places)?;
        located.options.adapters.extend(adapters(&config.lora));
        let by_name = self.locate(Path::new(&located.spec.name)).ok();
        let of_store = by_name.is_some_and(|path| path == located.path);
        self.default.get_or_init(|| (located.clone(), of_store));
        Ok(located)
    }

    /// Looks whether the models that the configuration names can be loaded.
    pub(crate) fn check(&self, config: &Config) -> Result<(), DaemonError> {
        let named = (!config.model.as_os_str().is_empty()).then(|| self.configured(&config.model));
        for model in named.into_iter().chain(self.tables.iter().map(|table| self.of_table(table))) {
            let Located { path: model, options, .. } = model?;
            let looked = engine::look_at(&model, &options);
            looked.map_err(|source| DaemonError::Model { model, source: Box::new(source) })?;
        }
        Ok(())
    }

    fn locate_default(&self, config: &Config, places: &Places) -> Result<Located, DaemonError> {
        if !config.model.as_os_str().is_empty() {
            return self.configured(&config.model);
        }
        if let Some(table) = self.tables.first() {
            return self.of_table(table);
        }
        let default = self.store.as_ref().map(Store::default_model).transpose()?.flatten();
        match (default, &self.store) {
            (Some(path), _) => Ok(self.of_path(path)),
            (None, Some(store)) => Err(places.no_model(store.names()?).into()),
            (None, None) => Err(places.no_model(Vec::new()).into()),
        }
    }

    fn configured(&self, model: &Path) -> Result<Located, DaemonError> {
        let called = |table: &&ModelTable| {
            let mut names = [&table.name].into_iter().chain(&table.aliases);
            names.any(|name| Path::new(name) == model)
        };
        match self.tables.iter().find(called) {
            Some(table) => self.of_table(table),
            None => Ok(self.of_path(self.locate(model)?)),
        }
    }

    fn locate(&self, model: &Path) -> Result<PathBuf, DaemonError> {
        match &self.store {
            Some(store) => Ok(store.locate(model)?),
            None => Ok(model.to_owned()),
        }
    }

    fn of_table(&self, table: &ModelTable) -> Result<Located, DaemonError> {
        let named = table.path.as_os_str().is_empty();
        let path = self.locate(if named { Path::new(&table.name) } else { &table.path })?;
        let all = &self.options;
        let options = EngineOptions {
            context_tokens: table.context_tokens.map_or(all.context_tokens, |n| n as usize),
            kv_tokens: table.kv_tokens.map_or(all.kv_tokens, |n| n as usize),
            kv_dtype: table.kv_dtype.unwrap_or(all.kv_dtype),
            sampling: table.sampling.or(all.sampling),
            idle_unload: all.idle_unload.filter(|_| !table.pinned),
            adapters: adapters(&table.lora).collect(),
            ..all.clone()
        };
        let spec = ModelSpec {
            name: table.name.clone(),
            aliases: table.aliases.clone(),
            pinned: table.pinned,
            bytes: bytes(&path),
            path: fs::canonicalize(&path).unwrap_or_default(),
        };
        Ok(Located::new(spec, path, options))
    }

    /// A model by its file; it has the name that the store has for it, or the file's.
    fn of_path(&self, path: PathBuf) -> Located {
        let same = |entry: &Entry, store: &Store| {
            let known = fs::canonicalize(store.path(entry)).ok();
            known.is_some() && known == fs::canonicalize(&path).ok()
        };
        let known = self
            .store
            .as_ref()
            .and_then(|store| store.models().ok()?.into_iter().find(|entry| same(entry, store)));
        let spec = match known {
            Some(entry) => of_entry(&entry),
            None => ModelSpec { name: name_of(&path), bytes: bytes(&path), ..ModelSpec::default() },
        };
        let whole = fs::canonicalize(&path).unwrap_or_default();
        Located::new(ModelSpec { path: whole, ..spec }, path, self.options.clone())
    }

    fn of_name(&self, name: &str) -> Result<Located, DaemonError> {
        if let Some((default, of_store)) = self.default.get()
            && default.spec.name == name
        {
            let path = match of_store {
                true => self.locate(Path::new(name))?, // another may have taken its place
                false => default.path.clone(),
            };
            return Ok(Located { path, ..default.clone() });
        }
        match self.tables.iter().find(|table| table.name == name) {
            Some(table) => self.of_table(table),
            None => Ok(self.of_path(self.locate(Path::new(name))?)),
        }
    }

    /// Opens this daemon's device, once for each model.
    pub(crate) fn device(&self) -> OpenExecutor {
        let vulkan = self.vulkan.clone();
        Box::new(move || {
            let executor = VulkanExecutor::new(&vulkan)?;
            Ok(Box::new(executor) as Box<dyn Executor>)
        })
    }
}

fn adapters(lora: &[Lora]) -> impl Iterator<Item = AdapterSource> {
    lora.iter().map(|lora| AdapterSource { name: lora.name.clone(), path: lora.path.clone() })
}

impl server::Library for Library {
    fn models(&self) -> Vec<ModelSpec> {
        let tables = self.tables.iter().filter_map(|table| match self.of_table(table) {
            Ok(located) => Some(located.spec),
            Err(error) => {
                warn!(model = table.name, %error, "left out");
                None
            }
        });
        let mut specs: Vec<ModelSpec> = tables.collect();
        let stored = self.store.as_ref().map(Store::models).transpose();
        match stored {
            Ok(entries) => specs.extend(entries.unwrap_or_default().iter().map(of_entry)),
            Err(error) => warn!(%error, "the store's models are left out"),
        }
        specs
    }

    fn locate(&self, model: &ModelSpec) -> Result<PathBuf, LoadFailure> {
        let found = self.of_name(&model.name);
        found.map(|located| located.path).map_err(|error| LoadFailure {
            message: error.to_string(),
            no_room: false,
            replaced: false,
        })
    }

    fn look_at(&self, model: &ModelSpec) -> Result<(), LoadFailure> {
        let failure = |message: String| LoadFailure { message, no_room: false, replaced: false };
        let found = self.of_name(&model.name).map_err(|error| failure(error.to_string()))?;
        engine::look_at(&found.path, &found.options).map_err(|error| LoadFailure::from(&error))
    }

    fn start(&self, model: &ModelSpec) -> Result<(EngineHandle, EngineThread), LoadFailure> {
        let failure = |message: String| LoadFailure { message, no_room: false, replaced: false };
        let found = self.of_name(&model.name).map_err(|error| failure(error.to_string()))?;
        // The store may have the same file under another name as well.
        let located = Located::new(model.clone(), found.path, found.options);
        let path = &located.path;
        info!(model = model.name, path = %path.display(), "loading");
        let opened = engine::open_with(self.device(), path, &located.options, &mut |_, _| {})
            .map_err(|error| LoadFailure::from(&error))?;
        engine::start(opened, &located.options)
            .map_err(|error| failure(format!("cannot start the engine's thread: {error}")))
    }
}

fn of_entry(entry: &Entry) -> ModelSpec {
    ModelSpec {
        name: entry.name.clone(),
        aliases: entry.aliases.clone(),
        pinned: false,
        path: PathBuf::new(), // the store may be moved
        bytes: entry.bytes(),
    }
}

/// A file's name without its ending, or a folder's, which may have dots.
fn name_of(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Size of a file or of a folder's files; 0 where it cannot be told: loading will then tell more.
fn bytes(path: &Path) -> u64 {
    let of = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    match fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| of(&file.path())).sum(),
        Err(_) => of(path),
    }
}
