//! How a session opens: what the gateway says of itself, and what the worker answers.
//!
//! Invariant: whoever reads a Welcome knows the lease that the worker holds to, so that nobody concludes too early.
// contract: C-9

use std::time::Duration;

use lifecycle::Time;
use lifecycle::message::ModelInfo;
use lifecycle::session::{Hello, SessionConfig, Welcome};

use crate::{Error, field, limits, worker_v1 as wire};

/// The gateway's first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The versions that it speaks.
    pub versions: Vec<u32>,
    /// Who it is, and what it wants to go on with.
    pub hello: Hello,
}

/// The worker's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The version that both speak from now on.
    pub version: u32,
    /// Who it is, and what goes on.
    pub welcome: Welcome,
    /// What it serves.
    pub model: ModelInfo,
    /// What it holds to.
    pub limits: Limits,
}

/// What a worker holds to in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one frame.
    pub frame_bytes_max: u64,
    /// Messages of one lane on their way at once.
    pub window: u64,
    /// Longest time between two frames.
    pub heartbeat: Duration,
    /// An unacknowledged message goes again after this.
    pub resend_after: Duration,
    /// Without a frame for this long, attempts are suspended.
    pub suspend_after: Duration,
}

impl Limits {
    /// What a worker with this configuration holds to.
    pub const fn of(config: &SessionConfig) -> Limits {
        Limits {
            frame_bytes_max: limits::FRAME_BYTES_MAX.default,
            window: config.window,
            heartbeat: config.heartbeat,
            resend_after: config.resend_after,
            suspend_after: config.suspend_after,
        }
    }
}

impl From<&Opening> for wire::Hello {
    fn from(opening: &Opening) -> wire::Hello {
        let hello = &opening.hello;
        wire::Hello {
            versions: opening.versions.clone(),
            gateway: hello.gateway.to_string(),
            incarnation: field::bytes(hello.incarnation),
            session: hello.session,
            resume: hello.resume.map(|(worker, tenure)| wire::Resume { worker: field::bytes(worker), tenure }),
            received: hello.received,
            lease_us: field::micros(hello.lease),
            stamp_us: hello.stamp.0,
        }
    }
}

impl TryFrom<wire::Hello> for Opening {
    type Error = Error;

    fn try_from(wire: wire::Hello) -> Result<Opening, Error> {
        if wire.versions.is_empty() {
            return Err(Error::Missing { field: "Hello.versions" });
        }
        field::within(&wire.versions, limits::VERSIONS_MAX, "Hello.versions")?;
        let resume = |resume: wire::Resume| {
            let worker = field::incarnation(&resume.worker, "Resume.worker")?;
            Ok::<_, Error>((worker, field::number(resume.tenure, "Resume.tenure")?))
        };
        let hello = Hello {
            gateway: field::name(&wire.gateway, "Hello.gateway")?,
            incarnation: field::incarnation(&wire.incarnation, "Hello.incarnation")?,
            session: field::number(wire.session, "Hello.session")?,
            resume: wire.resume.map(resume).transpose()?,
            received: wire.received,
            lease: Duration::from_micros(field::number(wire.lease_us, "Hello.lease_us")?),
            stamp: Time(wire.stamp_us),
        };
        Ok(Opening { versions: wire.versions, hello })
    }
}

impl From<&Opened> for wire::Welcome {
    fn from(opened: &Opened) -> wire::Welcome {
        let welcome = &opened.welcome;
        wire::Welcome {
            version: opened.version,
            worker: welcome.worker.to_string(),
            incarnation: field::bytes(welcome.incarnation),
            tenure: welcome.tenure,
            received: welcome.received,
            lease_us: field::micros(welcome.lease),
            stamp_us: welcome.stamp.0,
            model: Some((&opened.model).into()),
            limits: Some((&opened.limits).into()),
        }
    }
}

impl TryFrom<wire::Welcome> for Opened {
    type Error = Error;

    fn try_from(wire: wire::Welcome) -> Result<Opened, Error> {
        let welcome = Welcome {
            worker: field::name(&wire.worker, "Welcome.worker")?,
            incarnation: field::incarnation(&wire.incarnation, "Welcome.incarnation")?,
            tenure: field::number(wire.tenure, "Welcome.tenure")?,
            received: wire.received,
            lease: Duration::from_micros(field::number(wire.lease_us, "Welcome.lease_us")?),
            stamp: Time(wire.stamp_us),
        };
        Ok(Opened {
            version: field::number(wire.version, "Welcome.version")?,
            welcome,
            model: field::need(wire.model, "Welcome.model")?.try_into()?,
            limits: field::need(wire.limits, "Welcome.limits")?.try_into()?,
        })
    }
}

impl From<&ModelInfo> for wire::Model {
    fn from(model: &ModelInfo) -> wire::Model {
        wire::Model {
            id: model.id.to_string(),
            context: model.context,
            default_max_tokens: model.default_max_tokens,
            created_s: model.created,
        }
    }
}

impl TryFrom<wire::Model> for ModelInfo {
    type Error = Error;

    fn try_from(model: wire::Model) -> Result<ModelInfo, Error> {
        Ok(ModelInfo {
            id: field::number(model.id, "Model.id")?.into(),
            context: field::number(model.context, "Model.context")?,
            default_max_tokens: field::number(model.default_max_tokens, "Model.default_max_tokens")?,
            created: model.created_s,
        })
    }
}

impl From<&Limits> for wire::Limits {
    fn from(limits: &Limits) -> wire::Limits {
        wire::Limits {
            frame_bytes_max: limits.frame_bytes_max,
            window: limits.window,
            heartbeat_us: field::micros(limits.heartbeat),
            resend_after_us: field::micros(limits.resend_after),
            suspend_after_us: field::micros(limits.suspend_after),
        }
    }
}

impl TryFrom<wire::Limits> for Limits {
    type Error = Error;

    fn try_from(limits: wire::Limits) -> Result<Limits, Error> {
        let span = |us: u64, field| field::number(us, field).map(Duration::from_micros);
        Ok(Limits {
            frame_bytes_max: field::number(limits.frame_bytes_max, "Limits.frame_bytes_max")?,
            window: field::number(limits.window, "Limits.window")?,
            heartbeat: span(limits.heartbeat_us, "Limits.heartbeat_us")?,
            resend_after: span(limits.resend_after_us, "Limits.resend_after_us")?,
            suspend_after: span(limits.suspend_after_us, "Limits.suspend_after_us")?,
        })
    }
}
