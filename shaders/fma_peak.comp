// fma_peak: many multiply-adds in registers, to measure what a device computes at most.
//
// Each lane has SUMS values that do not depend on one another, and `rounds` times makes each
// value * 0.75 + c, where c is that value's own; all end at about 4 c, whatever the rounding.
//
// Dispatch   (workgroups, 1, 1); local size (LANES, 1, 1)
// Binding 0  y  f32 [workgroups, LANES]; written only
// Needs      nothing
// Numerics   f32; a driver may fuse: within 1e-5 of the twin, relative
#version 460
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint SUMS = 24; // independent values of a lane

layout(push_constant) uniform Params {
    uint rounds;
    float factor; // 0.75, which no compiler knows
};
layout(std430, binding = 0) writeonly buffer Y { float y[]; };

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const float c = 1.0 + float(lane) / 64.0;
    float sums[SUMS];
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = float(i) / 8.0;
    }
    for (uint round = 0; round < rounds; round++) {
        [[unroll]] for (uint i = 0; i < SUMS; i++) {
            sums[i] = sums[i] * factor + c;
        }
    }
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        all += sums[i];
    }
    y[gl_WorkGroupID.x * LANES + lane] = all;
}
