//! Values of options that are more than a number: each reads from the same text in a flag, a variable and the file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lifecycle::OnDisconnect;
use lifecycle::policy::NoPolicy;
use serde::Deserialize;

/// How many threads compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "usize")]
pub struct Threads(usize);

/// Most threads that may be asked for.
pub const THREADS_MAX: usize = 256;

impl Threads {
    /// The number, 1 or more.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for Threads {
    /// One a core that this process may use.
    fn default() -> Self {
        Threads(std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX)))
    }
}

impl TryFrom<usize> for Threads {
    type Error = String;

    fn try_from(n: usize) -> Result<Self, String> {
        if (1..=THREADS_MAX).contains(&n) { Ok(Threads(n)) } else { Err(format!("must be 1 to {THREADS_MAX}")) }
    }
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<usize>().map_err(|why| why.to_string())?.try_into()
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A price or a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Amount(f64);

impl Amount {
    /// One that is known to be none below 0.
    pub const fn of(whole: u32) -> Amount {
        Amount(whole as f64)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Amount {
    type Error = String;

    fn try_from(n: f64) -> Result<Self, String> {
        if n.is_finite() && n >= 0.0 { Ok(Amount(n)) } else { Err("must be a number that is not below 0".to_owned()) }
    }
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<f64>().map_err(|why| why.to_string())?.try_into()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process's name, the same through all its lives; where none is given, what the command calls itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ProcessName(Option<String>);

impl ProcessName {
    /// The name, or this one where none is given.
    pub fn get_or<'a>(&'a self, other: &'a str) -> &'a str {
        self.0.as_deref().unwrap_or(other)
    }
}

impl TryFrom<String> for ProcessName {
    type Error = String;

    /// The same characters and length as a tenant's: what the protocol allows.
    fn try_from(text: String) -> Result<Self, String> {
        match lifecycle::Tenant::parse(&text) {
            Ok(_) => Ok(ProcessName(Some(text))),
            Err(why) => Err(why.to_string()),
        }
    }
}

impl FromStr for ProcessName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().unwrap_or_default().fmt(f)
    }
}

/// What a disconnect means, or nothing: then what stands above it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Policy(Option<OnDisconnect>);

impl Policy {
    /// This one.
    pub const fn of(policy: OnDisconnect) -> Policy {
        Policy(Some(policy))
    }

    /// What it says.
    pub const fn get(self) -> Option<OnDisconnect> {
        self.0
    }
}

impl TryFrom<String> for Policy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(Policy(None)) } else { text.parse().map(Policy::of).map_err(|why: NoPolicy| why.to_string()) }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |policy| policy.fmt(f))
    }
}

/// What declared tools may be sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ToolUrls(gateway::UrlPrefixes);

impl ToolUrls {
    /// The list.
    pub fn get(&self) -> &gateway::UrlPrefixes {
        &self.0
    }
}

impl TryFrom<String> for ToolUrls {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for ToolUrls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(ToolUrls)
    }
}

impl fmt::Display for ToolUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Most workers of one gateway.
pub const WORKERS_MAX: usize = 256;

/// Where a gateway's workers are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Workers(Vec<String>);

impl Workers {
    /// Each as it was given, in order.
    pub fn addresses(&self) -> &[String] {
        &self.0
    }
}

impl FromIterator<Workers> for Workers {
    fn from_iter<I: IntoIterator<Item = Workers>>(lists: I) -> Workers {
        Workers(lists.into_iter().flat_map(|list| list.0).collect())
    }
}

impl TryFrom<String> for Workers {
    type Error = String;

    /// Addresses with commas between them. What an address is, its user says.
    fn try_from(text: String) -> Result<Self, String> {
        let list: Vec<String> = text.split(',').map(|address| address.trim().to_owned()).collect();
        if list.iter().any(String::is_empty) { Err("an address is empty".to_owned()) } else { Ok(Workers(list)) }
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.join(",").fmt(f)
    }
}

/// The model file asked for, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ModelPath(Option<PathBuf>);

impl ModelPath {
    /// The file, if one was named.
    pub fn get(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

impl FromStr for ModelPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("no file is named".to_owned()) } else { Ok(ModelPath(Some(text.into()))) }
    }
}

impl fmt::Display for ModelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |path| path.display().fmt(f))
    }
}

/// Where runs are kept.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct StorePlace(String);

impl StorePlace {
    /// What stands for no store.
    pub const NONE: &str = "none";

    /// The place that was named; `None` for the usual one.
    pub fn get(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|place| !place.is_empty())
    }
}

impl FromStr for StorePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("no store is named".to_owned()) } else { Ok(StorePlace(text.to_owned())) }
    }
}

impl fmt::Display for StorePlace {
    /// A URL's password is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&store::StoreConfig::at(self.0.as_str()).place())
    }
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorePlace({self})")
    }
}

macro_rules! choice {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $variant:ident = $text:literal),+ }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $($(#[$vm])* $variant),+ }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(format!("it must be one of {}", [$($text),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text),+ })
            }
        }
    };
}

choice! {
    /// The instruction set of the kernels.
    Isa {
        /// The best that the machine has.
        Auto = "auto",
        /// AVX-512 with VNNI, and AMX int8.
        Amx = "amx",
        /// AVX-512 with VNNI.
        Avx512 = "avx512",
        /// AVX2 with FMA.
        Avx2 = "avx2",
        /// None: plain Rust, the reference.
        Scalar = "scalar"
    }
}

choice! {
    /// How much is logged.
    LogLevel {
        /// Nothing.
        Off = "off",
        /// What is broken.
        Error = "error",
        /// What will need somebody.
        Warn = "warn",
        /// What a run came to.
        Info = "info",
        /// What a run went through.
        Debug = "debug",
        /// Everything.
        Trace = "trace"
    }
}
