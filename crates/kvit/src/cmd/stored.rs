//! Opening the run store that the options name.
//!
//! Invariant: no run is taken on before its store is open; a store that cannot be opened is an error with its way out, never silence.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use store::{RunStore, StoreConfig};

use crate::config::{ServeConfig, StorePlace};

/// The store for a process of this name; `None` if none is wanted.
///
/// # Errors
/// No place for it is known, or it cannot be opened.
pub(super) async fn open(config: &ServeConfig, name: &str) -> anyhow::Result<Option<Arc<dyn RunStore>>> {
    let url = match config.store.get() {
        Some(StorePlace::NONE) => return Ok(None),
        Some(place) => place.to_owned(),
        None => usual(name)?,
    };
    let settings = StoreConfig {
        key_file: config.store_key_file.get().map(Path::to_owned),
        notify: config.store_notify,
        retention: Duration::from_secs(config.retention_s),
        ..StoreConfig::at(url)
    };
    let place = settings.place();
    let open = store::open(&settings).await;
    let store =
        open.with_context(|| format!("runs cannot be kept at {place}; name another place with --store, or --store none to keep none"))?;
    tracing::info!(%place, "runs are kept");
    Ok(Some(store))
}

/// `NAME.db` where the XDG rules put a program's state; the folder is made.
fn usual(name: &str) -> anyhow::Result<String> {
    let from = |name: &str| std::env::var_os(name).filter(|v: &OsString| Path::new(v).is_absolute()).map(PathBuf::from);
    let xdg = from("XDG_STATE_HOME").map(|d| d.join("kvit"));
    let home = || from("HOME").map(|d| d.join(".local").join("state").join("kvit"));
    let folder = xdg.or_else(home).context("no folder for the run store: name a file with --store FILE, or set HOME")?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let path = folder.join(format!("{name}.db"));
    path.to_str().map(str::to_owned).with_context(|| format!("the path {} is not UTF-8", path.display()))
}
