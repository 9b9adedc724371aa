// layer_norm: y[t] = (x[t] - mean(x[t])) * gain / sqrt(variance(x[t]) + epsilon) + bias, one token
// per workgroup.
//
// Dispatch   (tokens, 1, 1); local size (LANES, 1, 1)
// Binding 0  x     readonly  f32 [tokens, dim]
// Binding 1  gain  readonly  f32 [dim]
// Binding 2  bias  readonly  f32 [dim], with BIAS
// Binding 3  y     f32 [tokens, dim]
// Needs      dim a multiple of 4; subgroup shuffle with SUBGROUPS=1
// Numerics   f32, the variance in a second pass; within 1e-6 of the twin, relative to x's deviation
//
// Variant layer_norm: SUBGROUPS=1
// Variant layer_norm_shared: SUBGROUPS=0
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint BIAS = 0; // 1: add bias

layout(push_constant) uniform Params {
    uint dim; // in vec4
    float epsilon;
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Gain { vec4 gain[]; };
layout(std430, binding = 2) readonly buffer Bias { vec4 bias[]; };
layout(std430, binding = 3) buffer Y { vec4 y[]; };

#define ROWS_Y 1
#define LANE_SLOTS 1
#include "lanes.glsl"

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint at = gl_WorkGroupID.x * dim;
    float sum = 0.0;
    for (uint i = lane; i < dim; i += LANES) {
        vec4 v = x[at + i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    const float mean = lanes_sum(sum, LANES) / float(4 * dim);
    float squares = 0.0;
    for (uint i = lane; i < dim; i += LANES) {
        vec4 v = x[at + i] - mean;
        squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    const float factor = inversesqrt(lanes_sum(squares, LANES) / float(4 * dim) + epsilon);
    for (uint i = lane; i < dim; i += LANES) {
        vec4 v = (x[at + i] - mean) * factor * gain[i];
        y[at + i] = BIAS == 1 ? v + bias[i] : v;
    }
}
