//! The GPU: finding it, its memory, its kernels, launches. Every call to the driver is checked here, and every `unsafe` of
//! the backend that is not a kernel is in this file.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute_enum, CUgraphInstantiate_flags};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DriverError, result,
};
use cudarc::nvrtc::Ptx;

use super::kernels::Address;
use crate::engine::tuning::{Card, Key};
use crate::error::{Error, Result};

/// Oldest compute capability with all the instructions the kernels use.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

macro_rules! images {
    ($($name:literal),*) => { &[$(include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin"))),*] };
}

static KERNELS: &[&[u8]] = images!("layer", "wgmma", "frame", "head", "head_wgmma", "codec");
#[cfg(feature = "twins")]
static READ_TWINS: &[&[u8]] = images!("layer.read", "wgmma.read", "frame.read", "head.read", "head_wgmma.read");
#[cfg(feature = "twins")]
static COMPUTE_TWINS: &[&[u8]] =
    images!("layer.compute", "wgmma.compute", "frame.compute", "head.compute", "head_wgmma.compute");

/// Which variant of the kernels to run (`kernels/twin.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The product.
    Whole,
    /// Reads all weights and multiplies none.
    ReadTwin,
    /// Multiplies and reads no weights.
    ComputeTwin,
}

impl Variant {
    /// The compiled kernels; none for the twins in a build without the feature `twins`.
    fn images(self) -> &'static [&'static [u8]] {
        match self {
            Variant::Whole => KERNELS,
            #[cfg(feature = "twins")]
            Variant::ReadTwin => READ_TWINS,
            #[cfg(feature = "twins")]
            Variant::ComputeTwin => COMPUTE_TWINS,
            #[cfg(not(feature = "twins"))]
            Variant::ReadTwin | Variant::ComputeTwin => &[],
        }
    }
}

/// A GPU that this program can use.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    modules: Vec<Arc<CudaModule>>,
    /// `cuda:0 (NVIDIA H200)`.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Most shared memory a block can have.
    pub shared_bytes: usize,
}

/// Work in order.
#[derive(Clone, Debug)]
pub struct Stream(Arc<CudaStream>);

/// Where work goes: a stream and its device.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// The device.
    pub device: &'a Device,
    /// The stream.
    pub stream: &'a Stream,
}

impl Queue<'_> {
    /// [`Device::launch`] into this stream.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// [`Error::Device`] naming the kernel.
    pub unsafe fn launch(&self, kernel: &Kernel, launch: Launch, arguments: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: the caller's argument.
        unsafe { self.device.launch(self.stream, kernel, launch, arguments) }
    }
}

/// Bytes on the device, freed when dropped.
#[derive(Debug)]
pub struct Memory {
    slice: CudaSlice<u8>,
    address: Address,
}

/// Page-locked host memory that the device copies to and from while the host goes on.
#[derive(Debug)]
pub struct Pinned<T: Plain> {
    at: *mut T,
    len: usize,
    context: Arc<CudaContext>,
}

/// Types without padding-dependent meaning, for which any bits are a value.
///
/// # Safety
/// Implemented for integers, floats and `repr(C)` structs of them only.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: integers, floats and repr(C) structs of them.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for [f32; 2] {}
// SAFETY: as above.
unsafe impl Plain for super::kernels::Column {}
// SAFETY: as above.
unsafe impl Plain for super::kernels::Layer {}
// SAFETY: as above.
unsafe impl Plain for super::kernels::Sequence {}
// SAFETY: as above.
unsafe impl Plain for super::kernels::FrameOut {}

// SAFETY: the pointer is owned, and page-locked memory may be used from any thread.
unsafe impl<T: Plain> Send for Pinned<T> {}

/// A kernel of the embedded modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    function: CudaFunction,
    name: &'static str,
}

/// Sizes of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: [usize; 3],
    /// Threads a block.
    pub block: usize,
    /// Dynamic shared memory of a block in bytes.
    pub shared: usize,
    /// How it starts.
    pub start: Start,
}

