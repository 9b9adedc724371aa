// matmul_sliced: y[t, m] = epilogue(norm[t] * sum_k W[m, k] * x[t, k] * g[k]) for sliced weights W.
//
// For devices whose loads of one address by all lanes cost one load: software drivers with vector
// registers. One lane owns R rows of W and TOKENS columns; a tile of R groups of eight rows is one
// stream of memory. No lane ever adds up another lane's matmuls, and every sum has one order
// whatever TOKENS is: sums over a block's eight vec4 of x are trees over their numbers. With SUMS
// they are there already, and x is multiplied by its gain (block_sums).
//
// Dispatch   (token tiles, tiles of R groups of rows, 1); local size (LANES, 1, 1)
// Binding 0  quads     readonly  W (include/sliced.glsl)
// Binding 1  x         readonly  f32 [tokens, x_stride]
// Binding 2  gain      readonly  f32 [K], with NORM; with SUMS the sums, vec4 [tokens, K / 32]
// Binding 3  y         f32 [tokens, y_stride]; read only by the residual epilogue
// Binding 4  bias      readonly  f32 [rows], with BIAS
// Needs      LANES = 8, all of one subgroup; buffer addresses; subgroup shuffle
// Numerics   f32; within 1e-5 of the twin relative to sum |w x|
//
// Types F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K
// Types IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
// Variant matmul_sliced_TYPE: SUBGROUPS=1
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint R = 4;      // groups of a tile, a fact of the layout
layout(constant_id = 4) const uint TOKENS = 1; // columns of a tile
layout(constant_id = 5) const uint NORM = 0;   // 1: RMS-normalise x and multiply by gain
layout(constant_id = 6) const uint BIAS = 0;   // 1: add bias
layout(constant_id = 7) const uint EPILOGUE = 0;
layout(constant_id = 8) const uint SUMS = 0;   // 1: of x's blocks, as block_sums makes them

layout(push_constant) uniform Params {
    uvec2 quad_address;
    uvec2 x_address;
    uvec2 gain_address;
    uint units;    // units in a row of W
    uint rows;     // rows of y to write
    uint groups;   // groups of LANES rows; fill up the last tile
    uint tokens;   // rows of x
    uint x_stride; // in vec4; a multiple of 8
    uint y_stride; // in floats
    uint y_offset; // in floats
    uint blocks;   // blocks of 32 in a row of W
    float epsilon; // with NORM
    float y_scale;
};
layout(std430, binding = 0) readonly buffer Quads { uvec4 bound_quads[]; };
layout(std430, binding = 1) readonly buffer X { vec4 bound_x[]; };
layout(std430, binding = 2) readonly buffer Gain { vec4 bound_gain[]; }; // or sums
layout(std430, binding = 3) buffer Y { float y[]; };
layout(std430, binding = 4) readonly buffer Bias { float bias[]; };

