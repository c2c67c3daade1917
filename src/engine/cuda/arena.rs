//! Device memory that is reserved piece by piece at load and kept as long as its owner.

use super::device::{Memory, Plain, Queue};
use super::kernels::Address;
use crate::error::Result;

/// Collects what is reserved.
#[derive(Debug)]
pub struct Arena<'a> {
    /// Where the copies go.
    pub on: Queue<'a>,
    memory: Vec<Memory>,
}

impl<'a> Arena<'a> {
    /// An empty one.
    pub fn new(on: Queue<'a>) -> Arena<'a> {
        Arena { on, memory: Vec::new() }
    }

    /// Reserves `bytes` zeros.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn zeros(&mut self, bytes: usize) -> Result<Address> {
        self.keep(self.on.device.zeros(self.on.stream, bytes)?)
    }

    /// Copies values to the device.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn upload<T: Plain>(&mut self, values: &[T]) -> Result<Address> {
        self.keep(self.on.device.upload(self.on.stream, values)?)
    }

    /// All of it, for the owner to keep.
    pub fn into_memory(self) -> Vec<Memory> {
        self.memory
    }

    fn keep(&mut self, memory: Memory) -> Result<Address> {
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }
}
