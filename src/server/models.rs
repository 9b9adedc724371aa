//! The models of a daemon: which there are, which are on the device, and who makes room for whom.
//!
//! Each model has an engine of its own, started when the model is first wanted. One that is
//! unloaded keeps its thread, its tokenizer and its sessions, and gives up the device. Loads happen
//! one after the other; who wants what is loaded already does not wait for them.

mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use room::Eviction;

use super::ending::EndingEngine;
use super::library::{Library, ModelSpec, cannot_be_loaded, failed};
use super::methods::{control, engine_stopped};
use super::replaced::EndedSession;
use super::turns::{Loader, Turns};
use crate::engine::{Control, EngineCommand, EngineHandle, EngineThread, LoadFailure, Owner};
use crate::protocol::{
    ErrorCode, ErrorObject, ModelEntry, ModelFacts, ModelListResult, ModelState, nearest,
};

/// A daemon's models; cheap to clone.
#[derive(Clone, Debug)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    default: String,
    /// `None`: there is the default alone.
    library: Option<Arc<dyn Library>>,
    loaded_max: usize,
    slots: Mutex<BTreeMap<String, Slot>>,
    /// Sessions that ended with their models' files.
    ended: Mutex<Vec<EndedSession>>,
    /// The model that is being loaded.
    loading: Mutex<Option<String>>,
    /// Held by who changes what is on the device.
    changing: tokio::sync::Mutex<()>,
    turns: Mutex<Turns>,
}

/// A model with an engine.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) spec: ModelSpec,
    pub(super) engine: EngineHandle,
    /// `None` where somebody else joins it.
    pub(super) thread: Option<EngineThread>,
    /// Where it was when its engine started.
    place: PathBuf,
    last_used: Instant,
    /// Those that named it since it was loaded.
    used_by: BTreeSet<Loader>,
    /// One more than there are requests that use it.
    users: Arc<()>,
}

/// A model that stays loaded while this lives.
#[derive(Clone, Debug)]
pub struct InUse {
    /// Its name, never an alias.
    pub name: String,
    engine: EngineHandle,
    _user: Arc<()>,
}

impl InUse {
    /// Hands the engine a command of a user's; waits where the user's share of the way in is taken.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn enqueue(&self, owner: Owner, command: EngineCommand) -> Result<(), ErrorObject> {
        self.engine.commands.send(owner, command).await.map_err(|_| engine_stopped())
    }
}

impl Deref for InUse {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.engine
    }
}

impl Models {
    /// One model, which is loaded.
    #[must_use]
    pub fn single(engine: EngineHandle) -> Self {
        let spec = ModelSpec { name: engine.model.name.clone(), ..ModelSpec::default() };
        Self::with(spec, engine, None, 1)
    }

    /// `default`, which is loaded, and those of `library`, of which `loaded_max` may be loaded at
    /// once.
    #[must_use]
    pub fn new(
        default: ModelSpec,
        engine: EngineHandle,
        library: Arc<dyn Library>,
        loaded_max: usize,
    ) -> Self {
        Self::with(default, engine, Some(library), loaded_max)
    }

    fn with(
        spec: ModelSpec,
        engine: EngineHandle,
        library: Option<Arc<dyn Library>>,
        loaded_max: usize,
    ) -> Self {
        let default = spec.name.clone();
        let place = library.as_ref().and_then(|library| library.locate(&spec).ok());
        let slot = Slot::new(spec, engine, None, place.unwrap_or_default());
        Self(Arc::new(Inner {
            slots: Mutex::new(BTreeMap::from([(default.clone(), slot)])),
            default,
            library,
            loaded_max,
            ended: Mutex::default(),
            loading: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            turns: Mutex::default(),
        }))
    }

    /// The default's engine, whether it is loaded or not.
    #[must_use]
    pub fn default_engine(&self) -> EngineHandle {
        let slots = self.slots();
        slots.get(&self.0.default).expect("the default is never taken out").engine.clone()
    }

