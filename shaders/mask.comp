// mask: takes tokens that must not be chosen out of rows of logits: theirs become -inf.
//
// Dispatch   (words / LANES rounded up, rows, 1), a word being 32 tokens; local size (LANES, 1, 1):
//            a lane has a word
// Binding 0  logits  f32 [rows, stride]
// Binding 1  wanted  readonly  Row [rows] (include/sampling.glsl)
// Binding 2  masks  readonly  u32 [masks, words]: a bit for each token that may be chosen, the
//                   first lowest
// Needs      vocab at most stride; no subgroup features
// Numerics   bit for bit as the twin
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uint stride; // logits of a row
    uint words;
};
#include "sampling.glsl"
layout(std430, binding = 0) buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Wanted { Row wanted[]; };
layout(std430, binding = 2) readonly buffer Masks { uint masks[]; };

void main() {
    const uint word = gl_GlobalInvocationID.x;
    const uint row = gl_WorkGroupID.y;
    const uint mask = wanted[row].mask;
    if (word >= words || mask == NONE) {
        return;
    }
    const uint allowed = masks[mask * words + word];
    if (allowed == 0xffffffffu) {
        return;
    }
    const uint end = min(word * 32 + 32, wanted[row].vocab);
    for (uint id = word * 32; id < end; id++) {
        if ((allowed >> (id & 31) & 1) == 0) {
            logits[row * stride + id] = uintBitsToFloat(0xff800000u);
        }
    }
}
