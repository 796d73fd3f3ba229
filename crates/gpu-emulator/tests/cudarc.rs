//! Unmodified cudarc on the emulator: what a program does, from opening the device to a replayed graph.

// Every unsafe block here is a call of the driver API whose pointers are locals of the test.
#![allow(clippy::undocumented_unsafe_blocks)]

use cudarc::driver::{CudaContext, result, sys};
use std::ffi::CString;

const VECTOR_ADD: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 n) {
  .reg .pred %p<2>;
  .reg .f32 %f<4>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd4, %r5, 4;
  add.s64 %rd5, %rd1, %rd4;
  add.s64 %rd6, %rd2, %rd4;
  add.s64 %rd7, %rd3, %rd4;
  ld.global.f32 %f1, [%rd5];
  ld.global.f32 %f2, [%rd6];
  add.rn.f32 %f3, %f1, %f2;
  st.global.f32 [%rd7], %f3;
DONE:
  ret;
}
";

struct Loaded {
    module: sys::CUmodule,
    function: sys::CUfunction,
}

fn load(source: &str, name: &str) -> Loaded {
    let image = CString::new(source).unwrap();
    let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap();
    let function = unsafe { result::module::get_function(module, CString::new(name).unwrap()) }.unwrap();
    Loaded { module, function }
}

#[test]
fn a_vector_add_through_unmodified_cudarc() {
    let emulator = gpu_emulator::install().unwrap();
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.compute_capability().unwrap(), (8, 6));
    let stream = context.new_stream().unwrap();
    let n = 1000usize;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
    let device_a = stream.clone_htod(&a).unwrap();
    let device_b = stream.clone_htod(&b).unwrap();
    let mut out = stream.alloc_zeros::<f32>(n).unwrap();
    let loaded = load(VECTOR_ADD, "vector_add");
    {
        use cudarc::driver::{DevicePtr, DevicePtrMut};
        let (pa, _ga) = device_a.device_ptr(&stream);
        let (pb, _gb) = device_b.device_ptr(&stream);
        let (po, _go) = out.device_ptr_mut(&stream);
        let count = n as u32;
        let mut params: [*mut std::ffi::c_void; 4] = [
            (&raw const pa).cast_mut().cast(),
            (&raw const pb).cast_mut().cast(),
            (&raw const po).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
        ];
        unsafe {
            result::launch_kernel(loaded.function, (4, 1, 1), (256, 1, 1), 0, stream.cu_stream(), &mut params)
        }
        .unwrap();
    }
    let got = stream.clone_dtoh(&out).unwrap();
    let wanted: Vec<f32> = a.iter().zip(&b).map(|(x, y)| x + y).collect();
    assert_eq!(got, wanted);
    assert_eq!(emulator.reports(), Vec::<String>::new());
    assert!(emulator.counter("launches").unwrap() >= 1);
    unsafe { result::module::unload(loaded.module) }.unwrap();
}
