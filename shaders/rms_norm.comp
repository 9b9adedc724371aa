// rms_norm: y[t] (+)= x[t] * gain / sqrt(mean(x[t]^2) + epsilon), one token per workgroup.
//
// Dispatch   (tokens, 1, 1); local size (LANES, 1, 1)
// Binding 0  x     readonly  f32 [tokens, dim]
// Binding 1  gain  readonly  f32 [dim]
// Binding 2  y     f32 [tokens, dim]; read only with RESIDUAL
// Needs      dim a multiple of 4; subgroup shuffle with SUBGROUPS=1
// Numerics   f32; within 1e-6 of the twin, relative
//
// Variant rms_norm: SUBGROUPS=1
// Variant rms_norm_shared: SUBGROUPS=0
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint RESIDUAL = 0; // 1: add to y

layout(push_constant) uniform Params {
    uint dim; // in vec4
    float epsilon;
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Gain { vec4 gain[]; };
layout(std430, binding = 2) buffer Y { vec4 y[]; };

#define ROWS_Y 1
#define LANE_SLOTS 1
#include "lanes.glsl"

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint at = gl_WorkGroupID.x * dim;
    float squares = 0.0;
    for (uint i = lane; i < dim; i += LANES) {
        vec4 v = x[at + i];
        squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    const float factor = inversesqrt(lanes_sum(squares, LANES) / float(4 * dim) + epsilon);
    for (uint i = lane; i < dim; i += LANES) {
        vec4 v = x[at + i] * factor * gain[i];
        y[at + i] = RESIDUAL == 1 ? y[at + i] + v : v;
    }
}
