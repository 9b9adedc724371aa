// matmul_bytes: y[t, m] = epilogue(factor[t] * sum_k W[m, k] * x[t, k]) for many tokens, in bytes.
//
// Tiles as in include/tile.glsl; x was narrowed by quantize_x.comp. Each lane has R rows and
// TOKENS / SPLIT columns. Weights stay the whole numbers that they are in their blocks, times a
// scale and with a bias: four of them are multiplied by as many bytes of x in one operation, and
// all of a scale are summed as whole numbers.
//
// Dispatch   (token tiles, row tiles, 1), or with LISTED (experts, row tiles, tiles of a list);
//            local size (LANES, SPLIT, 1)
// Binding 0  quads     readonly  128-bit plane of W (include/weights.glsl)
// Binding 1  words     readonly  32-bit plane of W
// Binding 2  x         readonly  bytes and scales [tokens, x_stride], as quantize_x.comp has them
// Binding 3  y         f32 [tokens, y_stride]; read only by the residual epilogue
// Binding 4  factors   readonly  f32 [tokens]
// Binding 5  bias      readonly  f32 [rows], with BIAS; with LISTED instead
//            lists     readonly  u32 [experts, 1 + list_max], the length of each and its routes
// Needs      matmuls of packed bytes; R even; TOKENS a multiple of SPLIT; shared memory
//            96 * (R * LANES + TOKENS) bytes
// Numerics   whole numbers within a block, blocks in f32; within 1e-5 of the twin relative to
//            sum |w x|
//
// Types Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K
// Variant matmul_bytes_TYPE: MATRIX=0 SUBGROUPS=0
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require
#extension GL_GOOGLE_include_directive : require

// A row's block in shared memory: two quads of bytes, and one of their scales and biases. Three
// quads keep the rows that lanes read together out of one another's banks.
const uint ROW_QUADS = 3;
#define X_QUADS 3
#include "tile.glsl"

// Bytes that are unsigned to their last bit become signed by 128 less.
const uint SIGN = CODES == BYTES ? 0x80808080u : 0;
const float SHIFT = CODES == BYTES ? 128.0 : 0.0;

void put_row(uint own, uint block, uint at) {
    vec2 scale[2];
    [[unroll]] for (int part = 0; part < 2; part++) {
        const uint sub = block % BLOCKS_PER_UNIT;
        scale[part] = block_scale(own_heads[own], 0, sub, SCALES == 2 ? part : 0);
        scale[part].y += SHIFT * scale[part].x;
    }
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint first = 4 * i;
        tile[at + i] = SIGN
            ^ uvec4(own_weights[own].u[first], own_weights[own].u[first + 1],
                own_weights[own].u[first + 2], own_weights[own].u[first + 3]);
    }
    tile[at + 2] = floatBitsToUint(vec4(scale[0], scale[1]));
}

int dot_of_16(ivec4 a, ivec4 b) {
    return (dotPacked4x8EXT(a.x, b.x) + dotPacked4x8EXT(a.y, b.y))
        + (dotPacked4x8EXT(a.z, b.z) + dotPacked4x8EXT(a.w, b.w));
}

void multiply(uint stage) {
    ivec4 w[R][2];
    vec4 scales[R];
    [[unroll]] for (uint r = 0; r < R; r++) {
        const uint at = row_at(stage, r);
        w[r][0] = ivec4(tile[at]);
        w[r][1] = ivec4(tile[at + 1]);
        scales[r] = uintBitsToFloat(tile[at + 2]);
    }
    [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
        const uint at = column_at(stage, t);
        const ivec4 low = ivec4(tile[at]);
        const ivec4 high = ivec4(tile[at + 1]);
        const vec4 v = uintBitsToFloat(tile[at + 2]); // scale, and sums of the two halves
        [[unroll]] for (uint r = 0; r < R; r++) {
            const int first = dot_of_16(w[r][0], low);
            const int second = dot_of_16(w[r][1], high);
#if SCALES == 2
            const float matmuls = scales[r].x * float(first) + scales[r].z * float(second);
            sums[r][t] += v.x * matmuls + (scales[r].y * v.y + scales[r].w * v.z);
#else
            sums[r][t] += scales[r].x * v.x * float(first + second) + scales[r].y * (v.y + v.z);
#endif
        }
    }
}
