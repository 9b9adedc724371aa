// block_sums: sums of the blocks of rows of x * g, a step of their own before matmuls that want
// them: where many workgroups read x, each would add it up again.
//
// Every sum has the order in which matmul_sliced makes it by itself: a matmul has the same bits
// either way.
//
// Dispatch   (rows, 1, 1); local size (LANES, 1, 1)
// Binding 0  x       readonly  f32 [rows, x_stride]
// Binding 1  gain    readonly  f32 [K], with NORM
// Binding 2  gained  f32 [rows, K]: x * gain, with NORM
// Binding 3  sums    vec4 [rows, K / 32]: of a block, of its first and of its second 16 values; in
//                    a row's first one also the factor of an RMS norm, else 1
// Needs      subgroup shuffle
// Numerics   f32; within 1e-6 of the twin relative to sum |x|
//
// Variant block_sums: SUBGROUPS=1
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint NORM = 0; // 1: RMS-normalise x and multiply by gain

layout(push_constant) uniform Params {
    uint x_stride; // in vec4
    uint blocks;   // blocks of 32 in a row
    float epsilon; // with NORM
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Gain { vec4 gain[]; };
layout(std430, binding = 2) writeonly buffer Gained { vec4 gained[]; };
layout(std430, binding = 3) writeonly buffer Sums { vec4 sums[]; };

#include "add_up.glsl"

void main() {
    const uint row = gl_WorkGroupID.x;
    const uint lane = gl_LocalInvocationID.x;
    float squares = 0.0;
    vec2 first = vec2(0.0); // halves of block 0, which lane 0 has
    for (uint at = 0; at < blocks; at += LANES) {
        const uint block = at + lane;
        float own_squares = 0.0;
        if (block < blocks) {
            float parts[8];
            float square_parts[8];
            [[unroll]] for (uint i = 0; i < 8; i++) {
                vec4 v = x[row * x_stride + block * 8 + i];
                if (NORM == 1) {
                    square_parts[i] = squares_of(v);
                    v *= gain[block * 8 + i];
                    gained[(row * blocks + block) * 8 + i] = v;
                }
                parts[i] = (v.x + v.y) + (v.z + v.w);
            }
            const vec2 halves = add_up_halves(parts);
            if (block > 0) {
                sums[row * blocks + block] = vec4(halves.x + halves.y, halves, 0.0);
            } else {
                first = halves;
            }
            if (NORM == 1) {
                own_squares = add_up(square_parts);
            }
        }
        if (NORM == 1) {
            // One block after the other; what is behind the last adds nothing.
            for (uint i = 0; i < LANES; i++) {
                squares += subgroupShuffle(own_squares, i);
            }
        }
    }
    if (lane == 0) {
        const float factor =
            NORM == 1 ? inversesqrt(squares / float(blocks * 32) + epsilon) : 1.0;
        sums[row * blocks] = vec4(first.x + first.y, first, factor);
    }
}