    /// The default's file or folder, where that is known.
    pub(super) fn default_path(&self) -> Option<PathBuf> {
        let slots = self.slots();
        let path = &slots.get(&self.0.default)?.spec.path;
        (!path.as_os_str().is_empty()).then(|| path.clone())
    }

    /// Loads what is pinned, or warns that it cannot be loaded.
    pub async fn load_pinned(&self) {
        let pinned = self.specs().await.into_iter().filter(|spec| spec.pinned);
        for spec in pinned {
            if let Err(error) = self.get(Some(&spec.name), Loader::Operator, |_| {}).await {
                warn!(model = spec.name, %error, "a pinned model is not loaded");
            }
        }
    }

    /// The model of this name, or the default, on the device. `waiting` is told of a load.
    ///
    /// # Errors
    /// There is no such model, or it cannot be loaded.
    pub async fn get(
        &self,
        name: Option<&str>,
        caller: Loader,
        waiting: impl FnOnce(&str),
    ) -> Result<InUse, ErrorObject> {
        let spec = self.resolve(name).await?;
        if let Some(model) = self.use_loaded(&spec.name, caller) {
            return Ok(model);
        }
        waiting(&spec.name);
        let _changing = self.0.changing.lock().await;
        if let Some(model) = self.use_loaded(&spec.name, caller) {
            return Ok(model);
        }
        *lock(&self.0.loading) = Some(spec.name.clone());
        let loaded = self.load(&spec, caller).await;
        *lock(&self.0.loading) = None;
        loaded
    }

