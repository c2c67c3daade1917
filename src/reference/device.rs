//! Where the reference runs.

use candle_core::Device;

use crate::error::{Error, Result};

/// The device that a user names: `auto` (a GPU where this build and machine have one, else the processor), `cpu`, `cuda`
/// or `cuda:N`.
///
/// # Errors
/// [`Error::Input`] for any other name; [`Error::Unsupported`] for a GPU in a build without candle's GPU code;
/// [`Error::Device`] when there is no such GPU.
pub fn device(name: &str) -> Result<Device> {
    let number = match name {
        "cpu" => return Ok(Device::Cpu),
        "auto" => return Ok(cuda(0).unwrap_or(Device::Cpu)),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
    };
    let expected = || Error::input("--reference-device", format!("found {name:?}, expected auto, cpu, cuda or cuda:N"));
    cuda(number.ok_or_else(expected)?)
}

#[cfg(feature = "candle-cuda")]
fn cuda(number: usize) -> Result<Device> {
    Device::new_cuda(number).map_err(super::device_error)
}

#[cfg(not(feature = "candle-cuda"))]
fn cuda(_: usize) -> Result<Device> {
    let why = "this build runs the reference on the processor; build with --features candle-cuda".to_owned();
    Err(Error::Unsupported { what: "--reference-device cuda".to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_and_others_refused() {
        assert!(matches!(device("cpu"), Ok(Device::Cpu)));
        for wrong in ["", "gpu", "cuda:", "cuda:x"] {
            assert!(device(wrong).unwrap_err().to_string().contains("expected auto, cpu, cuda or cuda:N"), "{wrong}");
        }
        assert!(device("auto").is_ok());
        #[cfg(not(feature = "candle-cuda"))]
        assert!(device("cuda").unwrap_err().to_string().contains("build with --features candle-cuda"));
    }
}