/// How a kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// When its predecessor has finished.
    InOrder,
    /// Early: the kernel waits for its predecessor itself (programmatic dependent launch, where the device has it).
    Early,
    /// In order, and all blocks at once or not at all, because they wait for each other.
    Together,
}

/// A captured sequence of launches and copies.
pub struct Graph(CudaGraph);

// SAFETY: a graph has no thread affinity; the driver only forbids concurrent use, and `Graph` is not `Sync`.
unsafe impl Send for Graph {}

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event(CudaEvent);

fn reason(error: &DriverError) -> String {
    let text = |c: std::result::Result<&std::ffi::CStr, DriverError>| c.map(|c| c.to_string_lossy().into_owned()).ok();
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(text)) => format!("{text} ({name})"),
        _ => format!("{error:?}"),
    }
}

/// True when the driver's library can be loaded. A program with candle's CUDA backend is bound to it and would not have started.
fn has_driver() -> bool {
    #[cfg(feature = "candle-cuda")]
    return true;
    #[cfg(not(feature = "candle-cuda"))]
    // SAFETY: opens and closes the driver's library; it has no other effect.
    unsafe {
        sys::is_culib_present()
    }
}

/// Names of kernels launched, while somebody wants to know; see [`take_launched`].
static LAUNCHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static RECORDING: AtomicBool = AtomicBool::new(false);

fn record_launch(name: &'static str) {
    if RECORDING.load(Ordering::Relaxed) {
        LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    }
}

