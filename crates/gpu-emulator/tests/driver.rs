//! The driver's behaviour through unmodified cudarc: streams, events, memory, capture, graphs, cuBLAS and
//! faults on demand. Each test has a context of its own, because errors are sticky; they run one at a time,
//! because settings and captures belong to the process.

// Every unsafe block here is a call of the driver API whose pointers are locals of the test.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use gpu_emulator::Emulator;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A context, current on this thread, with the default settings.
struct Device {
    emulator: Emulator,
    context: sys::CUcontext,
    _turn: MutexGuard<'static, ()>,
}

const DEFAULTS: [(&str, &str); 7] = [
    ("GPU_EMULATOR_STREAMS", "lazy"),
    ("GPU_EMULATOR_FAIL", ""),
    ("GPU_EMULATOR_FAIL_ASYNC", ""),
    ("GPU_EMULATOR_VRAM", "8GiB"),
    ("GPU_EMULATOR_POOLS", "on"),
    ("GPU_EMULATOR_CUBLAS_CAPTURE", "fail"),
    ("GPU_EMULATOR_DRIVER_VERSION", "12040"),
];

impl Device {
    fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let emulator = gpu_emulator::install().unwrap();
        for (name, value) in DEFAULTS {
            emulator.set(name, value).unwrap();
        }
        emulator.clear_reports();
        let mut context = std::ptr::null_mut();
        unsafe {
            ok(sys::cuInit(0));
            ok(sys::cuCtxCreate_v3(&mut context, std::ptr::null_mut(), 0, 0, 0));
        }
        Self { emulator, context, _turn: turn }
    }

    fn stream(&self, non_blocking: bool) -> sys::CUstream {
        let mut stream = std::ptr::null_mut();
        ok(unsafe { sys::cuStreamCreate(&mut stream, u32::from(non_blocking)) });
        stream
    }

    fn event(&self) -> sys::CUevent {
        let mut event = std::ptr::null_mut();
        ok(unsafe { sys::cuEventCreate(&mut event, 0) });
        event
    }

    fn allocate(&self, len: usize) -> u64 {
        let mut at = 0;
        ok(unsafe { sys::cuMemAlloc_v2(&mut at, len) });
        at
    }

    fn filled(&self, words: &[u32]) -> u64 {
        let at = self.allocate(4 * words.len());
        ok(unsafe { sys::cuMemcpyHtoD_v2(at, words.as_ptr().cast(), 4 * words.len()) });
        at
    }

    fn words(&self, at: u64, n: usize) -> Vec<u32> {
        let mut out = vec![0u32; n];
        ok(unsafe { sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, 4 * n) });
        out
    }

    /// A pinned buffer of `n` words.
    fn pinned(&self, n: usize) -> *mut u32 {
        let mut at: *mut c_void = std::ptr::null_mut();
        ok(unsafe { sys::cuMemHostAlloc(&mut at, 4 * n, 0) });
        at.cast()
    }

    fn load(&self, source: &str) -> Result<sys::CUmodule, (CUresult, String)> {
        let image = CString::new(source).unwrap();
        let mut log = vec![0u8; 1024];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut module = std::ptr::null_mut();
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == CUresult::CUDA_SUCCESS {
            return Ok(module);
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(0);
        Err((code, String::from_utf8_lossy(&log[..end]).into_owned()))
    }

    fn kernel(&self, body: &str) -> sys::CUfunction {
        let source = format!(
            ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n.reg .b64 %p; .reg .b32 %r<4>; ld.param.u64 %p, [p];\n{body}\n}}\n"
        );
        let module = self.load(&source).unwrap();
        let mut function = std::ptr::null_mut();
        ok(unsafe { sys::cuModuleGetFunction(&mut function, module, c"k".as_ptr()) });
        function
    }

    fn launch(&self, function: sys::CUfunction, at: u64, stream: sys::CUstream) -> CUresult {
        let mut params: [*mut c_void; 1] = [(&raw const at).cast_mut().cast()];
        unsafe {
            sys::cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    /// `*p += 1`
    fn increment(&self) -> sys::CUfunction {
        self.kernel("ld.global.u32 %r0, [%p]; add.u32 %r0, %r0, 1; st.global.u32 [%p], %r0; ret;")
    }

    fn begin(&self, stream: sys::CUstream, mode: sys::CUstreamCaptureMode) {
        ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
    }

    fn end(&self, stream: sys::CUstream) -> Result<sys::CUgraph, CUresult> {
        let mut graph = std::ptr::null_mut();
        match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
            CUresult::CUDA_SUCCESS => Ok(graph),
            code => Err(code),
        }
    }

    fn instantiate(&self, graph: sys::CUgraph) -> sys::CUgraphExec {
        let mut exec = std::ptr::null_mut();
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        exec
    }

    #[track_caller]
    fn reported(&self, part: &str) {
        let reports = self.emulator.reports();
        assert!(reports.iter().any(|r| r.contains(part)), "`{part}` is not in {reports:#?}");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        unsafe { sys::cuCtxDestroy_v2(self.context) };
    }
}