    /// The model of this name, or the default, with its tokenizer: on the device or not.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_text(
        &self,
        name: Option<&str>,
        caller: Loader,
        waiting: impl FnOnce(&str),
    ) -> Result<InUse, ErrorObject> {
        let spec = self.resolve(name).await?;
        let known = self.slots().get(&spec.name).map(Slot::in_use);
        match known {
            Some(model) => Ok(model),
            None => self.get(Some(&spec.name), caller, waiting).await,
        }
    }

    /// Keeps all models from being put on a device and taken off, as long as the guard lives.
    pub(super) async fn stay(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.changing.lock().await
    }

    /// All models that have an engine, the default first: those that may have sessions.
    pub(super) fn known(&self) -> Vec<InUse> {
        let mut known: Vec<InUse> = self.slots().values().map(Slot::in_use).collect();
        known.sort_by_key(|model| model.name != self.0.default);
        known
    }

    /// All models there are, the default first.
    pub async fn list(&self) -> ModelListResult {
        let loading = lock(&self.0.loading).clone();
        let specs = self.specs().await;
        let slots = self.slots();
        let entry = |spec: ModelSpec| {
            let slot = slots.get(&spec.name);
            let state = match slot {
                _ if loading.as_ref() == Some(&spec.name) => ModelState::Loading,
                Some(slot) if slot.is_on_device() => ModelState::Loaded,
                _ => ModelState::Unloaded,
            };
            ModelEntry {
                default: spec.name == self.0.default,
                pinned: spec.pinned,
                state,
                idle_seconds: slot.map(|slot| slot.last_used.elapsed().as_secs()),
                facts: slot.map(|slot| ModelFacts::from(&*slot.engine.model)),
                name: spec.name,
                aliases: spec.aliases,
            }
        };
        let mut models: Vec<ModelEntry> = specs.into_iter().map(entry).collect();
        models.sort_by_key(|model| !model.default);
        let loaded_max = u32::try_from(self.0.loaded_max).unwrap_or(u32::MAX);
        ModelListResult { models, loaded_max }
    }

    /// Takes a model off the device; its name. A user may so unload one that is not pinned and that
    /// nobody else has used since it was loaded.
    pub(super) async fn unload(
        &self,
        name: Option<&str>,
        caller: Loader,
    ) -> Result<String, ErrorObject> {
        let spec = self.resolve(name).await?;
        let _changing = self.0.changing.lock().await;
        let is_others = self.slots().get(&spec.name).is_some_and(|slot| slot.is_others(caller));
        if caller != Loader::Operator && (is_others || spec.pinned) {
            let message = format!(
                "the model {:?} is pinned or was used by others: root and the user that the daemon \
                 runs as may unload it",
                spec.name
            );
            return Err(ErrorObject::new(ErrorCode::NOT_ALLOWED, message));
        }
        match self.take_off(&spec.name).await {
            true => Ok(spec.name),
            false => {
                let message = format!("the model {:?} is in use", spec.name);
                Err(ErrorObject::new(ErrorCode::MODEL_BUSY, message))
            }
        }
    }

    /// Has the thread of the default's engine joined with the others.
    #[must_use]
    pub fn with_default_thread(self, thread: EngineThread) -> Self {
        if let Some(slot) = self.slots().get_mut(&self.0.default) {
            slot.thread = Some(thread);
        }
        self
    }

    /// All engines, to end them.
    pub(super) fn take_engines(&self) -> Vec<EndingEngine> {
        let mut slots = self.slots();
        let engine = |(name, slot): (&String, &mut Slot)| EndingEngine {
            model: name.clone(),
            is_default: *name == self.0.default,
            thread: slot.thread.take(),
            saver: slot.engine.saver.clone(),
        };
        slots.iter_mut().map(engine).collect()
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        lock(&self.0.slots)
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Vec<EndedSession>> {
        lock(&self.0.ended)
    }

    /// The library's models.
    pub(super) async fn specs_of_library(&self) -> Vec<ModelSpec> {
        match self.0.library.clone() {
            // It may look at the disk.
            Some(library) => spawn_blocking(move || library.models()).await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// All models: those that have an engine, and those of the library.
    async fn specs(&self) -> Vec<ModelSpec> {
        let more = self.specs_of_library().await;
        let is_there = |slot: &&Slot| {
            // One that has left the device and the library is gone.
            let name = &slot.spec.name;
            slot.is_on_device() || *name == self.0.default || more.iter().any(|s| s.name == *name)
        };
        let mut specs: Vec<ModelSpec> =
            self.slots().values().filter(is_there).map(|slot| slot.spec.clone()).collect();
        for spec in more {
            if !specs.iter().any(|known| known.name == spec.name) {
                specs.push(spec);
            }
        }
        specs
    }

    async fn resolve(&self, name: Option<&str>) -> Result<ModelSpec, ErrorObject> {
        let name = name.unwrap_or(&self.0.default);
        let known = self
            .slots()
            .values()
            .find(|slot| slot.spec.is_called(name))
            .map(|slot| slot.spec.clone());
        if let Some(spec) = known {
            return Ok(spec);
        }
        let specs = self.specs().await;
        if let Some(spec) = specs.iter().find(|spec| spec.is_called(name)) {
            return Ok(spec.clone());
        }
        const SHOWN_CHARS_MAX: usize = 100;
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let hint = nearest(name, names.iter().copied());
        let hint = hint.map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
        let message = format!("no model {shown:?}; there are {}{hint}", names.join(", "));
        let error = ErrorObject::new(ErrorCode::UNKNOWN_MODEL, message);
        Err(error.with_data(json!({"models": names})))
    }

    fn use_loaded(&self, name: &str, caller: Loader) -> Option<InUse> {
        let mut slots = self.slots();
        if name != self.0.default && slots.get(name).is_some_and(|s| s.engine.commands.is_closed())
        {
            // Its device failed for good. The next load starts another engine.
            slots.remove(name);
        }
        let slot = slots.get_mut(name).filter(|slot| slot.is_on_device())?;
        slot.last_used = Instant::now();
        slot.used_by.insert(caller);
        Some(slot.in_use())
    }

    /// Puts a model on the device, at the cost of others.
    async fn load(&self, spec: &ModelSpec, caller: Loader) -> Result<InUse, ErrorObject> {
        self.look_at(spec).await?;
        let mut eviction = Eviction { caller, has_turn: false };
        self.make_room(spec, &mut eviction).await?;
        if let Some(slot) = self.slots().get_mut(&spec.name) {
            slot.used_by.clear(); // its engine may have taken it off by itself
        }
        loop {
            let started = Instant::now();
            let failure = match self.try_to_load(spec).await? {
                Ok(()) => {
                    let seconds = started.elapsed().as_secs_f64();
                    info!(model = spec.name, seconds, "model loaded on demand");
                    return self.use_loaded(&spec.name, caller).ok_or_else(engine_stopped);
                }
                Err(failure) => failure,
            };
            if !failure.no_room || !self.evict(&spec.name, &mut eviction).await? {
                return Err(cannot_be_loaded(&spec.name, &failure));
            }
        }
    }

    /// Refuses a model that cannot be loaded, or is gone.
    async fn look_at(&self, spec: &ModelSpec) -> Result<(), ErrorObject> {
        let Some(library) = self.0.library.clone() else {
            return Ok(()); // its engine will tell
        };
        let wanted = spec.clone();
        let looked = spawn_blocking(move || library.look_at(&wanted)).await;
        let looked = looked.unwrap_or(Ok(())); // it will fail again, and say more
        looked.map_err(|failure| cannot_be_loaded(&spec.name, &failure))
    }

    async fn try_to_load(&self, spec: &ModelSpec) -> Result<Result<(), LoadFailure>, ErrorObject> {
        let known = self.slots().get(&spec.name).map(|s| (s.engine.clone(), s.place.clone()));
        let Some((engine, place)) = known else {
            let started = self.start(spec).await?;
            return Ok(started.map(|slot| drop(self.slots().insert(spec.name.clone(), slot))));
        };
        let has_moved = self.place_of(spec).await?.is_some_and(|now| now != place);
        if !has_moved {
            match control(&engine, |reply| Control::Load { reply }).await? {
                Err(failure) if failure.replaced && self.0.library.is_some() => {}
                loaded => return Ok(loaded),
            }
        }
        self.replace(&spec.name).await
    }

    /// Where a model is now, by its library.
    async fn place_of(&self, spec: &ModelSpec) -> Result<Option<PathBuf>, ErrorObject> {
        let Some(library) = self.0.library.clone() else { return Ok(None) };
        let wanted = spec.clone();
        let located = spawn_blocking(move || library.locate(&wanted)).await;
        let located = located.map_err(|_| failed())?;
        located.map(Some).map_err(|failure| cannot_be_loaded(&spec.name, &failure))
    }

    /// Starts a model's engine.
    pub(super) async fn start(
        &self,
        spec: &ModelSpec,
    ) -> Result<Result<Slot, LoadFailure>, ErrorObject> {
        let library = self.0.library.clone().ok_or_else(engine_stopped)?;
        let wanted = spec.clone();
        let started = spawn_blocking(move || {
            let place = library.locate(&wanted)?;
            library.start(&wanted).map(|(engine, thread)| (engine, thread, place))
        });
        let started = started.await.map_err(|_| failed())?;
        Ok(started
            .map(|(engine, thread, place)| Slot::new(spec.clone(), engine, Some(thread), place)))
    }
}

impl Slot {
    fn new(
        spec: ModelSpec,
        engine: EngineHandle,
        thread: Option<EngineThread>,
        place: PathBuf,
    ) -> Self {
        let (last_used, users) = (Instant::now(), Arc::default());
        Self { spec, engine, thread, place, last_used, used_by: BTreeSet::new(), users }
    }

    /// True if others than the caller have used the model; an operator need not ask.
    fn is_others(&self, caller: Loader) -> bool {
        caller != Loader::Operator && self.used_by.iter().any(|user| *user != caller)
    }

    /// Its engine may have taken it off by itself.
    fn is_on_device(&self) -> bool {
        self.engine.on_device.load(Ordering::Acquire)
    }

    fn in_use(&self) -> InUse {
        let (name, engine) = (self.spec.name.clone(), self.engine.clone());
        InUse { name, engine, _user: Arc::clone(&self.users) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
