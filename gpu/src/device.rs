//! The device a model runs on, as users name it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A device that this build can compute on.
///
/// ```
/// use odeon_gpu::Device;
///
/// assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
/// assert_eq!(Device::Cuda(0).to_string(), "cuda:0");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Device {
    /// The processor, through [`Cpu`](crate::Cpu): `cpu`.
    #[default]
    Cpu,
    /// A card of NVIDIA, through [`Cuda`](crate::Cuda): `cuda:N`, or `cuda` for the first one.
    /// Whether it is there shows when it is [opened](crate::Cuda::open).
    Cuda(u32),
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        match (name, name.strip_prefix("cuda:")) {
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(0)),
            (_, Some(index)) => index
                .parse()
                .map(Self::Cuda)
                .map_err(|_| DeviceError::NoIndex(name.to_owned())),
            _ => Err(DeviceError::Unknown(name.to_owned())),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Why a device name was refused. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text after the colon is not the number of a device.
    #[error("device \"{0}\": the number of the card stands after the colon, as in \"cuda:0\"")]
    NoIndex(String),
    /// No device has this name. The known ones are in the message.
    #[error("device \"{0}\" is unknown, use device = \"cpu\", \"cuda\" or \"cuda:N\"")]
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_others_refused_with_advice() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(Device::Cuda(3)));
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for name in ["cuda:", "cuda:-1", "cuda:x"] {
            let error = name.parse::<Device>().unwrap_err();
            assert_eq!(error, DeviceError::NoIndex(name.to_owned()));
        }
        let error = "tpu".parse::<Device>().unwrap_err();
        assert_eq!(error, DeviceError::Unknown("tpu".to_owned()));
        assert!(error.to_string().contains("\"cuda:N\""));
    }
}