#[track_caller]
fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

use sys::CUstreamCaptureMode::{
    CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
};

#[test]
fn lazy_streams_show_a_missing_synchronisation() {
    let d = Device::new();
    let (stream, at, host) = (d.stream(true), d.filled(&[7]), d.pinned(1));
    unsafe {
        host.write(0);
        ok(sys::cuMemcpyDtoHAsync_v2(host.cast(), at, 4, stream));
        assert_eq!(host.read_volatile(), 0, "nothing has waited yet");
        ok(sys::cuStreamSynchronize(stream));
        assert_eq!(host.read_volatile(), 7);
        d.emulator.set("GPU_EMULATOR_STREAMS", "eager").unwrap();
        host.write(0);
        ok(sys::cuMemcpyDtoHAsync_v2(host.cast(), at, 4, stream));
        assert_eq!(host.read_volatile(), 7, "an eager stream hides it");
    }
}

#[test]
fn pageable_sources_are_snapshots_and_pinned_ones_are_watched() {
    let d = Device::new();
    let (stream, at) = (d.stream(true), d.allocate(4));
    let mut pageable = [1u32];
    unsafe {
        ok(sys::cuMemcpyHtoDAsync_v2(at, pageable.as_ptr().cast(), 4, stream));
        pageable[0] = 2;
        ok(sys::cuStreamSynchronize(stream));
        assert_eq!((d.words(at, 1), pageable[0]), (vec![1], 2));
        let host = d.pinned(1);
        host.write(3);
        ok(sys::cuMemcpyHtoDAsync_v2(at, host.cast(), 4, stream));
        host.write(4);
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    }
    d.reported("was overwritten (or freed) while the copy was in flight");
}

#[test]
fn events_order_streams_and_the_legacy_stream_orders_blocking_ones() {
    let d = Device::new();
    let (a, b, event, at) = (d.stream(true), d.stream(true), d.event(), d.filled(&[0]));
    let k = d.increment();
    unsafe {
        ok(d.launch(k, at, a));
        ok(sys::cuEventRecord(event, a));
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_ERROR_NOT_READY);
        ok(sys::cuStreamWaitEvent(b, event, 0));
        ok(d.launch(k, at, b));
        ok(sys::cuStreamSynchronize(b));
        ok(sys::cuEventQuery(event));
        assert_eq!(d.words(at, 1), [2]);
        // A blocking stream: a synchronous copy on the legacy stream waits for it. A non-blocking one: not.
        let blocking = d.stream(false);
        ok(d.launch(k, at, blocking));
        assert_eq!(d.words(at, 1), [3]);
        ok(d.launch(k, at, a));
        assert_eq!(d.words(at, 1), [3], "a non-blocking stream does not order with the legacy one");
        ok(sys::cuCtxSynchronize());
        assert_eq!(d.words(at, 1), [4]);
        // Polling makes progress.
        ok(d.launch(k, at, a));
        let polls = (0..10).take_while(|_| sys::cuStreamQuery(a) == CUresult::CUDA_ERROR_NOT_READY).count();
        assert!((1..10).contains(&polls), "{polls}");
    }
}

