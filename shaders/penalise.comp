// penalise: changes the logits of listed tokens: adds their biases, and makes those less likely
// that the text has already.
//
// Dispatch   (rows, 1, 1); local size (LANES, 1, 1)
// Binding 0  logits  f32 [rows, stride]
// Binding 1  wanted  readonly  Row [rows] (include/sampling.glsl)
// Binding 2  listed  readonly  Penalty, a list for each row: no two of one token
// Binding 3  chosen  readonly  u32 [rows of the step before], its tokens
// Needs      no subgroup features
// Numerics   bit for bit as the twin
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uint stride; // logits of a row
};
#include "sampling.glsl"
layout(std430, binding = 0) buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Wanted { Row wanted[]; };
layout(std430, binding = 2) readonly buffer Listed { Penalty listed[]; };
layout(std430, binding = 3) readonly buffer Chosen { uint chosen[]; };

void penalise(uint row, Penalty one) {
    if (one.token >= wanted[row].vocab) {
        return;
    }
    precise float left = logits[row * stride + one.token] + one.bias;
    if (one.repeats != 0) {
        left = left * (left <= 0.0 ? wanted[row].penalty : wanted[row].relief);
    }
    if (one.count > 0) {
        precise float loss = float(one.count) * wanted[row].frequency;
        loss = loss + wanted[row].presence;
        left = left - loss;
    }
    logits[row * stride + one.token] = left;
}

void main() {
    const uint row = gl_WorkGroupID.x;
    const uint count = wanted[row].penalties;
    const uint first = wanted[row].penalties_at;
    const uint pending = wanted[row].penalty_pending;
    const uint next = pending == NONE ? NONE : chosen[pending];
    for (uint i = gl_LocalInvocationID.x; i < count; i += LANES) {
        Penalty one = listed[first + i];
        if (one.token == next) {
            one.count += 1;
            one.repeats = 1;
        }
        penalise(row, one);
    }
    if (gl_LocalInvocationID.x == 0 && next != NONE) {
        bool known = false;
        for (uint i = 0; i < count; i++) {
            known = known || listed[first + i].token == next;
        }
        if (!known) {
            penalise(row, Penalty(next, 1, 1, 0.0));
        }
    }
}
