// embed: y[t] = factor * W[token[t]], or y[t] += factor * W[position[t]], for rows of the packed
// table W that this slice of it holds.
//
// Dispatch   (tokens, 1, 1); local size (LANES, 1, 1)
// Binding 0  quads   readonly  128-bit plane of W from row row_first on (include/weights.glsl), or
//                    the sliced rows (include/sliced.glsl)
// Binding 1  words   readonly  32-bit plane of W from row row_first on, or the sliced rows again
// Binding 2  steps   readonly  uvec4 [tokens]: token id, or PENDING and its row of the step before;
//                    position, block table, unused
// Binding 3  y       f32 [tokens, y_stride]; rows of tokens outside the slice stay as they are;
//                    read only with COLUMN > 0
// Binding 4  chosen  readonly  u32 [rows of the step before]: its tokens; only with COLUMN 0
// Needs      nothing
// Numerics   one matmul and one sum a weight; within 1e-6 of the twin, relative
//
// Types F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K
// Types IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
// Variant embed_TYPE:
// Variant embed_sliced_TYPE: SLICED
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
// The rows are those of column 0 of the steps, the tokens; of another column they are added to y.
layout(constant_id = 3) const uint COLUMN = 0;

layout(push_constant) uniform Params {
    uint units;     // units in a row of W
    uint blocks;    // blocks of 32 in a row
    uint row_first; // the slice's first row, the first of a group
    uint row_count; // its rows
    uint y_stride;  // in vec4
    float factor;
};
#ifdef SLICED
#include "sliced.glsl"
#else
layout(std430, binding = 0) readonly buffer Quads { uvec4 quads[]; };
#endif
layout(std430, binding = 1) readonly buffer Words { uint words[]; };
layout(std430, binding = 2) readonly buffer Steps { uvec4 steps[]; };
layout(std430, binding = 3) buffer Y { vec4 y[]; };
layout(std430, binding = 4) readonly buffer Chosen { uint chosen[]; };

const uint PENDING = 0x80000000u;

void store(uint at, vec4 value) { y[at] = COLUMN > 0 ? y[at] + value : value; }

#ifdef SLICED
// Where `block_index` of `row` lies: tile and group.
uvec2 place_of(uint row, uint block_index) {
    slice_begin(row % 8);
    return uvec2(row / 8 / GROUPS * units + block_index / BLOCKS_PER_UNIT, row / 8 % GROUPS);
}
#else
#include "weights.glsl"
#define BIT_SLICED 0

// Where `block_index` of `row` lies in both planes.
uvec2 place_of(uint row, uint block_index) {
    const uint unit = row / LANES * units + block_index / BLOCKS_PER_UNIT;
    return unit * uvec2(QUADS, WORDS) * LANES + row % LANES;
}
#endif

// Writes a block of row `row`.
void write_block(uint row, uint block_index, uint y_at) {
    const uvec2 place = place_of(row, block_index);
    const uint sub = block_index % BLOCKS_PER_UNIT;
#if BIT_SLICED
    const vec2 head = unit_head(place.x, place.y);
    [[unroll]] for (int i = 0; i < 8; i++) {
        const vec2 scale = block_scale(head, place.x, place.y, sub, i * SCALES / 8);
        store(y_at + i, factor * (weights_at(place.x, place.y, sub, i) * scale.x + scale.y));
    }
#else
    const Block block = load_block(place.x, place.y, sub);
#if QUANTISED
    const UnitHead head = load_unit(place.x, place.y);
    [[unroll]] for (int i = 0; i < 8; i++) {
        vec2 scale = block_scale(head, place.y, sub, i * SCALES / 8);
        store(y_at + i, factor * (expand(block.u[i]) * PRESCALE * scale.x + scale.y));
    }
#else
    [[unroll]] for (int i = 0; i < 8; i++) {
        store(y_at + i, factor * block.w[i]);
    }
#endif
#endif
}

void main() {
    const uint token = gl_WorkGroupID.x;
    uint row = steps[token][COLUMN];
    if (COLUMN == 0 && (row & PENDING) != 0) {
        row = chosen[row & ~PENDING];
    }
    row -= row_first;
    if (row >= row_count) { // also where the row lies before the slice: the difference wraps
        return;
    }
    for (uint block_index = gl_LocalInvocationID.x; block_index < blocks; block_index += LANES) {
        write_block(row, block_index, token * y_stride + block_index * 8);
    }
}
