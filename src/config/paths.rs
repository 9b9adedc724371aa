//! Where the socket, the model, the configuration and the cache are when nobody says.
//!
//! After the XDG base directory specification, and systemd's `RUNTIME_DIRECTORY` and
//! `CACHE_DIRECTORY` where hobd runs as a service.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Config, ConfigError};

/// Name of the socket in its folder.
const SOCKET_NAME: &str = "hob.sock";

/// Socket of a system service.
const SYSTEM_SOCKET: &str = "/run/hob/hob.sock";

/// Environment that default paths depend on. Relative paths count as unset, as XDG specifies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// User id.
    pub uid: u32,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`; where it is not set, `/run/user/UID` if that is there.
    pub xdg_runtime_dir: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub xdg_config_home: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub xdg_data_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub xdg_cache_home: Option<PathBuf>,
    /// The first of `RUNTIME_DIRECTORY`.
    pub runtime_directory: Option<PathBuf>,
    /// The first of `CACHE_DIRECTORY`.
    pub cache_directory: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<PathBuf>,
    /// The first of `STATE_DIRECTORY`.
    pub state_directory: Option<PathBuf>,
}

impl Places {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self {
            uid,
            home: absolute(env::var_os("HOME")),
            xdg_runtime_dir: absolute(env::var_os("XDG_RUNTIME_DIR"))
                .or_else(|| own_runtime_dir(uid)),
            xdg_config_home: absolute(env::var_os("XDG_CONFIG_HOME")),
            xdg_data_home: absolute(env::var_os("XDG_DATA_HOME")),
            xdg_cache_home: absolute(env::var_os("XDG_CACHE_HOME")),
            runtime_directory: first_of(env::var_os("RUNTIME_DIRECTORY")),
            xdg_state_home: absolute(env::var_os("XDG_STATE_HOME")),
            cache_directory: first_of(env::var_os("CACHE_DIRECTORY")),
            state_directory: first_of(env::var_os("STATE_DIRECTORY")),
        }
    }

    /// Default socket of a daemon: in the service's `RUNTIME_DIRECTORY`, else
    /// `$XDG_RUNTIME_DIR/hob/hob.sock`, else `/run/hob-0/hob.sock` for root, whose own daemon is
    /// not the system's, and `hob/hob.sock` in the folder of the user's state for others. Nobody
    /// else can make any of these folders first.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        if let Some(folder) = &self.runtime_directory {
            return folder.join(SOCKET_NAME);
        }
        self.user_socket()
    }

    fn user_socket(&self) -> PathBuf {
        if let Some(folder) = &self.xdg_runtime_dir {
            return folder.join("hob").join(SOCKET_NAME);
        }
        let state = self.xdg(self.xdg_state_home.as_deref(), ".local/state");
        match state.filter(|_| self.uid != 0) {
            Some(folder) => folder.join("hob").join(SOCKET_NAME),
            None => PathBuf::from(format!("/run/hob-{}", self.uid)).join(SOCKET_NAME),
        }
    }

    /// Sockets that a client tries when none is named: the user's own daemon, then the system's.
    #[must_use]
    pub fn client_sockets(&self) -> Vec<PathBuf> {
        vec![self.user_socket(), PathBuf::from(SYSTEM_SOCKET)]
    }

    /// Configuration files, the first that exists is used:
    /// `$XDG_CONFIG_HOME/hob/hobd.toml` (by default in `~/.config`), `/etc/hob/hobd.toml`.
    #[must_use]
    pub fn config_files(&self) -> Vec<PathBuf> {
        let user = self.xdg(self.xdg_config_home.as_deref(), ".config");
        let user = user.map(|folder| folder.join("hob/hobd.toml"));
        user.into_iter().chain([PathBuf::from("/etc/hob/hobd.toml")]).collect()
    }

    /// Folder of the models: `$XDG_DATA_HOME/hob/models` (by default in `~/.local/share`).
    #[must_use]
    pub fn models_dir(&self) -> Option<PathBuf> {
        let data = self.xdg(self.xdg_data_home.as_deref(), ".local/share");
        data.map(|folder| folder.join("hob/models"))
    }

    /// Says where a model could lie, and be named, where there is none to take.
    #[must_use]
    pub fn no_model(&self, known: Vec<String>) -> ConfigError {
        let Some(folder) = self.models_dir() else {
            return ConfigError::NoHome { what: "the model", variable: "XDG_DATA_HOME" };
        };
        let config_file = self.config_files().swap_remove(0);
        ConfigError::NoModel { folder, known, config_file }
    }

    /// Folder of the pipeline cache: `config.cache_dir`, else the service's `CACHE_DIRECTORY`, else
    /// `$XDG_CACHE_HOME/hob` (by default in `~/.cache`). `None`: no place for one.
    #[must_use]
    pub fn cache_dir(&self, config: &Config) -> Option<PathBuf> {
        if !config.cache_dir.as_os_str().is_empty() {
            return Some(config.cache_dir.clone());
        }
        self.cache_directory.clone().or_else(|| {
            self.xdg(self.xdg_cache_home.as_deref(), ".cache").map(|folder| folder.join("hob"))
        })
    }

    /// Folder of saved sessions: `config.state_dir`, else the service's `STATE_DIRECTORY`, else
    /// `$XDG_STATE_HOME/hob` (by default in `~/.local/state`). `None`: no place for them.
    #[must_use]
    pub fn state_dir(&self, config: &Config) -> Option<PathBuf> {
        if !config.state_dir.as_os_str().is_empty() {
            return Some(config.state_dir.clone());
        }
        self.state_directory.clone().or_else(|| {
            let state = self.xdg(self.xdg_state_home.as_deref(), ".local/state");
            state.map(|folder| folder.join("hob"))
        })
    }

    /// The socket to serve: `config.socket`, else the default.
    #[must_use]
    pub fn socket_of(&self, config: &Config) -> PathBuf {
        if config.socket.as_os_str().is_empty() { self.socket() } else { config.socket.clone() }
    }

    fn xdg(&self, variable: Option<&Path>, below_home: &str) -> Option<PathBuf> {
        variable
            .map(Path::to_owned)
            .or_else(|| self.home.as_ref().map(|home| home.join(below_home)))
    }
}

/// systemd's folder for a user's sockets, which it makes at the user's first login, for a program
/// that was started without its variable, as by cron or `su`.
fn own_runtime_dir(uid: u32) -> Option<PathBuf> {
    let folder = PathBuf::from(format!("/run/user/{uid}"));
    let found = fs::symlink_metadata(&folder).ok()?;
    (uid != 0 && found.is_dir() && found.uid() == uid).then_some(folder)
}

fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// systemd separates several folders by colons.
fn first_of(value: Option<OsString>) -> Option<PathBuf> {
    let value = value?;
    let first = value.to_str()?.split(':').next()?;
    absolute(Some(first.into()))
}
