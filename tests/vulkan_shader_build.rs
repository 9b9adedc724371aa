//! The build's shader compiler: variants, includes, and the interfaces it reads and refuses.
#![allow(clippy::unwrap_used)]

#[path = "common/glsl.rs"]
mod glsl;

use std::path::Path;

use glsl::{HEADER, build, compile};
use hob::kernels::spirv;

#[test]
fn variants_are_named_in_the_header_or_after_the_file() {
    let text = "// Variant mul_q4: FORMAT=4 T=float\n// Variant mul_f32: PLAIN\nvoid main() {}";
    let variants = build::variants(text, Path::new("mul.comp")).unwrap();
    let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, ["mul_q4", "mul_f32"]);
    let defines = |pairs: &[(&str, Option<&str>)]| -> Vec<(String, Option<String>)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect()
    };
    assert_eq!(variants[0].defines, defines(&[("FORMAT", Some("4")), ("T", Some("float"))]));
    assert_eq!(variants[1].defines, defines(&[("PLAIN", None)]));

    let alone = build::variants("void main() {}", Path::new("shaders/mul.comp")).unwrap();
    assert_eq!((alone.len(), alone[0].name.as_str()), (1, "mul"));

    let error = build::variants("\n// Variant Mul-2:\n", Path::new("mul.comp")).unwrap_err();
    assert!(error.starts_with("mul.comp:2:"), "{error}");
}

#[test]
fn the_interface_is_read_from_the_module() {
    let body = "#extension GL_KHR_shader_subgroup_shuffle : require
        layout(constant_id = 5) const bool LAST = true;
        layout(binding = 0) readonly buffer A { uint a[]; };
        layout(binding = 0) readonly buffer AsVectors { uvec4 a4[]; };
        layout(binding = 2) buffer B { uint b[]; };
        layout(binding = 1) readonly buffer C { uint c[]; };
        layout(push_constant) uniform Push { uint n; vec2 scale; uint rest[3]; };
        void main() { b[n] = subgroupShuffle(a[0], 1u) + a4[0].x + c[rest[2]] + uint(LAST); }";
    let (_, interface) = compile("all", &format!("{HEADER}{body}")).unwrap();
    assert_eq!(interface.binding_writes, [false, false, true]);
    assert_eq!(interface.push_bytes, 4 + 4 + 8 + 12, "vec2 stands at 8");
    assert_eq!(interface.spec_count, 6);
    assert!(interface.uses_subgroups);

    let body = "#extension GL_KHR_shader_subgroup_basic : require
        layout(binding = 0) buffer A { uint a[]; };
        void main() { a[0] = gl_SubgroupSize; }";
    let (_, interface) = compile("plain", &format!("{HEADER}{body}")).unwrap();
    assert_eq!(interface.binding_writes, [true]);
    assert_eq!((interface.push_bytes, interface.spec_count), (0, 3));
    assert!(!interface.uses_subgroups, "built-ins alone need no full subgroups");
}

#[test]
fn interfaces_that_a_kernel_cannot_have_are_refused() {
    let cases = [
        ("layout(binding = 1) buffer A { uint a[]; }; void main() { a[0] = 1; }", "without gaps"),
        ("layout(set = 1, binding = 0) buffer A { uint a[]; }; void main() { a[0] = 1; }", "set 0"),
        (
            "layout(binding = 0) uniform A { uint a; }; layout(binding = 1) buffer B { uint b; };
             void main() { b = a; }",
            "only storage buffers",
        ),
        (
            "layout(constant_id = 3) const double D = 1; layout(binding = 0) buffer A { float a; };
             void main() { a = float(D); }",
            "32 bits",
        ),
    ];
    for (body, reason) in cases {
        let error = compile("bad", &format!("{HEADER}{body}")).unwrap_err();
        assert!(error.contains(reason), "{error:?} for {body}");
    }
    let fixed_size = "#version 460\nlayout(local_size_x = 8) in; void main() {}";
    let error = compile("bad", fixed_size).unwrap_err();
    assert!(error.contains("local size"), "{error}");
}

#[test]
fn a_compile_error_names_file_and_line() {
    let error = compile("broken", &format!("{HEADER}void main() {{ nowhere = 1; }}")).unwrap_err();
    assert!(error.contains("broken.comp:3: 'nowhere' : undeclared"), "{error}");
}

#[test]
fn every_kernel_of_the_build_is_one_module_of_vulkan_1_2() {
    assert!(!spirv::ALL.is_empty());
    for kernel in spirv::ALL {
        assert_eq!(kernel.words[0], 0x0723_0203, "SPIR-V magic of {}", kernel.name);
        assert!(kernel.words[1] <= 0x0001_0500, "{} is newer than SPIR-V 1.5", kernel.name);
        assert!(kernel.push_bytes <= 128, "every device has 128 bytes of push constants");
        assert!(kernel.spec_count >= 3, "{}: the local size is constants 0, 1, 2", kernel.name);
    }
    let mut names: Vec<_> = spirv::ALL.iter().map(|kernel| kernel.name).collect();
    names.dedup();
    assert_eq!(names.len(), spirv::ALL.len(), "sorted, and each once");
}
