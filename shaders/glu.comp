// glu: y[t, i] = act(gate[t, i]) * up[t, i], the feed-forward's gate where something comes between
// the matmuls and the activation (the fused form is an epilogue of matmul). `group` values of gate
// and `group` of up take turns in x; with `group` = dim, all of gate comes before all of up.
//
// Dispatch   (tokens, parts, 1); local size (LANES, 1, 1): the parts of a token share its rows
// Binding 0  x  readonly  f32 [tokens, 2 * dim]
// Binding 1  y  f32 [tokens, dim]
// Needs      nothing
// Numerics   f32; within 1e-5 of the twin, relative
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint GELU = 0; // 0: SiLU, 1: GELU's tanh form

layout(push_constant) uniform Params {
    uint dim;
    uint group;
};
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Y { float y[]; };

#include "activation.glsl"

void main() {
    const uint from = gl_WorkGroupID.x * 2 * dim;
    const uint to = gl_WorkGroupID.x * dim;
    const uint stride = LANES * gl_NumWorkGroups.y;
    for (uint i = gl_WorkGroupID.y * LANES + gl_LocalInvocationID.x; i < dim; i += stride) {
        const uint at = from + i + i / group * group;
        float gate = x[at];
        y[to + i] = (GELU == 1 ? gelu(gate) : silu(gate)) * x[at + group];
    }
}
