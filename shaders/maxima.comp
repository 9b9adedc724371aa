// maxima: the largest logit of each chunk of a row, and its token; of equals the lower one. Chunk c
// has the tokens c, c + chunks, c + 2 chunks, ...
//
// Dispatch   (chunks / LANES rounded up, rows, 1); local size (LANES, 1, 1): a lane has a chunk
// Binding 0  logits  readonly  f32 [rows, stride]
// Binding 1  wanted  readonly  Row [rows] (include/sampling.glsl)
// Binding 2  maxima  u32 [rows, chunks, 2]: the logit's key, and its token; NONE for both where the
//                    chunk has what is no number
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
    uint chunks;
};
#include "sampling.glsl"
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Wanted { Row wanted[]; };
layout(std430, binding = 2) buffer Maxima { uvec2 maxima[]; };

void main() {
    const uint chunk = gl_GlobalInvocationID.x;
    const uint row = gl_WorkGroupID.y;
    if (chunk >= chunks) {
        return;
    }
    const uint vocab = wanted[row].vocab;
    const uint from = row * stride;
    uint best = 0;
    uint token = NONE;
    bool usable = true;
    for (uint id = chunk; id < vocab; id += chunks) {
        const uint key = key_of(logits[from + id]);
        usable = usable && key < KEY_INFINITE && key >= KEY_LEAST;
        token = key > best ? id : token;
        best = max(best, key);
    }
    maxima[row * chunks + chunk] = usable ? uvec2(best, token) : uvec2(NONE);
}
