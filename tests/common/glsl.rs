//! Kernels of the tests, compiled and reflected by the build's own code.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::path::Path;

use hob::gpu::{Access, Kernel};

#[path = "../../build.rs"]
pub mod build;

/// Where the text of a test's shader begins: what every kernel of hob has.
pub const HEADER: &str = "#version 460
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
";

/// Compiles a shader without variants and without includes.
pub fn compile(name: &str, text: &str) -> Result<(Vec<u32>, build::Interface), String> {
    let file = format!("{name}.comp");
    let variant = &build::variants(text, Path::new(&file))?[0];
    let words = build::compile(Path::new(&file), text, variant, Path::new("shaders/include"))?;
    let interface = build::reflect(&words)?;
    Ok((words, interface))
}

/// A kernel of `HEADER` and `body`.
pub fn kernel(name: &'static str, body: &str) -> &'static Kernel {
    let (words, interface) = compile(name, &format!("{HEADER}{body}")).unwrap();
    let access = |&written: &bool| if written { Access::Write } else { Access::Read };
    // Tests make a few kernels each, which live as long as the process.
    Box::leak(Box::new(Kernel {
        name,
        words: Box::leak(words.into_boxed_slice()),
        bindings: interface.binding_writes.iter().map(access).collect::<Vec<_>>().leak(),
        push_bytes: interface.push_bytes,
        spec_count: interface.spec_count,
        uses_subgroups: interface.uses_subgroups,
        uses_matrices: interface.uses_matrices,
    }))
}

/// `to[i] = FACTOR * from[i] + plus` for `i < count`, one invocation each.
pub fn scale() -> &'static Kernel {
    kernel(
        "scale",
        "layout(constant_id = 3) const uint FACTOR = 1;
        layout(binding = 0) readonly buffer From { uint from[]; };
        layout(binding = 1) writeonly buffer To { uint to[]; };
        layout(push_constant) uniform Push { uint count; uint plus; };
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i < count) to[i] = FACTOR * from[i] + plus;
        }",
    )
}
