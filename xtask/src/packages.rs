//! What the tests need from the system: found, or installed where that can be done.

use anyhow::bail;

use crate::process::{command, run as run_command};

/// The first of these programs that is on the path.
pub fn found(names: &[&str]) -> Option<String> {
    let paths = std::env::var_os("PATH")?;
    // Where servers are installed, which is on root's path only.
    let folders: Vec<_> = std::env::split_paths(&paths).chain(["/usr/sbin".into()]).collect();
    let files = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.filter(|file| file.is_file()).find_map(|file| file.to_str().map(str::to_owned))
}

/// Installs a Debian package, as root.
///
/// # Errors
/// Not root, not Debian: says who needs it and what to do (`or_else` is a further way); or apt-get fails.
pub fn install(package: &str, who: &str, or_else: &str) -> anyhow::Result<()> {
    let said = |program: &str, args: &[&str]| command(program).args(args).output().ok().filter(|o| o.status.success()).map(|o| o.stdout);
    let superuser = said("id", &["-u"]).is_some_and(|id| id.trim_ascii() == b"0");
    if !superuser || said("apt-get", &["--version"]).is_none() {
        bail!("{who}: install your system's package (`apt-get install {package}`){or_else}");
    }
    eprintln!("xtask: {package} is missing; installing Debian's");
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get");
        apt.args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).args(words).env("DEBIAN_FRONTEND", "noninteractive");
        run_command(&mut apt)
    };
    apt(&["update"])?;
    apt(&["install", "-y", "--no-install-recommends", package])
}