#[test]
fn a_fault_names_its_place_and_is_sticky() {
    let d = Device::new();
    let (stream, at) = (d.stream(true), d.allocate(4));
    let k = d.kernel("st.global.u32 [%p+4], 1;\nret;");
    ok(d.launch(k, at, stream));
    unsafe {
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let mut more = 0;
        assert_eq!(sys::cuMemAlloc_v2(&mut more, 4), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    d.reported("kernel `k`, ptx line 6, block (0,0,0), thread (0,0,0), lane 0: store of 4 bytes");
    d.reported("0 bytes past the end of the 4-byte allocation");
}

#[test]
fn host_pointers_and_freed_memory_are_caught() {
    let d = Device::new();
    let host = Box::new(0u32);
    let k = d.increment();
    ok(d.launch(k, (&raw const *host) as u64, std::ptr::null_mut()));
    unsafe { assert_eq!(sys::cuCtxSynchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS) };
    d.reported("no device memory (a host pointer that is not pinned?)");
    drop(d);
    let d = Device::new();
    let at = d.filled(&[1]);
    let k = d.increment();
    unsafe {
        ok(sys::cuMemFree_v2(at));
        assert_eq!(sys::cuMemFree_v2(at), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok(d.launch(k, at, std::ptr::null_mut()));
        assert_eq!(sys::cuCtxSynchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    d.reported("which was freed");
    drop(d);
    // Pinned memory is device-addressable.
    let d = Device::new();
    let pinned = d.pinned(1);
    unsafe {
        pinned.write(41);
        ok(d.launch(d.increment(), pinned as u64, std::ptr::null_mut()));
        ok(sys::cuCtxSynchronize());
        assert_eq!(pinned.read_volatile(), 42);
    }
}

#[test]
fn wrong_launches_and_modules_are_refused() {
    let d = Device::new();
    let k = d.increment();
    let at = d.filled(&[0]);
    let mut params: [*mut c_void; 1] = [(&raw const at).cast_mut().cast()];
    let mut launch = |grid: u32, gy: u32, gz: u32, block: u32, shared: u32| unsafe {
        sys::cuLaunchKernel(
            k,
            grid,
            gy,
            gz,
            block,
            1,
            1,
            shared,
            std::ptr::null_mut(),
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    for (grid, gy, gz, block, shared) in
        [(0, 1, 1, 1, 0), (1, 65536, 1, 1, 0), (1, 1, 65536, 1, 0), (1, 1, 1, 1025, 0), (1, 1, 1, 1, 49153)]
    {
        assert_eq!(launch(grid, gy, gz, block, shared), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    d.reported("a grid of [1, 65536, 1]: the limits are 2^31 - 1, 65535 and 65535");
    d.reported("a grid of [1, 1, 65536]: the limits are 2^31 - 1, 65535 and 65535");
    d.reported("49153 bytes of dynamic shared memory; 49152 are allowed without opting in");
    unsafe {
        ok(sys::cuFuncSetAttribute(
            k,
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            65536,
        ))
    };
    ok(launch(1, 1, 1, 1, 49153));
    // Registers are those of a table, whose row is for the capability of the device.
    let table = std::env::temp_dir().join(format!("registers-{}.md", std::process::id()));
    std::fs::write(
        &table,
        "| kernel | threads | sm_75 | sm_80 |\n|---|---|---|---|\n| k | 256 | 32 | 80 |\n",
    )
    .unwrap();
    d.emulator.set("GPU_EMULATOR_REGISTERS", table.to_str().unwrap()).unwrap();
    std::fs::remove_file(&table).unwrap();
    assert_eq!(launch(1, 1, 1, 1024, 0), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    d.reported("refused (701): 1024 threads with 80 registers each take 81920 registers; a block has 65536");
    let mut registers = 0;
    unsafe {
        ok(sys::cuFuncGetAttribute(&mut registers, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS, k))
    };
    assert_eq!(registers, 80);
    d.emulator.set("GPU_EMULATOR_REGISTERS", "").unwrap();
    assert!(d.emulator.set("GPU_EMULATOR_REGISTERS", "/nowhere").is_err());
    let (code, log) = d
        .load(".version 6.3\n.target sm_75\n.address_size 64\n.entry k() {\n  frobnicate.u32 %r1;\n}")
        .unwrap_err();
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(log.contains("ptx line 5") && log.contains("frobnicate.u32"), "{log}");
    let (code, log) = d.load(".version 8.5\n.target sm_75\n.address_size 64\n").unwrap_err();
    assert_eq!(code, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert!(log.contains("8.5 is newer than this driver understands (8.4)"), "{log}");
    let (code, log) = d.load(".version 8.0\n.target sm_90\n.address_size 64\n").unwrap_err();
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(log.contains("sm_90 is higher than the device's sm_86"), "{log}");
}

#[test]
fn a_captured_graph_replays() {
    let d = Device::new();
    let (stream, side, fork, join, at) =
        (d.stream(true), d.stream(true), d.event(), d.event(), d.filled(&[0, 0]));
    let k = d.increment();
    d.begin(stream, THREAD_LOCAL);
    unsafe {
        ok(d.launch(k, at, stream));
        ok(sys::cuEventRecord(fork, stream));
        ok(sys::cuStreamWaitEvent(side, fork, 0));
        ok(d.launch(k, at + 4, side));
        ok(sys::cuEventRecord(join, side));
        ok(sys::cuStreamWaitEvent(stream, join, 0));
        ok(d.launch(k, at, stream));
        let graph = d.end(stream).unwrap();
        assert_eq!(d.words(at, 2), [0, 0], "a capture runs nothing");
        let mut count = 0;
        ok(sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count));
        assert_eq!(count, 3);
        let exec = d.instantiate(graph);
        ok(sys::cuGraphDestroy(graph));
        for _ in 0..3 {
            ok(sys::cuGraphLaunch(exec, stream));
        }
        ok(sys::cuStreamSynchronize(stream));
        assert_eq!(d.words(at, 2), [6, 3]);
        // The graph does not own what it touches: a buffer freed under it is found when it runs.
        ok(sys::cuMemFree_v2(at));
        ok(sys::cuGraphLaunch(exec, stream));
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    d.reported("which was freed");
}

#[test]
fn what_a_capture_forbids_has_the_documented_codes() {
    let d = Device::new();
    let (stream, other, blocking, event, at) =
        (d.stream(true), d.stream(true), d.stream(false), d.event(), d.filled(&[0]));
    let k = d.increment();
    let mut more = 0;
    unsafe {
        // Synchronising (900), then the end says 901.
        d.begin(stream, RELAXED);
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(d.launch(k, at, stream), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        // Allocating: forbidden unless relaxed.
        d.begin(stream, GLOBAL);
        assert_eq!(sys::cuMemAlloc_v2(&mut more, 4), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        d.reported("cuMemAlloc during a stream capture");
        d.begin(stream, RELAXED);
        ok(sys::cuMemAlloc_v2(&mut more, 4));
        d.end(stream).unwrap();
        // A thread-local capture binds its own thread only.
        d.begin(stream, THREAD_LOCAL);
        let context = d.context as usize;
        std::thread::spawn(move || {
            let mut at = 0;
            ok(sys::cuCtxSetCurrent(context as sys::CUcontext));
            ok(sys::cuMemAlloc_v2(&mut at, 4));
        })
        .join()
        .unwrap();
        let (s, c) = (stream as usize, context);
        let wrong = std::thread::spawn(move || {
            ok(sys::cuCtxSetCurrent(c as sys::CUcontext));
            let mut graph = std::ptr::null_mut();
            sys::cuStreamEndCapture(s as sys::CUstream, &mut graph)
        });
        assert_eq!(wrong.join().unwrap(), CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        d.end(stream).unwrap();
        // A fork that is not joined (904).
        d.begin(stream, RELAXED);
        ok(sys::cuEventRecord(event, stream));
        ok(sys::cuStreamWaitEvent(other, event, 0));
        ok(d.launch(k, at, other));
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
        // An event from outside (905).
        ok(sys::cuEventRecord(event, other));
        d.begin(stream, RELAXED);
        assert_eq!(sys::cuStreamWaitEvent(stream, event, 0), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        // The legacy stream while a blocking one captures (906), or capturing itself (900).
        d.begin(blocking, RELAXED);
        assert_eq!(d.launch(k, at, std::ptr::null_mut()), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert_eq!(d.end(blocking), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        assert_eq!(
            sys::cuStreamBeginCapture_v2(std::ptr::null_mut(), RELAXED),
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        );
        // A captured event cannot be asked (907).
        d.begin(stream, RELAXED);
        ok(sys::cuEventRecord(event, stream));
        assert_eq!(sys::cuEventSynchronize(event), CUresult::CUDA_ERROR_CAPTURED_EVENT);
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        // Ending what was not begun here.
        assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_ILLEGAL_STATE));
    }
}

#[test]
fn memory_nodes_live_while_their_graph_runs() {
    let d = Device::new();
    let (stream, at) = (d.stream(true), d.filled(&[5]));
    let mut inside = 0;
    d.begin(stream, THREAD_LOCAL);
    unsafe {
        ok(sys::cuMemAllocAsync(&mut inside, 4, stream));
        ok(sys::cuMemcpyDtoDAsync_v2(inside, at, 4, stream));
        ok(d.launch(d_increment_in_relaxed(&d), inside, stream));
        ok(sys::cuMemcpyDtoDAsync_v2(at, inside, 4, stream));
        ok(sys::cuMemFreeAsync(inside, stream));
        let graph = d.end(stream).unwrap();
        let mut count = 5;
        let mut nodes = [std::ptr::null_mut(); 5];
        ok(sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        ok(sys::cuGraphNodeGetType(nodes[0], &mut kind));
        assert_eq!((count, kind), (5, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC));
        let exec = d.instantiate(graph);
        let before = d.emulator.counter("memory_used").unwrap();
        for _ in 0..2 {
            ok(sys::cuGraphLaunch(exec, stream));
        }
        ok(sys::cuStreamSynchronize(stream));
        assert_eq!((d.words(at, 1), d.emulator.counter("memory_used").unwrap()), (vec![7], before));
        assert_ne!(
            sys::cuMemcpyDtoD_v2(at, inside, 4),
            CUresult::CUDA_SUCCESS,
            "outside the graph it is not there"
        );
    }
}

/// Loading a module is forbidden to a capturing thread, unless it says that it knows what it does.
fn d_increment_in_relaxed(d: &Device) -> sys::CUfunction {
    let mut mode = RELAXED;
    ok(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    let k = d.increment();
    ok(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    k
}

#[test]
fn memory_is_counted_in_pages_and_ends() {
    let d = Device::new();
    d.emulator.set("GPU_EMULATOR_VRAM", "64MiB").unwrap();
    let info = || unsafe {
        let (mut free, mut total) = (0, 0);
        ok(sys::cuMemGetInfo_v2(&mut free, &mut total));
        (free, total)
    };
    let (before, total) = info();
    assert_eq!(total, 64 << 20);
    let at = d.allocate(1);
    assert_eq!(before - info().0, 2 << 20);
    let mut more = 0;
    unsafe {
        assert_eq!(sys::cuMemAlloc_v2(&mut more, before), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        ok(sys::cuMemFree_v2(at));
        assert_eq!(info().0, before);
        d.emulator.set("GPU_EMULATOR_SPILL", "on").unwrap();
        ok(sys::cuMemAlloc_v2(&mut more, before + (16 << 20)));
        // While memory has spilled, launches are slow: 5 ms each.
        let (k, stream) = (d.kernel("ret;"), d.stream(true));
        let launch = || {
            let start = std::time::Instant::now();
            ok(d.launch(k, 0, stream));
            ok(sys::cuStreamSynchronize(stream));
            start.elapsed()
        };
        let spilled = launch();
        assert!(spilled >= std::time::Duration::from_millis(5), "{spilled:?}");
        ok(sys::cuMemFree_v2(more));
        let fastest = (0..20).map(|_| launch()).min().unwrap();
        assert!(fastest < std::time::Duration::from_millis(5), "{fastest:?}");
        d.emulator.set("GPU_EMULATOR_SPILL", "off").unwrap();
        d.emulator.set("GPU_EMULATOR_PINNED_LIMIT", "1MiB").unwrap();
        let mut host = std::ptr::null_mut();
        assert_eq!(sys::cuMemHostAlloc(&mut host, 2 << 20, 0), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        d.emulator.set("GPU_EMULATOR_PINNED_LIMIT", "").unwrap();
        d.emulator.set("GPU_EMULATOR_POOLS", "off").unwrap();
        let stream = d.stream(true);
        assert_eq!(sys::cuMemAllocAsync(&mut more, 4, stream), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
}

#[test]
fn an_integrated_device_says_so() {
    let d = Device::new();
    let integrated = || {
        let mut value = -1;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED;
        ok(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, 0) });
        value
    };
    assert_eq!(integrated(), 0);
    d.emulator.set("GPU_EMULATOR_INTEGRATED", "on").unwrap();
    assert_eq!(integrated(), 1);
    d.emulator.set("GPU_EMULATOR_INTEGRATED", "off").unwrap();
}

#[test]
fn seeds_show_the_orders_that_nothing_forbids() {
    let d = Device::new();
    let block = d.kernel("mov.u32 %r0, %ctaid.x; st.global.u32 [%p], %r0; ret;");
    let mut streams = std::collections::BTreeSet::new();
    let mut blocks = std::collections::BTreeSet::new();
    for seed in 0..16 {
        d.emulator.set("GPU_EMULATOR_STREAMS", &seed.to_string()).unwrap();
        let at = d.filled(&[9, 9, 9]);
        let (a, b, event) = (d.stream(true), d.stream(true), d.event());
        let mut params: [*mut c_void; 1] = [(&raw const at).cast_mut().cast()];
        unsafe {
            // Two streams write the same word, and another word with an event between them.
            ok(sys::cuMemsetD32Async(at + 4, 1, 1, a));
            ok(sys::cuMemsetD32Async(at + 8, 1, 1, a));
            ok(sys::cuEventRecord(event, a));
            ok(sys::cuMemsetD32Async(at + 4, 2, 1, b));
            ok(sys::cuStreamWaitEvent(b, event, 0));
            ok(sys::cuMemsetD32Async(at + 8, 2, 1, b));
            let (params, none) = (params.as_mut_ptr(), std::ptr::null_mut());
            ok(sys::cuLaunchKernel(block, 4, 1, 1, 1, 1, 1, 0, a, params, none));
            ok(sys::cuCtxSynchronize());
        }
        let words = d.words(at, 3);
        blocks.insert(words[0]);
        streams.insert(words[1]);
        assert_eq!(words[2], 2, "seed {seed}: the event orders these");
    }
    assert_eq!(streams, [1, 2].into());
    assert_eq!(blocks, [0, 1, 2, 3].into(), "the block that is last");
}

#[test]
fn faults_come_when_they_are_ordered() {
    let d = Device::new();
    let mut at = 0;
    d.emulator.set("GPU_EMULATOR_FAIL", "cuMemAlloc_v2:2:2").unwrap();
    unsafe {
        ok(sys::cuMemAlloc_v2(&mut at, 4));
        assert_eq!(sys::cuMemAlloc_v2(&mut at, 4), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        ok(sys::cuMemAlloc_v2(&mut at, 4));
        d.reported("cuMemAlloc_v2 fails with 2, as GPU_EMULATOR_FAIL asks");
        d.emulator.set("GPU_EMULATOR_FAIL_ASYNC", "2:719").unwrap();
        let stream = d.stream(true);
        ok(sys::cuMemsetD8Async(at, 1, 4, stream));
        ok(sys::cuMemsetD8Async(at, 1, 4, stream));
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        d.emulator.set("GPU_EMULATOR_DRIVER_VERSION", "11040").unwrap();
        let mut version = 0;
        ok(sys::cuDriverGetVersion(&mut version));
        assert_eq!(version, 11040);
    }
    assert!(d.emulator.set("GPU_EMULATOR_VRAM", "plenty").is_err());
}

/// 2 x 2 products on a capturing stream: with a workspace, without one, and after a change of stream.
#[test]
fn cublas_needs_a_workspace_under_capture() {
    use cudarc::cublas::{result, sys as blas};
    let d = Device::new();
    let (stream, workspace) = (d.stream(true), d.allocate(4 << 20));
    let matrix = |v: [f32; 4]| d.filled(&v.map(f32::to_bits));
    let (a, b, c) = (matrix([1., 2., 3., 4.]), matrix([5., 6., 7., 8.]), matrix([0.; 4]));
    let handle = result::create_handle().unwrap();
    let set_stream = || unsafe { result::set_stream(handle, stream.cast()) }.unwrap();
    let bind = || {
        unsafe { blas::cublasSetWorkspace_v2(handle, workspace as *mut c_void, 4 << 20) }.result().unwrap()
    };
    let multiply = || unsafe {
        let n = blas::cublasOperation_t::CUBLAS_OP_N;
        result::sgemm(
            handle,
            n,
            n,
            2,
            2,
            2,
            &1.0,
            a as *const f32,
            2,
            b as *const f32,
            2,
            &0.0,
            c as *mut f32,
            2,
        )
    };
    set_stream();
    d.begin(stream, THREAD_LOCAL);
    assert!(multiply().is_err());
    assert_eq!(d.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    d.reported("bind one with cublasSetWorkspace, after cublasSetStream");
    bind();
    set_stream();
    d.begin(stream, THREAD_LOCAL);
    assert!(multiply().is_err(), "a change of stream has dropped the workspace");
    assert!(d.end(stream).is_err());
    bind();
    d.begin(stream, THREAD_LOCAL);
    multiply().unwrap();
    let exec = d.instantiate(d.end(stream).unwrap());
    unsafe {
        ok(sys::cuGraphLaunch(exec, stream));
        ok(sys::cuStreamSynchronize(stream));
    }
    // Column-major: [1 3; 2 4] [5 7; 6 8] = [23 31; 34 46].
    assert_eq!(d.words(c, 4), [23f32, 34., 31., 46.].map(f32::to_bits));
    d.emulator.set("GPU_EMULATOR_CUBLAS_CAPTURE", "allocate").unwrap();
    set_stream();
    d.begin(stream, THREAD_LOCAL);
    multiply().unwrap();
    let exec = d.instantiate(d.end(stream).unwrap());
    unsafe {
        ok(sys::cuGraphLaunch(exec, stream));
        ok(sys::cuStreamSynchronize(stream));
    }
    unsafe { result::destroy_handle(handle) }.unwrap();
}