struct Row {
    vec4 at[8];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Rows { Row at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Sums { vec4 at[]; };

#include "add_up.glsl"
#include "epilogue.glsl"
#define TILES_BY_ADDRESS
#include "sliced.glsl"

// What there is to know of a group's block: Head of its unit, Weights loaded ahead, and vec4 number
// `at` of them.
#if BIT_SLICED
#define Head vec2
#define SCALE(head, group, sub, part) block_scale(head, tile_index, group, sub, part)
#define WEIGHTS_AT(group, sub, at) weights_at(tile_index, group, sub, at)
#elif QUANTISED
#define Head UnitHead
#define unit_head load_unit
#define SCALE(head, group, sub, part) block_scale(head, group, sub, part)
#define WEIGHTS_AT(group, sub, at) expand(loaded[group].u[at])
#else
#define WEIGHTS_AT(group, sub, at) loaded[group].w[at]
#endif

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint token_first = gl_WorkGroupID.x * TOKENS;
    const uint tile = gl_WorkGroupID.y;
    // Drivers load push constants where they are named, and check each: hoisted by hand.
    tile_base = quad_address;
    const uvec2 x_base = x_address;
    const uvec2 gain_base = gain_address;
    const uint block_count = blocks;
    const uint unit_count = units;
    slice_begin(gl_SubgroupInvocationID);

    const bool adds_up = SUMS == 0;
    const bool norm_here = NORM == 1 && adds_up;
    uint x_at[TOKENS];
    uint sums_at[TOKENS]; // with SUMS
    float squares[TOKENS];
    float sums[R][TOKENS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint row = min(token_first + t, tokens - 1);
        x_at[t] = row * (x_stride / 8);
        sums_at[t] = row * block_count;
        squares[t] = 0.0;
        [[unroll]] for (uint r = 0; r < R; r++) {
            sums[r][t] = 0.0;
        }
    }

    // Both loops end behind their bodies: software drivers go on to the end of a body that a loop
    // is left in the middle of, and loads of one address by all lanes happen there.
    uint unit = 0;
    do {
        const uint tile_index = tile * unit_count + unit;
#ifdef SCALE
        Head head[R];
        if (BLOCKS_PER_UNIT > 1) {
            [[unroll]] for (uint r = 0; r < R; r++) {
                head[r] = unit_head(tile_index, r);
            }
        }
#endif
        uint sub = 0;
        do {
            const uint block_at = unit * BLOCKS_PER_UNIT + sub;
            float x_sum[TOKENS][SCALES];
            float matmuls[R][TOKENS][SCALES];
            float x_parts[TOKENS][8];
            float square_parts[TOKENS][8];
#if !BIT_SLICED
            Block loaded[R];
            [[unroll]] for (uint r = 0; r < R; r++) {
                loaded[r] = load_block(tile_index, r, sub);
            }
#endif
            [[unroll]] for (uint at = 0; at < 8; at++) {
                const uint part = at * SCALES / 8;
                const bool first = at * SCALES % 8 == 0;
                vec4 u[R];
                [[unroll]] for (uint r = 0; r < R; r++) {
                    u[r] = WEIGHTS_AT(r, sub, at);
                }
                vec4 gain = vec4(1.0);
                if (norm_here) {
                    gain = Rows(gain_base).at[block_at].at[at];
                }
                [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                    vec4 v = Rows(x_base).at[x_at[t] + block_at].at[at];
                    if (norm_here) {
                        square_parts[t][at] = squares_of(v);
                        v *= gain;
                    }
                    if (adds_up) {
                        x_parts[t][at] = (v.x + v.y) + (v.z + v.w);
                    }
                    v *= PRESCALE;
                    [[unroll]] for (uint r = 0; r < R; r++) {
                        const vec4 w = u[r];
                        const float p = (w.x * v.x + w.y * v.y) + (w.z * v.z + w.w * v.w);
                        matmuls[r][t][part] = first ? p : matmuls[r][t][part] + p;
                    }
                }
            }
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                if (norm_here) {
                    squares[t] += add_up(square_parts[t]);
                }
                vec3 block_sums; // of the block, and of its halves
                if (adds_up) {
                    block_sums.yz = add_up_halves(x_parts[t]);
                    block_sums.x = block_sums.y + block_sums.z;
                } else {
                    block_sums = Sums(gain_base).at[sums_at[t] + block_at].xyz;
                }
                [[unroll]] for (uint p = 0; p < SCALES; p++) {
                    x_sum[t][p] = block_sums[SCALES == 1 ? 0 : 1 + p];
                }
            }
            [[unroll]] for (uint r = 0; r < R; r++) {
#ifdef SCALE
                if (BLOCKS_PER_UNIT == 1) {
                    head[r] = unit_head(tile_index, r);
                }
                [[unroll]] for (int p = 0; p < SCALES; p++) {
                    const vec2 scale = SCALE(head[r], r, sub, p);
                    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                        sums[r][t] += scale.x * matmuls[r][t][p] + scale.y * x_sum[t][p];
                    }
                }
#else
                [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                    sums[r][t] += matmuls[r][t][0];
                }
#endif
            }
        } while (++sub < BLOCKS_PER_UNIT);
    } while (++unit < unit_count);

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (token_first + t >= tokens) {
            break;
        }
        float factor = 1.0;
        if (norm_here) {
            factor = inversesqrt(squares[t] / float(block_count * 32) + epsilon);
        } else if (NORM == 1) {
            factor = Sums(gain_base).at[sums_at[t]].w;
        }
        float column[R];
        [[unroll]] for (uint r = 0; r < R; r++) {
            column[r] = sums[r][t];
        }
        const uint y_row = (token_first + t) * y_stride + y_offset;
        write_column(column, tile * R, lane, factor, y_row);
    }
}
