//! The device a model runs on, as users name it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A device that this build can compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor, through [`Cpu`](crate::Cpu).
    #[default]
    Cpu,
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        match name {
            "cpu" => Ok(Self::Cpu),
            _ if name == "cuda" || name.starts_with("cuda:") => {
                Err(DeviceError::CudaNotBuilt(name.to_owned()))
            }
            _ => Err(DeviceError::Unknown(name.to_owned())),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// Why a device name was refused. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The name asks for CUDA, which this build does not hold. Use `cpu`.
    #[error("device \"{0}\": the CUDA back-end is not part of this build, use device = \"cpu\"")]
    CudaNotBuilt(String),
    /// No device has this name. The known ones are in the message.
    #[error("device \"{0}\" is unknown, use device = \"cpu\"")]
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_cuda_is_refused_with_advice() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        for name in ["cuda", "cuda:1"] {
            let error = name.parse::<Device>().unwrap_err();
            assert_eq!(error, DeviceError::CudaNotBuilt(name.to_owned()));
            assert!(error.to_string().contains("use device = \"cpu\""));
        }
        assert!(matches!(
            "tpu".parse::<Device>(),
            Err(DeviceError::Unknown(_))
        ));
    }
}