/// The kernels launched, or captured into a graph, since the last call; the first call starts the recording.
pub fn take_launched() -> BTreeSet<&'static str> {
    RECORDING.store(true, Ordering::Relaxed);
    std::mem::take(&mut *LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Names of the functions of a module.
///
/// # Safety
/// The module is loaded, in the current context.
unsafe fn function_names(module: sys::CUmodule) -> std::result::Result<Vec<String>, DriverError> {
    let mut count = 0;
    // SAFETY: the caller's module, and a place for one number.
    unsafe { sys::cuModuleGetFunctionCount(&raw mut count, module) }.result()?;
    let mut functions = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the caller's module, and room for as many functions as said.
    unsafe { sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module) }.result()?;
    let name = |function: sys::CUfunction| {
        let mut name = std::ptr::null();
        // SAFETY: a function that the driver listed, and a place for one pointer.
        unsafe { sys::cuFuncGetName(&raw mut name, function) }.result()?;
        // SAFETY: the driver returned a terminated string that lives as long as the module; it is copied here.
        Ok(unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    functions.into_iter().map(name).collect()
}

impl Device {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a driver, without that GPU, or for a GPU below compute capability 8.0;
    /// [`Error::Device`] when the driver refuses.
    pub fn open(ordinal: usize) -> Result<Device> {
        let unsupported = |what: String, why: String| Error::Unsupported { what, why };
        let place = format!("cuda:{ordinal}");
        if !has_driver() {
            let why = "no NVIDIA driver on this machine (libcuda is missing); use the CPU or install the driver";
            return Err(unsupported(place, why.into()));
        }
        let failed = |action| {
            let place = place.clone();
            move |e: DriverError| Error::Device { device: place, action, reason: reason(&e) }
        };
        let count = CudaContext::device_count().map_err(failed("count the GPUs"))?;
        if ordinal >= count as usize {
            return Err(unsupported(place, format!("this machine has {count} usable GPUs, numbered from 0")));
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the GPU"))?;
        let capability = context.compute_capability().map_err(failed("read its compute capability"))?;
        let gpu = context.name().map_err(failed("read its name"))?;
        if capability < LEAST_CAPABILITY {
            let why = format!("compute capability {}.{}; 8.0 and up are supported", capability.0, capability.1);
            return Err(unsupported(format!("{place} ({gpu})"), why));
        }
        // SAFETY: buffers are shared between streams only with explicit events, so the automatic ones, which cannot be
        // captured into a graph, are not needed.
        unsafe { context.disable_event_tracking() };
        let attribute = |which| context.attribute(which).map_err(failed("read its attributes"));
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let shared = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_bytes = attribute(shared)? as usize;
        let mut device = Device {
            name: format!("{place} ({gpu})"),
            capability,
            multiprocessors,
            shared_bytes,
            modules: Vec::new(),
            context,
        };
        device.modules = device.load(Variant::Whole)?;
        Ok(device)
    }

    fn load(&self, variant: Variant) -> Result<Vec<Arc<CudaModule>>> {
        let load = |image: &[u8]| self.context.load_module(Ptx::from_binary(image.to_vec()));
        variant.images().iter().map(|image| self.check("load its kernels", load(image))).collect()
    }

    /// The same device with another variant of the kernels; `None` when this build has none.
    ///
    /// # Errors
    /// [`Error::Device`] when the GPU cannot run them.
    pub fn variant(&self, variant: Variant) -> Result<Option<Device>> {
        let modules = self.load(variant)?;
        let (context, name) = (self.context.clone(), self.name.clone());
        Ok((!modules.is_empty()).then_some(Device { context, name, modules, ..*self }))
    }

    fn check<T>(&self, action: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| Error::Device { device: self.name.clone(), action, reason: reason(&e) })
    }

    /// What the choice of kernels depends on.
    pub fn card(&self) -> Card {
        Card { capability: self.capability, multiprocessors: self.multiprocessors, shared_bytes: self.shared_bytes }
    }

    /// What a measurement on it holds for.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn key(&self) -> Result<Key> {
        let mut driver = 0;
        // SAFETY: the driver is loaded and writes one integer.
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut driver).result() };
        self.check("ask for the driver's version", asked)?;
        let card = self.check("read its name", self.context.name())?;
        Ok(Key { card, driver: driver.to_string(), build: env!("RUMIK_KERNELS")[..16].to_owned() })
    }

    /// A new stream, whose blocks of threads are placed before those of others (`urgent`) or after them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn stream(&self, urgent: bool) -> Result<Stream> {
        let range = result::stream::get_priority_range();
        let (least, greatest) = self.check("ask for its priorities", range)?;
        let priority = if urgent { greatest } else { least };
        Ok(Stream(self.check("make a stream", self.context.new_stream_with_priority(priority))?))
    }

    /// Free and total memory in bytes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.check("ask for its memory", self.context.mem_get_info())
    }

    /// Reserves zeroed memory.
    ///
    /// # Errors
    /// [`Error::Device`] when there is not enough.
    pub fn zeros(&self, stream: &Stream, bytes: usize) -> Result<Memory> {
        let slice = self.check("reserve memory", stream.0.alloc_zeros::<u8>(bytes.max(16)))?;
        Ok(Memory::new(slice, stream))
    }

    /// Copies values to the device and waits for it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn upload<T: Plain>(&self, stream: &Stream, values: &[T]) -> Result<Memory> {
        // SAFETY: every byte is written by the copy below before anything reads it (at least 16 are reserved, so an empty
        // slice has an address too; its bytes are never read).
        let slice = self.check("reserve memory", unsafe { stream.0.alloc::<u8>(size_of_val(values).max(16)) })?;
        let memory = Memory::new(slice, stream);
        self.write(stream, memory.address, values)?;
        self.synchronize(stream)?;
        Ok(memory)
    }

    /// Copies values to an address inside some [`Memory`]. Asynchronous from [`Pinned`] memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn write<T: Plain>(&self, stream: &Stream, to: Address, values: &[T]) -> Result<()> {
        self.bind()?;
        // SAFETY: callers pass addresses of live allocations with room for the values (private to this backend); from
        // pageable memory the driver has read the values when the call returns, pinned memory outlives the engine's work.
        let copied = unsafe { result::memcpy_htod_async(to, values, stream.0.cu_stream()) };
        self.check("copy to the device", copied)
    }

    /// Copies from an address inside some [`Memory`]. Asynchronous into [`Pinned`] memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read<T: Plain>(&self, stream: &Stream, from: Address, values: &mut [T]) -> Result<()> {
        self.bind()?;
        // SAFETY: as for `write`, the other way round; any bits are a value of a `Plain` type.
        let copied = unsafe { result::memcpy_dtoh_async(values, from, stream.0.cu_stream()) };
        self.check("copy from the device", copied)
    }

    /// Puts a copy of `len` values into pinned memory into the stream, or into the graph that it captures.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read_into<T: Plain>(&self, stream: &Stream, from: Address, to: &Pinned<T>, len: usize) -> Result<()> {
        self.bind()?;
        assert!(len <= to.len, "{len} values do not fit {}", to.len);
        // SAFETY: the length is checked, the memory is page-locked and lives as long as the engine, whose graphs are
        // replayed only by it; it reads the values after waiting for the copy. No reference to them is alive meanwhile.
        let copied = unsafe {
            let values = std::slice::from_raw_parts_mut(to.at, len);
            result::memcpy_dtoh_async(values, from, stream.0.cu_stream())
        };
        self.check("copy from the device", copied)
    }

    /// Copies within the device.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn copy(&self, stream: &Stream, to: Address, from: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: callers pass disjoint ranges of live allocations (private to this backend).
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, stream.0.cu_stream()) };
        self.check("copy on the device", copied)
    }

    /// Fills bytes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn fill(&self, stream: &Stream, to: Address, byte: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: callers pass a range of a live allocation (private to this backend).
        let filled = unsafe { result::memset_d8_async(to, byte, bytes, stream.0.cu_stream()) };
        self.check("fill memory", filled)
    }

    /// Page-locked host memory of default values.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn pinned<T: Plain>(&self, len: usize) -> Result<Pinned<T>> {
        self.bind()?;
        // SAFETY: plain allocation; it is initialized below before anyone sees it.
        let at = self.check("lock host memory", unsafe { result::malloc_host(size_of::<T>() * len.max(1), 0) })?;
        let at = at.cast::<T>();
        for i in 0..len {
            // SAFETY: inside the allocation, which the driver aligns to a page.
            unsafe { at.add(i).write(T::default()) };
        }
        Ok(Pinned { at, len, context: self.context.clone() })
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// [`Error::Device`], also for a fault of an earlier launch.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        self.bind()?;
        self.check("finish its work", stream.0.synchronize())
    }

    /// Marks a point in a stream's work; `timed` events can be subtracted.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn event(&self, stream: &Stream, timed: bool) -> Result<Event> {
        let flags = timed.then_some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Event(self.check("record an event", stream.0.record_event(flags))?))
    }

    /// Waits on the host for an event.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.bind()?;
        self.check("finish its work", event.0.synchronize())
    }

    /// Makes a stream wait for an event.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        self.check("order its streams", stream.0.wait(&event.0))
    }

    /// Milliseconds between two timed events.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32> {
        self.check("measure time", from.0.elapsed_ms(&to.0))
    }

    /// Names of all kernels in the embedded modules, as the driver lists them.
    ///
    /// # Errors
    /// [`Error::Device`] when the GPU cannot run them.
    pub fn kernel_names(&self) -> Result<Vec<String>> {
        self.bind()?;
        let mut names = Vec::new();
        for image in KERNELS {
            // SAFETY: the image is a whole fatbin, which the driver copies.
            let module = self.check("load its kernels", unsafe { result::module::load_data(image.as_ptr().cast()) })?;
            // SAFETY: the module is loaded, and unloaded only after this.
            let listed = unsafe { function_names(module) };
            // SAFETY: loaded above, and nothing of it is used any more: the names are copies.
            self.check("unload its kernels", unsafe { result::module::unload(module) })?;
            names.extend(self.check("list its kernels", listed)?);
        }
        Ok(names)
    }

    /// Finds the kernels of `names`, in order.
    ///
    /// # Errors
    /// [`Error::Device`] when the GPU cannot run them.
    pub fn kernels<const N: usize>(&self, names: [&'static str; N]) -> Result<[Kernel; N]> {
        let mut found = Vec::with_capacity(N);
        for name in names {
            let functions: Vec<_> = self.modules.iter().map(|module| module.load_function(name)).collect();
            let function = functions
                .into_iter()
                .reduce(|a, b| a.or(b))
                .unwrap_or(Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)));
            let function = self.check("find its kernels", function)?;
            let fixed = self.check("ask about its kernels", function.shared_size_bytes())?;
            let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let most = self.shared_bytes as i32 - fixed;
            self.check("give its kernels shared memory", function.set_attribute(attribute, most))?;
            // A multiprocessor that divides its cache otherwise takes no block before it is idle.
            let share = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            self.check("divide its cache", function.set_attribute(share, 100))?;
            found.push(Kernel { function, name });
        }
        found.try_into().map_err(|_| Error::Device {
            device: self.name.clone(),
            action: "find its kernels",
            reason: "a kernel is missing".into(),
        })
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// `arguments` point at values of the types the kernel takes, in order; the addresses in them are of live
    /// allocations as large as the kernel's documentation asks for, and stay so until the stream has finished.
    ///
    /// # Errors
    /// [`Error::Device`] naming the kernel.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.bind()?;
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        };
        let (id, value) = if launch.start == Start::Together {
            (CU_LAUNCH_ATTRIBUTE_COOPERATIVE, sys::CUlaunchAttributeValue { cooperative: 1 })
        } else {
            let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
        };
        let plain = launch.start == Start::InOrder || (launch.start == Start::Early && self.capability.0 < 9);
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let [x, y, z] = launch.grid.map(|n| n as u32);
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared as u32,
            hStream: stream.0.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(!plain),
        };
        record_launch(kernel.name);
        let function = kernel.function.cu_function();
        // SAFETY: the caller vouches for the arguments; function, stream and configuration are valid here.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut()).result() };
        launched.map_err(|e| Error::Device {
            device: self.name.clone(),
            action: "launch a kernel",
            reason: format!("{}: {}", kernel.name, reason(&e)),
        })
    }

    /// Captures what `work` puts into the stream instead of running it.
    ///
    /// # Errors
    /// The error of `work`; [`Error::Device`].
    pub fn capture(&self, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.check("capture a graph", stream.0.begin_capture(mode))?;
        let worked = work();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.check("capture a graph", stream.0.end_capture(flags));
        worked?;
        let graph = graph?.ok_or_else(|| Error::Device {
            device: self.name.clone(),
            action: "capture a graph",
            reason: "the capture is empty".into(),
        })?;
        self.check("upload a graph", graph.upload())?;
        Ok(Graph(graph))
    }

    /// Replays a graph in the stream it was captured from.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        self.check("replay a graph", graph.0.launch())
    }

    fn bind(&self) -> Result<()> {
        self.check("make the GPU current", self.context.bind_to_thread())
    }
}

/// A launch argument: the driver copies the value during the launch, so `value` must be a variable that lives until then.
pub fn pointer<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

impl Memory {
    fn new(slice: CudaSlice<u8>, stream: &Stream) -> Memory {
        use cudarc::driver::DevicePtr;
        let address = slice.device_ptr(&stream.0).0;
        Memory { slice, address }
    }

    /// Address of its first byte.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.slice.num_bytes()
    }
}

impl<T: Plain> std::ops::Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: initialized in `pinned`, owned; the engine reads it only after waiting for the copy into it.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the engine writes it only when no copy from it is under way.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<T: Plain> Drop for Pinned<T> {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: allocated by `malloc_host`, freed once.
        self.context.record_err(unsafe { result::free_host(self.at.cast()) });
    }
}
