//! `hob sessions`.

use clap::{Args, Subcommand, ValueEnum};

use crate::protocol::{Lora, Priority};

/// Options of `hob sessions`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SessionsOptions {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
    /// List the sessions of all users; for root and the user that the daemon runs as
    #[arg(long)]
    pub all: bool,
    /// What to do instead of listing.
    #[command(subcommand)]
    pub action: Option<SessionsAction>,
}

/// What `hob sessions` can do beside listing.
#[derive(Debug, Subcommand)]
pub enum SessionsAction {
    /// Make a session
    Create {
        /// Name of the session
        #[arg(value_name = "NAME")]
        name: String,
        /// Its context, in tokens
        #[arg(long, value_name = "N")]
        context_tokens: Option<u32>,
        /// How urgent its requests are
        #[arg(long, value_name = "PRIORITY")]
        priority: Option<Priority>,
        /// Close it after this many seconds of idleness
        #[arg(long, value_name = "SECONDS")]
        ttl: Option<u64>,
        /// LoRA adapter of the model, by its name; may be repeated
        #[arg(long, value_name = "NAME[=SCALE]", value_parser = super::generation::lora)]
        lora: Vec<Lora>,
    },
    /// Show all that is known of a session, as JSON
    Info {
        /// Name or number of the session
        #[arg(value_name = "NAME")]
        session: String,
    },
    /// Make a session that begins as another one, and shares its cache
    Fork {
        /// Name or number of the session to begin as
        #[arg(value_name = "NAME")]
        session: String,
        /// Name of the new session
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// How many of its tokens to take [default: all]
        #[arg(long, value_name = "TOKENS")]
        at: Option<u32>,
    },
    /// Forget what is behind the first tokens of a session
    Truncate {
        /// Name or number of the session
        #[arg(value_name = "NAME")]
        session: String,
        /// How many tokens stay
        #[arg(value_name = "TOKENS")]
        tokens: u32,
    },
    /// Keep a session in a file, as it is now
    Save {
        /// Name or number of the session
        #[arg(value_name = "NAME")]
        session: String,
    },
    /// Take a session back to what was saved
    Restore {
        /// Name or number of the session
        #[arg(value_name = "NAME")]
        session: String,
    },
    /// Close sessions and free their caches
    Close {
        /// Names or numbers of the sessions
        #[arg(value_name = "NAME", required = true)]
        sessions: Vec<String>,
        /// Number of the user whose sessions they are, where they are not yours; for root and the
        /// user that the daemon runs as
        #[arg(long, value_name = "UID")]
        uid: Option<u32>,
    },
}

impl ValueEnum for Priority {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Interactive, Self::Normal, Self::Background]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Interactive => "interactive".into(),
            Self::Normal => "normal".into(),
            Self::Background => "background".into(),
        })
    }
}
